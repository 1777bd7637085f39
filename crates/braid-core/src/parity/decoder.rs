//! The receiving end: what can be made of the sums that came.

use std::collections::VecDeque;
use std::time::Duration;

use super::field::{inverse, times};
use super::{Group, SPACING_MOST};
use crate::{LANES, LaneId, LaneSeq, LinkId, Stamp, Time};

/// How many packets of a lane, and how many sums, are kept.
const KEPT: usize = 256;
const SUMS: usize = 8;

/// Of lanes without a sum yet, so many packets are kept, of all together: the first sum of a young
/// lane is over what came just before it.
const RECENT: usize = 64;

/// Most missing packets of a sum that are computed with; with more it waits for them.
const MISSING_MOST: usize = 8;
const UNKNOWN_MOST: usize = 16;

/// A lane without a sum for so long is not kept any more.
const FORGETS: Duration = Duration::from_secs(1);

/// How a missing packet is made: the sum of all these, each multiplied by its factor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuild<T, S> {
    /// Its lane.
    pub lane: LaneId,
    /// Its number there.
    pub seq: LaneSeq,
    /// The link and stamp of a sum that it is made of.
    pub link: LinkId,
    /// See there.
    pub stamp: Stamp,
    /// Sums.
    pub sums: Vec<(u8, S)>,
    /// Packets that are here.
    pub others: Vec<(u8, T)>,
}

/// What sums' distance is taken for before there were two, and the most that it is: a pause is none.
const DISTANCE: Duration = Duration::from_millis(5);
const DISTANCE_MOST: Duration = Duration::from_millis(30);

/// What a packet is made of, as in [`Rebuild`].
type Lists<T, S> = (Vec<(u8, S)>, Vec<(u8, T)>);

#[derive(Debug, Clone)]
struct Sum<S> {
    group: Group,
    link: LinkId,
    stamp: Stamp,
    /// From then on it is used; none if it is used already.
    ripe: Option<Time>,
    sum: S,
}

#[derive(Debug, Clone)]
struct Seen<T, S> {
    /// By number modulo [`KEPT`].
    items: Vec<Option<(u64, T)>>,
    sums: VecDeque<Sum<S>>,
    /// What was told how to be made, and is not here yet.
    made: Option<u64>,
    last: Time,
    /// Time from one sum to the next, averaged.
    distance: Duration,
}

/// Keeps what is needed to take sums apart: little, until a lane's first sum has come.
#[derive(Debug, Clone)]
pub struct Decoder<T, S> {
    lanes: Vec<Option<Box<Seen<T, S>>>>,
    /// Lanes of which something is kept.
    kept: Vec<LaneId>,
    /// The last packets of other lanes.
    recent: VecDeque<(LaneId, u64, T)>,
    ready: VecDeque<Rebuild<T, S>>,
    /// Lists to be used again.
    spare: Vec<Lists<T, S>>,
    passed: Stamp,
    rebuilt: u64,
}

impl<T, S> Default for Decoder<T, S> {
    fn default() -> Decoder<T, S> {
        Decoder {
            lanes: (0..LANES).map(|_| None).collect(),
            kept: Vec::new(),
            recent: VecDeque::with_capacity(RECENT),
            ready: VecDeque::new(),
            spare: Vec::new(),
            passed: Stamp(0),
            rebuilt: 0,
        }
    }
}

impl<T: Clone, S: Clone> Decoder<T, S> {
    /// A packet has arrived, or has been rebuilt.
    pub fn handle_packet(&mut self, lane: LaneId, seq: LaneSeq, item: &T) {
        let Some(seen) = &mut self.lanes[lane.index()] else {
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back((lane, seq.0, item.clone()));
            return;
        };
        let slot = &mut seen.items[seq.0 as usize % KEPT];
        if slot.as_ref().is_none_or(|(of, _)| *of < seq.0) {
            *slot = Some((seq.0, item.clone()));
            let covers = |sum: &Sum<S>| sum.ripe.is_none() && sum.group.factor(seq).is_some();
            let awaited = seen.made.take_if(|made| *made == seq.0).is_some();
            if awaited || seen.sums.iter().any(covers) {
                self.solve(lane);
            }
        }
    }

    /// A sum has arrived that was stamped `stamp`. Whatever was sent before has come by `ripe`, if it comes.
    pub fn handle_sum(
        &mut self,
        now: Time,
        group: Group,
        (link, stamp): (LinkId, Stamp),
        ripe: Time,
        sum: S,
    ) {
        let lane = group.lane;
        let seen = self.lanes[lane.index()].get_or_insert_with(|| {
            self.kept.push(lane);
            let mut items: Vec<_> = (0..KEPT).map(|_| None).collect();
            for (_, seq, item) in self.recent.iter().filter(|(of, ..)| *of == lane) {
                items[*seq as usize % KEPT] = Some((*seq, item.clone()));
            }
            Box::new(Seen {
                items,
                sums: VecDeque::with_capacity(SUMS),
                made: None,
                last: now,
                distance: DISTANCE,
            })
        });
        let distance = now.since(seen.last).min(DISTANCE_MOST);
        seen.distance = (seen.distance * 7 + distance) / 8;
        seen.last = now;
        seen.made = None;
        if seen.sums.len() == SUMS {
            seen.sums.pop_front();
        }
        let is_ripe = ripe <= now || stamp <= self.passed;
        seen.sums.push_back(Sum {
            group,
            link,
            stamp,
            ripe: (!is_ripe).then_some(ripe),
            sum,
        });
        self.solve(lane);
    }

