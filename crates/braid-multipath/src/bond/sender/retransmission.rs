//! Retransmission: requested packets, second copies, and packets in flight on a link that fell
//! silent or is behind.
//!
//! Over links that stall, one rule bounds what a bond loses to its slower links: the packets in
//! flight on a link are sent again on another one as soon as that has delivered
//! [`MIN_HELD_RATIO`] times as many bytes which were sent later. So delivery in order waits no
//! longer than the better link takes to deliver that many, and the copies take no more than one part
//! in [`MIN_HELD_RATIO`] of it.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::{Bytes, Rate, Time};

use super::{LanePacket, Sender, SenderLink, Transmit, with_views};
use crate::estimate::NumberRange;
use crate::retransmit::{Nack, SentPacket};
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The peer asked for the packet.
    Requested,
    /// The packet was in flight on a silent link and may still arrive. It waits for window.
    Speculative,
    /// Another copy of a packet, for a free link.
    Second,
}

/// A packet to be sent again, and the link that has lost it or keeps it waiting.
#[derive(Debug)]
pub(super) struct Retransmission<T> {
    pub packet: LanePacket<T>,
    pub except: LinkId,
    pub since: Time,
    pub kind: Kind,
    /// Its number on that link, when it was sent, and its size there, if the peer may ask for it still.
    pub sent: Option<(PacketNumber, Time, Bytes)>,
}

/// Packets to be sent again, by age: a queue for each kind and excluded link. If the first of a queue
/// finds no link, those behind it are not looked at: a peer that keeps its links full has thousands
/// wait.
#[derive(Debug)]
pub(super) struct Retransmissions<T> {
    queues: Vec<VecDeque<(u64, Retransmission<T>)>>,
    /// Number of the next one.
    next: u64,
}

impl<T> Default for Retransmissions<T> {
    fn default() -> Retransmissions<T> {
        Retransmissions {
            queues: Vec::new(),
            next: 0,
        }
    }
}

impl<T> Retransmissions<T> {
    pub fn push(&mut self, retransmission: Retransmission<T>) {
        let is_same = |queue: &VecDeque<(u64, Retransmission<T>)>| {
            let first = queue.front().map(|(_, first)| (first.kind, first.except));
            first == Some((retransmission.kind, retransmission.except))
        };
        let same = self.queues.iter().position(is_same);
        let free = || self.queues.iter().position(VecDeque::is_empty);
        let index = same.or_else(free).unwrap_or_else(|| {
            self.queues.push(VecDeque::new());
            self.queues.len() - 1
        });
        self.queues[index].push_back((self.next, retransmission));
        self.next += 1;
    }

    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    /// Forgets the numbers that packets have on a link: one that is added again begins anew.
    pub fn forget_numbers(&mut self, link: LinkId) {
        let waiting = self.queues.iter_mut().flatten();
        let of_link = waiting.filter(|(_, waiting)| waiting.except == link);
        of_link.for_each(|(_, waiting)| waiting.sent = None);
    }

    /// Takes the oldest first one of a queue that is not older than `from`.
    fn take(&mut self, from: u64) -> Option<(usize, u64, Retransmission<T>)> {
        let firsts = self.queues.iter().enumerate();
        let firsts = firsts.filter_map(|(index, queue)| Some((queue.front()?.0, index)));
        let (_, index) = firsts.filter(|(number, _)| *number >= from).min()?;
        let (number, retransmission) = self.queues[index].pop_front()?;
        Some((index, number, retransmission))
    }
}

impl<T: Clone> Sender<T> {
    /// Takes a request for retransmission.
    pub fn handle_nack(&mut self, now: Time, nack: Nack) {
        self.retransmit(now, nack, Kind::Requested);
    }

    fn retransmit(&mut self, now: Time, nack: Nack, kind: Kind) {
        let queue = &mut self.retransmissions;
        let Some(link) = self.links.iter_mut().find(|link| link.id == nack.link) else {
            return;
        };
        let push = |sent: SentPacket<LanePacket<T>>| {
            queue.push(Retransmission {
                packet: sent.item,
                except: nack.link,
                since: now,
                kind,
                sent: (kind == Kind::Speculative).then_some((sent.number, sent.at, sent.len)),
            });
        };
        match kind {
            Kind::Speculative => link.retransmit_buffer.take_untried(now, nack.range, push),
            _ => link.retransmit_buffer.take(now, nack.range, push),
        }
        self.wait = None;
    }

