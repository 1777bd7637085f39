//! Round-trip times of a link.

use std::time::Duration;

use braid_core::{SmoothedRtt, Time};

use super::RecentMin;

/// Round-trip time assumed before the first sample. RFC 9002 §6.2.2 has 333 ms; a tunnel whose
/// handshake has just passed soon knows better.
const INITIAL_RTT: Duration = Duration::from_millis(200);

/// Smoothed round-trip time, its variation and its minimum.
#[derive(Debug, Clone, Default)]
pub struct Rtt {
    smoothed: SmoothedRtt,
    recent: RecentMin<Duration>,
    min: Option<Duration>,
}

impl Rtt {
    /// Takes a sample.
    pub fn handle_sample(&mut self, now: Time, sample: Duration) {
        self.recent.handle_value(now, sample);
        self.min = self.recent.min(now);
        self.smoothed.handle_sample(sample);
    }

    /// Returns SRTT; 200 ms before the first sample.
    #[must_use]
    pub fn smoothed(&self) -> Duration {
        self.smoothed.smoothed().unwrap_or(INITIAL_RTT)
    }

    /// Returns RTTVAR.
    #[must_use]
    pub fn variation(&self) -> Duration {
        self.smoothed.variation().unwrap_or(INITIAL_RTT / 2)
    }

    /// Forgets the lowest sample: answers may return by another link from now on.
    pub fn forget_min(&mut self) {
        self.recent = RecentMin::default();
    }

    /// Returns the lowest sample of the last 20 s; 200 ms before the first.
    #[must_use]
    pub fn min(&self) -> Duration {
        self.min.unwrap_or(INITIAL_RTT)
    }

    /// Returns true if there was a sample.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.min.is_some()
    }

    /// Returns the time after which an answer is overdue: SRTT + 4 · RTTVAR (RFC 6298 §2.3).
    #[must_use]
    pub fn rto(&self) -> Duration {
        self.smoothed() + self.variation() * 4
    }
}
