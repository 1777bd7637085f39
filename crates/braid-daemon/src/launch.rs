//! Starts the daemon in the background and waits until it is ready.
//!
//! The program runs itself again, detached. Until it is ready, the child's standard output is a pipe to its
//! parent with progress messages, one JSON object a line. Its standard error is the log. The parent needs no
//! timeout to notice a failure: a child that dies closes the pipe.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;
use nix::sys::signal::{Signal as NixSignal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::report::UpReport;
use crate::serve::ProgressObserver;

/// Error code of a start that a signal interrupted.
pub const INTERRUPTED: &str = "interrupted";

/// Lines of the log that are shown if the daemon died without a message.
const LOG_TAIL_LINES: usize = 10;

/// One message on the pipe.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StartupMessage {
    Step(String),
    Ready(UpReport),
    Failed(UserError),
}

/// Starts `command` in the background and waits until it is ready. `step` is called with the progress. SIGINT
/// and SIGTERM end the starting daemon too.
///
/// # Errors
/// The daemon's own error; [`INTERRUPTED`] after a signal, when the daemon has ended.
pub fn background(
    mut command: Command,
    run_dir: &RunDir,
    mut step: impl FnMut(&str),
) -> Result<UpReport, UserError> {
    run_dir.create()?;
    let path = run_dir.log();
    let log = run_dir
        .bound_log()
        .and_then(|()| OpenOptions::new().append(true).create(true).open(&path));
    let log = log.map_err(|error| UserError::io(format!("log {}", path.display()), &error))?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let failed = |error: io::Error| UserError::io("start the daemon", &error);
    let signals = Signals::new().map_err(failed)?;
    let mut child = command.spawn().map_err(failed)?;
    let interrupted = signals.forward(child.id());
    let outcome = listen(&mut child, &path, &mut step);
    if interrupted.load(Ordering::Acquire) {
        // If it was ready already, it ends as on any SIGTERM.
        let _ = child.wait();
        return Err(UserError::new(
            INTERRUPTED,
            "interrupted: the daemon does not run",
        ));
    }
    outcome
}

/// The signals that end the starting process.
struct Signals {
    runtime: Runtime,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Catches them: they no longer end this process.
    fn new() -> io::Result<Signals> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let inside = runtime.enter();
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        drop(inside);
        Ok(Signals {
            runtime,
            interrupt,
            terminate,
        })
    }

    /// Forwards the first signal to a child; the returned flag shows if there was one. It listens until this
    /// process ends.
    fn forward(mut self, child: u32) -> Arc<AtomicBool> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&interrupted);
        std::thread::spawn(move || {
            self.runtime.block_on(async {
                tokio::select! {
                    _ = self.interrupt.recv() => {}
                    _ = self.terminate.recv() => {}
                }
            });
            told.store(true, Ordering::Release);
            // The child may have ended by itself.
            let _ = kill(Pid::from_raw(child.cast_signed()), Some(NixSignal::SIGTERM));
        });
        interrupted
    }
}

fn listen(
    child: &mut Child,
    path: &Path,
    step: &mut impl FnMut(&str),
) -> Result<UpReport, UserError> {
    let news = child.stdout.take().map(BufReader::new);
    for line in news.into_iter().flat_map(BufRead::lines) {
        let line = line.map_err(|error| UserError::io("listen to the daemon", &error))?;
        match serde_json::from_str(&line) {
            Ok(StartupMessage::Step(what)) => step(&what),
            Ok(StartupMessage::Ready(report)) => return Ok(report),
            Ok(StartupMessage::Failed(failure)) => {
                // It ends by itself after this message.
                let _ = child.wait();
                return Err(failure);
            }
            Err(_) => tracing::debug!(line, "unexpected line from the daemon"),
        }
    }
    let ended = child
        .wait()
        .map_or_else(|error| error.to_string(), |status| status.to_string());
    let mut text = format!("the daemon ended before it was ready ({ended})");
    for line in last_lines(path) {
        text.push_str("\n  ");
        text.push_str(&line);
    }
    Err(UserError::new("daemon", text).fix(format!("see {}", path.display())))
}

fn last_lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..]
        .iter()
        .map(|line| (*line).to_owned())
        .collect()
}

/// The child's end of the pipe.
#[derive(Debug, Default)]
pub struct Pipe(());

impl Pipe {
    /// Detaches the process from the terminal and the directory it was started in.
    ///
    /// # Errors
    /// The process already leads a group: it was not started by [`background`].
    pub fn detach() -> Result<Pipe, UserError> {
        let detach = || {
            nix::unistd::setsid()?;
            nix::unistd::chdir("/")
        };
        detach().map_err(|errno: nix::Error| UserError::io("detach", &io::Error::from(errno)))?;
        Ok(Pipe(()))
    }

    /// Reports that the daemon cannot start.
    pub fn failed(self, failure: UserError) {
        send(&StartupMessage::Failed(failure));
    }
}

impl ProgressObserver for Pipe {
    fn step(&mut self, what: &str) {
        send(&StartupMessage::Step(what.to_owned()));
    }

    fn ready(&mut self, report: UpReport) {
        send(&StartupMessage::Ready(report));
        // The parent must not wait for a pipe that a long-lived process holds open.
        if let Err(error) = nix::unistd::dup2_stdout(io::stderr()) {
            tracing::warn!(%error, "cannot close the start-up pipe");
        }
    }
}

/// A parent that has gone away needs no messages.
fn send(word: &StartupMessage) {
    if let Ok(line) = serde_json::to_string(word) {
        let _ = writeln!(io::stdout(), "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Policy;

    /// Starts a shell script in place of the daemon.
    fn start(script: &str) -> (Result<UpReport, UserError>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut steps = Vec::new();
        let outcome = background(command, &RunDir::new(folder.path()), |what| {
            steps.push(what.to_owned());
        });
        (outcome, steps)
    }

    fn line(word: &StartupMessage) -> String {
        serde_json::to_string(word).unwrap()
    }

    #[test]
    fn a_ready_daemon_is_reported_while_it_lives_on() {
        let report = UpReport {
            pid: 7,
            adopted: false,
            policy: Policy::Rr,
            uplinks: vec![],
            skipped: vec![],
        };
        let (step, ready) = (
            StartupMessage::Step("loading".into()),
            StartupMessage::Ready(report.clone()),
        );
        // It runs as long as it can write, as a daemon continues without its parent.
        let script = format!(
            "echo '{}'; echo '{}'; while echo; do sleep 0.01; done 2>/dev/null",
            line(&step),
            line(&ready)
        );
        let (outcome, steps) = start(&script);
        assert_eq!(outcome.unwrap(), report);
        assert_eq!(steps, ["loading"]);
    }

    #[test]
    fn a_daemons_own_words_reach_its_parent() {
        let failure = UserError::new("no-uplink", "no uplink found").fix("connect one");
        let (outcome, _) = start(&format!(
            "echo '{}'; exit 1",
            line(&StartupMessage::Failed(failure.clone()))
        ));
        assert_eq!(outcome.unwrap_err(), failure);
    }

    #[test]
    fn a_daemon_that_dies_without_a_word_leaves_its_log() {
        let (outcome, _) = start("echo 'thread main panicked' >&2; kill -9 $$");
        let failure = outcome.unwrap_err();
        assert!(failure.text.contains("signal: 9"), "{failure}");
        assert!(failure.text.contains("thread main panicked"), "{failure}");
    }
}
