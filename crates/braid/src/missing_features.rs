//! Commands that are missing from a reduced build, for routers with little storage. They are Cargo
//! features of this crate, all on by default.

use braid_host::user_error::UserError;
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::Cli;

/// Commands that this build does not have.
const OPTIONAL_COMMANDS: &[&str] = &[
    #[cfg(not(feature = "edge"))]
    "edge",
    #[cfg(not(feature = "emulate"))]
    "emulate",
    #[cfg(not(feature = "emulate"))]
    "emulate-ctl",
    #[cfg(not(feature = "hub"))]
    "hub",
    #[cfg(not(feature = "hub"))]
    "keygen",
    #[cfg(not(feature = "manual"))]
    "completions",
    #[cfg(not(feature = "manual"))]
    "man",
    #[cfg(not(feature = "top"))]
    "top",
];

/// Parses the command line. Exits the process after a request for help or a usage error.
///
/// # Errors
/// The command is missing from this build.
pub fn parse() -> Result<Cli, UserError> {
    Cli::try_parse().map_err(|error| match left_out(&error, OPTIONAL_COMMANDS) {
        Some(name) => UserError::new("usage", format!("this build has no braid {name}"))
            .fix("it is the small one for routers: take the full one, as make build makes it"),
        None => error.exit(),
    })
}

/// Returns the requested command if it is one of `these`.
fn left_out(error: &clap::Error, these: &[&'static str]) -> Option<&'static str> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let asked = error.get(ContextKind::InvalidSubcommand)?;
    let named = |name: &&&str| matches!(asked, ContextValue::String(asked) if asked == **name);
    these.iter().find(named).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_left_out_is_said_to_be() {
        let asked = |words: &[&str]| {
            let error = Cli::try_parse_from(words).unwrap_err();
            left_out(&error, &["warp"])
        };
        assert_eq!(asked(&["braid", "warp"]), Some("warp"));
        assert_eq!(
            asked(&["braid", "--run-dir", "/x", "warp", "--far"]),
            Some("warp")
        );
        assert_eq!(asked(&["braid", "wrap"]), None);
        assert_eq!(asked(&["braid", "status", "warp"]), None);
        assert_eq!(asked(&["braid", "--warp"]), None);
    }
}
