//! Passive estimate of one direction's capacity, from the traffic that it carries anyway.
//!
//! Rules and their reasons:
//! - A rate is a capacity only while a queue stands at the uplink: round trips inside the flows
//!   have grown, in this interval and in the one before. The highest rate seen is no
//!   sign of it; most likely programs wanted no more. Pings see another queue than bulk flows do on
//!   some lines (Starlink: [ePPing](https://doi.org/10.1007/978-3-031-28486-1_9) measures inside
//!   flows for that reason).
//! - Slow start sends in bursts, which queue for a moment on a line that is idle for the rest of the
//!   round trip. So two intervals of a queue must also agree on the rate: a steady line's is the same
//!   in each while it is full.
//! - A radio link's is not. There it counts how long the queue stood: a packet that was delayed by
//!   300 ms has met a queue for all of these 300 ms, or a line that carried nothing. If such spans
//!   cover a second, what was carried in it is the capacity, however it has changed meanwhile. After
//!   the last packet of a transfer nothing is covered, so its end is not taken for a slower line.
//! - Loss alone is no sign either: a line that loses one packet in a hundred does so at any load.
//!   A policer, which drops without a queue, is therefore known by its lower bound alone.
//! - Jitter grows round trips without a queue. The growth must exceed twice what quiet intervals
//!   show.
//! - Round trips do not say in which direction the queue stands. It counts for a direction that
//!   carries [`DOMINANCE`] times the other's bytes: acknowledgements are a fortieth of a download.
//! - The estimate is a quantile of the saturated intervals of [`WINDOW`], and so follows a line down
//!   as well as up. For bytes received it is the upper quartile: behind a short queue senders leave
//!   the line idle for a part of an interval after each loss, and more than its rate never arrives.
//!   For bytes sent it is the median: some are counted that the queue drops. A few intervals may be
//!   older.
//! - Any interval shows that the line carries at least its rate. If that exceeds an older estimate,
//!   the line has changed, and only the bound is known.
//! - An estimate follows a line down only once three intervals agree, and up at once. It is the capacity at its time, and
//!   not that of a second in which the line has changed: recorded so, a line that changes is too fast in the mean. A line
//!   that was full all the second carried its capacity of that second.
//! - An estimate ages and is not dropped. Its error grows with the square root of its age, by as
//!   much as this line's capacity was seen to change from one second to the next.

use std::collections::VecDeque;
use std::time::Duration;

use super::{CapacityBasis, CapacityEstimate};
use crate::{Bytes, Rate, Time};

/// Least span of an interval: many packets at 1 Mbit/s, and little against the changes of a line.
pub const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// Longest span of an interval that shows a rate: a rate over a pause of the observer is an
/// average of unlike things.
const MAX_INTERVAL: Duration = Duration::from_millis(1_500);
/// Span of the intervals that make an estimate.
const WINDOW: Duration = Duration::from_millis(1_050);
/// Intervals that make an estimate even if they are older, up to [`MAX_WINDOW`]: one of them alone
/// may have had an idle part.
const MIN_SATURATED: usize = 4;
/// Intervals without which there is no estimate.
const LEAST_SATURATED: usize = 3;
/// Difference of two intervals' rates, as a fraction, up to which they show one capacity.
const PLATEAU: f64 = 0.1;
/// Age from which an interval has no part in an estimate.
const MAX_WINDOW: Duration = Duration::from_secs(2);
/// Span of the intervals that show the capacity of the last second.
const SECOND: Duration = Duration::from_secs(1);
/// Least growth of round trips that shows a queue: above scheduling and interrupt moderation.
const MIN_QUEUEING: Duration = Duration::from_millis(4);
/// Least mean growth of round trips that cover a second: above the jitter of most lines, by which the packets of many flows
/// are late at any time.
const MIN_COVERING: Duration = Duration::from_millis(40);
/// Part of a time that packets that waited must cover for the line to be full.
const COVERED_FRACTION: f64 = 0.9;
/// Growth that shows a queue, as a multiple of that of quiet intervals.
const JITTER_FACTOR: u32 = 2;
/// Growth of round trips from which it is no jitter: a radio link that has become slower carries little behind a long queue.
const MAX_JITTER: Duration = Duration::from_millis(100);
/// Rate up to which an interval is quiet, as a fraction of the capacity as known.
const QUIET_FRACTION: f64 = 0.5;
/// Time over which the growth of quiet intervals is averaged.
const QUIET_AVERAGING_TIME: Duration = Duration::from_secs(30);
/// A direction with so many times the other's bytes is the one that a queue stands in.
const DOMINANCE: u64 = 8;
/// Bytes of an interval below which it says nothing: some twenty packets.
const MIN_BYTES: u64 = 15_000;
/// Time for which a lower bound is kept: so long may a line be as fast as seen.
const BOUND_MEMORY: Duration = Duration::from_secs(60);
/// A bound must exceed an older estimate by this factor to refute it: intervals are not exact.
const REFUTING_FACTOR: f64 = 1.1;
/// Relative change from one second to the next that is assumed until it is measured.
const PRIOR_DRIFT: f64 = 0.03;
/// Weight of one more change among those before.
const DRIFT_GAIN: f64 = 0.1;
/// Least error of an estimate, as a fraction: headers below IP, and clocks.
const MIN_ERROR: f64 = 0.01;

