//! Shares of a whole.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::decimal::Kind;
use super::{UnitError, text};

const WHOLE: u64 = 1_000_000_000;

const KIND: Kind = Kind {
    name: "share",
    example: "1 %",
    step: "0.0000001 %",
    units: &[("%", WHOLE / 100)],
    aliases: &[],
    max: WHOLE,
};

/// A share of a whole, from zero to one, in steps of 10⁻⁹: written `1 %`, parsed from `1 %` or the
/// fraction `0.01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Share(u32);

impl Share {
    /// Nothing.
    pub const NONE: Share = Share(0);

    /// Everything.
    pub const ALL: Share = Share(WHOLE as u32);

    /// Returns `part` of `whole`, rounded down to 10⁻⁹; all if `part` is not less than `whole`.
    #[must_use]
    pub const fn of(part: u32, whole: u32) -> Share {
        if part >= whole {
            return Share::ALL;
        }
        // Below 10⁹, since part is less than whole.
        Share((part as u64 * WHOLE / whole as u64) as u32)
    }

    /// Returns the share as a fraction, 0 to 1.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / WHOLE as f64
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        KIND.write(u64::from(self.0), f)
    }
}

impl FromStr for Share {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Share, UnitError> {
        let bare = text.trim();
        let billionths = if bare.ends_with(|c: char| c.is_ascii_digit()) {
            KIND.scale(text, bare, WHOLE)?
        } else {
            KIND.parse(text)?
        };
        Ok(Share(u32::try_from(billionths).unwrap_or(WHOLE as u32)))
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Share, D::Error> {
        text::deserialize(deserializer, "a share such as \"1 %\"", str::parse)
    }
}
