//! Instants of one end's clock.

use std::ops::Add;
use std::time::Duration;

/// An instant, in nanoseconds since an origin chosen by the driver, such as its start. Instants of
/// two machines cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);

    /// Returns the instant this many nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Returns the nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`; zero if that is in the future.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the instant `span` earlier; the origin at the earliest.
    #[must_use]
    pub fn before(self, span: Duration) -> Time {
        Time(
            self.0
                .saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    /// Saturates after 584 years.
    fn add(self, span: Duration) -> Time {
        Time(
            self.0
                .saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}
