//! TCP put in order by its own sequence numbers, where paths carry no numbers of ours.
//!
//! What [`Resequencer`](super::Resequencer) does with numbers that a sender of ours gave, this does
//! with those that TCP brings, by connection. The rules are the module's, with what TCP makes of
//! them:
//!
//! - A sender gives each byte once, in order, but for **retransmissions**. Paths are FIFOs and every
//!   segment says which it came by, so one that is not beyond what its own path has brought before
//!   was sent again. It waits for no gap, but as long as something that was sent before it may still
//!   be under way on a slower path: a sender that hears of it takes all that it sent earlier for lost
//!   (RFC 8985 §6.2; with paths of 10 and 75 ms each repair cost half the window).
//! - A gap is **known lost** as soon as every path has brought something from behind it.
//! - Otherwise its **deadline**, fixed when it was first seen: how much later the slowest path
//!   brings things than the one that showed the gap, and what waits were longer than that lately
//!   ([`ExcessWait`]).
//! - Sequence numbers wrap; before and behind are halves of their circle (RFC 9293 §3.4).

use std::collections::VecDeque;
use std::time::Duration;

use crate::Time;

use super::excess_wait::ExcessWait;
use super::{GivenUp, PathId, Segment, StreamCounters};

/// Most paths between two edges.
pub const MAX_PATHS: usize = 8;

/// Which of the paths that are in use now, and how long the wait behind each may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Paths {
    /// Changes when the paths do: what earlier ones have brought says nothing of these.
    pub epoch: u32,
    pub count: usize,
    /// How much later than each the slowest brings things.
    pub lag: [Duration; MAX_PATHS],
    /// By then what was sent by earlier paths has come: until then nothing is known lost for what the
    /// present ones have brought.
    pub drained: Time,
}

#[derive(Debug)]
struct Held<T> {
    seq: u32,
    end: u32,
    /// None for one that went on ahead of its turn.
    item: Option<T>,
    since: Time,
    gap: Gap,
}

/// What is missing right before a held segment, if anything is.
#[derive(Debug, Clone, Copy)]
struct Gap {
    seen: Time,
    deadline: Time,
    lag: Duration,
}

/// A segment that was sent again, and when whatever was sent before it has come.
#[derive(Debug)]
struct HeldRetransmission<T> {
    due: Time,
    since: Time,
    segment: Segment,
    item: T,
}

/// One connection's one direction.
#[derive(Debug)]
pub(super) struct Stream<T> {
    first: u32,
    expected: u32,
    /// By number.
    held: VecDeque<Held<T>>,
    /// By time.
    retransmitted: VecDeque<HeldRetransmission<T>>,
    epoch: u32,
    /// The highest number that each path has brought.
    passed: [Option<u32>; MAX_PATHS],
    /// The last gap that was given up: where it lay, and since when it was known.
    given_up: Option<(u32, u32, Gap)>,
    pub last: Time,
}

/// What was decided about a segment, and what it comes with.
pub(super) struct Output<'a, T> {
    pub ready: &'a mut VecDeque<T>,
    pub counters: &'a mut StreamCounters,
    pub excess_wait: &'a mut ExcessWait,
}

/// `a - b` on the circle of sequence numbers.
pub(super) fn seq_distance(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

impl Paths {
    fn lag(&self, PathId(path): PathId) -> Duration {
        self.lag[usize::from(path) % MAX_PATHS]
    }
}

impl Segment {
    /// The number after its last.
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

    /// Whether a SYN with this number opens another connection than this one.
    pub fn is_other(&self, seq: u32) -> bool {
        self.first != seq
    }

    pub fn held(&self) -> usize {
        self.held.len() + self.retransmitted.len()
    }

    /// When the first of what is held goes on at the latest.
    pub fn deadline(&self) -> Option<Time> {
        let held = self.held.front().map(|held| held.gap.deadline);
        let retransmitted = self
            .retransmitted
            .front()
            .map(|retransmitted| retransmitted.due);
        held.into_iter().chain(retransmitted).min()
    }

    /// Takes a segment; what may go on then, [`release`](Self::release) lets go.
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
            // Alone, a path brings it after all that was sent before it.
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

    /// Notes what a path has brought; whether it had brought this, or something behind it, before.
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
        // In the midst of what is held it parts a gap that was there: that one's time goes on.
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

    /// Lets go on what may. With `force` the first gap is given up whatever it waits for, or, where
    /// there is none, what was sent again goes on.
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

    /// Whether every path has brought what was sent behind a gap that ends at `end`.
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
