//! Recorded rates of real links, in the two common formats.
//!
//! - **mahimahi**: one number per line, a time in ms at which one full-sized packet may leave;
//!   several equal lines are several packets. The last line ends the trace.
//!
//! - **CSV**: lines `seconds,Mbit/s`, with or without that heading; each rate holds until the next
//!   line. The last one holds as long as the one before it.
//!
//! Either repeats for ever. Blank lines and lines that begin with `#` are skipped.

use std::path::{Path, PathBuf};
use std::time::Duration;

use braid_core::Rate;
use braid_core::units::duration;
use thiserror::Error;

use crate::Time;

/// Bytes of one line of a mahimahi trace: a full Ethernet frame. Mahimahi counts 1504, its full
/// packet with its own device's header.
pub const OPPORTUNITY_BYTES: u32 = 1514;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// Reason why a trace is unusable; shown as `file:line: reason`.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("trace {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A line is invalid.
    #[error("{}:{line}: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The error.
        why: LineError,
    },
    /// The trace has no lines, or never lets anything through.
    #[error("trace {}: {why}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// The problem.
        why: &'static str,
    },
}

/// Error of a line of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LineError {
    /// Neither format.
    #[error("{0:?} is neither a time in ms (mahimahi) nor \"seconds,Mbit/s\"")]
    Unknown(String),
    /// Not a number of a mahimahi trace.
    #[error("{0:?} is not a whole number of ms")]
    NotMillis(String),
    /// Not a pair of numbers.
    #[error("{0:?} is not \"seconds,Mbit/s\" with two numbers, zero or more")]
    NotPair(String),
    /// Time goes backwards, or in CSV stands still.
    #[error("{now} is not after {before} of the line before")]
    Order {
        /// The previous line's time.
        now: String,
        /// The last one's.
        before: String,
    },
}

/// A rate that changes over time and repeats.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace(TraceModel);

#[derive(Debug, Clone, PartialEq)]
enum TraceModel {
    /// Times in ns, not descending; the period is the last of them.
    Opportunities(Vec<u64>),
    /// Rates, each to its end in ns; the period is the last end. `work` is what one period carries.
    Steps { steps: Vec<Step>, work: u128 },
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    end: u64,
    rate: Rate,
}

/// Position of a wire on the trace: an opportunity, and how much of it has been used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    opportunity: u64,
    used: u32,
}

impl Trace {
    /// Reads a file in either format; its first line decides.
    ///
    /// # Errors
    /// The file cannot be read, a line is invalid, or nothing would ever pass.
    pub fn read(path: &Path) -> Result<Trace, TraceError> {
        let text = std::fs::read_to_string(path).map_err(|source| TraceError::Read {
            path: path.to_owned(),
            source,
        })?;
        Trace::parse(path, &text)
    }

    /// Parses a text in either format; `path` is for errors only.
    ///
    /// # Errors
    /// A line is invalid, or nothing would ever pass.
    pub fn parse(path: &Path, text: &str) -> Result<Trace, TraceError> {
        let at = |line: usize, why| TraceError::Line {
            path: path.to_owned(),
            line,
            why,
        };
        let mut shape = None;
        for (line, row) in (1..).zip(text.lines()) {
            let row = row.trim();
            if row.is_empty() || row.starts_with('#') {
                continue;
            }
            let rows = match &mut shape {
                Some(rows) => rows,
                None => {
                    let rows = shape.insert(TraceParser::of(row).map_err(|why| at(line, why))?);
                    if row.eq_ignore_ascii_case("seconds,Mbit/s") {
                        continue;
                    }
                    rows
                }
            };
            rows.push(row).map_err(|why| at(line, why))?;
        }
        let empty = |why| TraceError::Empty {
            path: path.to_owned(),
            why,
        };
        shape
            .ok_or_else(|| empty("no lines"))?
            .finish()
            .map(Trace)
            .map_err(empty)
    }

    /// Returns the mean rate over the whole trace.
    #[must_use]
    pub fn mean(&self) -> Rate {
        let (work, period) = match &self.0 {
            TraceModel::Opportunities(times) => {
                let bits = times.len() as u128 * u128::from(OPPORTUNITY_BYTES) * 8;
                (bits * u128::from(NANOS_PER_SEC), times[times.len() - 1])
            }
            TraceModel::Steps { steps, work } => (*work, steps[steps.len() - 1].end),
        };
        Rate::from_bits_per_sec(u64::try_from(work / u128::from(period)).unwrap_or(u64::MAX))
    }

    /// Returns when the last of `len` bytes has been sent if the first is ready at `start`.
    pub(crate) fn finish(&self, cursor: &mut Cursor, start: Time, len: u32) -> Time {
        let nanos = match &self.0 {
            TraceModel::Opportunities(times) => opportunity(times, cursor, start.as_nanos(), len),
            TraceModel::Steps { steps, work } => integrate(steps, *work, start.as_nanos(), len),
        };
        Time::from_nanos(nanos)
    }
}

impl Step {
    /// Returns the bits times 10⁹ that pass between two times within the step.
    fn work(&self, from: u64, to: u64) -> u128 {
        u128::from(self.rate.bits_per_sec()) * u128::from(to - from)
    }
}

