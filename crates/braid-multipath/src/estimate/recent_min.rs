//! The lowest of the recent values.

use std::time::Duration;

use braid_core::Time;

/// Span of the minimum. If it were longer, a changed route would look like a queue for long; if
/// shorter, a standing queue would become the base.
pub const RECENT_MIN_WINDOW: Duration = Duration::from_secs(20);

const BUCKETS: usize = 20;

/// Windowed minimum, in steps of one second.
#[derive(Debug, Clone)]
pub struct RecentMin<T> {
    /// Minimum of each second, at `second % BUCKETS`, with that second.
    buckets: [Option<(u64, T)>; BUCKETS],
}

impl<T: Copy> Default for RecentMin<T> {
    fn default() -> RecentMin<T> {
        RecentMin {
            buckets: [None; BUCKETS],
        }
    }
}

impl<T: Copy + Ord> RecentMin<T> {
    /// Takes a value measured at `now`.
    pub fn handle_value(&mut self, now: Time, value: T) {
        let second = second(now);
        let bucket = &mut self.buckets[second as usize % BUCKETS];
        match bucket {
            Some((of, min)) if *of == second => *min = value.min(*min),
            _ => *bucket = Some((second, value)),
        }
    }

    /// Returns the minimum of the window; none if it has no value.
    #[must_use]
    pub fn min(&self, now: Time) -> Option<T> {
        let now = second(now);
        self.buckets
            .iter()
            .flatten()
            .filter(|(of, _)| now.saturating_sub(*of) < BUCKETS as u64)
            .map(|&(_, min)| min)
            .min()
    }
}

fn second(now: Time) -> u64 {
    now.as_nanos() / (RECENT_MIN_WINDOW.as_nanos() as u64 / BUCKETS as u64)
}
