//! The time-out algorithm of \[l3b\] §4.3, as written: one sequence for the whole bond.
//!
//! - The next number expected, or the first of all, is forwarded directly, and then whatever
//!   follows it without a gap (§4.3: "the next packet in the queue checked, until the queue is
//!   empty or no match was found").
//! - A larger number is "timestamped and buffered".
//! - A lower number is discarded, "as they have been assumed to be lost".
//! - If the first packet in the queue has waited longer than the time-out, the packets missing
//!   before it are assumed lost, and the queue goes on from there.
//!
//! Two deviations: the paper compares clocks only when a packet arrives, here a timer does it too.
//! And the queue is bounded (the paper names no bound): at the bound the first packet is delivered.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

#[derive(Debug, Clone)]
struct Held<T> {
    seq: u64,
    since: Time,
    item: T,
}

/// \[l3b\] §4.3. Drive it like [`Resequencer`](super::Resequencer).
#[derive(Debug)]
pub struct TimeoutResequencer<T> {
    timeout: Duration,
    most: usize,
    last_accepted: Option<u64>,
    /// By number.
    queue: VecDeque<Held<T>>,
    ready: VecDeque<(u64, T)>,
    discarded: u64,
    skipped: u64,
}

impl<T> TimeoutResequencer<T> {
    /// Waits `timeout` for a missing packet (50 ms in \[l3b\] §5.3) and holds at most `most`
    /// packets.
    #[must_use]
    pub fn new(timeout: Duration, most: usize) -> TimeoutResequencer<T> {
        TimeoutResequencer {
            timeout,
            most,
            last_accepted: None,
            queue: VecDeque::new(),
            ready: VecDeque::new(),
            discarded: 0,
            skipped: 0,
        }
    }

    /// Takes a packet.
    pub fn handle_packet(&mut self, now: Time, seq: u64, item: T) {
        match self.last_accepted {
            Some(last) if seq <= last => self.discarded += 1,
            Some(last) if seq > last + 1 => self.hold(now, seq, item),
            _ => self.accept(seq, item),
        }
        self.handle_timeout(now);
    }

    fn hold(&mut self, now: Time, seq: u64, item: T) {
        let index = self.queue.partition_point(|held| held.seq < seq);
        if self.queue.get(index).is_some_and(|held| held.seq == seq) {
            self.discarded += 1;
            return;
        }
        let since = now;
        self.queue.insert(index, Held { seq, since, item });
        if self.queue.len() >= self.most {
            self.go_on();
        }
    }

    fn accept(&mut self, seq: u64, item: T) {
        let expected = self.last_accepted.map_or(seq, |last| last + 1);
        self.skipped += seq - expected;
        self.last_accepted = Some(seq);
        self.ready.push_back((seq, item));
        let mut next = seq + 1;
        while self.queue.front().is_some_and(|held| held.seq == next)
            && let Some(held) = self.queue.pop_front()
        {
            self.last_accepted = Some(next);
            self.ready.push_back((next, held.item));
            next += 1;
        }
    }

    /// Assumes that packets missing before the first in the queue are lost.
    pub(super) fn go_on(&mut self) {
        if let Some(held) = self.queue.pop_front() {
            self.accept(held.seq, held.item);
        }
    }

    /// Goes on if the first packet in the queue has waited too long.
    pub fn handle_timeout(&mut self, now: Time) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            self.go_on();
        }
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.queue.front().map(|held| held.since + self.timeout)
    }

    /// Returns the next packet to deliver, with its number.
    pub fn poll_delivery(&mut self) -> Option<(u64, T)> {
        self.ready.pop_front()
    }

    /// Returns the packets discarded because they were late or duplicates.
    #[must_use]
    pub fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Returns the numbers assumed lost.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the numbers assumed lost since the last call.
    pub(super) fn take_skipped(&mut self) -> u64 {
        std::mem::take(&mut self.skipped)
    }

    /// Returns the packets in the queue.
    pub(super) fn held(&self) -> usize {
        self.queue.len()
    }

    /// Returns the last number accepted.
    pub(super) fn last_accepted(&self) -> Option<u64> {
        self.last_accepted
    }
}
