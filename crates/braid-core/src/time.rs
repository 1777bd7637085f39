//! Instants of one end's own clock.

use std::ops::Add;
use std::time::Duration;

/// An instant, in nanoseconds since an origin that the driver chose (its start, say). Instants of
/// two machines cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);

    /// So many nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// In nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero if it is yet to come.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// So long before this; the origin at the earliest.
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