/// Traffic of an uplink's direction in an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DirectionInterval {
    /// Time of its end.
    pub end: Time,
    /// Its length.
    pub span: Duration,
    /// Bytes that went into its queue, if they are counted before that; else those that crossed the line.
    pub entered: Bytes,
    /// Seconds by which the queue has grown meanwhile, if they are.
    pub grown: f64,
    /// Bytes of the other direction.
    pub opposite: Bytes,
    /// Mean growth of round trips in flows that moved data; `None` if none was measured.
    pub queueing: Option<Duration>,
    /// See [`UplinkInterval::queued`](super::UplinkInterval::queued).
    pub queued: Duration,
    /// See [`UplinkInterval::unseen`](super::UplinkInterval::unseen).
    pub unseen: Duration,
}

impl DirectionInterval {
    /// Returns the bytes that crossed the line.
    fn carried(&self) -> Bytes {
        drained(self.entered, self.span, self.grown)
    }
}

/// An interval of the last second.
#[derive(Clone, Copy, Debug)]
struct SecondPart {
    interval: DirectionInterval,
    /// Time of it that is covered by packets that waited, as known by now.
    covered: Duration,
    /// True if round trips in it had grown.
    has_queue: bool,
}

/// Estimates the capacity of one direction of an uplink.
#[derive(Clone, Debug, Default)]
pub(super) struct PassiveCapacity {
    /// Quantile of the saturated intervals that is the estimate, below 1.
    quantile: f64,
    /// Saturated intervals of the last [`WINDOW`]: their ends and rates.
    saturated: VecDeque<(Time, f64)>,
    /// The last estimate: its time, rate in bits per second, and relative spread.
    estimate: Option<(Time, f64, f64)>,
    /// Estimate of the second before, for the drift.
    earlier: Option<(Time, f64)>,
    /// Mean relative change from one second to the next.
    drift: Option<f64>,
    bound: Option<(Time, f64)>,
    /// Rates of all intervals of the last second.
    rates: VecDeque<(Time, Duration, u64)>,
    /// Rate of the last interval if a queue stood in it.
    queue: Option<f64>,
    /// The intervals of the last second.
    second: VecDeque<SecondPart>,
    /// Growth of round trips while little is carried.
    quiet: Duration,
}

impl PassiveCapacity {
    /// Starts for a direction whose bytes are counted before the queue.
    #[must_use]
    pub fn of_sent() -> PassiveCapacity {
        PassiveCapacity {
            quantile: 0.5,
            ..PassiveCapacity::default()
        }
    }

    /// Starts for a direction whose bytes are counted after the queue.
    #[must_use]
    pub fn of_received() -> PassiveCapacity {
        PassiveCapacity {
            quantile: 0.75,
            ..PassiveCapacity::default()
        }
    }

