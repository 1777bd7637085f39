//! Making up for loss without asking: the sum of a few packets stands in for any one of them.
//!
//! A copy that is asked for takes a round trip, for which its lane waits; that ends a young TCP
//! flow's slow start, and CUBIC then needs ten seconds to fill a bond. A sum of the last `k` packets
//! of the lane follows them at once.
//!
//! - `k` follows the loss ([`group_size`]): about one group in five has a loss to make up for, and
//!   one in fifty has two, which is left to repair. Without loss there is no parity.
//! - A group is consecutive numbers of one lane, whatever links they took. The sum says how many it
//!   covers: it can overtake them, and the sum over a wrong number of packets yields a plausible
//!   wrong one.
//! - The sum itself (XOR, with lengths) is made and taken apart by whoever knows the bytes: here
//!   packets are only collected and counted.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{LANES, LaneId, LaneSeq, LinkId, Stamp, Time};

/// Losses for each group, on average.
const LOSSES_A_GROUP: f64 = 0.2;

/// Smallest and largest group.
const GROUP_LEAST: usize = 4;
const GROUP_MOST: usize = 24;

/// Loss below this is left to repair.
const WORTH_IT: f64 = 0.002;

/// A group that has not grown for so long is summed up as it is.
const PAUSE: Duration = Duration::from_millis(3);

/// How many packets of a lane, and how many sums, the receiver keeps.
const KEPT: usize = 128;
const SUMS: usize = 8;

/// Packets for each sum at this loss, 0 to 1; none where a sum is not worth it.
#[must_use]
pub fn group_size(loss: f64) -> Option<usize> {
    if loss < WORTH_IT {
        return None;
    }
    Some(((LOSSES_A_GROUP / loss) as usize).clamp(GROUP_LEAST, GROUP_MOST))
}

/// Consecutive packets of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The lane.
    pub lane: LaneId,
    /// The first one's number.
    pub first: LaneSeq,
    /// How many, at least 2.
    pub count: u8,
}

#[derive(Debug)]
struct Open<T> {
    first: u64,
    items: Vec<T>,
    grown: Time,
}

/// Collects the sender's packets into groups.
#[derive(Debug)]
pub struct Encoder<T> {
    lanes: Vec<Open<T>>,
    /// Lanes with an open group, the one that grew last at the end.
    growing: VecDeque<LaneId>,
    full: Option<LaneId>,
}

impl<T> Default for Encoder<T> {
    fn default() -> Encoder<T> {
        let open = || Open {
            first: 0,
            items: Vec::new(),
            grown: Time::ZERO,
        };
        Encoder {
            lanes: (0..LANES).map(|_| open()).collect(),
            growing: VecDeque::new(),
            full: None,
        }
    }
}

impl<T: Clone> Encoder<T> {
    /// A packet is sent for the first time; groups are of `size` now. If one is full with it, it
    /// must be [polled](Self::poll) before the next packet.
    pub fn handle_sent(&mut self, now: Time, lane: LaneId, seq: LaneSeq, item: &T, size: usize) {
        let open = &mut self.lanes[lane.index()];
        if open.first + open.items.len() as u64 != seq.0 {
            open.items.clear();
        }
        if open.items.is_empty() {
            open.first = seq.0;
        }
        open.items.push(item.clone());
        open.grown = now;
        self.growing.retain(|other| *other != lane);
        self.growing.push_back(lane);
        if self.lanes[lane.index()].items.len() >= size {
            self.full = Some(lane);
        }
    }

    /// A group to sum up and send; its items are those of `first`, `first + 1` …
    pub fn poll(&mut self, now: Time) -> Option<(Group, Vec<T>)> {
        loop {
            let lane = match self.full.take() {
                Some(lane) => lane,
                None => *self
                    .growing
                    .front()
                    .filter(|lane| now.since(self.lanes[lane.index()].grown) >= PAUSE)?,
            };
            self.growing.retain(|other| *other != lane);
            let open = &mut self.lanes[lane.index()];
            let items = std::mem::take(&mut open.items);
            if items.len() >= 2 {
                let group = Group {
                    lane,
                    first: LaneSeq(open.first),
                    count: items.len() as u8,
                };
                return Some((group, items));
            }
        }
    }

