//! Reorder buffer for one direction of a bond.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

use super::Counters;
use super::lane::{Lane, Position, Released};
use super::timeout_lanes::{Out, TimeoutLanes};
use crate::lane_set::LaneSet;
use crate::{LANES, LaneId, LaneSeq, LinkId, Stamp};

/// Missing numbers that may be waited for per packet that arrives; the credit grows up to
/// [`Limits::all`]. Each costs memory and time until it arrives or is given up, and a packet of a few
/// bytes can leave out as many as a lane holds.
const CREDIT_PER_PACKET: usize = 4;

/// Limits of a resequencer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Packets held or missing in one lane. 8192 are 100 ms of 1 Gbit/s.
    pub lane: usize,
    /// Packets held or missing in all lanes together.
    pub all: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            lane: 8_192,
            all: 32_768,
        }
    }
}

/// Order in which a packet is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOrder {
    /// After everything before it in its lane.
    InOrder,
    /// At once. It still counts as received for those behind it, and is delivered only once.
    Immediate,
}

/// Reordering rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reordering {
    /// The adaptive rules of the [module](super).
    #[default]
    Adaptive,
    /// The rules of \[l3b\] §4.3 in each lane, for comparison: a gap ends when the first packet
    /// behind it has been held for this time, whatever is known of the links, and late packets are
    /// dropped.
    FixedTimeout(Duration),
}

/// Metadata of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketMeta {
    /// Lane.
    pub lane: LaneId,
    /// Number in the lane.
    pub seq: LaneSeq,
    /// Send timestamp. A retransmission has one of its own.
    pub stamp: Stamp,
    /// Link of arrival.
    pub link: LinkId,
    /// Order of delivery.
    pub order: DeliveryOrder,
    /// True if packets below it in the lane may be sent after it.
    pub is_ahead: bool,
}

/// A packet to be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<T> {
    /// Lane.
    pub lane: LaneId,
    /// Number in the lane.
    pub seq: LaneSeq,
    /// Time for which it was held.
    pub waited: Duration,
    /// Order in which it is delivered.
    pub order: DeliveryOrder,
    /// The packet.
    pub item: T,
}

/// Puts the packets of all lanes back in order, by the rules in the module's documentation.
///
/// Call [`handle_packet`](Self::handle_packet) for each arrival,
/// [`handle_progress`](Self::handle_progress) when links have settled further, and
/// [`handle_timeout`](Self::handle_timeout) at [`poll_timeout`](Self::poll_timeout). After each,
/// call [`poll_delivery`](Self::poll_delivery) until none. A `T` passes through unread.
#[derive(Debug)]
pub struct Resequencer<T> {
    limits: Limits,
    lanes: Vec<Lane<T>>,
    /// Lanes that hold something.
    waiting: LaneSet,
    slots: usize,
    /// Missing numbers that may still be waited for.
    credit: usize,
    /// Slots allocated by all lanes.
    capacity: usize,
    ready: VecDeque<Delivery<T>>,
    recovery_delay: Duration,
    laggard: Option<LinkId>,
    counters: Counters,
    reordering: Reordering,
    /// State for [`Reordering::FixedTimeout`], from the first packet after it was set.
    timeout_lanes: Option<TimeoutLanes<T>>,
}

impl<T> Resequencer<T> {
    /// Returns an empty buffer; every lane begins at number 0.
    #[must_use]
    pub fn new(limits: Limits) -> Resequencer<T> {
        Resequencer {
            limits,
            lanes: (0..LANES).map(|_| Lane::default()).collect(),
            waiting: LaneSet::default(),
            slots: 0,
            credit: limits.all,
            capacity: 0,
            ready: VecDeque::new(),
            recovery_delay: Duration::ZERO,
            laggard: None,
            counters: Counters::default(),
            reordering: Reordering::default(),
            timeout_lanes: None,
        }
    }

    /// Sets the rules, from the next packet on. Packets held by then are delivered without those
    /// they wait for.
    pub fn set_reordering(&mut self, reordering: Reordering) {
        self.reordering = reordering;
    }

    /// Sets the time in which a packet known to be lost would be recovered; zero without recovery.
    /// It applies to gaps that become known from now on.
    pub fn set_recovery_delay(&mut self, recovery_delay: Duration) {
        self.recovery_delay = recovery_delay;
    }

