//! The sending end: decides which packets a repair symbol covers, and when it is sent.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

use super::{FecRate, Group, MAX_SPACING, SYMBOLS_PER_PACKET};
use crate::{LANES, LaneId, LaneSeq};

/// Least packets since the last symbol: a symbol over one packet would be a copy of it.
const MIN_SYMBOL_PACKETS: usize = 2;

/// A lane without packets for this long begins a new window, so that its packets are not kept.
const WINDOW_TIMEOUT: Duration = Duration::from_millis(500);

const MAX_WINDOW: usize = SYMBOLS_PER_PACKET * MAX_SPACING;

#[derive(Debug)]
struct LaneWindow<T> {
    /// Number after the last packet of the window.
    next: u64,
    window: VecDeque<T>,
    /// Packets since the last symbol.
    uncovered_packets: usize,
    rate: FecRate,
    power: u8,
    extended_at: Time,
}

/// Collects the sender's packets into encoding windows.
#[derive(Debug)]
pub struct Encoder<T> {
    lanes: Vec<LaneWindow<T>>,
    /// Lanes with packets that no symbol covers, and lanes without; the most recently extended ones
    /// last.
    uncovered: VecDeque<LaneId>,
    covered: VecDeque<LaneId>,
    due: Option<LaneId>,
}

impl<T> Default for Encoder<T> {
    fn default() -> Encoder<T> {
        let state = || LaneWindow {
            next: 0,
            window: VecDeque::new(),
            uncovered_packets: 0,
            rate: FecRate::default(),
            power: 0,
            extended_at: Time::ZERO,
        };
        Encoder {
            lanes: (0..LANES).map(|_| state()).collect(),
            uncovered: VecDeque::new(),
            covered: VecDeque::new(),
            due: None,
        }
    }
}

impl<T: Clone> Encoder<T> {
    /// Takes a packet that is sent for the first time. If a symbol becomes due, [poll](Self::poll)
    /// it before the next packet.
    pub fn handle_sent(
        &mut self,
        now: Time,
        (lane, seq): (LaneId, LaneSeq),
        item: T,
        rate: FecRate,
    ) {
        let state = &mut self.lanes[lane.index()];
        if state.next != seq.0 {
            state.window.clear();
            state.uncovered_packets = 0;
        }
        if state.window.len() == MAX_WINDOW {
            state.window.pop_front();
        }
        state.window.push_back(item);
        state.next = seq.0 + 1;
        state.uncovered_packets += 1;
        state.rate = rate;
        state.extended_at = now;
        if state.uncovered_packets >= rate.spacing.max(MIN_SYMBOL_PACKETS) {
            self.due = Some(lane);
        }
        if self.uncovered.back() != Some(&lane) {
            self.forget(lane);
            self.uncovered.push_back(lane);
        }
    }

    fn forget(&mut self, lane: LaneId) {
        for list in [&mut self.uncovered, &mut self.covered] {
            if let Some(index) = list.iter().position(|other| *other == lane) {
                list.remove(index);
            }
        }
    }

    /// Returns a repair symbol to be made and sent. Its packets replace the contents of `items`, in
    /// the order of their numbers.
    pub fn poll(&mut self, now: Time, items: &mut Vec<T>) -> Option<Group> {
        self.handle_timeout(now);
        loop {
            let lane = match self.due.take() {
                Some(lane) => lane,
                None => *self.uncovered.front().filter(|lane| {
                    let state = &self.lanes[lane.index()];
                    now.since(state.extended_at) >= state.rate.pause
                })?,
            };
            self.forget(lane);
            self.covered.push_back(lane);
            let state = &mut self.lanes[lane.index()];
            let uncovered_packets = std::mem::take(&mut state.uncovered_packets);
            let count = (SYMBOLS_PER_PACKET * state.rate.spacing)
                .max(uncovered_packets)
                .min(state.window.len());
            if uncovered_packets < MIN_SYMBOL_PACKETS {
                continue;
            }
            state.power = (state.power + 1) % SYMBOLS_PER_PACKET as u8;
            items.clear();
            let begin = state.window.len() - count;
            items.extend(state.window.range(begin..).cloned());
            return Some(Group {
                lane,
                first: LaneSeq(state.next - count as u64),
                count: count as u8,
                power: state.power,
            });
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        while let Some(lane) = self.covered.front() {
            let state = &mut self.lanes[lane.index()];
            if now.since(state.extended_at) < WINDOW_TIMEOUT {
                return;
            }
            state.window.clear();
            self.covered.pop_front();
        }
    }

    /// Returns when [`poll`](Self::poll) will have something to do if nothing is sent before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let state = |lane: &LaneId| &self.lanes[lane.index()];
        let flush = self.uncovered.front().map(state);
        let flush = flush.map(|state| state.extended_at + state.rate.pause);
        let expiry = self.covered.front().map(state);
        let expiry = expiry.map(|state| state.extended_at + WINDOW_TIMEOUT);
        flush.into_iter().chain(expiry).min()
    }
}
