//! Base delay: the recent minimum of the one-way delay, as of an empty link (RFC 6817).

use std::time::Duration;

use braid_core::Time;

use crate::RelativeDelay;

/// Span of the minimum. If it were longer, a changed route would look like a queue for long; if
/// shorter, a standing queue would become the base.
pub const BASE_DELAY_WINDOW: Duration = Duration::from_secs(20);

const BUCKETS: usize = 20;

/// Windowed minimum of relative one-way delays, in steps of one second.
#[derive(Debug, Clone)]
pub struct BaseDelay {
    /// Minimum of each second, at `second % BUCKETS`, with that second.
    buckets: [Option<(u64, RelativeDelay)>; BUCKETS],
}

impl Default for BaseDelay {
    fn default() -> BaseDelay {
        BaseDelay {
            buckets: [None; BUCKETS],
        }
    }
}

impl BaseDelay {
    /// Takes a delay measured at `now`.
    pub fn handle_delay(&mut self, now: Time, delay: RelativeDelay) {
        let second = second(now);
        let bucket = &mut self.buckets[second as usize % BUCKETS];
        match bucket {
            Some((of, min)) if *of == second => *min = delay.min(*min),
            _ => *bucket = Some((second, delay)),
        }
    }

    /// Returns the minimum of the window; none if it has no sample.
    #[must_use]
    pub fn base(&self, now: Time) -> Option<RelativeDelay> {
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
    now.as_nanos() / (BASE_DELAY_WINDOW.as_nanos() as u64 / BUCKETS as u64)
}
