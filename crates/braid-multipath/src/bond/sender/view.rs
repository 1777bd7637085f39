//! Accessors of a sender.

use std::time::Duration;

use braid_core::Bytes;

use super::Sender;
use crate::LinkId;
use crate::estimate::LinkEstimator;
use crate::liveness::Liveness;

impl<T: Clone> Sender<T> {
    /// Returns the estimates and the liveness of a link.
    #[must_use]
    pub fn link(&self, id: LinkId) -> Option<(&LinkEstimator, &Liveness)> {
        let link = self.links.iter().find(|link| link.id == id)?;
        Some((&link.estimator, &link.liveness))
    }

    /// Returns the time in which a requested packet would arrive over the best link: to be given to
    /// this end's [`Receiver::set_retransmit_delay`](crate::bond::Receiver::set_retransmit_delay).
    #[must_use]
    pub fn retransmit_delay(&self) -> Option<Duration> {
        let known = self.links.iter().filter(|link| link.is_usable());
        known
            .filter(|link| link.estimator.rtt().is_known())
            .map(|link| link.estimator.rtt().rto())
            .min()
    }

    /// Returns the queued packets and bytes.
    #[must_use]
    pub fn backlog(&self) -> (usize, Bytes) {
        (self.queue.packets(), self.queue.bytes())
    }

    /// Returns the packets dropped by CoDel, marked by CoDel, and dropped because the queue was
    /// full.
    #[must_use]
    pub fn drops(&self) -> (u64, u64, u64) {
        let queue = &self.queue;
        (queue.dropped(), queue.marked(), queue.overflowed())
    }

    /// Returns the number of repair symbols sent.
    #[must_use]
    pub fn repair_symbols(&self) -> u64 {
        self.repair_symbols
    }

    /// Returns the number of packets retransmitted: on request, or because their link fell silent.
    #[must_use]
    pub fn retransmitted(&self) -> u64 {
        self.retransmitted
    }
}
