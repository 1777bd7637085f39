//! Estimate of a line's capacity from a transfer that is made to measure it.
//!
//! Rules and their reasons:
//! - Slow start, retransmissions and other traffic make many samples too low; the line's rate makes
//!   the others alike. So the samples of the *crucial interval* count: of all intervals of
//!   rates the one with the most samples for its width (the product of their number and their
//!   density), after FastBTS (Yang et al., *Fast and Light Bandwidth Testing for Internet Users*,
//!   NSDI 2021).
//! - The estimate is the upper quartile of these. Behind a short queue, senders leave the line idle
//!   for a moment after each loss, and more than its rate never arrives. By the mean a line of
//!   5 Mbit/s with a queue of 20 ms was 4 % too slow, by the quartile 2 %.
//! - The transfer ends as soon as that interval stays where it is. More time costs bytes and shows
//!   little that is new.
//! - A few connections may not fill the line: each has its window, and random loss keeps that
//!   small. So connections are doubled until more of them carry no more. If that never happens,
//!   the rate is a lower bound.
//! - Two numbers of connections are compared in the same state alone. Where losses hold each connection, slow start
//!   leaves windows of several times what they keep: while the old ones shrink to that, new ones carry as much more,
//!   and the sum looks like a full line's. It is one if a short queue stood with both numbers, or if both rates were
//!   at rest: long after slow start, and alike in both halves of the time. On a line with neither the rate is a lower
//!   bound.
//! - If the rate falls while there is no queue, losses hold the connections. Then there are four times as many at once.
//! - A queue that was not there before the transfer shows that the line is full, and spares the trial with more
//!   connections. While it stands the line is never idle, so all counts that was carried meanwhile, and the rate is
//!   known once both halves of that time show the same. It counts from [`MIN_QUEUE`] and three packets on: on a slow
//!   line each packet alone lengthens a round trip, and sockets tell smoothed ones, which hide that a short queue runs
//!   empty.
//!   A server that gives each connection little makes none.
//! - Each new connection sends ten packets at once, and the queue of a slow line holds two dozen: four
//!   of them lose most of theirs, and wait for timeouts instead of filling the line. So one begins
//!   alone. If its first ten packets come together, the line is not slow, and the others follow at once, as
//!   they do where it makes no queue (a queue of two packets keeps one connection from filling the line); a slow line
//!   gets a quarter more at a time, unless more of them carry as much more.
//! - A sample has sixteen packets or lasts [`MAX_SAMPLE`]: with fewer packets its rate is a
//!   matter of luck.

mod stage;

use std::time::Duration;

use crate::{Bytes, Rate, Time};

use super::ActiveEstimate;
use super::crucial::{Crucial, NARROW, Sample, crucial, mean};
use stage::Stage;

/// Connections on a line that is not slow, which are established at the beginning.
pub const FIRST_CONNECTIONS: usize = 4;
/// Most connections.
pub const MAX_CONNECTIONS: usize = 32;
/// Least span of a sample: an interrupt's or a scheduler's pause is short against it.
pub const MIN_SAMPLE: Duration = Duration::from_millis(50);
/// Span from which a sample ends whatever it has.
const MAX_SAMPLE: Duration = Duration::from_millis(200);
/// Bytes with which a sample may end: sixteen packets.
const SAMPLE_BYTES: u64 = 24_000;
/// Longest transfer.
const MAX_TIME: Duration = Duration::from_secs(6);
/// Samples without which nothing is known.
const MIN_INSIDE: usize = 4;
/// Relative change up to which the interval stays where it is.
const STEADY: f64 = 0.03;
/// Latest samples for which it has to.
const STEADY_SAMPLES: usize = 3;
/// Of so many latest samples, more than half must be inside: else the rate is on its way elsewhere.
const LATEST: usize = 4;
/// Expected error with which a transfer may end.
const GOOD_ERROR: f64 = 0.05;
/// Samples after which more connections are tried, or the transfer ends, with any error.
const PATIENCE: usize = 16;
/// The same in settling times: the time to be at rest, and one more.
const SETTLING_PATIENCE: u32 = REST + 2;
/// Least time for new connections to show their effect.
const SETTLING_TIME: Duration = Duration::from_millis(200);
/// The same in round trips: the handshake, the request, and some rounds of slow start.
const SETTLING_ROUND_TRIPS: u32 = 5;
/// Settling times after which windows that losses hold have mostly shrunk from slow start's to their own: ten round
/// trips.
const REST: u32 = 2;
/// Least queue that shows the line's rate.
const MIN_QUEUE: Duration = Duration::from_millis(40);
/// Rate below which a line is slow, in bits per second.
const SLOW: f64 = 3e6;
/// Bytes of a sender's first ten packets, nearly.
const FIRST_BYTES: u64 = 14_000;
/// Time in which they come by a line that is not slow; half a round trip if that is longer, since some senders space
/// them.
const FIRST_SPAN: Duration = Duration::from_millis(50);
/// Least error of an estimate, as a fraction.
const MIN_ERROR: f64 = 0.01;

