//! `braid history --record`: an uplink's capacity, second by second, as traces that `braid emulate` plays.
//!
//! The daemon's history has all that is needed, whether the seconds are over or still to come: a recording that goes on
//! asks once a second for those that are new. So it misses none while the daemon answers late, and goes on by itself
//! when a daemon has been restarted.

mod trace;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Write, stderr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use braid_daemon::report::{HistoryReport, MeasuredDirection, RecordedTrace, RecordingReport};
use braid_host::config::Paint;
use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;
use jiff::Timestamp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep};

use self::trace::TraceText;
use crate::cli::HistoryArgs;
use crate::client;
use crate::history::path;
use crate::table::{Cell, NO_VALUE, Side, Table};
use crate::terminal::{Tint, answer_either};
use crate::{CommandError, CommandResult, runtime};

/// Seconds for which the daemon keeps seconds.
const KEPT: u32 = 3600;
/// Time between two questions for new seconds.
const PACE: Duration = Duration::from_secs(1);

/// Records the time before now, the time from now on, or both; without either, all that there is.
pub fn record(run_dir: &RunDir, arguments: &HistoryArgs, name: &Path) -> CommandResult {
    let last = match (arguments.last, arguments.span) {
        (Some(last), _) if last > KEPT => return Err(too_long().into()),
        (Some(last), _) => last,
        (None, None) => KEPT,
        (None, Some(_)) => 0,
    };
    let files = [MeasuredDirection::Down, MeasuredDirection::Up].map(|way| (way, file(name, way)));
    if let Some((_, taken)) = files.iter().find(|(_, file)| file.exists()) {
        return Err(exists(taken).into());
    }
    let start = now().saturating_sub(last.into());
    let title = title(&arguments.uplink, start);
    let recorders = files.map(|(way, file)| Recorder::new(way, file, &title));
    let mut recording = Recording {
        uplink: arguments.uplink.clone(),
        start,
        end: now() + u64::from(arguments.span.unwrap_or_default()),
        taken: start,
        recorders,
    };
    match arguments.span {
        None => runtime()?.block_on(recording.take(run_dir))?,
        Some(span) => runtime()?.block_on(recording.follow(run_dir, span))?,
    }
    let report = recording.report();
    let written = report.traces.iter().filter(|trace| trace.file.is_some());
    let written = written.count();
    if written == 0 {
        return Err(nothing(&arguments.uplink).into());
    }
    answer_either(arguments.output.json, &report, |paint| text(&report, paint))?;
    match written == report.traces.len() {
        true => Ok(()),
        false => Err(CommandError::Degraded),
    }
}

/// Both traces of an uplink as they are recorded. Times are in seconds since 1970.
struct Recording {
    uplink: String,
    start: u64,
    /// Seconds from this one on are left out.
    end: u64,
    /// Seconds before this one are written.
    taken: u64,
    recorders: [Recorder; 2],
}

impl Recording {
    /// Takes the seconds that are new.
    async fn take(&mut self, run_dir: &RunDir) -> Result<(), CommandError> {
        let last = now().saturating_sub(self.taken) + 1;
        let last = u32::try_from(last).map_or(KEPT, |last| last.min(KEPT));
        let question = path(&self.uplink, last, Some(1));
        let report: HistoryReport = client::get(run_dir, &question).await?;
        for point in &report.points {
            let second = point.unix_ms / 1000;
            // The daemon may still replace the record of the second under way.
            if !(self.taken..self.end.min(now())).contains(&second) {
                continue;
            }
            self.taken = second + 1;
            let at = u32::try_from(second - self.start).unwrap_or(u32::MAX);
            for recorder in &mut self.recorders {
                let text = recorder.trace.push(at, point);
                recorder.append(&text)?;
            }
        }
        Ok(())
    }

    /// Goes on for a time, or until a signal.
    async fn follow(&mut self, run_dir: &RunDir, span: u32) -> Result<(), CommandError> {
        let listen =
            |kind| signal(kind).map_err(|error| UserError::io("listen for signals", &error));
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut terminate = listen(SignalKind::terminate())?;
        // The first question is about the uplink's name as well.
        self.take(run_dir).await?;
        // The last second's record is complete in the second after it.
        let end = Instant::now() + Duration::from_secs(span.into()) + 2 * PACE;
        let mut display = Display::default();
        while self.taken < self.end && Instant::now() < end {
            display.show(self, None);
            let ends = tokio::select! {
                () = sleep(PACE) => false,
                ended = any(&mut interrupt, &mut terminate) => ended,
            };
            match self.take(run_dir).await {
                Err(CommandError::Unreachable(failure)) => display.show(self, Some(&failure)),
                taken => taken?,
            }
            if ends {
                break;
            }
        }
        Ok(())
    }

