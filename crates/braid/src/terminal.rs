//! Output for people: colour if wanted, errors with the next step, progress.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_host::config::Paint;
use braid_host::report::ErrorReport;
use braid_host::user_error::UserError;
use serde::Serialize;

/// Progress is shown for operations that take longer than this.
const PROGRESS_DELAY: Duration = Duration::from_secs(1);

/// Colour of a text on a terminal. The words alone carry all information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tint {
    /// The terminal's default colour.
    None,
    /// Green: something works.
    Good,
    /// Red: something does not work.
    Bad,
    /// Yellow: something needs attention.
    Warn,
    /// A title.
    Bold,
}

/// Returns whether a stream is a terminal that wants colour (<https://no-color.org>).
pub fn paint(stream: &impl IsTerminal) -> Paint {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if stream.is_terminal() && !unwanted {
        Paint::Colour
    } else {
        Paint::Plain
    }
}

/// Returns the text in a colour, if colours are on.
pub fn tinted(text: &str, tint: Tint, paint: Paint) -> String {
    let code = match (paint, tint) {
        (Paint::Plain, _) | (_, Tint::None) => return text.to_owned(),
        (_, Tint::Good) => "32",
        (_, Tint::Bad) => "31",
        (_, Tint::Warn) => "33",
        (_, Tint::Bold) => "1",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Prints the answer. A reader that has seen enough (`| head`) is no error.
pub fn answer(text: &str) -> Result<(), UserError> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(UserError::io("write the answer", &error))
        }
        _ => Ok(()),
    }
}

/// Prints the answer as JSON.
pub fn answer_json(value: &impl Serialize) -> Result<(), UserError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| UserError::new("json", error.to_string()))?;
    answer(&format!("{text}\n"))
}

/// Prints a report as JSON or as `text` shows it.
pub fn answer_either(
    json: bool,
    report: &impl Serialize,
    text: impl FnOnce(Paint) -> String,
) -> Result<(), UserError> {
    if json {
        answer_json(report)
    } else {
        answer(&text(paint(&io::stdout())))
    }
}

/// Prints an error: what, where and why, then what to do next.
pub fn show_error(failure: &UserError, json: bool) {
    let paint = paint(&io::stderr());
    match failure.code.as_str() {
        // The error's text is a page of its own, with carets under the words in question.
        "config" => eprintln!("{}", failure.text),
        _ => eprintln!("{} {}", tinted("error:", Tint::Bad, paint), failure.text),
    }
    if let Some(fix) = &failure.fix {
        eprintln!("  {} {fix}", tinted("fix:", Tint::Bold, paint));
    }
    if json {
        // The error itself is on standard error already.
        let _ = answer_json(&ErrorReport {
            error: failure.clone(),
        });
    }
}

/// Reports progress on standard error once an operation takes longer than a second.
pub struct Progress {
    steps: Option<Sender<String>>,
    teller: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts reporting the progress of `command`.
    pub fn of(command: &'static str) -> Progress {
        let (steps, told) = channel::<String>();
        let teller = std::thread::spawn(move || {
            let start = Instant::now();
            let mut latest: Option<String> = None;
            loop {
                let step = match latest {
                    Some(_) => told.recv_timeout(PROGRESS_DELAY.saturating_sub(start.elapsed())),
                    None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
                };
                match step {
                    Ok(step) => latest = Some(step),
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if start.elapsed() >= PROGRESS_DELAY
                    && let Some(step) = latest.take()
                {
                    eprintln!("{command}: {step} …");
                }
            }
        });
        Progress {
            steps: Some(steps),
            teller: Some(teller),
        }
    }

    /// Starts the next step.
    pub fn step(&self, what: &str) {
        if let Some(steps) = &self.steps {
            // The work goes on without the progress thread.
            let _ = steps.send(what.to_owned());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.steps.take();
        if let Some(teller) = self.teller.take() {
            let _ = teller.join();
        }
    }
}
