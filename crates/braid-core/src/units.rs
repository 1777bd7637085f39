//! Types that carry their unit, parsed and printed as people write them: `20 Mbit/s`, `256 kB`, `40
//! ms`, `1 %`, `8 /s`.
//!
//! Parsing is strict: a number without a unit, an unknown unit and a value that the type cannot
//! hold exactly are errors that name the correct form. Printing is lossless: a printed value parses
//! to the same value. In serde each is a string of that form.

mod bytes;
mod decimal;
pub mod duration;
mod error;
mod frequency;
mod rate;
mod share;
mod text;

pub use bytes::Bytes;
pub use error::UnitError;
pub use frequency::Frequency;
pub use rate::Rate;
pub use share::Share;
