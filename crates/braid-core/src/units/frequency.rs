//! Frequencies.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::decimal::Kind;
use super::{UnitError, text};

const KIND: Kind = Kind {
    name: "frequency",
    example: "8 /s",
    step: "1 /s",
    units: &[("/s", 1)],
    aliases: &[],
    max: u32::MAX as u64,
};

/// A whole number of times a second, written `8 /s`. Zero is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Frequency(u32);

impl Frequency {
    /// Returns this many times a second.
    #[must_use]
    pub const fn per_second(times: u32) -> Frequency {
        Frequency(times)
    }

    /// Returns the times a second.
    #[must_use]
    pub const fn times_per_second(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Frequency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        KIND.write(u64::from(self.0), f)
    }
}

impl FromStr for Frequency {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Frequency, UnitError> {
        // The kind's largest value fits.
        let times = KIND.parse(text)?;
        Ok(Frequency(u32::try_from(times).unwrap_or(u32::MAX)))
    }
}

impl Serialize for Frequency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Frequency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Frequency, D::Error> {
        text::deserialize(deserializer, "a frequency such as \"8 /s\"", str::parse)
    }
}