    fn report(&self) -> RecordingReport {
        let traces = self.recorders.iter().map(|recorder| RecordedTrace {
            file: recorder
                .file
                .as_ref()
                .map(|_| recorder.path.display().to_string()),
            ..recorder.trace.counts().clone()
        });
        RecordingReport {
            uplink: self.uplink.clone(),
            traces: traces.collect(),
        }
    }
}

/// One direction's trace and its file.
struct Recorder {
    trace: TraceText,
    path: PathBuf,
    /// The file once there is something to write.
    file: Option<File>,
}

impl Recorder {
    fn new(way: MeasuredDirection, path: PathBuf, title: &str) -> Recorder {
        Recorder {
            trace: TraceText::new(way, title),
            path,
            file: None,
        }
    }

    /// Writes the text at once, so that an interrupted recording is a trace too.
    fn append(&mut self, text: &str) -> Result<(), UserError> {
        if text.is_empty() {
            return Ok(());
        }
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::AlreadyExists => exists(&self.path),
            _ => UserError::io(format!("write {}", self.path.display()), &error),
        };
        let file = match &mut self.file {
            Some(file) => file,
            file => {
                let mut options = OpenOptions::new();
                file.insert(
                    options
                        .append(true)
                        .create_new(true)
                        .open(&self.path)
                        .map_err(failed)?,
                )
            }
        };
        file.write_all(text.as_bytes()).map_err(failed)
    }
}

/// Waits for either signal. Returns true.
async fn any(one: &mut Signal, other: &mut Signal) -> bool {
    tokio::select! {
        _ = one.recv() => true,
        _ = other.recv() => true,
    }
}

/// The recording as it goes on, on standard error: one line that changes on a terminal, otherwise only what is wrong.
#[derive(Default)]
struct Display {
    live: bool,
    /// True once a missing daemon was told.
    told: bool,
}

impl Display {
    fn show(&mut self, recording: &Recording, failure: Option<&UserError>) {
        let Some(failure) = failure else {
            self.live = stderr().is_terminal();
            let seconds = recording.taken.saturating_sub(recording.start);
            if self.live {
                eprint!(
                    "\r\x1b[K{}: {seconds} s; Ctrl-C ends the recording",
                    recording.uplink
                );
                // A terminal that is gone is noticed elsewhere.
                let _ = stderr().flush();
            }
            return;
        };
        if !std::mem::replace(&mut self.told, true) {
            let clear = if self.live { "\r\x1b[K" } else { "" };
            eprintln!("{clear}braid history: {failure}; the recording goes on once it answers");
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if self.live {
            eprint!("\r\x1b[K");
        }
    }
}

/// Returns the name of a direction's file, as `braid lab run bond/radio --traces` wants it.
fn file(name: &Path, way: MeasuredDirection) -> PathBuf {
    let mut file = OsString::from(name);
    file.push(format!("-{}.csv", way.as_str()));
    file.into()
}

fn title(uplink: &str, start: u64) -> String {
    let seconds = i64::try_from(start).unwrap_or_default();
    let time = Timestamp::from_second(seconds).unwrap_or_default();
    // A name is no reason for another line.
    format!("uplink {uplink:?} from {time} on")
}

fn now() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or_default()
}

fn too_long() -> UserError {
    let text = "seconds are kept for an hour, and a recording needs seconds";
    UserError::new("usage", text)
        .fix("--last takes at most 1 h here; --for goes on recording from now")
}

fn exists(file: &Path) -> UserError {
    let text = format!("{} exists already", file.display());
    UserError::new("exists", text).fix("name another recording, or move that file away")
}

fn nothing(uplink: &str) -> UserError {
    let text = format!("nothing is known of what {uplink} carried in that time");
    UserError::new("nothing-known", text).fix(
        "put traffic on it that fills the line, or run braid measure, and record meanwhile with --for",
    )
}

fn text(report: &RecordingReport, paint: Paint) -> String {
    let mut table = Table::new(&[
        ("FILE", Side::Left),
        ("SECONDS", Side::Right),
        ("MEASURED", Side::Right),
        ("CARRIED ON", Side::Right),
        ("AT LEAST", Side::Right),
        ("STALLED", Side::Right),
        ("DOWN", Side::Right),
        ("UNKNOWN", Side::Right),
        ("WHY", Side::Left),
    ]);
    for trace in &report.traces {
        let way = trace.direction.as_str();
        let Some(file) = &trace.file else {
            let mut cells = vec![Cell::from(NO_VALUE); 8];
            cells.push(Cell::tinted(
                format!("no file: nothing is known of the direction {way}"),
                Tint::Warn,
            ));
            table.row(cells);
            continue;
        };
        let mut cells: Vec<Cell> = vec![file.as_str().into()];
        let seconds = [
            trace.seconds,
            trace.measured_s,
            trace.carried_on_s,
            trace.at_least_s,
            trace.stalled_s,
            trace.down_s,
            trace.unknown_s,
        ];
        cells.extend(seconds.map(|seconds| Cell::from(seconds.to_string())));
        cells.push("".into());
        table.row(cells);
    }
    table.render(paint)
}
