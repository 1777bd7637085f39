//! What can be seen of a sender from outside.

use std::time::Duration;

use crate::estimate::LinkEstimator;
use crate::liveness::Liveness;
use crate::{Bytes, LaneId, LaneSeq, LinkId};

use super::Sender;

impl<T: Clone> Sender<T> {
    /// The number that a lane's next packet will have.
    #[must_use]
    pub fn next_seq(&self, lane: LaneId) -> LaneSeq {
        LaneSeq(self.lanes[lane.index()])
    }

    /// What is known of a link.
    #[must_use]
    pub fn link(&self, id: LinkId) -> Option<(&LinkEstimator, &Liveness)> {
        let link = self.links.iter().find(|link| link.id == id)?;
        Some((&link.estimator, &link.liveness))
    }

    /// The time in which something asked for again would come, on the best link: what the far
    /// end's [`Receiver::set_retransmit_delay`](crate::bond::Receiver::set_retransmit_delay) is to be told.
    #[must_use]
    pub fn retransmit_delay(&self) -> Option<Duration> {
        let known = self.links.iter().filter(|link| link.is_usable());
        known
            .filter(|link| link.estimator.rtt().is_known())
            .map(|link| link.estimator.rtt().rto())
            .min()
    }

    /// Packets and bytes that wait for links.
    #[must_use]
    pub fn backlog(&self) -> (usize, Bytes) {
        (self.queue.packets(), self.queue.bytes())
    }

    /// Packets dropped or marked on purpose, and dropped for want of room.
    #[must_use]
    pub fn drops(&self) -> (u64, u64, u64) {
        let queue = &self.queue;
        (queue.dropped(), queue.marked(), queue.overflowed())
    }

    /// Sums sent.
    #[must_use]
    pub fn repair_symbols(&self) -> u64 {
        self.repair_symbols
    }

    /// Packets sent again because they were asked for or in flight on a link that fell silent.
    #[must_use]
    pub fn retransmitted(&self) -> u64 {
        self.retransmitted
    }
}
