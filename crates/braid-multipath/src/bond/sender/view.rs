//! Accessors of a sender.

use std::time::Duration;

use braid_core::{Bytes, Rate, Time};

use super::{LanePacket, Sender};
use crate::LinkId;
use crate::ack_filter::Spacing;
use crate::bond::sender_link::SenderLink;
use crate::estimate::{LinkEstimator, Rtt};
use crate::liveness::Liveness;
use crate::window_limit::QueueRoom;

/// Time for which packets wait when all links are full.
const FULL_QUEUE: Duration = Duration::from_millis(100);
/// An acknowledgement waits for no longer, on satellites either, but for six times as long where few pass.
const MAX_ACK_INTERVAL: Duration = Duration::from_millis(20);
const MIN_ACK_INTERVAL: Duration = Duration::from_millis(2);
/// Parts of a round trip after which acknowledgements pass: HyStart wants nine samples.
const MAX_ACK_STEPS: u128 = 5;
/// Linux takes acknowledgements at most this far apart for a train, and a train of half a round trip for a full link.
const ACK_TRAIN_GAP: Duration = Duration::from_millis(2);
/// Bounds of the interval for bulk flows at the end that receives them.
const MAX_BULK_ACK_INTERVAL: Duration = Duration::from_millis(5);
const MIN_BULK_ACK_INTERVAL: Duration = Duration::from_millis(1);
/// Links join within this time of the first one: the handshake over it is followed by a challenge and an answer over each of them, of
/// which the farthest takes three round trips.
const JOIN_SPAN: Duration = Duration::from_secs(2);
/// Time for which a queue on a link counts.
const BURDEN_SPAN: Duration = Duration::from_secs(10);

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

    /// Returns which acknowledgements of a flow that looks for its rate pass ([`AckFilter`](crate::ack_filter::AckFilter)): one a quarter of
    /// the longest round trip over a link in use after the last, and those that end a part of what is in flight. So many parts that a train
    /// of them lasts for half of the shortest round trip at most. None if such a flow is to be left alone from now on: there are no two
    /// links and the session is older than [`JOIN_SPAN`], or there are, those that work are full, and a queue of 100 ms waits for them. Few
    /// pass for their time alone beside links that are doubtful or far, or may turn out to be.
    #[must_use]
    pub fn ack_spacing(&self, now: Time) -> Option<Spacing> {
        let usable = || self.links.iter().filter(|link| link.is_usable());
        let rate = Rate::from_bits_per_sec(usable().map(|link| link.rate().bits_per_sec()).sum());
        let waits = self.queue.bytes() > rate.bytes_in(FULL_QUEUE);
        let are_full = usable().next().is_some() && usable().all(|link| link.is_full(now));
        let is_alone = self.links.len() < 2;
        let begins = (self.begun_at).is_some_and(|begun| now.since(begun) < JOIN_SPAN);
        // A link that is silent for a moment ends nothing: it will be one of two again.
        let has_ended = match is_alone {
            true => !begins,
            false => waits && are_full,
        };
        if has_ended {
            return None;
        }
        let longest = self.used_rtts(now).map(Rtt::smoothed).max();
        let quarter = |longest: Duration| (longest / 4).clamp(MIN_ACK_INTERVAL, MAX_ACK_INTERVAL);
        let shortest = self.used_rtts(now).map(Rtt::min).min().unwrap_or_default();
        let steps = shortest.as_nanos() / 2 / ACK_TRAIN_GAP.as_nanos();
        let are_doubtful =
            || (self.used_links(now)).any(|link| link.estimator.capacity().is_doubtful());
        let may_be_far = || {
            is_alone
                || self.far_links(now).next().is_some()
                || usable().any(|link| !link.has_delay())
        };
        Some(Spacing {
            interval: longest.map_or(MAX_ACK_INTERVAL, quarter),
            steps: steps.clamp(1, MAX_ACK_STEPS) as u32,
            few: steps >= MAX_ACK_STEPS && (may_be_far() || are_doubtful()),
        })
    }

    /// Returns how far apart acknowledgements that this end sends for a bulk flow are to pass; none where that is too short to save
    /// anything. A flow that its window limits loses as large a part of its rate as the interval is of the round trip: a thirty-second,
    /// and an eighth only over links that had a queue in the last seconds, or that stall. Those are slower by more without it.
    #[must_use]
    pub fn bulk_ack_spacing(&self, now: Time) -> Option<Spacing> {
        let shortest = self.used_rtts(now).map(Rtt::smoothed).min()?;
        let burdened =
            self.queued_at.is_some_and(|at| now.since(at) < BURDEN_SPAN) || self.is_unsteady();
        let part = shortest / if burdened { 8 } else { 32 };
        let interval = part.min(MAX_BULK_ACK_INTERVAL);
        (interval >= MIN_BULK_ACK_INTERVAL).then_some(Spacing {
            interval,
            steps: 0,
            few: false,
        })
    }

    /// Returns the links in use.
    fn used_links(&self, now: Time) -> impl Iterator<Item = &SenderLink<LanePacket<T>>> {
        (self.links.iter()).filter(move |link| link.is_usable() && link.is_used(now))
    }

    /// Returns the round trips over them.
    fn used_rtts(&self, now: Time) -> impl Iterator<Item = &Rtt> {
        let rtts = self.used_links(now).map(|link| link.estimator.rtt());
        rtts.filter(|rtt| rtt.is_known())
    }

    /// Returns what the queues of flows with limited windows are to hold; none while windows decide which links a flow may use, and before
    /// rates are known.
    #[must_use]
    pub fn queue_room(&self, now: Time) -> Option<QueueRoom> {
        let (rate, span) = self.limited_queue.filter(|_| !self.has_far_links())?;
        let is_doubtful = |link: &SenderLink<_>| link.estimator.capacity().is_doubtful();
        let are_known = !self.used_links(now).any(is_doubtful);
        Some(QueueRoom {
            rate,
            span,
            may_begin: are_known && self.are_near_links_full(now),
        })
    }

    /// Returns the bytes of a flow that wait.
    #[must_use]
    pub fn queued(&self, flow: u32) -> Bytes {
        let (staged, loose) = self.queue.bytes_of(self.queue_hash(flow));
        staged + loose
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
