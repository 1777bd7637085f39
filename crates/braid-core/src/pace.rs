//! Pacing: spaces a link's packets at its rate, so that its queue stays at the target.

use std::time::Duration;

use crate::{Bytes, Rate, Time};

/// Time that a late timer may catch up. More would be a burst; less would lose throughput whenever
/// the driver wakes late.
const MAX_CATCH_UP: Duration = Duration::from_millis(2);

/// Pacer of one link.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pacer {
    free_at: Time,
}

impl Pacer {
    /// Counts `len` bytes sent now at `rate`. The pacer need not be ready: urgent packets are sent
    /// at once, and the following ones wait longer.
    pub fn handle_sent(&mut self, now: Time, len: Bytes, rate: Rate) {
        let from = self.free_at.max(now.before(MAX_CATCH_UP));
        // At rate zero nothing should have been sent; any span will do.
        let span = rate.time_of(len).unwrap_or(Duration::from_secs(1));
        self.free_at = from + span.min(Duration::from_secs(1));
    }

    /// Returns when the next packet may go; it may be in the past.
    #[must_use]
    pub fn ready(&self) -> Time {
        self.free_at
    }
}
