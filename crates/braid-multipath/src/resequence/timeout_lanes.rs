//! \[l3b\] §4.3 in place of this module's rules: a [`TimeoutResequencer`] for each lane.
//!
//! The paper numbers all packets of a tunnel in one sequence; here each lane has its own, as on the
//! wire. The algorithm knows no classes: every packet waits for its turn. It does not forward late
//! packets.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

use super::resequencer::{Delivery, DeliveryOrder, Limits, PacketMeta};
use super::{Counters, TimeoutResequencer};
use crate::{LANES, LaneId, LaneSeq, LinkId};

/// A packet with its arrival.
type Stamped<T> = (Time, T);

#[derive(Debug)]
pub(super) struct TimeoutLanes<T> {
    timeout: Duration,
    limits: Limits,
    /// A lane is created by its first packet.
    lanes: Vec<Option<TimeoutResequencer<Stamped<T>>>>,
    held: usize,
}

/// Destinations of deliveries and counts.
pub(super) struct Out<'a, T> {
    pub now: Time,
    pub ready: &'a mut VecDeque<Delivery<T>>,
    pub counters: &'a mut Counters,
    /// The link that is furthest behind.
    pub laggard: Option<LinkId>,
}

impl<T> TimeoutLanes<T> {
    pub fn new(timeout: Duration, limits: Limits) -> TimeoutLanes<T> {
        TimeoutLanes {
            timeout,
            limits,
            lanes: (0..LANES).map(|_| None).collect(),
            held: 0,
        }
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the packets held.
    pub fn held(&self) -> usize {
        self.held
    }

    pub fn handle_packet(&mut self, tag: PacketMeta, item: T, out: &mut Out<'_, T>) {
        let (timeout, most) = (self.timeout, self.limits.lane);
        let lane = self.lanes[tag.lane.index()]
            .get_or_insert_with(|| TimeoutResequencer::new(timeout, most));
        let (now, before, discarded) = (out.now, lane.held(), lane.discarded());
        lane.handle_packet(now, tag.seq.0, (now, item));
        out.counters.too_old[tag.link.index()] += lane.discarded() - discarded;
        // Only a held packet can exceed the limit, so its lane has one to deliver.
        if lane.held() > before && self.held >= self.limits.all {
            lane.go_on();
        }
        self.held = self.held - before + lane.held();
        deliver(tag.lane, lane, out);
    }

    pub fn handle_timeout(&mut self, out: &mut Out<'_, T>) {
        self.each(|id, lane| {
            lane.handle_timeout(out.now);
            deliver(id, lane, out);
        });
    }

    /// Delivers everything held. Calls `each` with the last number of each lane.
    pub fn drain(mut self, out: &mut Out<'_, T>, mut each: impl FnMut(LaneId, u64)) {
        self.each(|id, lane| {
            while lane.held() > 0 {
                lane.go_on();
            }
            deliver(id, lane, out);
            if let Some(last) = lane.last_accepted() {
                each(id, last);
            }
        });
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let lanes = self.lanes.iter().flatten();
        lanes.filter_map(TimeoutResequencer::poll_timeout).min()
    }

    fn each(&mut self, mut each: impl FnMut(LaneId, &mut TimeoutResequencer<Stamped<T>>)) {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if let Some(lane) = lane {
                let before = lane.held();
                each(LaneId(index as u8), lane);
                self.held = self.held - before + lane.held();
            }
        }
    }
}

fn deliver<T>(id: LaneId, lane: &mut TimeoutResequencer<Stamped<T>>, out: &mut Out<'_, T>) {
    let awaited = out.laggard.map_or(0, LinkId::index);
    out.counters.expired[awaited] += lane.take_skipped();
    while let Some((seq, (since, item))) = lane.poll_delivery() {
        let waited = out.now.since(since);
        match waited.is_zero() {
            true => out.counters.in_order += 1,
            false => out.counters.held += 1,
        }
        out.ready.push_back(Delivery {
            lane: id,
            seq: LaneSeq(seq),
            waited,
            order: DeliveryOrder::InOrder,
            item,
        });
    }
}
