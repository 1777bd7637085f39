//! One lane: what is held, what is missing, and what went by.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{Stamp, Time};

use super::GivenUp;

/// How far back a lane tells a late packet from a duplicate.
const HISTORY: u64 = 1024;

#[derive(Debug, Clone)]
enum Slot<T> {
    Missing,
    Held {
        since: Time,
        item: T,
    },
    /// Went on ahead of its turn.
    Delivered,
}

/// Missing packets that were first seen to be missing together. Those of them that have come since
/// are no longer missing; the slots know.
#[derive(Debug, Clone, Copy)]
struct Gap {
    last: u64,
    /// The stamp of the packet that showed it.
    after: Stamp,
    deadline: Time,
    known_lost: bool,
}

/// What a packet is to its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    /// The next one.
    Next,
    /// Ahead of the next one, and not here yet.
    Ahead,
    /// Given up before.
    Late,
    /// Here before.
    Duplicate,
    /// Too old to tell.
    TooOld,
}

/// What left a lane.
pub(super) enum Released<T> {
    /// A packet, in order, that had waited since.
    Item { seq: u64, since: Time, item: T },
    /// A missing packet was given up.
    GivenUp(GivenUp),
}

#[derive(Debug, Clone)]
pub(super) struct Lane<T> {
    base: u64,
    slots: VecDeque<Slot<T>>,
    gaps: VecDeque<Gap>,
    /// How many of the gaps, from the first, are known lost.
    known_lost: usize,
    /// Which of the last [`HISTORY`] below `base` went on, one bit each.
    delivered: [u64; HISTORY as usize / 64],
}

impl<T> Default for Lane<T> {
    fn default() -> Lane<T> {
        Lane {
            base: 0,
            slots: VecDeque::new(),
            gaps: VecDeque::new(),
            known_lost: 0,
            delivered: [0; HISTORY as usize / 64],
        }
    }
}

impl<T> Lane<T> {
    pub fn position(&self, seq: u64) -> Position {
        if seq < self.base {
            return match (self.base - seq <= HISTORY, self.was_delivered(seq)) {
                (false, _) => Position::TooOld,
                (true, true) => Position::Duplicate,
                (true, false) => Position::Late,
            };
        }
        match self.slots.get((seq - self.base) as usize) {
            Some(Slot::Held { .. } | Slot::Delivered) => Position::Duplicate,
            _ if seq == self.base => Position::Next,
            _ => Position::Ahead,
        }
    }

    /// The next one in order has come and nothing is held: the way of nearly all packets.
    pub fn pass(&mut self) -> bool {
        let free = self.slots.is_empty();
        if free {
            self.note(self.base, true);
            self.base += 1;
        }
        free
    }

    /// Slots that would be in use with `seq` among them.
    pub fn reach(&self, seq: u64) -> u64 {
        (seq + 1).saturating_sub(self.base)
    }

    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Everything below `seq` that is not here is missing, as a packet stamped `after` shows.
    pub fn miss_below(&mut self, seq: u64, after: Stamp, deadline: Time) {
        let end = self.base + self.slots.len() as u64;
        if seq <= end {
            return;
        }
        self.slots.extend((end..seq).map(|_| Slot::<T>::Missing));
        self.gaps.push_back(Gap {
            last: seq - 1,
            after,
            deadline,
            known_lost: false,
        });
    }

    /// Holds `item`, which is not below the base; what is below it must be missing already.
    pub fn hold(&mut self, now: Time, seq: u64, item: T) {
        self.put(seq, Slot::Held { since: now, item });
    }

    /// Notes that `seq`, which is not below the base, went on ahead of its turn.
    pub fn skip(&mut self, seq: u64) {
        self.put(seq, Slot::Delivered);
    }

    fn put(&mut self, seq: u64, slot: Slot<T>) {
        let index = (seq - self.base) as usize;
        match self.slots.get_mut(index) {
            Some(position) => *position = slot,
            None => self.slots.push_back(slot),
        }
    }

    /// Notes that `seq`, below the base, went on late.
    pub fn note_late(&mut self, seq: u64) {
        self.note(seq, true);
    }

    /// Every live link has settled past `passed`: gaps before that are known lost, and get no more
    /// than `rescue` from now, the time in which a copy would come.
    pub fn settle(&mut self, now: Time, passed: Stamp, recovery_delay: Duration) {
        while let Some(gap) = self.gaps.get_mut(self.known_lost) {
            if gap.after >= passed {
                return;
            }
            gap.known_lost = true;
            gap.deadline = gap.deadline.min(now + recovery_delay);
            self.known_lost += 1;
        }
    }

    /// What the lane waits for: none if it waits for nothing.
    pub fn deadline(&self) -> Option<Time> {
        self.gaps.front().map(|gap| gap.deadline)
    }

    /// The next that leaves the lane at `now`; by `force`, gaps leave before their deadline.
    pub fn poll(&mut self, now: Time, force: bool) -> Option<Released<T>> {
        loop {
            let missing = matches!(self.slots.front()?, Slot::Missing);
            let gap = self.gaps.front().copied();
            if missing {
                let gap = gap?;
                if now < gap.deadline && !force {
                    return None;
                }
            }
            let slot = self.slots.pop_front()?;
            let seq = self.base;
            self.note(seq, !missing);
            self.base += 1;
            if let Some(gap) = gap.filter(|gap| gap.last < self.base) {
                self.gaps.pop_front();
                self.known_lost -= usize::from(gap.known_lost);
            }
            match slot {
                Slot::Held { since, item } => return Some(Released::Item { seq, since, item }),
                Slot::Missing => return Some(Released::GivenUp(why(gap, now, force))),
                Slot::Delivered => {}
            }
        }
    }

    /// Begins anew at `to`, if that is ahead and nothing is held; says how many that leaves out.
    pub fn jump(&mut self, to: u64) -> u64 {
        if to <= self.base || !self.slots.is_empty() {
            return 0;
        }
        for seq in self.base.max(to.saturating_sub(HISTORY))..to {
            self.note(seq, false);
        }
        let skipped = to - self.base;
        self.base = to;
        skipped
    }

    /// Gives memory back that only a burst needed.
    pub fn shrink(&mut self) {
        self.slots.shrink_to(0);
        self.gaps.shrink_to(0);
    }

    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    fn was_delivered(&self, seq: u64) -> bool {
        let bit = seq % HISTORY;
        self.delivered[bit as usize / 64] >> (bit % 64) & 1 == 1
    }

    fn note(&mut self, seq: u64, delivered: bool) {
        let bit = seq % HISTORY;
        let word = &mut self.delivered[bit as usize / 64];
        *word = *word & !(1 << (bit % 64)) | u64::from(delivered) << (bit % 64);
    }
}

fn why(gap: Option<Gap>, now: Time, force: bool) -> GivenUp {
    match gap {
        Some(gap) if now >= gap.deadline && gap.known_lost => GivenUp::KnownLost,
        Some(gap) if now >= gap.deadline || !force => GivenUp::Deadline,
        _ => GivenUp::Forced,
    }
}
