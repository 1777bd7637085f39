//! All lanes of one direction of a bond.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{LANES, LaneId, LaneSeq, LinkId, Stamp, Time};

use super::Counters;
use super::lane::{Lane, Position, Released};
use super::timeout_lanes::{Out, TimeoutLanes};

/// How much a resequencer may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Packets held or missing in one lane. 8192 are 100 ms of 1 Gbit/s.
    pub lane: usize,
    /// And in all lanes together.
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

/// Whether a packet wants to be delivered in its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOrder {
    /// After everything before it in its lane.
    InOrder,
    /// At once; it still counts as here for those behind it, and only once.
    Immediate,
}

/// By which rules packets are put in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reordering {
    /// By those of the [module](super).
    #[default]
    Adaptive,
    /// By those of \[l3b\] §4.3, in each lane: a missing packet is waited for until the first one behind
    /// it has been held for so long, whatever is known of the links, and what comes later is dropped.
    /// For comparison.
    FixedTimeout(Duration),
}

/// What a packet says of itself, and the link that it came on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketMeta {
    /// Its lane.
    pub lane: LaneId,
    /// Its number there.
    pub seq: LaneSeq,
    /// When it was given to its link. A copy has the stamp of the copy.
    pub stamp: Stamp,
    /// The link that it came on.
    pub link: LinkId,
    /// Whether it waits for its turn.
    pub order: DeliveryOrder,
}

/// A packet to be handed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<T> {
    /// Its lane.
    pub lane: LaneId,
    /// Its number there.
    pub seq: LaneSeq,
    /// How long it was held.
    pub waited: Duration,
    /// The packet.
    pub item: T,
}

/// Puts the packets of all lanes back in order. The module's documentation has the rules.
///
/// Call [`handle_packet`](Self::handle_packet) for what arrives,
/// [`handle_progress`](Self::handle_progress) when links have settled further, and
/// [`handle_timeout`](Self::handle_timeout) at [`poll_timeout`](Self::poll_timeout); after each,
/// empty [`poll_delivery`](Self::poll_delivery). `T` is moved through, never looked at.
#[derive(Debug)]
pub struct Resequencer<T> {
    limits: Limits,
    lanes: Vec<Lane<T>>,
    /// Lanes that hold something, one bit each.
    waiting: [u64; LANES / 64],
    slots: usize,
    /// Slots that lanes have room for.
    capacity: usize,
    ready: VecDeque<Delivery<T>>,
    recovery_delay: Duration,
    laggard: Option<LinkId>,
    counters: Counters,
    reordering: Reordering,
    /// What goes by [`Reordering::FixedTimeout`], from the first packet on after that was asked for.
    timeout_lanes: Option<TimeoutLanes<T>>,
}

impl<T> Resequencer<T> {
    /// With nothing held; every lane begins at number 0.
    #[must_use]
    pub fn new(limits: Limits) -> Resequencer<T> {
        Resequencer {
            limits,
            lanes: (0..LANES).map(|_| Lane::default()).collect(),
            waiting: [0; LANES / 64],
            slots: 0,
            capacity: 0,
            ready: VecDeque::new(),
            recovery_delay: Duration::ZERO,
            laggard: None,
            counters: Counters::default(),
            reordering: Reordering::default(),
            timeout_lanes: None,
        }
    }

    /// By which rules packets are put in order, from the next one on. What is held then goes on
    /// without what it waits for.
    pub fn set_reordering(&mut self, reordering: Reordering) {
        self.reordering = reordering;
    }

    /// In what time a packet known to be lost would come as a copy; zero where nothing is asked for
    /// again. Holds for gaps that become known from now on.
    pub fn set_recovery_delay(&mut self, recovery_delay: Duration) {
        self.recovery_delay = recovery_delay;
    }

