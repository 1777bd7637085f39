//! Spans of time, written `40 ms`. Units: ns, us (or µs), ms, s, min, h.
//!
//! The type is [`std::time::Duration`]; fields of it take `#[serde(with = "units::duration")]`.

use std::fmt;
use std::time::Duration;

use serde::{Deserializer, Serializer};

use super::decimal::{Kind, Show};
use super::{UnitError, text};

const KIND: Kind = Kind {
    name: "time",
    example: "40 ms",
    step: "1 ns",
    units: &[
        ("h", 3_600_000_000_000),
        ("min", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
        ("ns", 1),
    ],
    aliases: &[("µs", 1_000), ("μs", 1_000)],
    max: u64::MAX,
};

/// Parses `15 ms`, `1.5ms`, `2 s`.
///
/// # Errors
/// If there is no number or no unit, the unit is unknown, or the value is negative, has a fraction
/// of a nanosecond, or exceeds 584 years.
pub fn parse(text: &str) -> Result<Duration, UnitError> {
    KIND.parse(text).map(Duration::from_nanos)
}

/// Displays a span in the form of [`parse`], without loss (saturates at 584 years).
#[must_use]
pub fn display(span: Duration) -> impl fmt::Display {
    Show(&KIND, u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

/// For `#[serde(with)]`.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&display(*span))
}

/// For `#[serde(with)]`.
///
/// # Errors
/// Those of [`parse`], and anything that is not a string.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    text::deserialize(deserializer, "a time such as \"40 ms\"", parse)
}
