//! Counters of a link, and a histogram of its driver's lateness.

use std::time::Duration;

use serde::Serialize;

use crate::link::Fate;

/// Packets and bytes (whole Ethernet frames).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Count {
    pub(crate) fn add(&mut self, len: u32) {
        self.packets += 1;
        self.bytes += u64::from(len);
    }
}

/// Counters of one direction. At all times `arrived` is the sum of the fates and of `held`, in
/// packets and in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Stats {
    /// Arrived at the link.
    pub arrived: Count,
    /// Delivered at the other side.
    pub delivered: Count,
    /// Dropped by a full queue.
    pub queue_full: Count,
    /// Dropped by CoDel.
    pub codel: Count,
    /// Lost at random.
    pub lost_random: Count,
    /// Lost in a burst.
    pub lost_burst: Count,
    /// Lost in the black hole.
    pub black_hole: Count,
    /// In the link now: in the queue, on the wire or in flight.
    pub held: Count,
    /// In the queue now, without the packet on the wire.
    pub queued: Count,
}

impl Stats {
    pub(crate) fn fate(&mut self, fate: Fate, len: u32) {
        let count = match fate {
            Fate::Delivered => &mut self.delivered,
            Fate::QueueFull => &mut self.queue_full,
            Fate::Codel => &mut self.codel,
            Fate::LostRandom => &mut self.lost_random,
            Fate::LostBurst => &mut self.lost_burst,
            Fate::BlackHole => &mut self.black_hole,
        };
        count.add(len);
        self.held.packets -= 1;
        self.held.bytes -= u64::from(len);
    }
}

/// Steps per doubling: values are exact to 1/8.
const STEPS: usize = 8;

/// Histogram of durations, from 1 ns to 584 years, exact to an eighth; never allocates.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: [u64; 64 * STEPS],
    total: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: [0; 64 * STEPS],
            total: 0,
            max: 0,
        }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
        self.max = self.max.max(nanos);
    }

    /// Returns the value that the given fraction of all stayed below, rounded up by at most an
    /// eighth; zero if nothing was counted.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> Duration {
        let rank = (self.total as f64 * fraction).ceil() as u64;
        let mut below = 0;
        for (index, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank && below > 0 {
                return Duration::from_nanos(upper(index).min(self.max));
            }
        }
        Duration::ZERO
    }

    /// Returns the largest duration, exactly.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }
}

fn bucket(nanos: u64) -> usize {
    let nanos = nanos.max(STEPS as u64);
    let log = nanos.ilog2();
    let step = (nanos >> (log - STEPS.ilog2())) as usize - STEPS;
    log as usize * STEPS + step
}

/// Returns the largest value of a bucket.
fn upper(index: usize) -> u64 {
    let (log, step) = ((index / STEPS) as u32, (index % STEPS) as u64);
    let next = (STEPS as u64 + step + 1) as u128;
    u64::try_from((next << log) / STEPS as u128 - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantiles_of_a_hundred() {
        let mut histogram = Histogram::default();
        (1..=100).for_each(|ms| histogram.record(Duration::from_millis(ms)));
        let half = histogram.quantile(0.5).as_secs_f64();
        assert!((0.050..0.0565).contains(&half), "{half}");
        assert_eq!(histogram.quantile(1.0), Duration::from_millis(100));
        assert_eq!(Histogram::default().quantile(0.99), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn a_bucket_holds_its_value_to_an_eighth(value in 8u64.., shift in 0u32..60) {
            let value = (value >> shift).max(8);
            let top = upper(bucket(value));
            prop_assert!(top >= value);
            prop_assert!((top - value) as f64 <= value as f64 / 8.0);
        }
    }
}
