//! The time with one number of connections, to be compared with that before.

use std::time::Duration;

use super::{MIN_INSIDE, STEADY};
use crate::capacity::crucial::{PACKET_BITS, Sample, crucial, mean};

/// Growth with more connections, as a factor, up to which the line was full before.
const FULL: f64 = 1.05;
/// Part of the growth of the number of connections from which the line limits nothing.
const PROPORTIONAL: f64 = 0.8;
/// Part of the highest rate of a round trip below which the rate has fallen.
const FALLEN: f64 = 0.85;
/// Least number of samples that are compared as a round trip's.
const FALLEN_SAMPLES: usize = 2;
/// Rate from which losses may be found to hold connections, in bits per second: the first packets of four times as many
/// are no more than the line carries in some round trips.
const FAST: f64 = 10e6;
/// Packets without which a rate is not at rest: of fewer, one is more than it may change.
const REST_PACKETS: f64 = 32.0;
/// Least queue that shows a full line if another number of connections carries the same; an eighth of the round trip
/// if that is longer. Slow start's bursts make shorter ones, and it ends at these (HyStart, RFC 9406).
const SHORT_QUEUE: Duration = Duration::from_millis(5);

/// Rates and signs of the time with one number of connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    connections: usize,
    /// Mean of the crucial interval, in bits per second.
    pub rate: f64,
    /// True if a short queue stood at most samples of the interval.
    pub has_queue: bool,
    /// Mean of the samples at rest, if they are enough, and both halves of them agree.
    at_rest: Option<f64>,
    /// True if the latest round trip's rate is far below the highest.
    has_fallen: bool,
}

impl Stage {
    /// Returns what these samples show; `None` as long as they are too few. `base` is the round trip before the
    /// transfer, `settling` the least time at rest.
    pub fn of(
        samples: &[Sample],
        connections: usize,
        base: Duration,
        settling: Duration,
    ) -> Option<Stage> {
        let found = crucial(samples).filter(|_| samples.len() >= MIN_INSIDE)?;
        let least = SHORT_QUEUE.max(base / 8);
        let inside = |each: &&Sample| (found.lowest..=found.highest).contains(&each.rate());
        let queued = samples.iter().filter(inside);
        let queued = queued.filter(|each| each.has_queue(least)).count();
        Some(Stage {
            connections,
            rate: found.mean,
            has_queue: queued * 2 > found.inside,
            at_rest: rate_at_rest(samples, settling),
            has_fallen: has_fallen(samples, base),
        })
    }

    /// Returns a rate that may be compared with another stage's: the line's, as its queue shows, or that which the
    /// connections keep.
    pub fn comparable(&self) -> Option<f64> {
        match self.has_queue {
            true => Some(self.rate),
            false => self.at_rest,
        }
    }

    /// Returns the higher of both rates if the line was full before, with fewer connections.
    pub fn full_rate(&self, before: &Stage) -> Option<f64> {
        let (now, before) = self.comparable().zip(before.comparable())?;
        (now <= before * FULL).then_some(now.max(before))
    }

    /// Returns true if these connections carry as much more as they are more.
    pub fn is_proportional(&self, before: &Stage) -> bool {
        let more = self.connections as f64 / before.connections as f64;
        self.rate >= before.rate * (1.0 + PROPORTIONAL * (more - 1.0))
    }

    /// Returns true if losses, and not the line, hold the connections: the rate falls without a queue.
    pub fn is_held(&self) -> bool {
        !self.has_queue && self.has_fallen && self.rate >= FAST
    }
}

fn rate_at_rest(samples: &[Sample], settling: Duration) -> Option<f64> {
    let first = samples.iter().position(|each| each.at_rest)?;
    let samples = &samples[first..];
    let seconds: f64 = samples.iter().map(|each| each.seconds).sum();
    let bits: f64 = samples.iter().map(|each| each.bits).sum();
    if samples.len() < 2 || seconds < settling.as_secs_f64() || bits < REST_PACKETS * PACKET_BITS {
        return None;
    }
    let (one, other) = samples.split_at(samples.len() / 2);
    let [rate, one, other] = [samples, one, other].map(mean);
    // A packet more or less is a matter of luck.
    let packet = PACKET_BITS / seconds;
    ((one - other).abs() <= STEADY * (one + other) + packet).then_some(rate)
}

fn has_fallen(samples: &[Sample], round_trip: Duration) -> bool {
    let mut seconds = 0.0;
    // Senders send in bursts, a round trip apart.
    let of_round_trip = samples.iter().rev().take_while(|each| {
        let is_inside = seconds < round_trip.as_secs_f64();
        seconds += each.seconds;
        is_inside
    });
    let number = of_round_trip.count().max(FALLEN_SAMPLES);
    let mut rates = samples.windows(number).map(mean);
    let highest = rates.clone().fold(0.0, f64::max);
    rates
        .next_back()
        .is_some_and(|latest| latest < highest * FALLEN)
}