    /// Keeps a packet again of which no copy was sent: if its link lost it, the peer will ask for it.
    fn restore(&mut self, retransmission: Retransmission<T>) {
        let Some((number, at, len)) = retransmission.sent else {
            return;
        };
        if let Some(link) = self.link_mut(retransmission.except) {
            link.retransmit_buffer
                .restore(at, number, len, retransmission.packet);
        }
    }

    /// Returns the next packet to send again. Requested packets go at once, on the link most likely
    /// to deliver them soon; second copies wait for a free link.
    pub(super) fn poll_retransmission(&mut self, now: Time) -> Option<Transmit<T>> {
        let mut from = 0;
        while let Some((queue, number, retransmission)) = self.retransmissions.take(from) {
            from = number + 1;
            let (packet, except) = (&retransmission.packet, retransmission.except);
            let found = match retransmission.kind {
                Kind::Requested => self.best(Some(except)),
                Kind::Speculative => self.best_with_window(except, packet.len),
                Kind::Second => self.second(now, packet, except),
            };
            let is_second = retransmission.kind == Kind::Second;
            let timeout = match retransmission.kind {
                Kind::Speculative => SPECULATIVE_TIMEOUT,
                Kind::Requested | Kind::Second => SECOND_COPY_TIMEOUT,
            };
            match found {
                Some(link) => {
                    self.retransmitted += u64::from(!is_second);
                    self.send_second_copy(&retransmission, link);
                    return Some(self.transmit(now, link, retransmission.packet, true));
                }
                None if now.since(retransmission.since) < timeout => {
                    self.retransmissions.queues[queue].push_front((number, retransmission));
                }
                None => self.restore(retransmission),
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
        if retransmission.kind != Kind::Second && lossy && self.links.len() > 1 {
            self.retransmissions.push(Retransmission {
                packet: retransmission.packet.clone(),
                except: taken,
                since: retransmission.since,
                kind: Kind::Second,
                sent: None,
            });
        }
    }

    /// Returns the link with the lowest delay, plus a penalty for its loss. The link that lost the
    /// packet is used only if it is sooner by a round trip, one without a known delay if there is none with it,
    /// and a far one if there is no near one.
    pub(super) fn best(&self, except: Option<LinkId>) -> Option<LinkId> {
        let cost = |link: &&SenderLink<LanePacket<T>>| {
            let is_far = self.is_far_link(link.id);
            let again = match Some(link.id) == except {
                true => link.estimator.rtt().smoothed(),
                false => Duration::ZERO,
            };
            let wait = again + link.estimator.excess_time();
            let wait = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX);
            (is_far, !link.has_delay(), link.cost().saturating_add(wait))
        };
        let usable = self.links.iter().filter(|link| link.is_usable());
        let best = usable.min_by_key(cost).map(|link| link.id);
        // All that work have no quota left.
        let spent = || self.links.iter().filter(|link| link.resort() == 0);
        best.or_else(|| spent().min_by_key(cost).map(|link| link.id))
    }

    /// Returns the best link, if its window has room. The silent link is used only if it is back
    /// and there is no other.
    fn best_with_window(&self, except: LinkId, len: Bytes) -> Option<LinkId> {
        let id = self.best(Some(except))?;
        let link = self.links.iter().find(|link| link.id == id)?;
        link.estimator.fits_window(len).then_some(id)
    }

    fn second(&mut self, now: Time, packet: &LanePacket<T>, except: LinkId) -> Option<LinkId> {
        let len = packet.len;
        let head = Head {
            len,
            backlog: len,
            class: packet.class,
            pin: None,
            except: Some(except),
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
        self.retransmit(now, Nack { link: id, range }, Kind::Speculative);
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
                self.retransmit(now, Nack { link, range }, Kind::Speculative);
            }
        }
    }

    /// Cancels speculative retransmissions of a link that has delivered after all.
    pub(super) fn cancel_retransmissions(&mut self, id: LinkId) {
        for index in 0..self.retransmissions.queues.len() {
            let mut cancelled = std::mem::take(&mut self.retransmissions.queues[index]);
            if cancelled
                .front()
                .is_some_and(|(_, first)| first.kind == Kind::Speculative && first.except == id)
            {
                for (_, retransmission) in cancelled.drain(..) {
                    self.restore(retransmission);
                }
            }
            self.retransmissions.queues[index] = cancelled;
        }
    }
}