    /// Everything stamped up to `passed` has come, if it comes.
    pub fn handle_progress(&mut self, passed: Stamp) {
        self.passed = passed;
        self.ripen(|sum| sum.stamp <= passed);
    }

    /// Uses the sums whose time has come. Early and repeated calls do no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        self.ripen(|sum| sum.ripe.is_some_and(|ripe| ripe <= now));
        let lanes = &mut self.lanes;
        self.kept.retain(|lane| {
            let seen = &mut lanes[lane.index()];
            seen.take_if(|seen| now.since(seen.last) >= FORGETS)
                .is_none()
        });
    }

    fn ripen(&mut self, is_ripe: impl Fn(&Sum<S>) -> bool) {
        for index in 0..self.kept.len() {
            let lane = self.kept[index];
            let sums = self.lanes[lane.index()]
                .iter_mut()
                .flat_map(|seen| &mut seen.sums);
            let mut any = false;
            for sum in sums.filter(|sum| sum.ripe.is_some()) {
                if is_ripe(sum) {
                    sum.ripe = None;
                    any = true;
                }
            }
            if any {
                self.solve(lane);
            }
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let each = self.kept().flat_map(|seen| {
            let ripe = seen.sums.iter().filter_map(|sum| sum.ripe);
            ripe.chain([seen.last + FORGETS])
        });
        each.min()
    }

    /// The time from one sum to the next, in the lane where it is longest; none if no sums have come
    /// of late.
    #[must_use]
    pub fn distance(&self) -> Option<Duration> {
        self.kept().map(|seen| seen.distance).max()
    }

    fn kept(&self) -> impl Iterator<Item = &Seen<T, S>> {
        let kept = self.kept.iter();
        kept.filter_map(|lane| self.lanes[lane.index()].as_deref())
    }

    /// Sums that miss nothing go. Of those in use, what they determine is made: one packet at a
    /// time, since the next follows when it is handed in.
    fn solve(&mut self, lane: LaneId) {
        let Some(seen) = &mut self.lanes[lane.index()] else {
            return;
        };
        if seen.made.is_some() {
            return;
        }
        let items = &seen.items;
        let misses = |group: &Group| missing(items, group).next().is_some();
        seen.sums
            .retain(|sum| sum.ripe.is_some() || misses(&sum.group));
        let Some(solution) = Equations::of(seen).solve() else {
            return;
        };
        self.rebuilt += 1;
        seen.made = Some(solution.seq);
        let lists = self.spare.pop().unwrap_or_else(|| {
            let most = SUMS * SPACING_MOST;
            (Vec::with_capacity(SUMS), Vec::with_capacity(most))
        });
        self.ready.push_back(seen.recipe(lane, &solution, lists));
        // With that packet here, this sum tells nothing that the others do not.
        seen.sums.remove(solution.spent);
    }

    /// How to make a packet that is missing; make it, and hand it in as if it had arrived. The recipe
    /// may be [given back](Self::give_back).
    pub fn poll_rebuild(&mut self) -> Option<Rebuild<T, S>> {
        self.ready.pop_front()
    }

    /// Takes back a recipe, whose memory is used again.
    pub fn give_back(&mut self, mut rebuild: Rebuild<T, S>) {
        rebuild.sums.clear();
        rebuild.others.clear();
        self.spare.push((rebuild.sums, rebuild.others));
    }

    /// Packets that could be rebuilt; some of them came nevertheless.
    #[must_use]
    pub fn rebuilt(&self) -> u64 {
        self.rebuilt
    }
}

fn here<T>(items: &[Option<(u64, T)>], seq: u64) -> Option<&T> {
    let slot = items[seq as usize % KEPT].as_ref();
    slot.filter(|(of, _)| *of == seq).map(|(_, item)| item)
}

fn missing<T>(items: &[Option<(u64, T)>], group: &Group) -> impl Iterator<Item = u64> {
    (group.first.0..group.end()).filter(|seq| here(items, *seq).is_none())
}

