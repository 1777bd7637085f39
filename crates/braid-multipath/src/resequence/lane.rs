//! One lane: packets held, missing and delivered.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

use super::GivenUp;
use crate::Stamp;

/// Number of packets back to which a lane tells a late packet from a duplicate.
const HISTORY: u64 = 1024;

#[derive(Debug, Clone)]
enum Slot<T> {
    Missing,
    Held {
        since: Time,
        item: T,
    },
    /// Delivered ahead of its turn.
    Delivered,
}

/// Packets first seen to be missing together. Those that have arrived since are no longer missing;
/// the slots know.
#[derive(Debug, Clone, Copy)]
struct Gap {
    last: u64,
    /// Stamp of the packet that showed the gap; none if packets below it may still be sent.
    after: Option<Stamp>,
    deadline: Time,
    known_lost: bool,
}

/// Position of a packet in its lane.
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

/// Something that left a lane.
pub(super) enum Released<T> {
    /// A packet, in order, that had waited since then.
    Item { seq: u64, since: Time, item: T },
    /// A missing packet was given up.
    GivenUp(GivenUp),
}

#[derive(Debug, Clone)]
pub(super) struct Lane<T> {
    base: u64,
    slots: VecDeque<Slot<T>>,
    gaps: VecDeque<Gap>,
    /// Gaps known lost, counted from the first.
    known_lost: usize,
    /// The last [`HISTORY`] numbers below `base`, one bit each: set if delivered.
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

    /// Passes the next packet in order if nothing is held: the path of nearly all packets.
    pub fn pass(&mut self) -> bool {
        let free = self.slots.is_empty();
        if free {
            self.note(self.base, true);
            self.base += 1;
        }
        free
    }

    /// Returns the slots in use if `seq` were among them.
    pub fn reach(&self, seq: u64) -> u64 {
        (seq + 1).saturating_sub(self.base)
    }

    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Marks everything below `seq` that is not here as missing; a packet stamped `after` shows it.
    /// Without that stamp it is not known to be sent.
    pub fn miss_below(&mut self, seq: u64, after: Option<Stamp>, deadline: Time) {
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

    /// Notes that everything below `seq` was sent before a packet stamped `after`.
    pub fn sent_below(&mut self, seq: u64, after: Stamp) {
        let mut next = self.gaps.partition_point(|gap| gap.after.is_some());
        while let Some(gap) = self.gaps.get_mut(next).filter(|gap| gap.last < seq) {
            gap.after = Some(after);
            next += 1;
        }
        let first = match next.checked_sub(1) {
            Some(before) => self.gaps[before].last + 1,
            None => self.base,
        };
        if let Some(rest) = self.gaps.get(next).copied().filter(|_| first < seq) {
            let gap = Gap {
                last: seq - 1,
                after: Some(after),
                ..rest
            };
            self.gaps.insert(next, gap);
        }
    }

    /// Holds `item`, which is not below the base. Packets below it must be marked missing already.
    pub fn hold(&mut self, now: Time, seq: u64, item: T) {
        self.put(seq, Slot::Held { since: now, item });
    }

    /// Notes that `seq`, which is not below the base, was delivered ahead of its turn.
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

    /// Notes that `seq`, below the base, was delivered late.
    pub fn note_late(&mut self, seq: u64) {
        self.note(seq, true);
    }

    /// Notes that every live link has settled past `passed`. Gaps before that are known lost and
    /// end after `recovery_delay`, the time in which a recovery would arrive.
    pub fn settle(&mut self, now: Time, passed: Stamp, recovery_delay: Duration) {
        while let Some(gap) = self.gaps.get_mut(self.known_lost) {
            if gap.after.is_none_or(|after| after >= passed) {
                return;
            }
            gap.known_lost = true;
            gap.deadline = gap.deadline.min(now + recovery_delay);
            self.known_lost += 1;
        }
    }

    /// Returns when the first gap ends; none if the lane waits for nothing.
    pub fn deadline(&self) -> Option<Time> {
        self.gaps.front().map(|gap| gap.deadline)
    }

    /// Returns what leaves the lane next at `now`; with `force`, gaps end before their deadline.
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

    /// Restarts at `to` if that is ahead and nothing is held. Returns the numbers skipped.
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

    /// Releases memory that only a burst needed.
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