/// Follows the rates from `start` until `len` bytes have left. The result is capped at 584 years,
/// the end of time here.
fn integrate(steps: &[Step], period_work: u128, start: u64, len: u32) -> u64 {
    let period = steps[steps.len() - 1].end;
    let mut left = u128::from(len) * 8 * u128::from(NANOS_PER_SEC);
    let mut base = start - start % period;
    let mut at = start % period;
    let mut index = steps.partition_point(|step| step.end <= at);
    loop {
        let step = steps[index];
        let capacity = step.work(at, step.end);
        if left <= capacity {
            let span = left.div_ceil(u128::from(step.rate.bits_per_sec()).max(1));
            let span = u64::try_from(span).unwrap_or(u64::MAX);
            return base.saturating_add(at).saturating_add(span);
        }
        left -= capacity;
        at = step.end;
        index += 1;
        if index == steps.len() {
            // Skips whole periods: a slow trace of short steps may need many of them.
            let skipped = (left - 1) / period_work;
            left -= skipped * period_work;
            let periods = u64::try_from(skipped).unwrap_or(u64::MAX).saturating_add(1);
            base = base.saturating_add(period.saturating_mul(periods));
            (at, index) = (0, 0);
        }
    }
}

/// Uses opportunities from `start` until `len` bytes have left. The rest of an opportunity is only
/// for a packet that is ready at the same instant; later it is lost.
fn opportunity(times: &[u64], cursor: &mut Cursor, start: u64, len: u32) -> u64 {
    let (count, period) = (times.len() as u64, times[times.len() - 1]);
    let when = |n: u64| {
        let base = (n / count).saturating_mul(period);
        base.saturating_add(times[(n % count) as usize])
    };
    if when(cursor.opportunity) < start {
        // A period's last instant is the next one's first; its opportunities come first.
        let cycle = (start - 1) / period;
        let within = times.partition_point(|time| *time < start - cycle * period) as u64;
        *cursor = Cursor {
            opportunity: cycle * count + within,
            used: 0,
        };
    }
    let mut left = len;
    loop {
        let room = OPPORTUNITY_BYTES - cursor.used;
        let at = when(cursor.opportunity);
        if left < room {
            cursor.used += left;
            return at;
        }
        left -= room;
        *cursor = Cursor {
            opportunity: cursor.opportunity + 1,
            used: 0,
        };
        if left == 0 {
            return at;
        }
    }
}

/// Parser state: the lines read so far.
enum TraceParser {
    Millis(Vec<u64>),
    Pairs(Vec<(u64, Rate)>),
}

impl TraceParser {
    /// Returns the format of a first line.
    fn of(row: &str) -> Result<TraceParser, LineError> {
        if row.contains(',') {
            Ok(TraceParser::Pairs(Vec::new()))
        } else if row.parse::<u64>().is_ok() {
            Ok(TraceParser::Millis(Vec::new()))
        } else {
            Err(LineError::Unknown(row.to_owned()))
        }
    }

    fn push(&mut self, row: &str) -> Result<(), LineError> {
        match self {
            TraceParser::Millis(times) => {
                let nanos = row
                    .parse::<u64>()
                    .ok()
                    .and_then(|ms| ms.checked_mul(1_000_000));
                let nanos = nanos.ok_or_else(|| LineError::NotMillis(row.to_owned()))?;
                match times.last() {
                    Some(&last) if nanos < last => Err(order(nanos, last)),
                    _ => {
                        times.push(nanos);
                        Ok(())
                    }
                }
            }
            TraceParser::Pairs(pairs) => {
                let (at, rate) = pair(row).ok_or_else(|| LineError::NotPair(row.to_owned()))?;
                match pairs.last() {
                    Some(&(last, _)) if at <= last => Err(order(at, last)),
                    _ => {
                        pairs.push((at, rate));
                        Ok(())
                    }
                }
            }
        }
    }

    fn finish(self) -> Result<TraceModel, &'static str> {
        match self {
            TraceParser::Millis(times) => match times.last() {
                None => Err("no lines"),
                Some(0) => Err("its last line, which ends it, is at 0 ms"),
                Some(_) => Ok(TraceModel::Opportunities(times)),
            },
            TraceParser::Pairs(pairs) => {
                let Some(&(first, _)) = pairs.first() else {
                    return Err("no lines");
                };
                let mut end = pairs.last().map_or(first, |last| last.0) - first;
                end += match pairs.len() {
                    1 => NANOS_PER_SEC,
                    n => pairs[n - 1].0 - pairs[n - 2].0,
                };
                let ends = pairs.iter().skip(1).map(|next| next.0 - first).chain([end]);
                let steps: Vec<Step> = pairs
                    .iter()
                    .zip(ends)
                    .map(|(row, end)| Step { end, rate: row.1 })
                    .collect();
                let starts = [0].into_iter().chain(steps.iter().map(|step| step.end));
                let work = steps
                    .iter()
                    .zip(starts)
                    .map(|(step, from)| step.work(from, step.end));
                match work.sum() {
                    0 => Err("every rate in it is 0"),
                    work => Ok(TraceModel::Steps { steps, work }),
                }
            }
        }
    }
}

fn order(now: u64, before: u64) -> LineError {
    let show = |nanos| duration::display(Duration::from_nanos(nanos)).to_string();
    LineError::Order {
        now: show(now),
        before: show(before),
    }
}

/// `seconds,Mbit/s` as nanoseconds and a rate.
fn pair(row: &str) -> Option<(u64, Rate)> {
    let (seconds, mbits) = row.split_once(',')?;
    let number = |text: &str| {
        text.trim()
            .parse::<f64>()
            .ok()
            .filter(|n| (0.0..1e9).contains(n))
    };
    let nanos = (number(seconds)? * 1e9).round() as u64;
    Some((
        nanos,
        Rate::from_bits_per_sec((number(mbits)? * 1e6).round() as u64),
    ))
}
