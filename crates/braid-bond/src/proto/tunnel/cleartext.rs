//! Cleartext packets, as GRE ([`gre`]): when a link sends them, and which ones it accepts.
//!
//! They are not authenticated, so they carry inner packets and nothing else; reports, requests,
//! addresses and keys stay sealed. Three rules limit an attacker's packets to adding inner packets:
//! they must come from the validated address of the link's other end; they confirm no keys and move
//! no address; and the replay guard bounds their numbers by the sealed ones
//! ([`ReplayGuard::admit_cleartext`](crate::proto::replay_guard::ReplayGuard::admit_cleartext)).
//! For the last rule, one packet in [`SEALED_EVERY`] of a link is sealed.
//!
//! Networks that pass UDP need not pass GRE. A link sends cleartext once a cleartext PING was
//! answered, and returns to sealed packets when one is not.

use std::net::SocketAddr;
use std::time::Duration;

use braid_core::{Bytes, Time};
use braid_multipath::LinkId;

use super::receive::Origin;
use super::{Datagram, IP_UDP_HEADERS, Tunnel};
use crate::proto::entropy::Entropy;
use crate::proto::frame::{Frame, Frames, Ping};
use crate::proto::gre::{self, GRE_HEADER};
use crate::proto::packet::{Header, OVERHEAD, STAMP};
use crate::proto::reject::Reject;

/// One packet in this many of a link is sealed. Sixteen of those may be lost before the window of
/// cleartext numbers ends.
pub(super) const SEALED_EVERY: u64 = 1024;

/// Interval of GRE probes on a link that passes GRE and carries data.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// First and largest interval of probes on a link that does not pass GRE.
const MIN_PROBE_RETRY: Duration = Duration::from_secs(1);
const MAX_PROBE_RETRY_DELAY: Duration = Duration::from_secs(60);

/// Tokens of GRE probes; those of the MTU search are sizes.
const PROBE_TOKENS: u32 = 1 << 28;

/// Probing of a link for GRE.
#[derive(Debug)]
pub(super) struct GreProbe {
    open: bool,
    /// Token of the unanswered probe.
    asked: Option<u32>,
    due: Time,
    after: Duration,
}

impl GreProbe {
    /// A link that has not been probed; the first probe is due at once.
    pub fn new(now: Time) -> Self {
        GreProbe {
            open: false,
            asked: None,
            due: now,
            after: MIN_PROBE_RETRY,
        }
    }

    /// Returns true if the link passes GRE.
    pub fn is_passing(&self) -> bool {
        self.open
    }

    /// The token of the probe to send now. `busy`: the link carries inner packets. An idle link
    /// that passed GRE is not probed again.
    fn poll(&mut self, now: Time, busy: bool, entropy: &mut Entropy) -> Option<u32> {
        if now < self.due || self.open && !busy {
            return None;
        }
        if self.asked.is_some() {
            if !self.open {
                self.after = (self.after * 2).min(MAX_PROBE_RETRY_DELAY);
            }
            self.open = false;
        }
        let token = PROBE_TOKENS | (entropy.u64() as u32 & (PROBE_TOKENS - 1));
        self.asked = Some(token);
        self.due = now
            + if self.open {
                PROBE_INTERVAL
            } else {
                self.after
            };
        Some(token)
    }

    /// The time of the next probe that does not depend on traffic.
    fn poll_timeout(&self) -> Option<Time> {
        (!self.open).then_some(self.due)
    }

    /// Handles a PONG. Returns true if it answers a probe.
    pub fn handle_pong(&mut self, now: Time, token: u32) -> bool {
        if self.asked != Some(token) {
            return false;
        }
        *self = GreProbe {
            open: true,
            asked: None,
            due: now + PROBE_INTERVAL,
            after: MIN_PROBE_RETRY,
        };
        true
    }
}

impl Tunnel {
    /// Sets if this end wants cleartext data, as GRE. It is sent once both ends have agreed at the
    /// begin of a session, and only on links that pass it.
    pub fn set_gre(&mut self, gre: bool) {
        self.gre = gre;
    }

    /// Returns true if a link's data is sent in cleartext.
    #[must_use]
    pub fn is_cleartext(&self, link: LinkId) -> bool {
        let link = self.links[link.index()].as_ref();
        self.is_gre_agreed() && link.is_some_and(|link| link.gre_probe.is_passing())
    }

    fn is_gre_agreed(&self) -> bool {
        self.gre && self.peer.gre
    }

