//! Round-trip times of a link.

use std::time::Duration;

/// Round-trip time assumed before the first sample. RFC 9002 §6.2.2 has 333 ms; a tunnel whose
/// handshake has just passed soon knows better.
const INITIAL_RTT: Duration = Duration::from_millis(200);

/// Smoothed round-trip time, its variation and its minimum (RFC 6298 §2, RFC 9002 §5).
#[derive(Debug, Clone, Copy, Default)]
pub struct Rtt {
    smoothed: Option<Duration>,
    variation: Duration,
    min: Option<Duration>,
}

impl Rtt {
    /// Takes a sample. The first one counts entirely (RFC 6298 §2.2), later ones by an eighth; the
    /// variation is updated first, by a quarter (§2.3).
    pub fn handle_sample(&mut self, sample: Duration) {
        self.min = Some(self.min.map_or(sample, |min| min.min(sample)));
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(sample);
            self.variation = sample / 2;
            return;
        };
        self.variation = (self.variation * 3 + smoothed.abs_diff(sample)) / 4;
        self.smoothed = Some((smoothed * 7 + sample) / 8);
    }

    /// Returns SRTT; 200 ms before the first sample.
    #[must_use]
    pub fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or(INITIAL_RTT)
    }

    /// Returns RTTVAR.
    #[must_use]
    pub fn variation(&self) -> Duration {
        self.smoothed.map_or(INITIAL_RTT / 2, |_| self.variation)
    }

    /// Returns the lowest sample since the session began; 200 ms before the first.
    #[must_use]
    pub fn min(&self) -> Duration {
        self.min.unwrap_or(INITIAL_RTT)
    }

    /// Returns true if there was a sample.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.smoothed.is_some()
    }

    /// Returns the time after which an answer is overdue: SRTT + 4 · RTTVAR (RFC 6298 §2.3).
    #[must_use]
    pub fn rto(&self) -> Duration {
        self.smoothed() + self.variation() * 4
    }
}
