//! Retransmission: requested packets, second copies, and packets in flight on a link that fell
//! silent or is behind.
//!
//! Over links that stall, one rule bounds what a bond loses to its slower links: the packets in
//! flight on a link are sent again on another one as soon as that has delivered
//! [`MIN_HELD_RATIO`] times as many bytes which were sent later. So delivery in order waits no
//! longer than the better link takes to deliver that many, and the copies take no more than one part
//! in [`MIN_HELD_RATIO`] of it.

use std::time::Duration;

use braid_core::{Bytes, Rate, Time};

use super::{LanePacket, Sender, SenderLink, Transmit, with_views};
use crate::estimate::NumberRange;
use crate::retransmit::Nack;
use crate::schedule::{Choice, Head};
use crate::{LinkId, PacketNumber};

/// A second copy that finds no link within this time is dropped.
const SECOND_COPY_TIMEOUT: Duration = Duration::from_millis(50);

/// Longest wait of a packet from a silent link for window on another link.
const SPECULATIVE_TIMEOUT: Duration = Duration::from_millis(300);

/// A packet is overtaken when another link has delivered one sent this much later, beyond the
/// difference of the links' delays.
const OVERTAKEN_MARGIN: Duration = Duration::from_millis(100);

/// The same over links that stall, while no packet waits for a link. Copies delay nothing then, and
/// perhaps the flows have nothing to send because the overtaken packets hold up their
/// acknowledgements. On steady links with jitter such copies would be for nothing.
const IDLE_OVERTAKEN_MARGIN: Duration = Duration::from_millis(25);

/// Packets in flight on a link that stalls are sent again on another one that has meanwhile delivered
/// this many times their bytes, and whose later packets are ahead by this margin beyond the
/// difference of the links' base delays.
const MIN_HELD_RATIO: f64 = 8.0;
const HELD_MARGIN: Duration = Duration::from_millis(25);

/// Loss of a link above which its retransmissions are sent twice.
const MIN_DOUBLED_LOSS: f64 = 0.005;

/// A packet to be sent again, and the link that it must not use.
#[derive(Debug)]
pub(super) struct Retransmission<T> {
    pub packet: LanePacket<T>,
    pub except: LinkId,
    pub since: Time,
    pub requested: bool,
    /// True if the packet was in flight on a silent link and may still arrive. It waits for window.
    pub speculative: bool,
}

impl<T: Clone> Sender<T> {
    /// Takes a request for retransmission.
    pub fn handle_nack(&mut self, now: Time, nack: Nack) {
        self.retransmit(now, nack, false);
    }

    fn retransmit(&mut self, now: Time, nack: Nack, speculative: bool) {
        let queue = &mut self.retransmissions;
        let Some(link) = self.links.iter_mut().find(|link| link.id == nack.link) else {
            return;
        };
        link.retransmit_buffer.take(now, nack.range, |_, packet| {
            queue.push_back(Retransmission {
                packet,
                except: nack.link,
                since: now,
                requested: true,
                speculative,
            });
        });
        self.wait = None;
    }

    /// Returns the next packet to send again. Requested packets go at once, on the link most likely
    /// to deliver them soon; second copies wait for a free link.
    pub(super) fn poll_retransmission(&mut self, now: Time) -> Option<Transmit<T>> {
        for _ in 0..self.retransmissions.len() {
            let retransmission = self.retransmissions.pop_front()?;
            let found = if retransmission.speculative {
                self.best_with_window(retransmission.except, retransmission.packet.len)
            } else if retransmission.requested {
                self.best(Some(retransmission.except))
            } else {
                self.second(now, &retransmission)
            };
            match found {
                Some(link) => {
                    self.retransmitted += u64::from(retransmission.requested);
                    self.send_second_copy(&retransmission, link);
                    return Some(self.transmit(now, link, retransmission.packet, true));
                }
                None if now.since(retransmission.since) < SECOND_COPY_TIMEOUT
                    || (retransmission.speculative
                        && now.since(retransmission.since) < SPECULATIVE_TIMEOUT) =>
                {
                    self.retransmissions.push_back(retransmission)
                }
                None => {}
            }
        }
        None
    }