    /// The time of the next GRE probe on any link.
    pub(super) fn gre_probe_timeout(&self) -> Option<Time> {
        let links = self.links.iter().flatten();
        let links = links.filter(|link| self.is_gre_agreed() && link.in_use);
        links.filter_map(|link| link.gre_probe.poll_timeout()).min()
    }

    /// The next GRE probe to send.
    pub(super) fn poll_gre_probe(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        if !self.is_gre_agreed() {
            return None;
        }
        for (index, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link.as_mut().filter(|link| link.in_use) else {
                continue;
            };
            let busy = link
                .carried
                .is_some_and(|at| now.since(at) < PROBE_INTERVAL);
            if let Some(to) = link.path.proven()
                && let Some(token) = link.gre_probe.poll(now, busy, &mut self.entropy)
            {
                return self.send_gre_probe(now, LinkId(index as u8), to, token, out);
            }
        }
        None
    }

    fn send_gre_probe(
        &mut self,
        now: Time,
        id: LinkId,
        to: SocketAddr,
        token: u32,
        out: &mut Vec<u8>,
    ) -> Option<Datagram> {
        let before = self.links[id.index()].as_ref()?.number_base;
        self.scratch.clear();
        Ping { token }.append(&mut self.scratch);
        let wire = Bytes::new((OVERHEAD + self.scratch.len()) as u64 + IP_UDP_HEADERS);
        let (number, stamp) = self.sender.number_control(now, id, wire, false)?;
        let number = braid_multipath::PacketNumber(before + number.0);
        self.begin(now, id, number, stamp, true, out)?;
        out.extend_from_slice(&self.scratch);
        Some(Datagram { link: id, to })
    }

    /// Handles a cleartext packet.
    pub(super) fn handle_cleartext(
        &mut self,
        now: Time,
        (arrived, from): (Time, SocketAddr),
        header: Header,
        packet: &[u8],
    ) -> Result<(), Reject> {
        let (_, bits, frames) = gre::parse(packet).ok_or(Reject::Malformed)?;
        let link = self.links[header.link.index()].as_ref();
        let proven = link.and_then(|link| link.path.proven());
        // A GRE packet has no port.
        let is_from_there = proven.is_some_and(|proven| proven.ip() == from.ip());
        let may = |frame| match frame {
            Ok(Frame::Data(_)) => true,
            Ok(Frame::Ping(ping)) => ping.token != 0,
            _ => false,
        };
        if !self.is_gre_agreed() || !is_from_there || !Frames::new(frames).all(may) {
            return Err(Reject::Cleartext);
        }
        let number = self.replay_guard.admit_cleartext(now, header)?;
        let origin = Origin {
            link: header.link,
            from,
            stamp: self.expand_stamp((now, arrived), header.link, bits),
            arrived,
        };
        // Counted as if it were sealed and in UDP: both ends count the same.
        let sealed = packet.len() - GRE_HEADER - STAMP + OVERHEAD;
        let wire = Bytes::new(sealed as u64 + IP_UDP_HEADERS);
        self.handle_frames(now, origin, number, wire, frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn gre_passes_while_probes_are_answered_and_idle_links_are_not_probed() {
        let mut entropy = Entropy::new(&[1; 32]);
        let mut gre_probe = GreProbe::new(Time::ZERO);
        let token = gre_probe
            .poll(after(0), false, &mut entropy)
            .expect("at once");
        assert!(!gre_probe.handle_pong(after(1), token ^ 1), "guessed");
        assert!(!gre_probe.is_passing());
        assert!(gre_probe.handle_pong(after(1), token));
        assert!(gre_probe.is_passing());
        assert!(!gre_probe.handle_pong(after(1), token), "once");
        assert_eq!(gre_probe.poll_timeout(), None);
        assert_eq!(gre_probe.poll(after(60_000), false, &mut entropy), None);
        assert!(gre_probe.poll(after(60_000), true, &mut entropy).is_some());
        assert!(gre_probe.is_passing(), "one is under way");
        assert!(gre_probe.poll(after(62_000), true, &mut entropy).is_some());
        assert!(!gre_probe.is_passing(), "it was not answered");
    }

    #[test]
    fn a_link_that_passes_no_gre_is_probed_at_growing_intervals() {
        let mut entropy = Entropy::new(&[1; 32]);
        let mut gre_probe = GreProbe::new(Time::ZERO);
        let mut asked = Vec::new();
        for second in 0..200 {
            let now = after(second * 1000);
            if gre_probe.poll(now, true, &mut entropy).is_some() {
                asked.push(second);
            }
            assert!(!gre_probe.is_passing());
        }
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
    }
}