/// Bytes that a line carried for a short time, headers of IP included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferSample {
    /// Time of its end.
    pub end: Time,
    /// Its length.
    pub span: Duration,
    /// Bytes of the transfer, and of the machine's other traffic on that line.
    pub carried: Bytes,
    /// Round trip in the middle of those that the transfer's connections show by their data; `None` if none carried any.
    pub round_trip: Option<Duration>,
}

/// The next step of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferStep {
    /// Go on.
    Continue,
    /// Have this many connections.
    Connections(usize),
    /// The transfer is over.
    Done,
}

/// Estimates the capacity of one direction of a line from the samples of a transfer.
#[derive(Clone, Debug)]
pub struct TransferCapacity {
    started: Time,
    /// Round trip before anything was carried.
    base: Duration,
    settling: Duration,
    connections: usize,
    /// Time of the first bytes, and their number as long as they may show that the line is not slow.
    first_at: Option<Time>,
    first_bytes: u64,
    /// Start of the time with this number of connections.
    stage_started: Time,
    /// The stage with fewer connections, if it can be compared.
    before: Option<Stage>,
    /// The sample under way.
    span: Duration,
    bytes: u64,
    round_trip: Option<Duration>,
    /// Samples with this number of connections, and those before if more of them carried no more.
    samples: Vec<Sample>,
    /// Samples of them that were taken with fewer connections.
    earlier: usize,
    /// Means of the crucial interval after each of the latest samples.
    means: Vec<f64>,
    saturated: bool,
    /// The higher of the rates of a slow line that were the same with more connections; else zero.
    full_rate: f64,
    /// Estimate by the queue that ended the transfer, if one did.
    by_queue: Option<ActiveEstimate>,
}

impl TransferCapacity {
    /// Starts with one connection. Handshakes took so long; the shortest counts, since one whose SYN was lost takes a
    /// second more.
    #[must_use]
    pub fn new(now: Time, handshakes: &[Duration]) -> TransferCapacity {
        let round_trip = handshakes.iter().copied().min().unwrap_or_default();
        TransferCapacity {
            started: now,
            base: round_trip,
            settling: SETTLING_TIME.max(round_trip * SETTLING_ROUND_TRIPS),
            connections: 1,
            first_at: None,
            first_bytes: 0,
            stage_started: now,
            before: None,
            span: Duration::ZERO,
            bytes: 0,
            round_trip: None,
            samples: Vec::new(),
            earlier: 0,
            means: Vec::new(),
            saturated: false,
            full_rate: 0.0,
            by_queue: None,
        }
    }

    /// Takes what was carried since the last call, or the start.
    pub fn note(&mut self, sample: &TransferSample) -> TransferStep {
        if self.is_quick_at_first(sample) {
            return self.begin_all(sample.end);
        }
        let has_begun = self.bytes > 0 || !self.samples.is_empty();
        if !has_begun
            && sample.carried == Bytes::new(0)
            && sample.end.since(self.started) < MAX_TIME
        {
            return TransferStep::Continue;
        }
        self.span += sample.span;
        self.bytes += sample.carried.get();
        self.round_trip = sample.round_trip.or(self.round_trip);
        let is_over = sample.end.since(self.started) >= MAX_TIME;
        let is_whole = self.span >= MIN_SAMPLE && self.bytes >= SAMPLE_BYTES;
        if !is_over && !is_whole && self.span < MAX_SAMPLE {
            return TransferStep::Continue;
        }
        self.end_sample(sample.end);
        match is_over {
            true => self.end(),
            false if self.connections == 1 && !self.is_slow() => self.begin_all(sample.end),
            false => self.next_step(sample.end),
        }
    }

