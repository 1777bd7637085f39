//! Bits per second.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::decimal::Kind;
use super::{Bytes, UnitError, text};

const KIND: Kind = Kind {
    name: "rate",
    example: "20 Mbit/s",
    step: "1 bit/s",
    units: &[
        ("Gbit/s", 1_000_000_000),
        ("Mbit/s", 1_000_000),
        ("kbit/s", 1_000),
        ("bit/s", 1),
    ],
    aliases: &[],
    max: u64::MAX,
};

/// A rate in bits per second, written `20 Mbit/s`. Units: bit/s, kbit/s, Mbit/s, Gbit/s (powers of
/// 1000). A link of rate zero carries nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate(u64);

impl Rate {
    /// Returns a rate of this many bits per second.
    #[must_use]
    pub const fn from_bits_per_sec(bits: u64) -> Rate {
        Rate(bits)
    }

    /// Returns the bits per second.
    #[must_use]
    pub const fn bits_per_sec(self) -> u64 {
        self.0
    }

    /// Returns the time that `size` takes on the wire at this rate, rounded up to a nanosecond, so
    /// that a sender that waits for it never exceeds the rate. None at rate zero, and above 584
    /// years.
    #[must_use]
    pub fn time_of(self, size: Bytes) -> Option<Duration> {
        if self.0 == 0 {
            return None;
        }
        let nanos = (u128::from(size.get()) * 8_000_000_000).div_ceil(u128::from(self.0));
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    }

    /// Returns the bytes that pass at this rate in `time`, rounded down; saturates.
    #[must_use]
    pub fn bytes_in(self, time: Duration) -> Bytes {
        let bits = u128::from(self.0).saturating_mul(time.as_nanos()) / 1_000_000_000;
        Bytes::new(u64::try_from(bits / 8).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        KIND.write(self.0, f)
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Rate, UnitError> {
        KIND.parse(text).map(Rate)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Rate, D::Error> {
        text::deserialize(deserializer, "a rate such as \"20 Mbit/s\"", str::parse)
    }
}
