//! The lowest of the recent values.

use std::time::Duration;

use braid_core::Time;

/// Default span of the minimum, ms. If it were longer, a changed route would look like a queue for
/// long; if shorter, a standing queue would become the base.
const WINDOW_MS: u64 = 20_000;

/// The same as a duration.
pub const RECENT_MIN_WINDOW: Duration = Duration::from_millis(WINDOW_MS);

const BUCKETS: usize = 20;

/// Minimum of the last `MS` milliseconds, in steps of a twentieth of them.
#[derive(Debug, Clone)]
pub struct RecentMin<T, const MS: u64 = WINDOW_MS> {
    /// Minimum of each step, at `number % BUCKETS`, with the step's number.
    buckets: [Option<(u64, T)>; BUCKETS],
    /// Minimum of the window that ends with the step of the last value, with that step's number.
    lowest: Option<(u64, T)>,
}

impl<T: Copy, const MS: u64> Default for RecentMin<T, MS> {
    fn default() -> RecentMin<T, MS> {
        RecentMin {
            buckets: [None; BUCKETS],
            lowest: None,
        }
    }
}

impl<T: Copy + Ord, const MS: u64> RecentMin<T, MS> {
    /// Takes a value measured at `now`.
    pub fn handle_value(&mut self, now: Time, value: T) {
        let number = number(now, MS);
        let bucket = &mut self.buckets[number as usize % BUCKETS];
        match bucket {
            Some((of, min)) if *of == number => *min = value.min(*min),
            _ => *bucket = Some((number, value)),
        }
        self.lowest = match self.lowest {
            Some((of, min)) if of == number => Some((number, value.min(min))),
            _ => self.min_of(number).map(|min| (number, min)),
        };
    }

    /// Returns the minimum of the window; none if it has no value. Schedulers ask per packet, so
    /// the buckets are not looked at within the step of the last value.
    #[must_use]
    pub fn min(&self, now: Time) -> Option<T> {
        let number = number(now, MS);
        match self.lowest {
            Some((of, min)) if of == number => Some(min),
            _ => self.min_of(number),
        }
    }

    fn min_of(&self, number: u64) -> Option<T> {
        self.buckets
            .iter()
            .flatten()
            .filter(|(of, _)| number.saturating_sub(*of) < BUCKETS as u64)
            .map(|&(_, min)| min)
            .min()
    }
}

fn number(now: Time, window_ms: u64) -> u64 {
    now.as_nanos() / (window_ms * 1_000_000 / BUCKETS as u64)
}
