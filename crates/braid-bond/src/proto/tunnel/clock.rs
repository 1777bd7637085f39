//! Expansion of the other end's stamps and lane numbers, of which only the lowest bits are sent.

use std::time::Duration;

use braid_core::Time;
use braid_multipath::{LANES, LaneId, LaneSeq, Stamp};

use crate::proto::packet::{STAMP_BITS, expand, expand_stamp, stamp_bits};

/// Silence of the other end before new keys, in which its machine may have been suspended.
const DOUBTFUL_SILENCE: Duration = Duration::from_secs(2);

/// The other end's clock, as its stamps show it.
///
/// A clock stands still while its machine is suspended, so that the other end's stamps jump, by some part of the 67 s that
/// they span: every link would seem to have a queue of that length, or to have lost one. So the first stamp after a
/// suspend is taken for that of a packet as quick as the quickest ones before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerClock {
    last: Option<(Stamp, Time)>,
    /// Added to the bits that the other end sends.
    shift: u32,
    is_doubtful: bool,
}

impl PeerClock {
    /// One of the machines has been suspended: the next stamp tells by how much the clocks have moved.
    pub fn handle_suspend(&mut self) {
        self.is_doubtful = self.last.is_some();
    }

    /// New keys continue the session: the other end's machine forgot the last ones, if it was suspended.
    pub fn handle_keys(&mut self, now: Time) {
        if self
            .last
            .is_some_and(|(_, at)| now.since(at) >= DOUBTFUL_SILENCE)
        {
            self.handle_suspend();
        }
    }

    /// Expands a stamp. The upper bits of the first one are arbitrary, since only differences
    /// count. `quickest` returns the stamp of a packet that took as long as the quickest ones lately did, as of a time.
    pub fn expand(
        &mut self,
        now: Time,
        bits: u32,
        quickest: impl FnOnce(Time) -> Option<Stamp>,
    ) -> Stamp {
        // The first stamp is taken as well after the origin, so that earlier ones exist.
        let near = self.last.map_or(Stamp(1 << 40), |(stamp, at)| {
            Stamp(stamp.0 + now.since(at).as_micros() as u64)
        });
        if self.is_doubtful
            && let Some((last, at)) = self.last
        {
            // Stamps of earlier packets stay in front of it.
            let stamp = quickest(at).unwrap_or(near).max(last);
            self.shift = stamp_bits(stamp).wrapping_sub(bits);
            self.is_doubtful = false;
        }
        let stamp = expand_stamp(bits.wrapping_add(self.shift) & STAMP_BITS, near);
        if self.last.is_none_or(|(last, _)| stamp > last) {
            self.last = Some((stamp, now));
        }
        stamp
    }

    /// Returns the bits of a stamp as the other end sent it.
    pub fn bits(&self, stamp: Stamp) -> u32 {
        stamp_bits(stamp).wrapping_sub(self.shift) & STAMP_BITS
    }
}

/// Progress of each lane of the other end.
#[derive(Clone, Debug)]
pub(super) struct PeerLanes([u64; LANES]);

impl Default for PeerLanes {
    fn default() -> Self {
        PeerLanes([0; LANES])
    }
}

impl PeerLanes {
    /// Expands the lowest 24 bits of a packet number without recording it: the packet may be yet to
    /// come.
    pub fn expand_known(&self, lane: LaneId, bits: u32) -> LaneSeq {
        LaneSeq(expand(bits, 24, self.0[lane.index()]))
    }

    /// Expands the lowest 24 bits of a received packet's number.
    pub fn expand(&mut self, lane: LaneId, bits: u32) -> LaneSeq {
        let number = self.expand_known(lane, bits);
        let next = &mut self.0[lane.index()];
        *next = (*next).max(number.0 + 1);
        number
    }
}
