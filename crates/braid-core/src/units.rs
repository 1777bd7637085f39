//! Types that carry their unit, read and written as people write them: `20 Mbit/s`, `256 kB`,
//! `40 ms`, `1 %`, `8 /s`.
//!
//! Reading is strict: a number without its unit, an unknown unit and a value that the type cannot
//! hold exactly are errors that say what would have been right. Writing is lossless: what a type
//! displays, it reads back as the same value. In serde each is a string of that same form.

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