    fn end_sample(&mut self, now: Time) {
        let span = std::mem::take(&mut self.span);
        let age = now.since(self.stage_started).saturating_sub(span);
        let whole = Sample {
            seconds: span.as_secs_f64(),
            bits: std::mem::take(&mut self.bytes) as f64 * 8.0,
            queue: self
                .round_trip
                .take()
                .map_or(Duration::ZERO, |now| now.saturating_sub(self.base)),
            at_rest: age >= self.settling * REST,
        };
        if whole.seconds > 0.0 && (whole.bits > 0.0 || !self.samples.is_empty()) {
            self.samples.push(whole);
        }
    }

    /// Returns true if the first packets come too close together for a slow line.
    fn is_quick_at_first(&mut self, sample: &TransferSample) -> bool {
        if sample.carried > Bytes::new(0) {
            self.first_at.get_or_insert(sample.end);
        }
        let Some(first_at) = self.first_at else {
            return false;
        };
        let is_first = sample.end.since(first_at) <= FIRST_SPAN.max(self.base / 2);
        if self.connections > 1 || !is_first {
            return false;
        }
        self.first_bytes += sample.carried.get();
        self.first_bytes >= FIRST_BYTES
    }

    /// Returns true as long as one connection may be enough: it carries little, and from its second sample on it has a
    /// queue.
    fn is_slow(&self) -> bool {
        self.samples.last().is_some_and(|last| {
            last.rate() < SLOW && (self.samples.len() < 2 || last.has_queue(MIN_QUEUE))
        })
    }

    /// Goes on with the number of connections for a line that is not slow.
    fn begin_all(&mut self, now: Time) -> TransferStep {
        self.connections = FIRST_CONNECTIONS;
        self.stage_started = now;
        (self.span, self.bytes) = (Duration::ZERO, 0);
        self.samples.clear();
        self.means.clear();
        TransferStep::Connections(FIRST_CONNECTIONS)
    }

    /// Returns the estimate so far; `None` before the first sample.
    #[must_use]
    pub fn estimate(&self) -> Option<ActiveEstimate> {
        let crucial = crucial(self.counted())?;
        let rate = crucial.upper.max(self.full_rate);
        let by_rates = ActiveEstimate {
            rate: Rate::from_bits_per_sec(rate as u64),
            error: self.error(&crucial),
            saturated: self.saturated,
        };
        Some(self.by_queue.unwrap_or(by_rates))
    }

    fn next_step(&mut self, now: Time) -> TransferStep {
        let Some(found) = crucial(self.counted()) else {
            return TransferStep::Continue;
        };
        self.means.push(found.mean);
        let age = now.since(self.stage_started);
        if age < self.settling {
            return TransferStep::Continue;
        }
        if let Some(shown) = self.shown_by_queue() {
            self.by_queue = Some(shown);
            return TransferStep::Done;
        }
        let Some(stage) = self.stage() else {
            return TransferStep::Continue;
        };
        let is_known = self.is_steady(&found) && self.error(&found) <= GOOD_ERROR;
        let is_late = self.samples.len() - self.earlier >= PATIENCE;
        let is_ready = match stage.has_queue {
            true => is_known || is_late,
            false => {
                stage.comparable().is_some() || is_late && age >= self.settling * SETTLING_PATIENCE
            }
        };
        let before = self.before.as_ref();
        if let Some(rate) = before.and_then(|before| stage.full_rate(before).filter(|_| is_ready)) {
            self.saturated = true;
            // Samples of a slow line have few packets, and the densest may be those that lack one or two.
            self.full_rate = if rate < SLOW { rate } else { 0.0 };
            return TransferStep::Done;
        }
        let grows = is_known && before.is_some_and(|before| stage.is_proportional(before));
        match is_ready || grows || stage.is_held() {
            true if self.connections >= MAX_CONNECTIONS => self.end(),
            true => self.add_connections(now, stage),
            false => TransferStep::Continue,
        }
    }