    /// Takes the next interval.
    pub fn note(&mut self, interval: &DirectionInterval) {
        let before = std::mem::take(&mut self.queue);
        if interval.span < MIN_INTERVAL / 2 || interval.span > MAX_INTERVAL {
            self.rates.clear();
            self.second.clear();
            return;
        }
        let bits = interval.carried().get() as f64 * 8.0 / interval.span.as_secs_f64();
        self.note_bound(interval);
        if let Some(queueing) = interval.queueing
            && bits < self.known() * QUIET_FRACTION
            && queueing < MAX_JITTER
        {
            self.note_quiet(queueing, interval.span);
        }
        let least = MIN_QUEUEING + self.jitter();
        let has_queue = interval.queueing.is_some_and(|queueing| queueing >= least)
            && interval.carried().get() >= MIN_BYTES
            && is_dominant(interval.carried(), interval.opposite);
        self.note_second(interval, has_queue);
        self.queue = has_queue.then_some(bits);
        let is_plateau = has_queue && before.is_some_and(|before| agree(bits, before));
        let is_steady = is_plateau && self.note_saturated(interval.end, bits);
        if !is_steady && let Some((rate, error)) = self.covered_second(interval.end) {
            self.set_estimate(interval.end, rate, error);
        }
    }

    /// Returns the estimate; `None` before anything was carried.
    #[must_use]
    pub fn estimate(&self, now: Time) -> Option<CapacityEstimate> {
        let bound = self.bound.filter(|(at, _)| now.since(*at) <= BOUND_MEMORY);
        let refuted = |(at, rate, _): &(Time, f64, f64)| {
            bound.is_some_and(|(since, least)| since > *at && exceeds(least, *rate))
        };
        if let Some((at, rate, spread)) = self.estimate.filter(|found| !refuted(found)) {
            let age = now.since(at);
            let drift = self.drift_in(age);
            return Some(CapacityEstimate {
                rate: Rate::from_bits_per_sec(rate as u64),
                basis: CapacityBasis::Saturated,
                error: spread.hypot(drift).clamp(MIN_ERROR, 1.0),
                age,
            });
        }
        let (at, rate) = bound?;
        Some(CapacityEstimate {
            rate: Rate::from_bits_per_sec(rate as u64),
            basis: CapacityBasis::AtLeast,
            error: 1.0,
            age: now.since(at),
        })
    }

    /// Returns the estimate of the last second as a whole: if a queue stood all the time and the line has changed, the
    /// mean of what it carried.
    #[must_use]
    pub fn last_second(&self, now: Time) -> Option<CapacityEstimate> {
        let found = self.estimate(now)?;
        let has_queue = self.second.iter().all(|part| part.has_queue);
        let mean = self.second_mean().filter(|mean| {
            let is_measured = found.basis == CapacityBasis::Saturated && found.age <= SECOND;
            has_queue && is_measured && !agree(*mean, found.rate.bits_per_sec() as f64)
        });
        Some(mean.map_or(found, |mean| CapacityEstimate {
            rate: Rate::from_bits_per_sec(mean as u64),
            ..found
        }))
    }

    /// Returns true if there was an estimate, even if a lower bound has refuted it since.
    #[must_use]
    pub fn was_measured(&self) -> bool {
        self.estimate.is_some()
    }

    /// Returns the growth of round trips up to which it is jitter.
    #[must_use]
    pub fn jitter(&self) -> Duration {
        self.quiet * JITTER_FACTOR
    }

    /// Takes a rate that the line carried beside the traffic of the intervals.
    pub fn note_carried(&mut self, now: Time, rate: Rate) {
        self.raise_bound(now, rate.bits_per_sec() as f64);
    }

    /// Returns by how much, as a fraction, the capacity changes in a time, as far as this line has shown it.
    #[must_use]
    pub fn drift_in(&self, age: Duration) -> f64 {
        self.drift.unwrap_or(PRIOR_DRIFT) * age.as_secs_f64().sqrt()
    }

    /// Returns the capacity as far as known, in bits per second.
    fn known(&self) -> f64 {
        let estimate = self.estimate.map_or(0.0, |(_, rate, _)| rate);
        self.bound.map_or(estimate, |(_, rate)| rate.max(estimate))
    }

