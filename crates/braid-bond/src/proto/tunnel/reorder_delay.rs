//! Histogram of the time that packets wait for order.

use std::time::Duration;

/// Buckets to a doubling: a quantile is at most 19 % too high.
const BUCKETS_PER_DOUBLING: u32 = 4;

/// Doublings of a microsecond that are distinguished: up to 17 minutes.
const MAX_DOUBLINGS: u32 = 30;

const BUCKETS: usize = (MAX_DOUBLINGS * BUCKETS_PER_DOUBLING) as usize + 1;

/// Waiting times, each counted in a bucket of about its size.
#[derive(Clone, Debug)]
pub struct ReorderDelay {
    buckets: [u64; BUCKETS],
    count: u64,
}

impl Default for ReorderDelay {
    fn default() -> Self {
        ReorderDelay {
            buckets: [0; BUCKETS],
            count: 0,
        }
    }
}

impl ReorderDelay {
    pub(super) fn record(&mut self, waited: Duration) {
        let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(micros)] += 1;
        self.count += 1;
    }

    /// Upper bound for the waiting time of this share of packets, 0 to 1; zero before the first.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        Duration::from_micros(end(bucket.unwrap_or(0)))
    }

    /// Number of packets.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// Bucket 0 is for no wait; the others begin at a doubling and its quarters.
fn bucket(micros: u64) -> usize {
    let Some(doublings) = micros.checked_ilog2() else {
        return 0;
    };
    let quarter = (micros << 2 >> doublings) & 3;
    let bucket = 1 + u64::from(doublings * BUCKETS_PER_DOUBLING) + quarter;
    (bucket as usize).min(BUCKETS - 1)
}

/// The longest wait of a bucket, µs.
fn end(bucket: usize) -> u64 {
    let Some(index) = bucket.checked_sub(1) else {
        return 0;
    };
    let (doublings, quarter) = (
        index as u32 / BUCKETS_PER_DOUBLING,
        index as u64 % u64::from(BUCKETS_PER_DOUBLING),
    );
    let next = (u64::from(BUCKETS_PER_DOUBLING) + quarter + 1) << doublings;
    next.div_ceil(u64::from(BUCKETS_PER_DOUBLING)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_never_too_low_and_little_too_high() {
        assert_eq!(ReorderDelay::default().quantile(0.99), Duration::ZERO);
        for micros in (0..2000).chain([12_345, 999_999, 60_000_000]) {
            let mut one = ReorderDelay::default();
            one.record(Duration::from_micros(micros));
            let told = one.quantile(0.5).as_micros() as u64;
            assert!(told >= micros, "{told} for {micros}");
            assert!(told <= micros + micros / 4, "{told} for {micros}");
        }
    }

    #[test]
    fn quantiles_of_many() {
        let mut many = ReorderDelay::default();
        (0..98).for_each(|_| many.record(Duration::ZERO));
        (0..2).for_each(|_| many.record(Duration::from_millis(40)));
        assert_eq!(many.quantile(0.5), Duration::ZERO);
        assert!(many.quantile(0.99) >= Duration::from_millis(40));
        assert!(many.quantile(0.99) < Duration::from_millis(50));
        assert_eq!(many.count(), 100);
    }
}