    /// Takes a packet. Packets that it shows to be missing are waited for until `hold` from now,
    /// whatever happens later.
    pub fn handle_packet(&mut self, now: Time, tag: PacketMeta, hold: Duration, item: T) {
        if self.at_work() != self.reordering {
            self.change(now);
        }
        if self.timeout_lanes.is_some() {
            return self.by_time(now, |timeout_lanes, out| {
                timeout_lanes.handle_packet(tag, item, out)
            });
        }
        let seq = tag.seq.0;
        let index = tag.lane.index();
        let lane = &mut self.lanes[index];
        let link = tag.link.index();
        match lane.position(seq) {
            Position::Duplicate => self.counters.duplicates[link] += 1,
            Position::TooOld => self.counters.too_old[link] += 1,
            Position::Late => {
                lane.note_late(seq);
                self.counters.late[link] += 1;
                self.deliver(tag.lane, seq, Duration::ZERO, tag.order, item);
            }
            Position::Next if lane.pass() => {
                self.credit = (self.credit + CREDIT_PER_PACKET).min(self.limits.all);
                match tag.order {
                    DeliveryOrder::InOrder => self.counters.in_order += 1,
                    DeliveryOrder::Immediate => self.counters.unordered += 1,
                }
                self.deliver(tag.lane, seq, Duration::ZERO, tag.order, item);
            }
            Position::Next | Position::Ahead => {
                self.credit = (self.credit + CREDIT_PER_PACKET).min(self.limits.all);
                self.free_slots(now, index, seq);
                if !self.spend(index, seq) {
                    self.release(now, index, true);
                    self.counters.forced += self.lanes[index].jump(seq);
                }
                let after = (!tag.is_ahead).then_some(tag.stamp);
                if let Some(after) = after {
                    self.lanes[index].sent_below(seq, after);
                }
                self.miss_below(now, index, seq, after, hold);
                let lane = &mut self.lanes[index];
                let (before, capacity) = (lane.slots(), lane.capacity());
                match tag.order {
                    DeliveryOrder::InOrder => lane.hold(now, seq, item),
                    DeliveryOrder::Immediate => {
                        lane.skip(seq);
                        self.counters.unordered += 1;
                        self.deliver(tag.lane, seq, Duration::ZERO, tag.order, item);
                    }
                }
                self.grown(index, before, capacity);
                self.release(now, index, false);
            }
        }
    }

    /// Takes a flush: the sender has given numbers up to `highest` in this lane, and sends nothing
    /// more for now. Losses at the end of a burst show by it.
    pub fn handle_flush(
        &mut self,
        now: Time,
        lane: LaneId,
        highest: LaneSeq,
        stamp: Stamp,
        hold: Duration,
    ) {
        let index = lane.index();
        // The paper's algorithm detects losses by later packets alone.
        let is_timed = self.timeout_lanes.is_some();
        if is_timed || self.lanes[index].reach(highest.0) > self.limits.lane as u64 {
            return;
        }
        self.free_slots(now, index, highest.0);
        if !self.spend(index, highest.0 + 1) {
            return;
        }
        self.miss_below(now, index, highest.0 + 1, Some(stamp), hold);
        self.release(now, index, false);
    }

    /// Notes that every live link that a lane waits for has settled past everything stamped below
    /// `passed`; `laggard` is the link that is furthest behind.
    pub fn handle_progress(
        &mut self,
        now: Time,
        passed: impl Fn(LaneId) -> Stamp,
        laggard: Option<LinkId>,
    ) {
        self.laggard = laggard;
        self.for_waiting(|all, index| {
            let recovery_delay = all.recovery_delay;
            all.lanes[index].settle(now, passed(LaneId(index as u8)), recovery_delay);
            all.release(now, index, false);
        });
    }

