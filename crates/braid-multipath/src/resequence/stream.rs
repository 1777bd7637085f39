//! Reorders TCP by its own sequence numbers, on paths without numbers of ours.
//!
//! It treats TCP's numbers per connection as [`Resequencer`](super::Resequencer) treats the numbers
//! of our sender. The rules are the module's, with these differences:
//!
//! - A sender sends each byte once, in order, except for **retransmissions**. Paths are FIFOs and
//!   every segment says which path it took, so a segment not beyond the highest one of its own path
//!   is a retransmission. It waits for no gap, but as long as an earlier segment may still be on
//!   its way on another path: a sender that sees the retransmission acknowledged takes all earlier
//!   segments for lost (RFC 8985 §6.2; with paths of 10 and 75 ms each repair cost half the
//!   window). It is delivered once every other path has brought something that was sent after it,
//!   or has brought nothing for [`IDLE_AFTER`]: a sender that sees later segments acknowledged and
//!   not the retransmission sends it once more.
//! - A gap is **known lost** as soon as every path has delivered something behind it.
//! - Otherwise it has a **deadline**, fixed when it is first seen: how much later than the path
//!   that showed the gap the slowest path delivers, and the recent excess over that
//!   ([`ExcessWait`]). Paths that have brought nothing for [`IDLE_AFTER`] are waited for only as
//!   long as they are slower: a sender that uses one path alone and loses a segment there would
//!   otherwise learn of it a tenth of a second late.
//! - While the sender's edge keeps copies ([`Paths::repair`]), it is asked once for each gap that is
//!   known lost, and the gap waits for the time that a copy takes. A segment that fills such a gap is
//!   no retransmission, whatever its path has delivered.
//! - Sequence numbers wrap; before and behind are halves of their circle (RFC 9293 §3.4).

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

use super::excess_wait::ExcessWait;
use super::{GivenUp, PathId, Segment, StreamCounters};

/// Most paths between two edges.
pub const MAX_PATHS: usize = 8;

/// Silence of a path, over all connections, from which on it counts as idle. Longer than the bursts in
/// which a flow that fills its paths by turns uses each.
pub(super) const IDLE_AFTER: Duration = Duration::from_millis(200);

/// Paths in use, and how long to wait for the slowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Paths {
    /// Changes with the paths: arrivals on earlier paths say nothing about these.
    pub epoch: u32,
    pub count: usize,
    /// Time by which the slowest path delivers later than each path.
    pub lag: [Duration; MAX_PATHS],
    /// When everything sent on earlier paths has arrived. Until then, arrivals on the present paths
    /// prove no loss.
    pub drained: Time,
    /// When each path last delivered a segment of any connection.
    pub heard: [Time; MAX_PATHS],
    /// Time that a copy takes from the request on; none if nothing can be asked for.
    pub repair: Option<Duration>,
}

#[derive(Debug)]
struct Held<T> {
    seq: u32,
    end: u32,
    /// None for a segment delivered ahead of its turn.
    item: Option<T>,
    since: Time,
    gap: Gap,
}

/// Numbers missing right before a held segment, if any.
#[derive(Debug, Clone, Copy)]
struct Gap {
    seen: Time,
    deadline: Time,
    lag: Duration,
    /// True if every other path was idle.
    alone: bool,
    /// True if copies were asked for: it is not given up before the deadline.
    asked: bool,
}

impl Gap {
    /// A gap that nothing is waited for.
    fn over(now: Time) -> Gap {
        Gap {
            seen: now,
            deadline: now,
            lag: Duration::ZERO,
            alone: false,
            asked: false,
        }
    }
}

/// Paths by index, a bit each; the highest bit is no path.
type PathSet = u16;

/// The path of a [`PathSet`] that brings nothing: earlier paths were awaited.
const NO_PATH: PathSet = 1 << 15;

