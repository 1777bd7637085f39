//! Errors in the text of a quantity.

use thiserror::Error;

/// Error in the text of a quantity. The message names the text and the correct form.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnitError {
    /// The text does not begin with a decimal number.
    #[error("{text:?} is not a {kind}: write a number and a unit, such as {example:?}")]
    NotANumber {
        /// The text.
        text: String,
        /// Name of the quantity.
        kind: &'static str,
        /// An accepted text.
        example: &'static str,
    },
    /// The number has no unit.
    #[error("{text:?} has no unit: a {kind} is in {units}")]
    NoUnit {
        /// The text.
        text: String,
        /// Name of the quantity.
        kind: &'static str,
        /// Known units.
        units: String,
    },
    /// The unit is not one of this quantity.
    #[error("{text:?} has the unknown unit {unit:?}: a {kind} is in {units}{}", hint(.meant))]
    UnknownUnit {
        /// The text.
        text: String,
        /// The part taken for the unit.
        unit: String,
        /// Name of the quantity.
        kind: &'static str,
        /// Known units.
        units: String,
        /// The unit that differs only in upper and lower case.
        meant: Option<&'static str>,
    },
    /// The value is below zero.
    #[error("{text:?} is negative: a {kind} is zero or more")]
    Negative {
        /// The text.
        text: String,
        /// Name of the quantity.
        kind: &'static str,
    },
    /// The value exceeds the type.
    #[error("{text:?} is too large: the largest {kind} is {largest}")]
    TooLarge {
        /// The text.
        text: String,
        /// Name of the quantity.
        kind: &'static str,
        /// The largest value, as text.
        largest: String,
    },
    /// The value has a fraction of the type's smallest step.
    #[error("{text:?} is too fine: the smallest step of a {kind} is {step}")]
    TooFine {
        /// The text.
        text: String,
        /// Name of the quantity.
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