    /// Returns the samples that count: those with fewer connections too if they can be compared, or while these have
    /// carried nothing.
    fn counted(&self) -> &[Sample] {
        let of_stage = &self.samples[self.earlier..];
        match self.before {
            None if of_stage.iter().any(|each| each.bits > 0.0) => of_stage,
            _ => &self.samples,
        }
    }

    /// Returns what this number of connections shows; `None` as long as its samples are too few.
    fn stage(&self) -> Option<Stage> {
        // Samples with fewer connections would hide a growth.
        let samples = &self.samples[self.earlier..];
        Stage::of(samples, self.connections, self.base, self.settling)
    }

    fn add_connections(&mut self, now: Time, stage: Stage) -> TransferStep {
        let before = self.before.as_ref();
        let grows = before.is_some_and(|before| stage.is_proportional(before));
        let more = match stage.rate < SLOW && !grows {
            _ if stage.is_held() => self.connections * 3,
            true => self.connections.div_ceil(4),
            false => self.connections,
        };
        self.connections = (self.connections + more).min(MAX_CONNECTIONS);
        self.samples.drain(..self.earlier);
        self.before = Some(stage).filter(|stage| !stage.is_held());
        self.earlier = self.samples.len();
        self.stage_started = now;
        self.means.clear();
        TransferStep::Connections(self.connections)
    }

    /// Ends with a lower bound: what fewer connections carried counts no more if these carry more.
    fn end(&mut self) -> TransferStep {
        let before = self.before.as_ref().map_or(0.0, |before| before.rate);
        if self.stage().is_some_and(|stage| stage.rate > before) {
            self.samples.drain(..self.earlier);
            self.earlier = 0;
        }
        TransferStep::Done
    }

    /// Returns what the latest samples show, if a queue of this transfer stood at each of enough of them, and both
    /// halves of them agree.
    fn shown_by_queue(&self) -> Option<ActiveEstimate> {
        let number = self
            .samples
            .iter()
            .rev()
            .take_while(|each| each.has_queue(MIN_QUEUE))
            .count();
        if number < MIN_INSIDE {
            return None;
        }
        let queued = &self.samples[self.samples.len() - number..];
        let (one, other) = queued.split_at(number / 2);
        let [rate, one, other] = [queued, one, other].map(mean);
        let error = (one - other).abs() / (one + other);
        (error <= STEADY).then(|| ActiveEstimate {
            rate: Rate::from_bits_per_sec(rate as u64),
            error: error.max(MIN_ERROR),
            saturated: true,
        })
    }

    fn is_steady(&self, found: &Crucial) -> bool {
        let latest = &self.means[self.means.len().saturating_sub(STEADY_SAMPLES)..];
        let is_near = |mean: &f64| (mean / found.mean - 1.0).abs() <= STEADY;
        let last = self.samples.iter().rev().take(LATEST);
        // A sample may be a little above or below the interval and show the same rate.
        let (least, most) = (
            found.lowest * (1.0 - NARROW),
            found.highest * (1.0 + NARROW),
        );
        let inside = last.filter(|sample| (least..=most).contains(&sample.rate()));
        found.inside >= MIN_INSIDE
            && latest.len() >= STEADY_SAMPLES
            && latest.iter().all(is_near)
            && inside.count() * 2 > LATEST
    }

    /// Returns the expected error: twice the standard error of the samples since the first one of the interval,
    /// those outside of it included.
    fn error(&self, found: &Crucial) -> f64 {
        let rates = self.counted().iter().map(Sample::rate);
        let rates: Vec<f64> = rates.skip_while(|rate| *rate < found.lowest).collect();
        if found.inside < MIN_INSIDE || rates.len() < 2 {
            return 1.0;
        }
        let n = rates.len() as f64;
        let square = |rate: &f64| (rate - found.mean).powi(2);
        let variance = rates.iter().map(square).sum::<f64>() / (n - 1.0);
        (2.0 * (variance / n).sqrt() / found.mean).clamp(MIN_ERROR, 1.0)
    }
}