    fn note_quiet(&mut self, queueing: Duration, span: Duration) {
        let gain = 1.0 - (-span.as_secs_f64() / QUIET_AVERAGING_TIME.as_secs_f64()).exp();
        let mean = self.quiet.as_secs_f64() * (1.0 - gain) + queueing.as_secs_f64() * gain;
        self.quiet = Duration::from_secs_f64(mean);
    }

    /// Raises the lower bound to the rate of the last second, or replaces one that is old.
    fn note_bound(&mut self, interval: &DirectionInterval) {
        let end = interval.end;
        let bytes = interval.carried().get();
        self.rates.push_back((end, interval.span, bytes));
        while self.rates.len() > 1 && end.since(self.rates[0].0) >= WINDOW {
            self.rates.pop_front();
        }
        let span: Duration = self.rates.iter().map(|(_, span, _)| *span).sum();
        let bytes: u64 = self.rates.iter().map(|(_, _, bytes)| bytes).sum();
        if span < WINDOW / 2 || bytes < MIN_BYTES {
            return;
        }
        // The last interval alone shows when the line has become slower.
        let last = interval.carried().get() as f64 / interval.span.as_secs_f64();
        let rate = last.min(bytes as f64 / span.as_secs_f64()) * 8.0;
        self.raise_bound(end, rate);
    }

    fn raise_bound(&mut self, now: Time, rate: f64) {
        let stands = |(at, least): (Time, f64)| least > rate && now.since(at) <= BOUND_MEMORY;
        if !self.bound.is_some_and(stands) {
            self.bound = Some((now, rate));
        }
    }

    fn note_second(&mut self, interval: &DirectionInterval, has_queue: bool) {
        self.second.push_back(SecondPart {
            interval: *interval,
            covered: Duration::ZERO,
            has_queue,
        });
        // A packet that waited for longer than the interval tells of those before as well.
        let (mut queued, mut unseen) = (interval.queued, interval.unseen);
        for part in self.second.iter_mut().rev() {
            let uncovered = part.interval.span.saturating_sub(part.covered);
            let here = queued.min(uncovered.saturating_sub(unseen));
            part.covered += here;
            queued -= here;
            unseen = unseen.saturating_sub(part.interval.span);
        }
        while self
            .second_span()
            .saturating_sub(self.second[0].interval.span)
            >= SECOND
        {
            self.second.pop_front();
        }
    }

    fn second_span(&self) -> Duration {
        self.second.iter().map(|part| part.interval.span).sum()
    }

    /// Returns the mean rate of the last second in bits per second; `None` if less than a second is known.
    fn second_mean(&self) -> Option<f64> {
        let span = self.second_span();
        let entered = self.second.iter().map(|part| part.interval.entered);
        let bits = entered.map(|bytes| bytes.get() as f64 * 8.0).sum::<f64>();
        let grown: f64 = self.second.iter().map(|part| part.interval.grown).sum();
        (span >= SECOND).then(|| bits / leaving_time(span, grown))
    }

    /// Returns the mean rate of the last second and its relative error if packets that waited cover all of it.
    fn covered_second(&self, now: Time) -> Option<(f64, f64)> {
        let rate = self.second_mean()?;
        // In what need not be covered a transfer may have ended.
        let has_ended = |(at, known, _): (Time, f64, f64)| {
            let part = rate / known;
            now.since(at) <= SECOND && (COVERED_FRACTION..1.0).contains(&part)
        };
        if self.estimate.is_some_and(has_ended) {
            return None;
        }
        let covered: Duration = self.second.iter().map(|part| part.covered).sum();
        if covered < self.second_span().mul_f64(COVERED_FRACTION) {
            return None;
        }
        let bytes = |of: fn(&DirectionInterval) -> Bytes| {
            let parts = self.second.iter().map(|part| of(&part.interval).get());
            Bytes::new(parts.sum())
        };
        let carried = bytes(DirectionInterval::carried);
        let growths: Vec<Duration> = self
            .second
            .iter()
            .filter_map(|part| part.interval.queueing)
            .collect();
        let growth = growths.iter().sum::<Duration>();
        let shows = growth.checked_div(growths.len() as u32)? >= MIN_COVERING + self.jitter()
            && carried.get() >= MIN_BYTES
            && is_dominant(carried, bytes(|interval| interval.opposite));
        let off = |SecondPart { interval, .. }: &SecondPart| {
            interval.carried().get() as f64 * 8.0 / interval.span.as_secs_f64() / rate - 1.0
        };
        let squares: f64 = self.second.iter().map(|part| off(part).powi(2)).sum();
        shows.then(|| (rate, squares.sqrt() / self.second.len() as f64))
    }

