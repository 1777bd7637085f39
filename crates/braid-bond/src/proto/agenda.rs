//! Who of many has something to do, and who will have when: so that what one of a thousand does costs
//! as much as if it were alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use braid_core::Time;

/// Datagrams that one may send before it is another's turn: enough that they go out as one, few enough
/// that nobody waits long behind one that always has more.
const TURN: u32 = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    ready: bool,
    timer: Option<Time>,
}

/// Turns and timers, by name.
#[derive(Debug)]
pub(super) struct Agenda<N> {
    entries: BTreeMap<N, Entry>,
    ready: VecDeque<N>,
    timers: BTreeSet<(Time, N)>,
    /// What is left of the first one's turn.
    left: u32,
}

impl<N: Copy + Ord> Agenda<N> {
    pub fn new() -> Self {
        Agenda {
            entries: BTreeMap::new(),
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            left: TURN,
        }
    }

    /// Something happened to it: it may have something to do.
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

    /// Those that may have something to do.
    pub fn ready(&self) -> impl Iterator<Item = N> {
        self.ready.iter().copied()
    }

    /// Whose turn it is.
    pub fn turn(&self) -> Option<N> {
        self.ready.front().copied()
    }

    /// Whose turn it is has used some of it.
    pub fn handle_sent(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.left = TURN;
            self.ready.rotate_left(1);
        }
    }

    /// Whose turn it is has nothing more to do until then.
    pub fn rest(&mut self, until: Option<Time>) {
        self.left = TURN;
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

    /// The next one whose time has come; it is awake then.
    pub fn poll_due(&mut self, now: Time) -> Option<N> {
        let (at, name) = self.timers.first().copied()?;
        if now < at {
            return None;
        }
        self.wake(name);
        Some(name)
    }

    /// When the next one's time comes, of those that rest.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    pub fn forget(&mut self, name: N) {
        let entry = self.entries.remove(&name).unwrap_or_default();
        if let Some(at) = entry.timer {
            self.timers.remove(&(at, name));
        }
        if entry.ready {
            if self.turn() == Some(name) {
                self.left = TURN;
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
    fn turns_go_round_and_who_rests_is_woken_in_time() {
        let mut agenda = Agenda::new();
        for name in [1, 2, 1, 3] {
            agenda.wake(name);
        }
        let mut turns = Vec::new();
        for _ in 0..4 * TURN {
            let turn = agenda.turn().expect("all are ready");
            if turns.last() != Some(&turn) {
                turns.push(turn);
            }
            agenda.handle_sent();
        }
        assert_eq!(turns, [1, 2, 3, 1]);
        agenda.rest(Some(at(30)));
        agenda.rest(Some(at(10)));
        agenda.rest(None);
        assert_eq!(agenda.turn(), None);
        assert_eq!(agenda.poll_timeout(), Some(at(10)));
        assert_eq!(agenda.poll_due(at(9)), None);
        assert_eq!(agenda.poll_due(at(10)), Some(3));
        assert_eq!(agenda.poll_due(at(10)), None);
        assert_eq!(agenda.ready().collect::<Vec<_>>(), [3]);
        // Its timer is void once it is awake for another reason.
        agenda.wake(2);
        assert_eq!(agenda.poll_timeout(), None);
        agenda.forget(3);
        agenda.forget(2);
        assert_eq!((agenda.turn(), agenda.poll_due(at(99))), (None, None));
    }

    #[test]
    fn who_rests_gives_up_its_turn_and_not_the_next_ones() {
        let mut agenda = Agenda::new();
        (1..=2).for_each(|name| agenda.wake(name));
        (1..TURN).for_each(|_| agenda.handle_sent());
        agenda.rest(None);
        assert_eq!(agenda.turn(), Some(2));
        agenda.wake(1);
        (1..TURN).for_each(|_| agenda.handle_sent());
        assert_eq!(agenda.turn(), Some(2), "a whole turn");
        agenda.handle_sent();
        assert_eq!(agenda.turn(), Some(1));
    }
}
