//! `braid run`: a program on one uplink.
//!
//! The program gets its own control group below that of `braid run`, and the daemon gets a rule for
//! that group. Both are removed when the program ends, for whatever reason. If `braid run` itself is
//! killed, the daemon removes both once the program has ended.

mod group;
mod signals;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use braid_daemon::config::OnDown;
use braid_daemon::report::RunRequest;
use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;
use group::Group;
use signals::ForwardedSignals;
use tokio::process::{Child, Command};

use crate::cli::{OnDownName, RunArgs};
use crate::{CommandError, CommandResult, client, runtime};

/// Length to which a command is cut before it is sent to the daemon.
const MAX_TITLE_CHARS: usize = 60;
/// Exit codes for a program that cannot be started, as in shells and env(1).
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs the program and returns its exit code.
pub fn run(run_dir: &RunDir, arguments: &RunArgs) -> CommandResult {
    match runtime()?.block_on(on_uplink(run_dir, arguments))? {
        0 => Ok(()),
        code => Err(CommandError::Ended(code)),
    }
}

async fn on_uplink(run_dir: &RunDir, arguments: &RunArgs) -> Result<u8, CommandError> {
    // From here on a signal ends the program, and its set-up is undone.
    let mut signals = ForwardedSignals::new()?;
    let group = Group::make()?;
    let request = RunRequest {
        uplink: arguments.uplink.clone(),
        group: group.path()?,
        id: group.id(),
        pid: std::process::id(),
        command: title(&arguments.command),
        on_down: match arguments.on_down {
            OnDownName::Block => OnDown::Block,
            OnDownName::Fallback => OnDown::Fallback,
        },
    };
    let _: RunRequest = client::create(run_dir, "/v1/runs", &request).await?;
    let code = match group.spawn(&mut command(arguments)) {
        Ok(child) => wait(child, &mut signals).await,
        Err(failure) => Err(failure),
    };
    let released = group.dissolve();
    if let Ok(left @ 1..) = released {
        eprintln!("braid run: {left} of its processes go on, and their new flows on any uplink");
    }
    let path = format!("/v1/runs/{}", request.id);
    if client::delete::<RunRequest>(run_dir, &path).await.is_err() {
        eprintln!("braid run: the daemon did not hear that this is over; it will notice by itself");
    }
    match code {
        Err(failure) if failure.code == "not-found" => {
            crate::show_error(&failure, false);
            Ok(NOT_FOUND)
        }
        Err(failure) if failure.code == "not-executable" => {
            crate::show_error(&failure, false);
            Ok(NOT_EXECUTABLE)
        }
        Err(failure) => Err(failure.into()),
        Ok(status) => released
            .map(|_| exit_code(status))
            .map_err(CommandError::from),
    }
}

/// Returns the program and its arguments, cut to fit an event's line.
fn title(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let mut title: String = words.join(" ").chars().take(MAX_TITLE_CHARS).collect();
    if title.len() < words.join(" ").len() {
        title.push('…');
    }
    title
}

fn command(arguments: &RunArgs) -> Command {
    let (program, rest) = arguments
        .command
        .split_first()
        .expect("clap wants one word");
    let mut command = Command::new(program);
    command.args(rest);
    command
}

/// Waits for the program and forwards signals to it.
async fn wait(mut child: Child, signals: &mut ForwardedSignals) -> Result<ExitStatus, UserError> {
    loop {
        tokio::select! {
            status = child.wait() => {
                return status.map_err(|error| UserError::io("wait for the program", &error));
            }
            signal = signals.next() => signals::pass(signal, &child),
        }
    }
}

/// Returns the exit code as a shell does: 128 plus the signal's number if a signal ended it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_is_cut() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(title(&words("curl -O x")), "curl -O x");
        let long = title(&words(&"ä ".repeat(100)));
        assert_eq!(long.chars().count(), MAX_TITLE_CHARS + 1);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        for (raw, code) in [(0, 0), (3 << 8, 3), (255 << 8, 255), (9, 137), (15, 143)] {
            assert_eq!(exit_code(ExitStatus::from_raw(raw)), code);
        }
    }
}