    /// Takes an interval that agrees with the one before. Returns true if the line has this rate.
    fn note_saturated(&mut self, end: Time, rate: f64) -> bool {
        self.saturated.push_back((end, rate));
        let is_old = |intervals: &VecDeque<(Time, f64)>| {
            let age = end.since(intervals[0].0);
            age >= MAX_WINDOW || (age >= WINDOW && intervals.len() > MIN_SATURATED)
        };
        while is_old(&self.saturated) {
            self.saturated.pop_front();
        }
        let is_alike = |other: &&(Time, f64)| agree(rate, other.1);
        let alike = self.saturated.iter().rev().take_while(is_alike).count();
        if alike >= LEAST_SATURATED {
            // The line has this rate now, whatever it had before.
            self.saturated.drain(..self.saturated.len() - alike);
        }
        if self.saturated.len() < LEAST_SATURATED {
            return false;
        }
        let mut rates: Vec<f64> = self.saturated.iter().map(|(_, rate)| *rate).collect();
        rates.sort_by(f64::total_cmp);
        let place = (rates.len() as f64 * self.quantile) as usize;
        let found = rates[place];
        let upper = rates[rates.len() * 3 / 4];
        let spread = (upper - rates[rates.len() / 4]) / found.max(1.0);
        self.set_estimate(end, found, spread / (rates.len() as f64).sqrt());
        alike >= LEAST_SATURATED
    }

    fn set_estimate(&mut self, end: Time, rate: f64, error: f64) {
        self.estimate = Some((end, rate, error));
        self.note_drift(end, rate);
        // A saturated line carries no more than this, whatever it carried before.
        self.bound = Some((end, rate));
    }

    fn note_drift(&mut self, end: Time, rate: f64) {
        let Some((at, before)) = self.earlier else {
            self.earlier = Some((end, rate));
            return;
        };
        let passed = end.since(at).as_secs_f64();
        if passed < 1.0 {
            return;
        }
        self.earlier = Some((end, rate));
        let change = (rate / before.max(1.0)).ln().abs() / passed.sqrt();
        let drift = self.drift.unwrap_or(PRIOR_DRIFT);
        self.drift = Some(drift + (change.min(1.0) - drift) * DRIFT_GAIN);
    }
}

/// Returns true if a later lower bound shows that an estimate holds no more.
#[must_use]
pub(super) fn refutes(least: Rate, estimate: Rate) -> bool {
    exceeds(least.bits_per_sec() as f64, estimate.bits_per_sec() as f64)
}

fn exceeds(least: f64, rate: f64) -> bool {
    least > rate * REFUTING_FACTOR
}

/// Returns the bytes that leave a queue in a span in which it grows by so many seconds: more go into it then than leave it.
pub(super) fn drained(entered: Bytes, span: Duration, grown: f64) -> Bytes {
    let part = span.as_secs_f64() / leaving_time(span, grown);
    Bytes::new((entered.get() as f64 * part) as u64)
}

/// Returns the seconds in which the packets of a span leave a queue that has grown by so many seconds: the last one waits as much longer than
/// the first.
fn leaving_time(span: Duration, grown: f64) -> f64 {
    let seconds = span.as_secs_f64();
    (seconds + grown).max(seconds / 2.0)
}

/// Returns true if a queue stands in the direction of the first of these bytes rather than in the other one.
fn is_dominant(carried: Bytes, opposite: Bytes) -> bool {
    carried.get() >= opposite.get().saturating_mul(DOMINANCE)
}

/// Returns true if two rates may be one capacity.
fn agree(one: f64, other: f64) -> bool {
    (one - other).abs() <= PLATEAU * one.max(other)
}
