//! Why a text is not a quantity.

use thiserror::Error;

/// Why a text was refused as a quantity. The message names the text and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnitError {
    /// It does not begin with a decimal number.
    #[error("{text:?} is not a {kind}: write a number and a unit, such as {example:?}")]
    NotANumber {
        /// What was written.
        text: String,
        /// What was wanted, in words.
        kind: &'static str,
        /// A text that would be accepted.
        example: &'static str,
    },
    /// A number alone, where only a unit gives it a meaning.
    #[error("{text:?} has no unit: a {kind} is in {units}")]
    NoUnit {
        /// What was written.
        text: String,
        /// What was wanted, in words.
        kind: &'static str,
        /// The units that exist.
        units: String,
    },
    /// A unit that is not one of this kind of quantity.
    #[error("{text:?} has the unknown unit {unit:?}: a {kind} is in {units}{}", hint(.meant))]
    UnknownUnit {
        /// What was written.
        text: String,
        /// The part of it that was taken for the unit.
        unit: String,
        /// What was wanted, in words.
        kind: &'static str,
        /// The units that exist.
        units: String,
        /// The unit that differs from the one written in upper and lower case only.
        meant: Option<&'static str>,
    },
    /// Below zero.
    #[error("{text:?} is negative: a {kind} is zero or more")]
    Negative {
        /// What was written.
        text: String,
        /// What was wanted, in words.
        kind: &'static str,
    },
    /// More than the type holds.
    #[error("{text:?} is too large: the largest {kind} is {largest}")]
    TooLarge {
        /// What was written.
        text: String,
        /// What was wanted, in words.
        kind: &'static str,
        /// The largest value, as text.
        largest: String,
    },
    /// A fraction of the smallest step of the type.
    #[error("{text:?} is too fine: the smallest step of a {kind} is {step}")]
    TooFine {
        /// What was written.
        text: String,
        /// What was wanted, in words.
        kind: &'static str,
        /// The smallest step, as text.
        step: &'static str,
    },
}

fn hint(meant: &Option<&'static str>) -> String {
    meant
        .map(|unit| format!(" (did you mean {unit:?}?)"))
        .unwrap_or_default()
}
