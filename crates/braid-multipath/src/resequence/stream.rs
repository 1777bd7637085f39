//! Reorders TCP by its own sequence numbers, on paths without numbers of ours.
//!
//! It treats TCP's numbers per connection as [`Resequencer`](super::Resequencer) treats the numbers
//! of our sender. The rules are the module's, with these differences:
//!
//! - A sender sends each byte once, in order, except for **retransmissions**. Paths are FIFOs and
//!   every segment says which path it took, so a segment not beyond the highest one of its own path
//!   is a retransmission. It waits for no gap, but as long as an earlier segment may still be on
//!   its way on a slower path: a sender that sees the retransmission acknowledged takes all earlier
//!   segments for lost (RFC 8985 §6.2; with paths of 10 and 75 ms each repair cost half the
//!   window).
//! - A gap is **known lost** as soon as every path has delivered something behind it.
//! - Otherwise it has a **deadline**, fixed when it is first seen: how much later than the path
//!   that showed the gap the slowest path delivers, and the recent excess over that
//!   ([`ExcessWait`]).
//! - Sequence numbers wrap; before and behind are halves of their circle (RFC 9293 §3.4).

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

use super::excess_wait::ExcessWait;
use super::{GivenUp, PathId, Segment, StreamCounters};

/// Most paths between two edges.
pub const MAX_PATHS: usize = 8;

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
}

/// A retransmitted segment, and when every segment sent before it has arrived.
#[derive(Debug)]
struct HeldRetransmission<T> {
    due: Time,
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
    /// The last gap given up: its range, and since when it was known.
    given_up: Option<(u32, u32, Gap)>,
    pub last: Time,
}

/// Destinations of a decision about a segment.
pub(super) struct Output<'a, T> {
    pub ready: &'a mut VecDeque<T>,
    pub counters: &'a mut StreamCounters,
    pub excess_wait: &'a mut ExcessWait,
}

/// Returns `a - b` on the circle of sequence numbers.
pub(super) fn seq_distance(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

impl Paths {
    fn lag(&self, PathId(path): PathId) -> Duration {
        self.lag[usize::from(path) % MAX_PATHS]
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
        }
        let lag = segment.path.map_or(Duration::ZERO, |path| paths.lag(path));
        if self.was_passed(segment) {
            out.counters.retransmitted += 1;
            // A single path delivers it after everything sent before it.
            let due = match paths.count == 1 && now >= paths.drained {
                true => now,
                false => now + lag + out.excess_wait.excess(now),
            };
            let index = self
                .retransmitted
                .partition_point(|retransmitted| retransmitted.due <= due);
            let retransmitted = HeldRetransmission {
                due,
                since: now,
                segment,
                item,
            };
            return self.retransmitted.insert(index, retransmitted);
        }
        let distance = seq_distance(segment.seq, self.expected);
        if distance > 0 {
            let deadline = now + out.excess_wait.hold(now, lag);
            let gap = Gap {
                seen: now,
                deadline,
                lag,
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

    /// Records the arrival on its path. Returns true if the path had delivered this segment, or one
    /// behind it, before.
    fn was_passed(&mut self, segment: Segment) -> bool {
        let Some(PathId(path)) = segment.path else {
            return false;
        };
        let passed = &mut self.passed[usize::from(path) % MAX_PATHS];
        match *passed {
            Some(highest) if seq_distance(segment.seq, highest) <= 0 => true,
            _ => {
                *passed = Some(segment.seq);
                false
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
    }

    /// Delivers segments that are due. With `force` the first gap is given up, whatever it waits
    /// for; without a gap, retransmissions are delivered.
    pub fn release(&mut self, now: Time, paths: &Paths, mut force: bool, out: &mut Output<'_, T>) {
        let all = force && self.held.is_empty();
        while self
            .retransmitted
            .front()
            .is_some_and(|retransmitted| all || retransmitted.due <= now)
            && let Some(HeldRetransmission {
                since,
                segment,
                item,
                ..
            }) = self.retransmitted.pop_front()
        {
            out.counters.hold(now.since(since));
            out.ready.push_back(item);
            if seq_distance(segment.seq, self.expected) <= 0 {
                self.advance(segment.end());
            } else {
                let gap = Gap {
                    seen: now,
                    deadline: now,
                    lag: Duration::ZERO,
                };
                self.hold(now, segment, gap, None);
            }
        }
        while let Some(front) = self.held.front() {
            if seq_distance(front.seq, self.expected) > 0 {
                let why = match () {
                    () if self.is_lost(now, paths, front.seq) => GivenUp::KnownLost,
                    () if now >= front.gap.deadline => GivenUp::Deadline,
                    () if force => GivenUp::Forced,
                    () => return,
                };
                force = false;
                out.counters.give_up(why);
                self.given_up = Some((self.expected, front.seq, front.gap));
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

    /// Returns true if every path has delivered something behind a gap that ends at `end`.
    fn is_lost(&self, now: Time, paths: &Paths, end: u32) -> bool {
        if now < paths.drained {
            return false;
        }
        let passed =
            |passed: &Option<u32>| passed.is_some_and(|highest| seq_distance(highest, end) >= 0);
        paths.count > 0
            && self.epoch == paths.epoch
            && self.passed[..paths.count].iter().all(passed)
    }
}
