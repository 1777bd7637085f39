//! Expansion of the other end's stamps and lane numbers, of which only the lowest bits are sent.

use braid_core::Time;
use braid_multipath::{LANES, LaneId, LaneSeq, Stamp};

use crate::proto::packet::{expand, expand_stamp};

/// The other end's clock, as its stamps show it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerClock {
    last: Option<(Stamp, Time)>,
}

impl PeerClock {
    /// Expands a stamp. The upper bits of the first one are arbitrary, since only differences
    /// count.
    pub fn expand(&mut self, now: Time, bits: u32) -> Stamp {
        // The first stamp is taken as well after the origin, so that earlier ones exist.
        let near = self.last.map_or(Stamp(1 << 40), |(stamp, at)| {
            Stamp(stamp.0 + now.since(at).as_micros() as u64)
        });
        let stamp = expand_stamp(bits, near);
        if self.last.is_none_or(|(last, _)| stamp > last) {
            self.last = Some((stamp, now));
        }
        stamp
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
