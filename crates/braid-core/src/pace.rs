//! Spacing a link's packets at its rate, so that its queue stays as short as it is meant to be.

use std::time::Duration;

use crate::{Bytes, Rate, Time};

/// What a late timer may make up for. More would be a burst, less would lose throughput whenever
/// the driver wakes late.
const MAX_CATCH_UP: Duration = Duration::from_millis(2);

/// When a link may send next.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pacer {
    free_at: Time,
}

impl Pacer {
    /// Counts `len` bytes sent now at `rate`. It need not have been ready: what is urgent is sent at
    /// once, and what follows waits the longer.
    pub fn handle_sent(&mut self, now: Time, len: Bytes, rate: Rate) {
        let from = self.free_at.max(now.before(MAX_CATCH_UP));
        // At rate zero nothing should have been sent; a second is as good as any.
        let span = rate.time_of(len).unwrap_or(Duration::from_secs(1));
        self.free_at = from + span.min(Duration::from_secs(1));
    }

    /// From when on the next packet may go; it may be past.
    #[must_use]
    pub fn ready(&self) -> Time {
        self.free_at
    }
}