/// A retransmitted segment, and when every segment sent before it has arrived.
#[derive(Debug)]
struct HeldRetransmission<T> {
    /// Paths that may still bring segments sent before it.
    awaited: PathSet,
    /// When they have brought them at the latest.
    due: Time,
    /// Highest number that its own path had delivered.
    sent_after: u32,
    since: Time,
    segment: Segment,
    item: T,
}

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct Stream<T> {
    first: u32,
    expected: u32,
    /// By sequence number.
    held: VecDeque<Held<T>>,
    /// By time.
    retransmitted: VecDeque<HeldRetransmission<T>>,
    epoch: u32,
    /// Highest number that each path has delivered.
    passed: [Option<u32>; MAX_PATHS],
    /// The last gap given up at its deadline while several paths were in use: its range, and since
    /// when it was known. Of another gap only the retransmission arrives, whose wait says nothing of
    /// queues.
    given_up: Option<(u32, u32, Gap)>,
    /// Every gap up to here was asked for, or is over.
    asked_until: u32,
    pub last: Time,
}

/// Destinations of a decision about a segment.
pub(super) struct Output<'a, T> {
    pub ready: &'a mut VecDeque<T>,
    pub counters: &'a mut StreamCounters,
    pub excess_wait: &'a mut ExcessWait,
    /// Numbers to ask for: the first, and how many.
    pub missing: &'a mut Vec<(u32, u32)>,
    /// Segments that have earned requests, [`ASKED_SHARE`] each.
    pub earned: &'a mut u32,
}

/// Segments that earn a request: twice what the other edge would send again. A host that leaves numbers out has each
/// gap asked for otherwise, by more bytes than it sends.
pub(super) const ASKED_SHARE: u32 = 25;
/// Most requests that are earned.
const MAX_ASKED: u32 = 16;
/// The same in segments.
pub(super) const MAX_EARNED: u32 = MAX_ASKED * ASKED_SHARE;

