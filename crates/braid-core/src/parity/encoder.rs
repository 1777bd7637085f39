//! The sending end: which packets a sum covers, and when it goes out.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Care, Group, SPACING_MOST, SPAN};
use crate::{LANES, LaneId, LaneSeq, Time};

/// One packet since the last sum is left alone: its sum would be a copy.
const WORTH_A_SUM: usize = 2;

/// A lane that has not gone on for so long begins a new window: its packets are not kept longer.
const FORGETS: Duration = Duration::from_millis(500);

const WINDOW_MOST: usize = SPAN * SPACING_MOST;

#[derive(Debug)]
struct Open<T> {
    /// The number after the last one of the window.
    next: u64,
    window: VecDeque<T>,
    /// Packets since the last sum.
    fresh: usize,
    care: Care,
    turn: u8,
    grown: Time,
}

/// Collects the sender's packets into windows.
#[derive(Debug)]
pub struct Encoder<T> {
    lanes: Vec<Open<T>>,
    /// Lanes with packets that no sum covers, and those with none; those that grew last at the end.
    growing: VecDeque<LaneId>,
    resting: VecDeque<LaneId>,
    full: Option<LaneId>,
}

impl<T> Default for Encoder<T> {
    fn default() -> Encoder<T> {
        let open = || Open {
            next: 0,
            window: VecDeque::new(),
            fresh: 0,
            care: Care::default(),
            turn: 0,
            grown: Time::ZERO,
        };
        Encoder {
            lanes: (0..LANES).map(|_| open()).collect(),
            growing: VecDeque::new(),
            resting: VecDeque::new(),
            full: None,
        }
    }
}

impl<T: Clone> Encoder<T> {
    /// A packet is sent for the first time. If a sum is due with it, it must be
    /// [polled](Self::poll) before the next packet.
    pub fn handle_sent(&mut self, now: Time, (lane, seq): (LaneId, LaneSeq), item: T, care: Care) {
        let open = &mut self.lanes[lane.index()];
        if open.next != seq.0 {
            open.window.clear();
            open.fresh = 0;
        }
        if open.window.len() == WINDOW_MOST {
            open.window.pop_front();
        }
        open.window.push_back(item);
        open.next = seq.0 + 1;
        open.fresh += 1;
        open.care = care;
        open.grown = now;
        if open.fresh >= care.spacing.max(WORTH_A_SUM) {
            self.full = Some(lane);
        }
        if self.growing.back() != Some(&lane) {
            self.forget(lane);
            self.growing.push_back(lane);
        }
    }

    fn forget(&mut self, lane: LaneId) {
        for list in [&mut self.growing, &mut self.resting] {
            if let Some(index) = list.iter().position(|other| *other == lane) {
                list.remove(index);
            }
        }
    }

    /// A sum to be made and sent; its packets are put into `items`, which is emptied first, in the order of
    /// their numbers.
    pub fn poll(&mut self, now: Time, items: &mut Vec<T>) -> Option<Group> {
        self.handle_timeout(now);
        loop {
            let lane = match self.full.take() {
                Some(lane) => lane,
                None => *self.growing.front().filter(|lane| {
                    let open = &self.lanes[lane.index()];
                    now.since(open.grown) >= open.care.pause
                })?,
            };
            self.forget(lane);
            self.resting.push_back(lane);
            let open = &mut self.lanes[lane.index()];
            let fresh = std::mem::take(&mut open.fresh);
            let count = (SPAN * open.care.spacing).max(fresh).min(open.window.len());
            if fresh < WORTH_A_SUM {
                continue;
            }
            open.turn = (open.turn + 1) % SPAN as u8;
            items.clear();
            let begin = open.window.len() - count;
            items.extend(open.window.range(begin..).cloned());
            return Some(Group {
                lane,
                first: LaneSeq(open.next - count as u64),
                count: count as u8,
                power: open.turn,
            });
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        while let Some(lane) = self.resting.front() {
            let open = &mut self.lanes[lane.index()];
            if now.since(open.grown) < FORGETS {
                return;
            }
            open.window.clear();
            self.resting.pop_front();
        }
    }

    /// When [`poll`](Self::poll) will have something to do if nothing is sent before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let open = |lane: &LaneId| &self.lanes[lane.index()];
        let sum = self.growing.front().map(open);
        let sum = sum.map(|open| open.grown + open.care.pause);
        let rest = self.resting.front().map(open);
        let rest = rest.map(|open| open.grown + FORGETS);
        sum.into_iter().chain(rest).min()
    }
}