    /// When [`poll`](Self::poll) will have something if nothing is sent before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let lane = self.growing.front()?;
        Some(self.lanes[lane.index()].grown + PAUSE)
    }
}

/// A packet that can be made from a sum and the others of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuild<T> {
    /// Its lane.
    pub lane: LaneId,
    /// Its number.
    pub seq: LaneSeq,
    /// The link that the sum came on.
    pub link: LinkId,
    /// The sum's stamp.
    pub stamp: Stamp,
    /// The sum.
    pub sum: T,
    /// All others of the group.
    pub others: Vec<T>,
}

#[derive(Debug)]
struct Sum<T> {
    group: Group,
    link: LinkId,
    stamp: Stamp,
    sum: T,
}

#[derive(Debug)]
struct Seen<T> {
    /// By number modulo [`KEPT`].
    items: Vec<Option<(u64, T)>>,
    sums: VecDeque<Sum<T>>,
}

/// Keeps what the receiver needs to take sums apart: nothing, until a lane's first sum has come.
#[derive(Debug)]
pub struct Decoder<T> {
    lanes: Vec<Option<Box<Seen<T>>>>,
    ready: VecDeque<Rebuild<T>>,
    rebuilt: u64,
}

impl<T> Default for Decoder<T> {
    fn default() -> Decoder<T> {
        Decoder {
            lanes: (0..LANES).map(|_| None).collect(),
            ready: VecDeque::new(),
            rebuilt: 0,
        }
    }
}

impl<T: Clone> Decoder<T> {
    /// A packet has arrived, or has been rebuilt.
    pub fn handle_packet(&mut self, lane: LaneId, seq: LaneSeq, item: &T) {
        let Some(seen) = &mut self.lanes[lane.index()] else {
            return;
        };
        let slot = &mut seen.items[seq.0 as usize % KEPT];
        if slot.as_ref().is_none_or(|(of, _)| *of < seq.0) {
            *slot = Some((seq.0, item.clone()));
            self.solve(lane);
        }
    }

    /// A sum has arrived.
    pub fn handle_sum(&mut self, group: Group, link: LinkId, stamp: Stamp, sum: T) {
        let lane = group.lane;
        let seen = self.lanes[lane.index()].get_or_insert_with(|| {
            Box::new(Seen {
                items: (0..KEPT).map(|_| None).collect(),
                sums: VecDeque::new(),
            })
        });
        if seen.sums.len() == SUMS {
            seen.sums.pop_front();
        }
        seen.sums.push_back(Sum {
            group,
            link,
            stamp,
            sum,
        });
        self.solve(lane);
    }

    /// Sums that cover nothing missing go; those that miss one are solved.
    fn solve(&mut self, lane: LaneId) {
        let Some(seen) = &mut self.lanes[lane.index()] else {
            return;
        };
        let mut index = 0;
        while index < seen.sums.len() {
            let group = seen.sums[index].group;
            let numbers = group.first.0..group.first.0 + u64::from(group.count);
            let here = |seq: u64| {
                let slot = seen.items[seq as usize % KEPT].as_ref();
                slot.filter(|(of, _)| *of == seq).map(|(_, item)| item)
            };
            let mut missing = numbers.clone().filter(|seq| here(*seq).is_none());
            match (missing.next(), missing.next()) {
                (Some(_), Some(_)) => index += 1,
                (Some(seq), None) => {
                    let others = numbers.clone().filter_map(here).cloned().collect();
                    if let Some(sum) = seen.sums.remove(index) {
                        self.rebuilt += 1;
                        self.ready.push_back(Rebuild {
                            lane,
                            seq: LaneSeq(seq),
                            link: sum.link,
                            stamp: sum.stamp,
                            sum: sum.sum,
                            others,
                        });
                    }
                }
                (None, _) => {
                    seen.sums.remove(index);
                }
            }
        }
    }

    /// A packet to be rebuilt, and then to be handled as if it had arrived.
    pub fn poll_rebuild(&mut self) -> Option<Rebuild<T>> {
        self.ready.pop_front()
    }

    /// Packets that could be rebuilt; some of them came nevertheless.
    #[must_use]
    pub fn rebuilt(&self) -> u64 {
        self.rebuilt
    }
}