    /// Ends gaps whose deadline has come. Early and repeated calls do no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        self.by_time(now, |timeout_lanes, out| timeout_lanes.handle_timeout(out));
        self.for_waiting(|all, index| all.release(now, index, false));
    }

    /// Delivers all that is held, without what is missing before it.
    pub fn release_all(&mut self, now: Time) {
        self.change(now);
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout) next; none if nothing is
    /// missing.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let earliest = self
            .timeout_lanes
            .as_ref()
            .and_then(TimeoutLanes::poll_timeout);
        let waiting = self.waiting.iter().map(|lane| &self.lanes[lane.index()]);
        earliest
            .into_iter()
            .chain(waiting.filter_map(Lane::deadline))
            .min()
    }

    /// Returns the next packet to deliver.
    pub fn poll_delivery(&mut self) -> Option<Delivery<T>> {
        self.ready.pop_front()
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the packets held or missing.
    #[must_use]
    pub fn occupied(&self) -> usize {
        self.slots + self.timeout_lanes.as_ref().map_or(0, TimeoutLanes::held)
    }

    /// Returns the rules applied to the last packet.
    fn at_work(&self) -> Reordering {
        let timeout_lanes = self.timeout_lanes.as_ref();
        timeout_lanes.map_or(Reordering::Adaptive, |timeout_lanes| {
            Reordering::FixedTimeout(timeout_lanes.timeout())
        })
    }

    fn by_time(&mut self, now: Time, act: impl FnOnce(&mut TimeoutLanes<T>, &mut Out<'_, T>)) {
        if let Some(timeout_lanes) = &mut self.timeout_lanes {
            let mut out = Out {
                now,
                ready: &mut self.ready,
                counters: &mut self.counters,
                laggard: self.laggard,
            };
            act(timeout_lanes, &mut out);
        }
    }

    /// Switches the rules; each lane continues at its position.
    fn change(&mut self, now: Time) {
        self.for_waiting(|all, index| all.release(now, index, true));
        if let Some(timeout_lanes) = self.timeout_lanes.take() {
            let lanes = &mut self.lanes;
            let mut out = Out {
                now,
                ready: &mut self.ready,
                counters: &mut self.counters,
                laggard: self.laggard,
            };
            timeout_lanes.drain(&mut out, |lane, last| {
                lanes[lane.index()].jump(last + 1);
            });
        }
        self.timeout_lanes = match self.reordering {
            Reordering::Adaptive => None,
            Reordering::FixedTimeout(timeout) => Some(TimeoutLanes::new(timeout, self.limits)),
        };
    }

    fn miss_below(
        &mut self,
        now: Time,
        index: usize,
        seq: u64,
        after: Option<Stamp>,
        hold: Duration,
    ) {
        let lane = &mut self.lanes[index];
        let (before, capacity) = (lane.slots(), lane.capacity());
        lane.miss_below(seq, after, now + hold);
        self.waiting.insert(LaneId(index as u8));
        self.grown(index, before, capacity);
    }

    fn grown(&mut self, index: usize, slots: usize, capacity: usize) {
        self.slots += self.lanes[index].slots() - slots;
        self.capacity += self.lanes[index].capacity() - capacity;
    }

    /// Releases a lane's spare memory once all lanes have more than their limit.
    fn shrink(&mut self, index: usize) {
        if self.capacity > 2 * self.limits.all {
            self.capacity -= self.lanes[index].capacity();
            self.lanes[index].shrink();
            self.capacity += self.lanes[index].capacity();
        }
    }

    /// Makes `seq` fit: first this lane goes on without its missing packets, then all lanes do.
    fn free_slots(&mut self, now: Time, index: usize, seq: u64) {
        let fits = |all: &Self| {
            let reach = all.lanes[index].reach(seq);
            let new = reach.saturating_sub(all.lanes[index].slots() as u64);
            reach <= all.limits.lane as u64 && all.slots as u64 + new <= all.limits.all as u64
        };
        if fits(self) {
            return;
        }
        self.release(now, index, true);
        if !fits(self) {
            self.for_waiting(|all, other| all.release(now, other, true));
        }
        // A jump beyond the limit: the numbers in between are given up unseen.
        let skipped = self.lanes[index].jump(seq.saturating_sub(self.limits.lane as u64 / 2));
        self.counters.forced += skipped;
    }

    /// Takes the credit for the numbers below `seq` that are not waited for yet. Returns false if
    /// there is not enough.
    fn spend(&mut self, index: usize, seq: u64) -> bool {
        let lane = &self.lanes[index];
        let reach = lane.reach(seq).saturating_sub(1);
        let missing = reach.saturating_sub(lane.slots() as u64);
        let left = (self.credit as u64).checked_sub(missing);
        self.credit = left.map_or(self.credit, |left| left as usize);
        left.is_some()
    }

    fn release(&mut self, now: Time, index: usize, force: bool) {
        let id = LaneId(index as u8);
        let before = self.lanes[index].slots();
        while let Some(left) = self.lanes[index].poll(now, force) {
            match left {
                Released::GivenUp(why) => self.counters.give_up(why, self.laggard),
                Released::Item { seq, since, item } => {
                    let waited = now.since(since);
                    match waited.is_zero() {
                        true => self.counters.in_order += 1,
                        false => self.counters.held += 1,
                    }
                    self.deliver(id, seq, waited, DeliveryOrder::InOrder, item);
                }
            }
        }
        self.slots -= before - self.lanes[index].slots();
        if self.lanes[index].slots() == 0 {
            self.waiting.remove(id);
            self.shrink(index);
        }
    }

    fn deliver(&mut self, lane: LaneId, seq: u64, waited: Duration, order: DeliveryOrder, item: T) {
        self.ready.push_back(Delivery {
            lane,
            seq: LaneSeq(seq),
            waited,
            order,
            item,
        });
    }

    fn for_waiting(&mut self, mut each: impl FnMut(&mut Self, usize)) {
        for lane in self.waiting.iter() {
            each(self, lane.index());
        }
    }
}