    /// Takes a packet. If it shows that others are missing, they get `hold` from now, whatever
    /// happens after.
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
                self.deliver(tag.lane, seq, Duration::ZERO, item);
            }
            Position::Next if lane.pass() => {
                match tag.order {
                    DeliveryOrder::InOrder => self.counters.in_order += 1,
                    DeliveryOrder::Immediate => self.counters.unordered += 1,
                }
                self.deliver(tag.lane, seq, Duration::ZERO, item);
            }
            Position::Next | Position::Ahead => {
                self.free_slots(now, index, seq);
                self.miss_below(now, index, seq, tag.stamp, hold);
                let lane = &mut self.lanes[index];
                let (before, capacity) = (lane.slots(), lane.capacity());
                match tag.order {
                    DeliveryOrder::InOrder => lane.hold(now, seq, item),
                    DeliveryOrder::Immediate => {
                        lane.skip(seq);
                        self.counters.unordered += 1;
                        self.deliver(tag.lane, seq, Duration::ZERO, item);
                    }
                }
                self.grown(index, before, capacity);
                self.release(now, index, false);
            }
        }
    }

    /// The sender says that it has given numbers up to `highest` in this lane, and nothing else for
    /// now: so losses at a burst's end are seen, though nothing comes behind them.
    pub fn handle_flush(
        &mut self,
        now: Time,
        lane: LaneId,
        highest: LaneSeq,
        stamp: Stamp,
        hold: Duration,
    ) {
        let index = lane.index();
        // The paper's algorithm knows of losses by what comes behind them.
        let is_timed = self.timeout_lanes.is_some();
        if is_timed || self.lanes[index].reach(highest.0) > self.limits.lane as u64 {
            return;
        }
        self.free_slots(now, index, highest.0);
        self.miss_below(now, index, highest.0 + 1, stamp, hold);
        self.release(now, index, false);
    }

    /// Every live link has settled past everything stamped below `passed`; the one that is behind
    /// the others is `laggard`.
    pub fn handle_progress(&mut self, now: Time, passed: Stamp, laggard: Option<LinkId>) {
        self.laggard = laggard;
        self.for_waiting(|all, index| {
            let recovery_delay = all.recovery_delay;
            all.lanes[index].settle(now, passed, recovery_delay);
            all.release(now, index, false);
        });
    }

    /// Goes on where a deadline has come. Early and repeated calls do no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        self.by_time(now, |timeout_lanes, out| timeout_lanes.handle_timeout(out));
        self.for_waiting(|all, index| all.release(now, index, false));
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next; none if nothing is missing.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let mut earliest = self
            .timeout_lanes
            .as_ref()
            .and_then(TimeoutLanes::poll_timeout);
        for (word, &bits) in self.waiting.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                earliest = match (earliest, self.lanes[index].deadline()) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        }
        earliest
    }

    /// The next packet to hand on.
    pub fn poll_delivery(&mut self) -> Option<Delivery<T>> {
        self.ready.pop_front()
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Packets held or missing.
    #[must_use]
    pub fn occupied(&self) -> usize {
        self.slots + self.timeout_lanes.as_ref().map_or(0, TimeoutLanes::held)
    }

    /// The rules that the last packet went by.
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

    /// Goes by other rules from now on, each lane from where it has come to.
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

    fn miss_below(&mut self, now: Time, index: usize, seq: u64, after: Stamp, hold: Duration) {
        let lane = &mut self.lanes[index];
        let (before, capacity) = (lane.slots(), lane.capacity());
        lane.miss_below(seq, after, now + hold);
        self.waiting[index / 64] |= 1 << (index % 64);
        self.grown(index, before, capacity);
    }

    fn grown(&mut self, index: usize, slots: usize, capacity: usize) {
        self.slots += self.lanes[index].slots() - slots;
        self.capacity += self.lanes[index].capacity() - capacity;
    }

    /// Memory that only a burst needed goes back once all lanes have more than they may use.
    fn shrink(&mut self, index: usize) {
        if self.capacity > 2 * self.limits.all {
            self.capacity -= self.lanes[index].capacity();
            self.lanes[index].shrink();
            self.capacity += self.lanes[index].capacity();
        }
    }

    /// Sees to it that `seq` fits: first this lane goes on without what it misses, then all do.
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
        // A jump beyond all windows: what lies between is given up unseen.
        let skipped = self.lanes[index].jump(seq.saturating_sub(self.limits.lane as u64 / 2));
        self.counters.forced += skipped;
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
                    self.deliver(id, seq, waited, item);
                }
            }
        }
        self.slots -= before - self.lanes[index].slots();
        if self.lanes[index].slots() == 0 {
            self.waiting[index / 64] &= !(1 << (index % 64));
            self.shrink(index);
        }
    }

    fn deliver(&mut self, lane: LaneId, seq: u64, waited: Duration, item: T) {
        self.ready.push_back(Delivery {
            lane,
            seq: LaneSeq(seq),
            waited,
            item,
        });
    }

    fn for_waiting(&mut self, mut each: impl FnMut(&mut Self, usize)) {
        for word in 0..self.waiting.len() {
            let mut bits = self.waiting[word];
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                each(self, index);
            }
        }
    }
}
