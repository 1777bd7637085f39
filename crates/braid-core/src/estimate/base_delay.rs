//! The lowest one-way delay of late: what the link takes when it is empty.

use std::time::Duration;

use crate::{RelativeDelay, Time};

/// How long the lowest delay is remembered. Longer, and a changed route looks like a queue for
/// ever; shorter, and a standing queue becomes the base.
pub const BASE_DELAY_WINDOW: Duration = Duration::from_secs(20);

const BUCKETS: usize = 20;

/// Windowed minimum of relative one-way delays, in steps of a second.
#[derive(Debug, Clone)]
pub struct BaseDelay {
    /// Minimum of each second, by `second % BUCKETS`, with the second it is of.
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
    /// Takes a delay that was measured at `now`.
    pub fn handle_delay(&mut self, now: Time, delay: RelativeDelay) {
        let second = second(now);
        let bucket = &mut self.buckets[second as usize % BUCKETS];
        match bucket {
            Some((of, min)) if *of == second => *min = delay.min(*min),
            _ => *bucket = Some((second, delay)),
        }
    }

    /// The lowest of the window; none if nothing was measured in it.
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
