//! Stamps of the other end, and numbers of its lanes, of which only the lowest bits are sent.

use crate::proto::packet::{expand, expand_stamp};
use braid_core::{LANES, LaneId, LaneSeq, Stamp, Time};

/// The other end's clock, as far as its stamps tell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerClock {
    last: Option<(Stamp, Time)>,
}

impl PeerClock {
    /// The stamp whose lowest bits came now. Until the first one nothing is known of the upper bits;
    /// any will do, since only differences mean something.
    pub fn expand(&mut self, now: Time, bits: u32) -> Stamp {
        // The first is taken to be a while after the origin, so that earlier ones exist.
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

/// How far each lane of the other end has come.
#[derive(Clone, Debug)]
pub(super) struct PeerLanes([u64; LANES]);

impl Default for PeerLanes {
    fn default() -> Self {
        PeerLanes([0; LANES])
    }
}

impl PeerLanes {
    /// The number whose lowest 24 bits came, of a packet that may be yet to come.
    pub fn expand_known(&self, lane: LaneId, bits: u32) -> LaneSeq {
        LaneSeq(expand(bits, 24, self.0[lane.index()]))
    }

    /// The number whose lowest 24 bits came.
    pub fn expand(&mut self, lane: LaneId, bits: u32) -> LaneSeq {
        let number = self.expand_known(lane, bits);
        let next = &mut self.0[lane.index()];
        *next = (*next).max(number.0 + 1);
        number
    }
}