    /// If even the best link loses packets, queues a second copy for another link: the inner flow
    /// slows down for a packet lost twice as for one lost once.
    fn send_second_copy(&mut self, retransmission: &Retransmission<T>, taken: LinkId) {
        let loses =
            |link: &SenderLink<LanePacket<T>>| link.estimator.loss().slow() > MIN_DOUBLED_LOSS;
        let lossy = self
            .links
            .iter()
            .any(|link| link.id == taken && loses(link));
        if retransmission.requested && lossy && self.links.len() > 1 {
            self.retransmissions.push_back(Retransmission {
                packet: retransmission.packet.clone(),
                except: taken,
                since: retransmission.since,
                requested: false,
                speculative: false,
            });
        }
    }

    /// Returns the link with the lowest delay, plus a penalty for its loss. The link that lost the
    /// packet is used only if there is no other, and a far one if there is no near one.
    pub(super) fn best(&self, except: Option<LinkId>) -> Option<LinkId> {
        let cost = |link: &&SenderLink<LanePacket<T>>| {
            let is_far = self.is_far_link(link.id);
            (is_far, Some(link.id) == except, link.cost())
        };
        let usable = self.links.iter().filter(|link| link.is_usable());
        usable.min_by_key(cost).map(|link| link.id)
    }

    /// Returns the best link, if its window has room. The silent link is used only if it is back
    /// and there is no other.
    fn best_with_window(&self, except: LinkId, len: Bytes) -> Option<LinkId> {
        let id = self.best(Some(except))?;
        let link = self.links.iter().find(|link| link.id == id)?;
        link.estimator.fits_window(len).then_some(id)
    }

    fn second(&mut self, now: Time, retransmission: &Retransmission<T>) -> Option<LinkId> {
        let len = retransmission.packet.len;
        let head = Head {
            len,
            backlog: len,
            class: retransmission.packet.class,
            pin: None,
            except: Some(retransmission.except),
        };
        match with_views(&self.links, now, len, self.scheduler.as_mut(), &head) {
            Choice::Send { link, .. } => Some(link),
            Choice::Wait(_) => None,
        }
    }

    /// Retransmits the packets in flight on a link that fell silent.
    pub(super) fn retransmit_in_flight(&mut self, now: Time, id: LinkId) {
        let Some(link) = self.links.iter_mut().find(|link| link.id == id) else {
            return;
        };
        let first = link.estimator.highest().map_or(0, |highest| highest.0 + 1);
        let range = NumberRange {
            first: PacketNumber(first),
            last: PacketNumber(u64::MAX),
        };
        self.retransmit(now, Nack { link: id, range }, true);
        self.run = None;
    }

    /// Retransmits packets in flight on other links that this link has overtaken, because delivery
    /// in order waits for them.
    pub(super) fn retransmit_overtaken(&mut self, now: Time, by: LinkId) {
        let usable = |link: &&SenderLink<LanePacket<T>>| link.id == by && link.is_usable();
        let Some(fast) = self.links.iter().find(usable) else {
            return;
        };
        let estimator = &fast.estimator;
        let (Some(arrived), Some(quick)) = (estimator.confirmed(), estimator.delay()) else {
            return;
        };
        let unsteady = self.is_unsteady();
        let idle = self.head.is_none() && self.queue.packets() == 0;
        let margin = match idle && unsteady {
            true => IDLE_OVERTAKEN_MARGIN,
            false => OVERTAKEN_MARGIN,
        };
        let base = estimator.base(now).unwrap_or_default();
        let rate = estimator.delivered().unwrap_or(Rate::from_bits_per_sec(0));
        for index in 0..self.links.len() {
            let link = &self.links[index];
            let Some(usual) = link.estimator.delay().filter(|_| link.id != by) else {
                continue;
            };
            let since = link.estimator.waiting_since().unwrap_or(arrived);
            let held = rate.bytes_in(arrived.since(since)).get() as f64;
            let cost = link.estimator.in_flight().get() as f64;
            let own_base = link.estimator.base(now).unwrap_or_default();
            let usual = margin + usual.over(quick);
            let margin = match unsteady && held > MIN_HELD_RATIO * cost {
                true => usual.min(HELD_MARGIN + own_base.over(base)),
                false => usual,
            };
            let until = arrived.before(margin);
            if let Some(range) = link.estimator.unreported(until) {
                let link = link.id;
                self.retransmit(now, Nack { link, range }, true);
            }
        }
    }

    /// Cancels speculative retransmissions of a link that has delivered after all.
    pub(super) fn cancel_retransmissions(&mut self, id: LinkId) {
        self.retransmissions
            .retain(|retransmission| !retransmission.speculative || retransmission.except != id);
    }
}