/// Returns `a - b` on the circle of sequence numbers.
pub(super) fn seq_distance(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

impl Paths {
    fn lag(&self, PathId(path): PathId) -> Duration {
        self.lag[usize::from(path) % MAX_PATHS]
    }

    /// Returns all paths that may bring something that was sent before a segment of this one.
    fn busy_beside(&self, now: Time, path: Option<PathId>) -> PathSet {
        let Some(PathId(path)) = path.filter(|_| self.count > 0 && now >= self.drained) else {
            return NO_PATH;
        };
        let heard = self.heard[..self.count].iter().enumerate();
        heard
            .filter(|(other, heard)| *other != usize::from(path) && now.since(**heard) < IDLE_AFTER)
            .fold(0, |set, (other, _)| set | 1 << other)
    }
}

impl Segment {
    /// Returns the number after its last.
    fn end(&self) -> u32 {
        self.seq.wrapping_add(self.length)
    }
}

impl<T> Stream<T> {
    pub fn beginning(now: Time, seq: u32) -> Stream<T> {
        Stream {
            first: seq,
            expected: seq,
            held: VecDeque::new(),
            retransmitted: VecDeque::new(),
            epoch: 0,
            passed: [None; MAX_PATHS],
            given_up: None,
            asked_until: seq,
            last: now,
        }
    }

    /// Returns true if a SYN with this number opens another connection than this one.
    pub fn is_other(&self, seq: u32) -> bool {
        self.first != seq
    }

    pub fn held(&self) -> usize {
        self.held.len() + self.retransmitted.len()
    }

    /// Returns when the first held segment is delivered at the latest.
    pub fn deadline(&self) -> Option<Time> {
        let held = self.held.front().map(|held| held.gap.deadline);
        let retransmitted = self
            .retransmitted
            .front()
            .map(|retransmitted| retransmitted.due);
        held.into_iter().chain(retransmitted).min()
    }

    /// Takes a segment. [`release`](Self::release) delivers whatever has become due.
    pub fn handle(
        &mut self,
        now: Time,
        paths: &Paths,
        segment: Segment,
        item: T,
        out: &mut Output<'_, T>,
    ) {
        self.last = now;
        if self.epoch != paths.epoch {
            (self.epoch, self.passed) = (paths.epoch, [None; MAX_PATHS]);
            for held in &mut self.retransmitted {
                held.awaited |= NO_PATH;
            }
        }
        if self.fills_asked(segment) {
            out.counters.repaired += 1;
            if seq_distance(segment.seq, self.expected) == 0 {
                out.ready.push_back(item);
                return self.advance(segment.end());
            }
            return self.hold(now, segment, Gap::over(now), Some(item));
        }
        let lag = segment.path.map_or(Duration::ZERO, |path| paths.lag(path));
        let passed_by = self.was_passed(segment);
        self.clear_awaited(segment, passed_by.is_some());
        self.release_retransmitted(now, false, out);
        if let Some(highest) = passed_by {
            out.counters.retransmitted += 1;
            let awaited = self.not_past(highest, paths.busy_beside(now, segment.path));
            let due = now + lag + out.excess_wait.excess(now);
            let index = self
                .retransmitted
                .partition_point(|retransmitted| retransmitted.due <= due);
            let retransmitted = HeldRetransmission {
                awaited,
                due,
                sent_after: highest,
                since: now,
                segment,
                item,
            };
            return self.retransmitted.insert(index, retransmitted);
        }
        let distance = seq_distance(segment.seq, self.expected);
        if distance > 0 {
            let alone = paths.busy_beside(now, segment.path) == 0;
            let hold = match alone {
                true => out.excess_wait.hold_for_idle(now, lag),
                false => out.excess_wait.hold(now, lag),
            };
            let deadline = now + hold;
            let gap = Gap {
                seen: now,
                deadline,
                lag,
                alone,
                asked: false,
            };
            return self.hold(now, segment, gap, Some(item));
        }
        if distance == 0 {
            out.counters.in_order += 1;
            if let Some(held) = self.held.front() {
                out.excess_wait
                    .observe(now, now.since(held.gap.seen), held.gap.lag);
            }
        } else {
            out.counters.late += 1;
            if let Some((from, to, gap)) = self.given_up
                && seq_distance(segment.seq, from) >= 0
                && seq_distance(segment.seq, to) < 0
            {
                out.excess_wait.observe(now, now.since(gap.seen), gap.lag);
            }
        }
        out.ready.push_back(item);
        self.advance(segment.end());
    }

    /// Records the arrival on its path. If the path had delivered this segment, or one behind it,
    /// before: returns the highest number that it had delivered.
    fn was_passed(&mut self, segment: Segment) -> Option<u32> {
        let PathId(path) = segment.path?;
        let passed = &mut self.passed[usize::from(path) % MAX_PATHS];
        match *passed {
            Some(highest) if seq_distance(segment.seq, highest) <= 0 => Some(highest),
            _ => {
                *passed = Some(segment.seq);
                None
            }
        }
    }

    /// Returns those of these paths that have not delivered a number as high as this.
    fn not_past(&self, seq: u32, paths: PathSet) -> PathSet {
        let passed = self.passed.iter().enumerate();
        let past = |passed: &Option<u32>| passed.is_some_and(|it| seq_distance(it, seq) >= 0);
        passed
            .filter(|(_, passed)| past(passed))
            .fold(paths, |set, (path, _)| set & !(1 << path))
    }

    /// Records for all held retransmissions that were sent before this segment that its path brings
    /// nothing more from before them. Retransmissions are sent in the order of their numbers.
    fn clear_awaited(&mut self, segment: Segment, again: bool) {
        let Some(PathId(path)) = segment.path else {
            return;
        };
        for held in &mut self.retransmitted {
            let later = match again {
                true => seq_distance(segment.seq, held.segment.seq) > 0,
                false => seq_distance(segment.seq, held.sent_after) > 0,
            };
            if later {
                held.awaited &= !(1 << (usize::from(path) % MAX_PATHS));
            }
        }
    }

    fn hold(&mut self, now: Time, segment: Segment, gap: Gap, item: Option<T>) {
        let index = self
            .held
            .partition_point(|held| seq_distance(held.seq, segment.seq) <= 0);
        // Among held segments, it splits an existing gap, whose deadline stays.
        let gap = self.held.get(index).map_or(gap, |behind| behind.gap);
        let (seq, end, since) = (segment.seq, segment.end(), now);
        self.held.insert(
            index,
            Held {
                seq,
                end,
                item,
                since,
                gap,
            },
        );
    }

    fn advance(&mut self, end: u32) {
        if seq_distance(end, self.expected) > 0 {
            self.expected = end;
        }
        if seq_distance(self.expected, self.asked_until) > 0 {
            self.asked_until = self.expected;
        }
    }

    /// Returns the first number that is neither delivered nor held before this place among held segments.
    fn end_before(&self, place: usize) -> u32 {
        let before = place.checked_sub(1).and_then(|it| self.held.get(it));
        match before {
            Some(held) if seq_distance(held.end, self.expected) > 0 => held.end,
            _ => self.expected,
        }
    }

    /// Returns true if a segment lies within a gap that was asked for.
    fn fills_asked(&self, segment: Segment) -> bool {
        let place = self
            .held
            .partition_point(|held| seq_distance(held.seq, segment.seq) <= 0);
        let behind = self.held.get(place);
        behind
            .is_some_and(|behind| behind.gap.asked && seq_distance(behind.seq, segment.end()) >= 0)
            && seq_distance(segment.seq, self.end_before(place)) >= 0
    }

    /// Asks for the gaps that are known lost, each once, as far as requests are earned.
    fn ask(&mut self, now: Time, paths: &Paths, out: &mut Output<'_, T>) {
        let (Some(wait), Some(passed)) = (paths.repair, self.passed_by_all(now, paths)) else {
            return;
        };
        let place = self
            .held
            .partition_point(|held| seq_distance(held.seq, self.asked_until) <= 0);
        let mut end = self.end_before(place);
        for held in self.held.range_mut(place..) {
            if seq_distance(held.seq, passed) > 0 {
                return;
            }
            let missing = seq_distance(held.seq, end);
            if missing > 0 && !held.gap.asked && *out.earned >= ASKED_SHARE {
                *out.earned -= ASKED_SHARE;
                out.counters.asked += 1;
                out.missing.push((end, missing.unsigned_abs()));
                (held.gap.asked, held.gap.deadline) = (true, now + wait);
            }
            self.asked_until = held.seq;
            end = held.end;
        }
    }

    /// Delivers segments that are due. With `force` the first gap is given up, whatever it waits
    /// for; without a gap, retransmissions are delivered.
    pub fn release(&mut self, now: Time, paths: &Paths, mut force: bool, out: &mut Output<'_, T>) {
        let all = force && self.held.is_empty();
        self.release_retransmitted(now, all, out);
        if !force {
            self.ask(now, paths, out);
        }
        while let Some(front) = self.held.front() {
            if seq_distance(front.seq, self.expected) > 0 {
                let over = now >= front.gap.deadline;
                let awaited = front.gap.asked && !over;
                let why = match () {
                    () if !awaited && self.is_lost(now, paths, front.seq) => GivenUp::KnownLost,
                    () if over => GivenUp::Deadline,
                    () if force => GivenUp::Forced,
                    () => return,
                };
                force = false;
                out.counters.give_up(why);
                let may_arrive = why == GivenUp::Deadline && !front.gap.alone && !front.gap.asked;
                self.given_up = may_arrive.then_some((self.expected, front.seq, front.gap));
                self.expected = front.seq;
            }
            if let Some(held) = self.held.pop_front() {
                self.advance(held.end);
                if let Some(item) = held.item {
                    out.counters.hold(now.since(held.since));
                    out.ready.push_back(item);
                }
            }
        }
    }

    /// Delivers retransmissions before which nothing is missing any more that was sent earlier, or
    /// `all`.
    fn release_retransmitted(&mut self, now: Time, all: bool, out: &mut Output<'_, T>) {
        let mut next = 0;
        while let Some(first) = self.retransmitted.get(next) {
            if first.awaited != 0 && first.due > now && !all {
                next += 1;
                continue;
            }
            let Some(HeldRetransmission {
                since,
                segment,
                item,
                ..
            }) = self.retransmitted.remove(next)
            else {
                break;
            };
            out.counters.hold(now.since(since));
            out.ready.push_back(item);
            if seq_distance(segment.seq, self.expected) <= 0 {
                self.advance(segment.end());
            } else {
                self.hold(now, segment, Gap::over(now), None);
            }
        }
    }

    /// Returns true if every path has delivered something behind a gap that ends at `end`.
    fn is_lost(&self, now: Time, paths: &Paths, end: u32) -> bool {
        self.passed_by_all(now, paths)
            .is_some_and(|passed| seq_distance(passed, end) >= 0)
    }

    /// Returns the highest number that every path has delivered or passed; none if one has brought nothing.
    fn passed_by_all(&self, now: Time, paths: &Paths) -> Option<u32> {
        if now < paths.drained || self.epoch != paths.epoch {
            return None;
        }
        let (first, others) = self.passed[..paths.count].split_first()?;
        others.iter().try_fold((*first)?, |lowest, passed| {
            let passed = (*passed)?;
            Some(if seq_distance(passed, lowest) < 0 {
                passed
            } else {
                lowest
            })
        })
    }
}
