//! Sums over packets, sent where links lose.

use crate::bond::traffic::TransmitRepair;
use crate::{Bytes, Stamp, Time};

use super::Sender;

/// So many packets must have passed on a link before it is known not to lose any.
const MIN_LOSS_PACKETS: u64 = 80;

impl<T: Clone> Sender<T> {
    /// The next sum to send, on the link that is most likely to deliver it soon; the packets that
    /// it is of are put into `items`, which is emptied first. `len` says what such a sum takes. Ask it before
    /// [`poll_transmit`](Self::poll_transmit), each time, if parity is configured.
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

    /// Turns parity on where links lose, for inner packets up to this size, or off; it is off to begin with.
    /// If it is on, [`poll_repair`](Self::poll_repair) must be asked.
    pub fn set_fec(&mut self, most: Option<Bytes>) {
        self.max_fec_packet = most;
    }

    /// What the bond loses, links weighed by what they may carry, and whether enough packets have
    /// passed on each to say so. What is lost to a queue is not made up for: that would fill it.
    pub(super) fn loss(&self) -> (f64, bool) {
        let links = || self.links.iter().filter(|link| link.is_usable());
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