impl<T: Clone, S: Clone> Seen<T, S> {
    fn recipe(
        &self,
        lane: LaneId,
        solution: &Solution,
        (mut sums, mut others): Lists<T, S>,
    ) -> Rebuild<T, S> {
        let used = || {
            self.sums
                .iter()
                .zip(solution.factors)
                .filter(|(_, factor)| *factor > 0)
        };
        let first = used().map(|(sum, _)| sum.group.first.0).min().unwrap_or(0);
        let end = used().map(|(sum, _)| sum.group.end()).max().unwrap_or(0);
        let known = (first..end).filter_map(|seq| {
            let factors = used()
                .filter_map(|(sum, factor)| Some(times(factor, sum.group.factor(LaneSeq(seq))?)));
            let factor = factors.fold(0, |sum, factor| sum ^ factor);
            let item = here(&self.items, seq).filter(|_| factor > 0)?;
            Some((factor, item.clone()))
        });
        others.extend(known);
        sums.extend(used().map(|(sum, factor)| (factor, sum.sum.clone())));
        let newest = used().map(|(sum, _)| (sum.stamp, sum.link)).max();
        let (stamp, link) = newest.unwrap_or((Stamp(0), LinkId(0)));
        Rebuild {
            lane,
            seq: LaneSeq(solution.seq),
            link,
            stamp,
            sums,
            others,
        }
    }
}

/// One equation for each sum: what its missing packets are multiplied by.
struct Equations {
    unknown: [u64; UNKNOWN_MOST],
    unknowns: usize,
    /// Factors of the unknown, and of the sums that the row has become a sum of.
    rows: [([u8; UNKNOWN_MOST], [u8; SUMS]); SUMS],
}

/// `seq` is the sum of the sums by these factors, and of packets that are here.
struct Solution {
    seq: u64,
    factors: [u8; SUMS],
    /// One of the sums.
    spent: usize,
}

impl Equations {
    fn of<T, S>(seen: &Seen<T, S>) -> Equations {
        let mut all = Equations {
            unknown: [0; UNKNOWN_MOST],
            unknowns: 0,
            rows: [([0; UNKNOWN_MOST], [0; SUMS]); SUMS],
        };
        // Who misses the least goes first: what is alone in its window comes back whatever else is missing.
        let mut order = [(usize::MAX, 0); SUMS];
        for (index, sum) in seen.sums.iter().enumerate() {
            let count = missing(&seen.items, &sum.group).take(MISSING_MOST + 1);
            order[index] = (count.count(), index);
        }
        order.sort_unstable();
        for (_, index) in order
            .into_iter()
            .filter(|(count, _)| *count <= MISSING_MOST)
        {
            let sum = &seen.sums[index];
            if sum.ripe.is_some() {
                continue;
            }
            let (mut row, mut fits) = ([0; UNKNOWN_MOST], true);
            let before = all.unknowns;
            for seq in missing(&seen.items, &sum.group) {
                let factor = sum.group.factor(LaneSeq(seq)).unwrap_or(0);
                match all.column(seq) {
                    Some(column) => row[column] = factor,
                    None => fits = false,
                }
            }
            if fits {
                all.rows[index].0 = row;
                all.rows[index].1[index] = 1;
            } else {
                all.unknowns = before;
            }
        }
        all
    }

    fn column(&mut self, seq: u64) -> Option<usize> {
        let known = self.unknown[..self.unknowns]
            .iter()
            .position(|of| *of == seq);
        if known.is_none() && self.unknowns < UNKNOWN_MOST {
            self.unknown[self.unknowns] = seq;
            self.unknowns += 1;
            return Some(self.unknowns - 1);
        }
        known
    }

    /// Gauss and Jordan's elimination; the lowest number that it determines.
    fn solve(mut self) -> Option<Solution> {
        let mut pivots = 0;
        for column in 0..self.unknowns {
            let Some(pivot) = (pivots..SUMS).find(|row| self.rows[*row].0[column] > 0) else {
                continue;
            };
            self.rows.swap(pivots, pivot);
            let by = inverse(self.rows[pivots].0[column]);
            let (left, right) = &mut self.rows[pivots];
            left.iter_mut()
                .chain(right)
                .for_each(|value| *value = times(*value, by));
            let (left, right) = self.rows[pivots];
            for (index, row) in self.rows.iter_mut().enumerate() {
                let factor = row.0[column];
                if index != pivots && factor > 0 {
                    let add = |(to, from): (&mut u8, u8)| *to ^= times(factor, from);
                    row.0.iter_mut().zip(left).for_each(add);
                    row.1.iter_mut().zip(right).for_each(add);
                }
            }
            pivots += 1;
        }
        let solved = self.rows[..pivots].iter().filter_map(|(left, right)| {
            let mut columns = (0..self.unknowns).filter(|column| left[*column] > 0);
            let column = columns.next().filter(|_| columns.next().is_none())?;
            Some((self.unknown[column], *right))
        });
        let (seq, factors) = solved.min_by_key(|(seq, _)| *seq)?;
        let spent = factors.iter().position(|factor| *factor > 0)?;
        Some(Solution {
            seq,
            factors,
            spent,
        })
    }
}
