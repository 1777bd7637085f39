//! Stalls: a line that carries next to nothing for seconds although flows wait for it, and is not dead.
//!
//! In: for each short interval what the line carried, what its flows had to send again, and whether it was full.
//! Out: whether the line stalls, and the rate at which it does.
//!
//! Rules and their reasons:
//! - A capacity is measured while a queue drains at some rate ([`UplinkCapacity`](super::UplinkCapacity)). A line that
//!   stalls carries too little for that: its last estimate would stand, and draw all new flows.
//! - Little traffic is most often all that programs want. It is a stall only if flows wait. They do if the inside sends
//!   segments again that nobody acknowledges; one of these may just be lost. What is sent again while the line still flows
//!   says nothing: its acknowledgement may stand in the line's queue, as those of the FINs do with which the connections of a
//!   page end. SYNs say nothing either: a server may be dead, and those of a race are repeated on every uplink. Flows also wait if the line was full
//!   until a moment ago and full-sized packets drip in since: transfers that end leave nothing, and one that repairs
//!   its last losses is faster than that after three intervals.
//! - Bytes that come end a stall at once.
//! - Without a sign that flows still wait, a stall ends by itself: a sender that backs off is silent for about as long as
//!   the stall has lasted. New flows then try the line again.
//! - A line that stalls again and again costs each flow on it a part of such a stall, more than it can save. So after
//!   further stalls within minutes it counts as slow for a while longer, as uplinks that die again and again are held back.
//! - Senders that repeat lost segments in vain wait twice as long each time. After a stall that cut transfers off they
//!   may wait as long again as it lasted, and they can be told ([`StallMonitor::disruption`]).
//! - A line that stalls in the middle of transfers is likely to do so again soon, and each connection that is there then waits
//!   for its server's timeouts, 10 s and more. It is held back from the first such stall on, and for longer. On a line
//!   that carried nothing just before, segments may be sent again because one server is dead; that is no sign of the line.
//! - A short stall holds nothing back: when a slow line's queue overflows, all senders may lose their windows and wait for a
//!   timeout, and the line is silent for a moment.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{Bytes, Rate, Time};

/// Bytes in [`BASE_INTERVAL`] from which a line does not stall: what the capacity estimate needs.
const FLOWING_BYTES: f64 = 15_000.0;
/// The interval of that.
const BASE_INTERVAL: Duration = Duration::from_millis(200);
/// A slow line does not stall from this fraction of its capacity.
const FLOWING_FRACTION: f64 = 1.0 / 8.0;
/// Time of little traffic after which repeated segments show a stall.
const MIN_SILENCE: Duration = Duration::from_millis(400);
/// Segments sent again within [`REPEAT_WINDOW`] that show a stall.
const MIN_REPEATS: u64 = 3;
/// Time within which they are counted.
const REPEAT_WINDOW: Duration = Duration::from_secs(1);
/// Time for which full-sized packets drip in on a line that was full before they show a stall.
const MIN_DRIP: Duration = Duration::from_millis(600);
/// Mean size, in bytes, from which packets are of a transfer.
const MIN_TRANSFER_PACKET: u64 = 500;
/// Bounds of the time without a sign of waiting flows after which a stall is over.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));
/// The same where packets dripped and nothing was sent again.
const DRIP_PATIENCE: Duration = Duration::from_millis(500);
/// A stall below this holds no line back.
const MIN_HELD_STALL: Duration = Duration::from_millis(500);
/// Time for which a line is held back after its second stall; twice as long after each further one.
const FIRST_HOLD: Duration = Duration::from_secs(1);
/// Longest time of that.
const MAX_HOLD: Duration = Duration::from_secs(16);
/// Time for which a line is held back after its first stall that cut transfers off; twice as long after each further one.
const FIRST_CUT_HOLD: Duration = Duration::from_secs(30);
/// Longest time of that.
const MAX_CUT_HOLD: Duration = Duration::from_secs(120);
/// A stall that is found within this time after the line has flowed has cut transfers off.
const CUT_WINDOW: Duration = Duration::from_secs(4);
/// Least time after a stall in which connections recover.
const MIN_RECOVERY: Duration = Duration::from_secs(4);
/// Time in which the count of stalls halves.
const FORGET_TIME: Duration = Duration::from_secs(60);
/// Fraction of its capacity that a line counts with while it is held back.
const HELD_FRACTION: f64 = 1.0 / 16.0;
/// Lowest rate of a line that stalls, in bits per second.
const MIN_RATE: f64 = 64_000.0;

