//! Reads configurations: TOML with every error at its place in the file.
//!
//! A program names its sections and keys; the rules are the same for all: every error is reported at
//! once with line, column and fix, and an unknown key is an error.

mod document;
mod host_name;
mod prefix;
mod problem;
mod quota;
pub mod sections;
mod table;

pub use document::{document, no_repeats, section, tables};
pub use host_name::HostName;
pub use prefix::Prefix;
pub use problem::{ConfigError, Paint, Problem, Warnings};
pub use quota::{Period, Quota};
pub use sections::{ApiConfig, MetricsConfig, WebConfig};
pub use table::{Located, Table, nearest, wrong_type};
pub use toml::de::{DeTable, DeValue};

/// Implements the conversions that serde's `try_from`/`into` need for a type that displays and parses.
#[macro_export]
macro_rules! as_text {
    ($type:ty) => {
        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $type {
            type Error = String;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }
    };
}
