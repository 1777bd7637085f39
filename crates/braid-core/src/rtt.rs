//! Smoothed round-trip time (RFC 6298 §2, RFC 9002 §5).

use std::time::Duration;

/// Smoothed round-trip time and its variation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmoothedRtt(Option<(Duration, Duration)>);

impl SmoothedRtt {
    /// Takes a sample. The first one counts entirely (RFC 6298 §2.2), later ones by an eighth; the
    /// variation is updated first, by a quarter (§2.3).
    pub fn handle_sample(&mut self, sample: Duration) {
        self.0 = Some(match self.0 {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => (
                (smoothed * 7 + sample) / 8,
                (variation * 3 + smoothed.abs_diff(sample)) / 4,
            ),
        });
    }

    /// Returns SRTT; none before the first sample.
    #[must_use]
    pub fn smoothed(&self) -> Option<Duration> {
        self.0.map(|(smoothed, _)| smoothed)
    }

    /// Returns RTTVAR; none before the first sample.
    #[must_use]
    pub fn variation(&self) -> Option<Duration> {
        self.0.map(|(_, variation)| variation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// RFC 6298 §2.2: "SRTT <- R, RTTVAR <- R/2"; §2.3: "RTTVAR <- (1 - beta) * RTTVAR + beta *
    /// |SRTT - R'|, SRTT <- (1 - alpha) * SRTT + alpha * R'" with alpha 1/8 and beta 1/4.
    #[test]
    fn smoothing_is_that_of_rfc_6298() {
        let mut rtt = SmoothedRtt::default();
        assert_eq!((rtt.smoothed(), rtt.variation()), (None, None));
        rtt.handle_sample(100 * MS);
        assert_eq!(rtt, SmoothedRtt(Some((100 * MS, 50 * MS))));
        rtt.handle_sample(200 * MS);
        assert_eq!(rtt.variation(), Some(Duration::from_micros(62_500)));
        assert_eq!(rtt.smoothed(), Some(Duration::from_micros(112_500)));
    }
}