/// Traffic of an uplink in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallInterval {
    /// Time of its end.
    pub end: Time,
    /// Its length.
    pub span: Duration,
    /// Bytes carried in the busier direction, without repeated ones.
    pub carried: Bytes,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx: Bytes,
    /// Segments that the inside has sent again, without SYNs.
    pub repeats: u64,
    /// True if a queue stood at the line.
    pub queue: bool,
    /// The capacity as far as known.
    pub capacity: Option<Rate>,
}

/// Watches one uplink for stalls.
#[derive(Clone, Debug, Default)]
pub struct StallMonitor {
    /// Times and numbers of repeats within [`REPEAT_WINDOW`], since the line flowed.
    repeats: VecDeque<(Time, u64)>,
    /// Time for which little was carried.
    little: Duration,
    /// Time for which packets have dripped in since the line was full; `None` if it was not full before that.
    drip: Option<Duration>,
    /// Time at which the line last carried enough for one that works.
    flowed: Option<Time>,
    stall: Option<Stall>,
    /// Stalls of late, and the time of that count.
    stalls: f64,
    counted: Time,
    /// Beginning and, once it is over, end of the last stall that cut transfers off.
    cut: Option<(Time, Option<Time>)>,
    /// End of the time for which the line is held back, and its rate meanwhile.
    held: Option<(Time, Rate)>,
}

/// A stall that lasts.
#[derive(Clone, Copy, Debug)]
struct Stall {
    since: Time,
    /// True if it cut transfers off.
    cut: bool,
    /// Time of the last sign that flows wait, and of the last one by repeats.
    sign: Time,
    repeated: Option<Time>,
    /// Bits carried in it so far, and its length.
    bits: f64,
    seconds: f64,
}

impl Stall {
    fn note(&mut self, interval: &StallInterval) {
        self.bits += interval.carried.get() as f64 * 8.0;
        self.seconds += interval.span.as_secs_f64();
    }

    fn rate(&self) -> Rate {
        Rate::from_bits_per_sec((self.bits / self.seconds) as u64)
    }
}

impl StallMonitor {
    /// Takes the next interval. Returns true if the answer of [`StallMonitor::rate`] has changed between some rate
    /// and none.
    pub fn note(&mut self, interval: &StallInterval) -> bool {
        let before = self.rate().is_some();
        if interval.span < BASE_INTERVAL / 2 || interval.span > REPEAT_WINDOW {
            // The observer paused.
            *self = StallMonitor::default();
            return before;
        }
        if self.held.is_some_and(|(until, _)| interval.end >= until) {
            self.held = None;
        }
        match interval.flows() {
            true => {
                self.repeats.clear();
                self.little = Duration::ZERO;
                self.flowed = Some(interval.end);
                self.drip = interval.is_full().then_some(Duration::ZERO);
                self.end(interval);
            }
            false => self.note_little(interval),
        }
        before != self.rate().is_some()
    }

