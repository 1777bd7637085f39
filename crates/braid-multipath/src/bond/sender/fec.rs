//! Forward error correction: repair symbols, sent while links lose packets.

use braid_core::{Bytes, Time};

use super::Sender;
use crate::bond::traffic::TransmitRepair;
use crate::{LinkId, Stamp};

/// Packets that a link must have carried before its loss counts as known.
const MIN_LOSS_PACKETS: u64 = 80;

impl<T: Clone> Sender<T> {
    /// Returns the next repair symbol to send, on the link most likely to deliver it soon. The
    /// packets that it covers replace the contents of `items`; `len` gives the symbol's size. With
    /// FEC on, poll this before each [`poll_transmit`](Self::poll_transmit).
    pub fn poll_repair(
        &mut self,
        now: Time,
        items: &mut Vec<T>,
        len: impl Fn(&[T]) -> Bytes,
    ) -> Option<TransmitRepair> {
        let group = self.fec.poll(now, items)?;
        let id = self.best(None)?;
        let link = self.link_mut(id)?;
        let number = link.handle_sent(now, len(items) + link.settings.overhead, true);
        self.repair_symbols += 1;
        Some(TransmitRepair {
            link: id,
            number,
            stamp: Stamp::of(now),
            group,
        })
    }

    /// Turns FEC on for inner packets up to this size, or off; it is off by default. With FEC on,
    /// [`poll_repair`](Self::poll_repair) must be polled.
    pub fn set_fec(&mut self, most: Option<Bytes>) {
        self.max_fec_packet = most;
    }

    /// Returns the bond's random loss, links weighted by their rates, and true if each link has
    /// carried enough packets to know it. Congestive loss is left out: repairing it would fill the
    /// queue that caused it.
    pub(super) fn loss(&self) -> (f64, bool) {
        let near = |link: LinkId| !self.is_far_link(link);
        let links = || (self.links.iter()).filter(|link| link.is_usable() && near(link.id));
        let (mut lost, mut all) = (0.0, 0.0);
        for link in links() {
            let rate = link.rate().bits_per_sec() as f64;
            lost += rate * link.estimator.loss().slow_random();
            all += rate;
        }
        let known = links().all(|link| link.estimator.loss().packets() >= MIN_LOSS_PACKETS);
        (if all > 0.0 { lost / all } else { 0.0 }, known)
    }
}
