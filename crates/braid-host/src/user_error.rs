//! Errors for users: what, why and the next step.

use std::fmt;
use std::io;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An error: what and why in `text`, the next step in `fix`. It crosses the API and the readiness
/// pipe, so that the daemon's own text reaches the user's terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UserError {
    /// Stable code for programs: `second-daemon`, `no-uplink`, …
    pub code: String,
    /// The operation, its object, and the cause.
    pub text: String,
    /// The next step, if there is one.
    pub fix: Option<String>,
}

impl UserError {
    /// Creates an error without a next step.
    #[must_use]
    pub fn new(code: &str, text: impl Into<String>) -> UserError {
        UserError {
            code: code.to_owned(),
            text: text.into(),
            fix: None,
        }
    }

    /// Adds the next step.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> UserError {
        self.fix = Some(fix.into());
        self
    }

    /// Creates the error of a failed operation on a file or directory.
    #[must_use]
    pub fn io(action: impl fmt::Display, source: &io::Error) -> UserError {
        let failure = UserError::new("io", format!("{action}: {source}"));
        match source.kind() {
            io::ErrorKind::PermissionDenied => failure.fix("run it as root, for example with sudo"),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                failure.fix("make room on that file system")
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                failure.fix("mount that file system for writing, or name another place")
            }
            _ => failure,
        }
    }

    /// Creates the error for an unknown uplink name. `known` are the existing ones.
    #[must_use]
    pub fn unknown_uplink<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> UserError {
        let known: Vec<&str> = known.into_iter().collect();
        let failure = UserError::new("usage", format!("there is no uplink {name:?}"));
        match known.as_slice() {
            [] => failure.fix("there is none at all: braid doctor says why"),
            _ => failure.fix(format!("there are {}", known.join(", "))),
        }
    }
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for UserError {}

impl From<crate::config::ConfigError> for UserError {
    /// The text lists all errors, over several lines.
    fn from(error: crate::config::ConfigError) -> UserError {
        UserError::new(
            "config",
            error.render(crate::config::Paint::Plain).trim_end(),
        )
    }
}

impl From<crate::sysctl::Error> for UserError {
    fn from(error: crate::sysctl::Error) -> UserError {
        UserError::new("sysctl", error.to_string())
    }
}