    /// Returns the rate with which a line that stalls or is held back counts, at least 64 kbit/s; `None` for one that
    /// does neither.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        let least = Rate::from_bits_per_sec(MIN_RATE as u64);
        let stall = self.carried().map(|rate| rate.max(least));
        stall.or_else(|| self.held.map(|(_, rate)| rate))
    }

    /// Returns the mean rate of a stall that lasts.
    #[must_use]
    pub fn carried(&self) -> Option<Rate> {
        self.stall.map(|stall| stall.rate())
    }

    /// Returns a time before which connections on the line that wait for a doubled timeout of their senders were not
    /// silent; `None` if none waits any more for a stall that cut transfers off.
    #[must_use]
    pub fn disruption(&self, now: Time) -> Option<Time> {
        let (since, end) = self.cut?;
        let wait = |end: Time| end.since(since).max(MIN_RECOVERY);
        let waits = end.is_none_or(|end| now.since(end) < wait(end));
        waits.then(|| since.before(CUT_WINDOW))
    }

    fn note_repeats(&mut self, interval: &StallInterval) {
        if interval.repeats > 0 {
            self.repeats.push_back((interval.end, interval.repeats));
        }
        let is_old = |(at, _): &(Time, u64)| interval.end.since(*at) >= REPEAT_WINDOW;
        while self.repeats.front().is_some_and(is_old) {
            self.repeats.pop_front();
        }
    }

    fn note_little(&mut self, interval: &StallInterval) {
        self.note_repeats(interval);
        self.little += interval.span;
        let drips = interval.drips();
        self.drip = match (self.drip, drips) {
            (Some(time), true) => Some(time + interval.span),
            // The first moment of a stall may be without a packet.
            (Some(Duration::ZERO), false) if self.little <= interval.span => Some(Duration::ZERO),
            (_, _) => None,
        };
        let repeats: u64 = self.repeats.iter().map(|(_, count)| count).sum();
        let waits = repeats >= MIN_REPEATS && self.little >= MIN_SILENCE;
        let drained = self.drip.is_some_and(|time| time >= MIN_DRIP);
        let Some(stall) = &mut self.stall else {
            if waits || drained {
                let mut stall = Stall {
                    since: interval.end,
                    cut: self
                        .flowed
                        .is_some_and(|at| interval.end.since(at) <= CUT_WINDOW),
                    sign: interval.end,
                    repeated: waits.then_some(interval.end),
                    bits: 0.0,
                    seconds: 0.0,
                };
                stall.note(interval);
                if stall.cut {
                    self.cut = Some((interval.end, None));
                }
                self.stall = Some(stall);
            }
            return;
        };
        stall.note(interval);
        if interval.repeats > 0 {
            stall.repeated = Some(interval.end);
        }
        if interval.repeats > 0 || drips {
            stall.sign = interval.end;
        }
        let patience = match stall.repeated {
            Some(at) => (at.since(stall.since)).clamp(PATIENCE.0, PATIENCE.1),
            None => DRIP_PATIENCE,
        };
        if interval.end.since(stall.sign) >= patience {
            self.end(interval);
        }
    }

    /// Ends a stall, if there is one.
    fn end(&mut self, interval: &StallInterval) {
        let Some(stall) = self.stall.take() else {
            return;
        };
        if stall.cut {
            self.cut = Some((stall.since, Some(interval.end)));
        }
        if interval.end.since(stall.since) < MIN_HELD_STALL {
            return;
        }
        let passed = interval.end.since(self.counted).as_secs_f64();
        self.stalls = self.stalls * 0.5_f64.powf(passed / FORGET_TIME.as_secs_f64()) + 1.0;
        self.counted = interval.end;
        let stalls = self.stalls.round() as i32;
        let (further, first, longest) = match stall.cut {
            true => (stalls - 1, FIRST_CUT_HOLD, MAX_CUT_HOLD),
            false => (stalls - 2, FIRST_HOLD, MAX_HOLD),
        };
        let Some(capacity) = interval.capacity.filter(|_| further >= 0) else {
            return;
        };
        let hold = first.mul_f64(2_f64.powi(further.min(10))).min(longest);
        let rate = capacity.bits_per_sec() as f64 * HELD_FRACTION;
        let rate = Rate::from_bits_per_sec(rate.max(MIN_RATE) as u64);
        self.held = Some((interval.end + hold, rate));
    }
}

impl StallInterval {
    /// Returns true if enough was carried for a line that works.
    fn flows(&self) -> bool {
        let part = self.span.as_secs_f64() / BASE_INTERVAL.as_secs_f64();
        let slow = self.capacity.map_or(f64::INFINITY, |capacity| {
            capacity.bits_per_sec() as f64 / 8.0 * self.span.as_secs_f64() * FLOWING_FRACTION
        });
        self.carried.get() as f64 >= slow.min(FLOWING_BYTES * part)
    }

    /// Returns true if the line was full.
    fn is_full(&self) -> bool {
        let bits = self.carried.get() as f64 * 8.0 / self.span.as_secs_f64();
        let capacity = self.capacity.map_or(0.0, |rate| rate.bits_per_sec() as f64);
        self.queue && bits >= capacity / 2.0
    }

    /// Returns true if packets of a transfer have come.
    fn drips(&self) -> bool {
        self.rx_packets > 0 && self.rx.get() / self.rx_packets >= MIN_TRANSFER_PACKET
    }
}
