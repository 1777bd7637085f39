//! Histogram of durations, with quantiles.

use std::time::Duration;

/// Steps per doubling: values are exact to 1/8.
const STEPS: usize = 8;

const BUCKETS: usize = 64 * STEPS;

/// Histogram of durations, to 584 years: zero is exact, all from 8 ns on are to an eighth. Recording never
/// allocates.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    total: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: Box::new([0; BUCKETS]),
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

    /// Returns the number of durations counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Returns the largest duration, exactly.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }
}

/// Returns the bucket of a value; the first one is for zero.
fn bucket(nanos: u64) -> usize {
    if nanos == 0 {
        return 0;
    }
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

    #[test]
    fn a_quantile_is_never_too_low_and_little_too_high() {
        for micros in (0..2000).chain([12_345, 999_999, 60_000_000]) {
            let mut one = Histogram::default();
            one.record(Duration::from_micros(micros));
            let told = one.quantile(0.5).as_micros() as u64;
            assert!(told >= micros, "{told} for {micros}");
            assert!(told <= micros + micros / 4, "{told} for {micros}");
        }
    }

    #[test]
    fn quantiles_of_mostly_zeros() {
        let mut many = Histogram::default();
        (0..98).for_each(|_| many.record(Duration::ZERO));
        (0..2).for_each(|_| many.record(Duration::from_millis(40)));
        assert_eq!(many.quantile(0.5), Duration::ZERO);
        assert!(many.quantile(0.99) >= Duration::from_millis(40));
        assert!(many.quantile(0.99) < Duration::from_millis(50));
        assert_eq!(many.count(), 100);
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
