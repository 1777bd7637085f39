//! Ready queue and timers of many tunnels: work in one of a thousand costs as much as if it were
//! the only one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use braid_core::Time;

/// Datagrams that one entry may send in its turn: enough for one batch, few enough that the others
/// wait briefly behind one that always has more.
const MAX_TURN_DATAGRAMS: u32 = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    ready: bool,
    timer: Option<Time>,
}

/// Ready queue and timers, by name.
#[derive(Debug)]
pub(super) struct RunQueue<N> {
    entries: BTreeMap<N, Entry>,
    ready: VecDeque<N>,
    timers: BTreeSet<(Time, N)>,
    /// Datagrams left in the current turn.
    left: u32,
}

impl<N: Copy + Ord> RunQueue<N> {
    pub fn new() -> Self {
        RunQueue {
            entries: BTreeMap::new(),
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            left: MAX_TURN_DATAGRAMS,
        }
    }

    /// Puts an entry into the ready queue.
    pub fn wake(&mut self, name: N) {
        let entry = self.entries.entry(name).or_default();
        if !entry.ready {
            entry.ready = true;
            self.ready.push_back(name);
        }
        if let Some(at) = entry.timer.take() {
            self.timers.remove(&(at, name));
        }
    }

    /// Entries that may have work.
    pub fn ready(&self) -> impl Iterator<Item = N> {
        self.ready.iter().copied()
    }

    /// The entry whose turn it is.
    pub fn current(&self) -> Option<N> {
        self.ready.front().copied()
    }

    /// The current entry has sent a datagram.
    pub fn handle_sent(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.left = MAX_TURN_DATAGRAMS;
            self.ready.rotate_left(1);
        }
    }

    /// The current entry has no work until `until`.
    pub fn park(&mut self, until: Option<Time>) {
        self.left = MAX_TURN_DATAGRAMS;
        let Some(name) = self.ready.pop_front() else {
            return;
        };
        let entry = self.entries.entry(name).or_default();
        let timer = until;
        *entry = Entry {
            ready: false,
            timer,
        };
        self.timers.extend(timer.map(|at| (at, name)));
    }

    /// Wakes the next entry whose timer is due.
    pub fn poll_due(&mut self, now: Time) -> Option<N> {
        let (at, name) = self.timers.first().copied()?;
        if now < at {
            return None;
        }
        self.wake(name);
        Some(name)
    }

    /// The earliest timer of the parked entries.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    pub fn remove(&mut self, name: N) {
        let entry = self.entries.remove(&name).unwrap_or_default();
        if let Some(at) = entry.timer {
            self.timers.remove(&(at, name));
        }
        if entry.ready {
            if self.current() == Some(name) {
                self.left = MAX_TURN_DATAGRAMS;
            }
            self.ready.retain(|other| *other != name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn turns_rotate_and_parked_entries_wake_in_time() {
        let mut run_queue = RunQueue::new();
        for name in [1, 2, 1, 3] {
            run_queue.wake(name);
        }
        let mut turns = Vec::new();
        for _ in 0..4 * MAX_TURN_DATAGRAMS {
            let turn = run_queue.current().expect("all are ready");
            if turns.last() != Some(&turn) {
                turns.push(turn);
            }
            run_queue.handle_sent();
        }
        assert_eq!(turns, [1, 2, 3, 1]);
        run_queue.park(Some(at(30)));
        run_queue.park(Some(at(10)));
        run_queue.park(None);
        assert_eq!(run_queue.current(), None);
        assert_eq!(run_queue.poll_timeout(), Some(at(10)));
        assert_eq!(run_queue.poll_due(at(9)), None);
        assert_eq!(run_queue.poll_due(at(10)), Some(3));
        assert_eq!(run_queue.poll_due(at(10)), None);
        assert_eq!(run_queue.ready().collect::<Vec<_>>(), [3]);
        // The timer is void once another event has woken it.
        run_queue.wake(2);
        assert_eq!(run_queue.poll_timeout(), None);
        run_queue.remove(3);
        run_queue.remove(2);
        assert_eq!(
            (run_queue.current(), run_queue.poll_due(at(99))),
            (None, None)
        );
    }

    #[test]
    fn parking_ends_only_the_current_turn() {
        let mut run_queue = RunQueue::new();
        (1..=2).for_each(|name| run_queue.wake(name));
        (1..MAX_TURN_DATAGRAMS).for_each(|_| run_queue.handle_sent());
        run_queue.park(None);
        assert_eq!(run_queue.current(), Some(2));
        run_queue.wake(1);
        (1..MAX_TURN_DATAGRAMS).for_each(|_| run_queue.handle_sent());
        assert_eq!(run_queue.current(), Some(2), "a whole turn");
        run_queue.handle_sent();
        assert_eq!(run_queue.current(), Some(1));
    }
}
