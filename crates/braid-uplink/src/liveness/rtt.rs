//! Timeouts by round-trip times: RFC 6298, plus the longest of the recent samples.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::SmoothedRtt;

use super::constants::{INITIAL_RTO, MIN_RTT_SAMPLES, MIN_RTT_SPREAD, RTO_BOUNDS};

/// Number of recent samples of which the longest counts.
const RECENT_SAMPLES: usize = 16;

/// Smoothed round trip and its variation.
#[derive(Clone, Debug, Default)]
pub(super) struct Rtt {
    smoothed: SmoothedRtt,
    samples: u32,
    /// Recent samples. Smoothing forgets a tail that jitter will show again, so the longest of these counts
    /// too.
    recent: VecDeque<Duration>,
}

impl Rtt {
    /// Takes a sample.
    pub(super) fn add(&mut self, rtt: Duration) {
        self.smoothed.handle_sample(rtt);
        self.samples = self.samples.saturating_add(1);
        if self.recent.len() == RECENT_SAMPLES {
            self.recent.pop_front();
        }
        self.recent.push_back(rtt);
    }

    /// Returns the mean difference of one recent sample to the next; `None` before the second.
    pub(super) fn jitter(&self) -> Option<Duration> {
        let pairs = self.recent.iter().zip(self.recent.iter().skip(1));
        let sum: Duration = pairs.map(|(one, next)| one.abs_diff(*next)).sum();
        // Fewer than RECENT_SAMPLES.
        let number = self.recent.len().saturating_sub(1) as u32;
        sum.checked_div(number)
    }

    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed.smoothed()
    }

    /// Returns true if there are enough samples to trust their variation.
    pub(super) fn is_known(&self) -> bool {
        self.samples >= MIN_RTT_SAMPLES
    }

    /// SRTT + 4·RTTVAR, RFC 6298 §2.3.
    pub(super) fn expected(&self) -> Duration {
        let variation = self.smoothed.variation().unwrap_or_default();
        self.smoothed().unwrap_or_default() + MIN_RTT_SPREAD.max(variation * 4)
    }

    /// Returns the time after which a missing answer is overdue.
    pub(super) fn timeout(&self) -> Duration {
        let longest = self.recent.iter().max().copied().unwrap_or_default();
        let timeout = self.expected().max(longest * 6 / 5);
        let unknown = if self.is_known() {
            Duration::ZERO
        } else {
            INITIAL_RTO
        };
        timeout.max(unknown).clamp(RTO_BOUNDS.0, RTO_BOUNDS.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn jitter_is_the_mean_difference_of_one_sample_to_the_next() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.jitter(), None);
        rtt.add(20 * MS);
        assert_eq!(rtt.jitter(), None);
        for ms in [26, 23, 23] {
            rtt.add(ms * MS);
        }
        assert_eq!(rtt.jitter(), Some(3 * MS));
        (0..RECENT_SAMPLES).for_each(|_| rtt.add(40 * MS));
        assert_eq!(rtt.jitter(), Some(Duration::ZERO));
    }

    /// RFC 6298 §2.1: "Until a round-trip time (RTT) measurement has been made for a segment sent between the
    /// sender and receiver, the sender SHOULD set RTO <- 1 second". We keep it until eight samples are known.
    #[test]
    fn the_first_timeouts_are_a_second() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(), 1000 * MS);
        for _ in 0..7 {
            rtt.add(20 * MS);
            assert_eq!(rtt.timeout(), 1000 * MS);
        }
        rtt.add(20 * MS);
        assert!(rtt.timeout() < 60 * MS, "{:?}", rtt.timeout());
    }

    #[test]
    fn a_long_round_trip_is_remembered_for_sixteen() {
        let mut rtt = Rtt::default();
        (0..20).for_each(|_| rtt.add(20 * MS));
        rtt.add(500 * MS);
        (0..15).for_each(|_| rtt.add(20 * MS));
        assert_eq!(rtt.timeout(), 600 * MS);
        (0..30).for_each(|_| rtt.add(20 * MS));
        assert!(rtt.timeout() < 60 * MS, "{:?}", rtt.timeout());
    }
}
