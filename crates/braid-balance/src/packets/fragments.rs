//! Fragments that arrived before the first one of their packet, held until it arrives. Pure: no clock, no
//! sockets.
//!
//! Only the first fragment names the ports, so only it can be translated by itself. Networks that
//! spread packets over paths deliver fragments in any order. Their number, their time and the number of one source
//! are bounded, so that a flood of fragments costs other sources nothing.

use std::net::IpAddr;
use std::time::Duration;

use crate::KernelTime;
use crate::maps::layout::{FragmentKey, to_ip};

/// Most fragments held at once; more are let go.
pub const MAX_HELD_FRAGMENTS: usize = 256;
/// Most of one source: a datagram of 65,535 bytes has 45 fragments on an Ethernet.
pub const MAX_HELD_FRAGMENTS_PER_SOURCE: usize =
    crate::generated::MAX_HELD_FRAGMENTS_PER_SOURCE as usize;
/// Time for which a fragment is held. The others of its packet are at most the difference of two
/// paths' delays away.
pub const FRAGMENT_HOLD_TIME: Duration = Duration::from_secs(2);
/// Interval at which the daemon checks for the first fragment.
pub const FRAGMENT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A fragment that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldFragment {
    pub(crate) key: FragmentKey,
    pub(crate) packet: Vec<u8>,
    pub(crate) at: KernelTime,
}

impl HeldFragment {
    /// Returns the sender's address.
    pub fn source(&self) -> IpAddr {
        to_ip(self.key.source)
    }

    /// Returns true if it arrived on an uplink.
    pub fn is_inbound(&self) -> bool {
        self.key.inbound != 0
    }
}

/// Fragments that are held, the oldest first.
#[derive(Debug, Default)]
pub struct Fragments {
    held: Vec<HeldFragment>,
}

impl Fragments {
    /// Holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns true if no fragment is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Number of fragments held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Holds a fragment. `false`: it was let go, because it is too old or there is no room for it.
    pub fn hold(&mut self, fragment: HeldFragment, now: KernelTime) -> bool {
        self.handle_timeout(now);
        let source = fragment.key.source;
        let of_source = self.held.iter().filter(|held| held.key.source == source);
        if now.since(fragment.at) >= FRAGMENT_HOLD_TIME
            || self.held.len() >= MAX_HELD_FRAGMENTS
            || of_source.count() >= MAX_HELD_FRAGMENTS_PER_SOURCE
        {
            return false;
        }
        self.held.push(fragment);
        true
    }

    /// Lets go of what has been held too long.
    pub fn handle_timeout(&mut self, now: KernelTime) {
        self.held
            .retain(|held| now.since(held.at) < FRAGMENT_HOLD_TIME);
    }

    /// Returns the time of the next check for first fragments; `None` if nothing is held.
    pub fn poll_timeout(&self, now: KernelTime) -> Option<KernelTime> {
        (!self.held.is_empty()).then(|| now.after(FRAGMENT_POLL_INTERVAL))
    }

    /// Removes and returns the fragments for which `known` returns a value.
    pub(crate) fn take<T, E>(
        &mut self,
        mut known: impl FnMut(&FragmentKey) -> Result<Option<T>, E>,
    ) -> Result<Vec<(HeldFragment, T)>, E> {
        let mut taken = Vec::new();
        let mut at = 0;
        while let Some(held) = self.held.get(at) {
            match known(&held.key)? {
                Some(what) => taken.push((self.held.remove(at), what)),
                None => at += 1,
            }
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn fragment(source: u8, id: u32, millis: u64) -> HeldFragment {
        let key = FragmentKey {
            source: [source; 16],
            id,
            ..FragmentKey::default()
        };
        let at = KernelTime::from_nanos(millis * 1_000_000);
        let packet = vec![source];
        HeldFragment { key, packet, at }
    }

    fn at(millis: u64) -> KernelTime {
        KernelTime::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_packet_s_fragments_are_taken_together_and_in_order() {
        let mut held = Fragments::new();
        for (id, millis) in [(1, 0), (2, 1), (1, 2)] {
            assert!(held.hold(fragment(9, id, millis), at(millis)));
        }
        let known = |key: &FragmentKey| Ok::<_, Infallible>((key.id == 1).then_some(()));
        let taken = held.take(known).expect("infallible");
        let stamps: Vec<_> = taken.iter().map(|(held, ())| held.at).collect();
        assert_eq!(stamps, [at(0), at(2)]);
        assert_eq!(held.len(), 1);
    }

    #[test]
    fn nothing_is_held_longer_than_its_time() {
        let mut held = Fragments::new();
        assert!(held.hold(fragment(1, 1, 0), at(1999)));
        assert_eq!(held.poll_timeout(at(1999)), Some(at(2004)));
        held.handle_timeout(at(2000));
        assert!(held.is_empty());
        assert_eq!(held.poll_timeout(at(2000)), None);
        assert!(
            !held.hold(fragment(1, 1, 0), at(2000)),
            "from a ring that nobody read"
        );
    }

    #[test]
    fn a_flood_from_one_source_leaves_room_for_others() {
        let mut held = Fragments::new();
        let flood = (0..1000).filter(|&id| held.hold(fragment(1, id, 0), at(0)));
        assert_eq!(flood.count(), MAX_HELD_FRAGMENTS_PER_SOURCE);
        assert!(held.hold(fragment(2, 1, 0), at(0)));
        let many = (3..=255).filter(|&source| held.hold(fragment(source, 1, 0), at(0)));
        assert_eq!(
            many.count(),
            MAX_HELD_FRAGMENTS - MAX_HELD_FRAGMENTS_PER_SOURCE - 1
        );
    }
}
