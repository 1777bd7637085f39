//! Counters of a link.

use serde::Serialize;

use crate::link::Fate;

/// Packets and bytes (whole Ethernet frames).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Count {
    pub(crate) fn add(&mut self, len: u32) {
        self.packets += 1;
        self.bytes += u64::from(len);
    }
}

/// Counters of one direction. At all times `arrived` is the sum of the fates and of `held`, in
/// packets and in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Stats {
    /// Arrived at the link.
    pub arrived: Count,
    /// Delivered at the other side.
    pub delivered: Count,
    /// Dropped by a full queue.
    pub queue_full: Count,
    /// Dropped by CoDel.
    pub codel: Count,
    /// Lost at random.
    pub lost_random: Count,
    /// Lost in a burst.
    pub lost_burst: Count,
    /// Lost in the black hole.
    pub black_hole: Count,
    /// In the link now: in the queue, on the wire or in flight.
    pub held: Count,
    /// In the queue now, without the packet on the wire.
    pub queued: Count,
}

impl Stats {
    pub(crate) fn fate(&mut self, fate: Fate, len: u32) {
        let count = match fate {
            Fate::Delivered => &mut self.delivered,
            Fate::QueueFull => &mut self.queue_full,
            Fate::Codel => &mut self.codel,
            Fate::LostRandom => &mut self.lost_random,
            Fate::LostBurst => &mut self.lost_burst,
            Fate::BlackHole => &mut self.black_hole,
        };
        count.add(len);
        self.held.packets -= 1;
        self.held.bytes -= u64::from(len);
    }
}
