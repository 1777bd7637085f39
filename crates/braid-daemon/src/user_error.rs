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

impl From<braid_balance::Error> for UserError {
    fn from(error: braid_balance::Error) -> UserError {
        use braid_balance::Error as E;
        match error {
            E::Permission { action } => {
                let text = format!("datapath: {action}: operation not permitted");
                UserError::new("permission", text)
                    .fix("run it as root; braid doctor says what lacks")
            }
            E::Kernel { action, release } => {
                let text = format!("datapath: {action}: not supported by kernel {release}");
                let fix = "boot kernel 5.10 or newer; braid doctor says what lacks";
                UserError::new("kernel-too-old", text).fix(fix)
            }
            E::ForeignProgram {
                device,
                direction,
                program,
                id,
            } => {
                let text = format!(
                    "datapath: program {program:?} (id {id}), which is not Braid's, is attached to \
                     {device} {direction}"
                );
                let fix = "detach that program, or set coexist = true in [datapath] to share the \
                           hook with it";
                UserError::new("foreign-program", text).fix(fix)
            }
            E::Layout {
                found,
                found_layout,
                needed_layout,
                ..
            } => {
                let text = format!(
                    "datapath: the one at work is of version {found} and keeps its flows in layout \
                     {found_layout}, this version needs layout {needed_layout}"
                );
                UserError::new("datapath-version", text)
                    .fix("braid down, then braid up; running flows are lost")
            }
            E::Load { .. } => UserError::new("datapath", format!("datapath: {error}"))
                .fix("braid doctor checks what the kernel can do"),
            _ => UserError::new("datapath", format!("datapath: {error}")),
        }
    }
}

impl From<crate::config::ConfigError> for UserError {
    /// The text lists all errors, over several lines.
    fn from(error: crate::config::ConfigError) -> UserError {
        UserError::new(
            "config",
            error.render(crate::config::Paint::Plain).trim_end(),
        )
    }
}

impl From<braid_uplink::Error> for UserError {
    fn from(error: braid_uplink::Error) -> UserError {
        match &error {
            braid_uplink::Error::NoUplink { rejected } => {
                let failure = UserError::new("no-uplink", error.to_string());
                failure.fix(if rejected.is_empty() {
                    "connect to a network first (`ip route` should show a default route), or name \
                     uplinks and their gateways in a configuration"
                } else {
                    "mend one of these, or name another device in the configuration"
                })
            }
            _ => UserError::new("uplinks", error.to_string()),
        }
    }
}

impl From<crate::plumbing::Error> for UserError {
    fn from(error: crate::plumbing::Error) -> UserError {
        UserError::new("plumbing", error.to_string())
    }
}
