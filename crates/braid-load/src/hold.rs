//! Holds many connections open at once, then checks each.

use crate::error::Error;
use crate::print_line;
use crate::socket::{Close, allow_files, open};
use crate::stop_signal::StopSignal;
use crate::target::Targets;
use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Connections checked at once: enough to keep both ends busy, few enough for any queue on the
/// path.
const MAX_CONCURRENT_CHECKS: usize = 256;

#[derive(Debug, Args)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    targets: Targets,
    /// Connections to open
    #[arg(long, default_value_t = 1000)]
    count: usize,
    /// Threads that open connections and later check them
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Longest time between the last connection and the check, which SIGTERM starts earlier, in
    /// seconds
    #[arg(long, default_value_t = 120.0, value_name = "SECONDS")]
    seconds: f64,
    /// Longest time for the check, in seconds
    #[arg(long, default_value_t = 15.0, value_name = "SECONDS")]
    proof_seconds: f64,
}

/// First line: the connections are open.
#[derive(Debug, Serialize)]
struct Held {
    held: usize,
    failed: usize,
    /// From the first attempt to the last connection.
    seconds: f64,
}

/// Last line: the number of replies.
#[derive(Debug, Serialize)]
pub(crate) struct HoldReport {
    held: usize,
    alive: usize,
    /// Duration of the check.
    seconds: f64,
    first_failure: Option<String>,
}

/// Opens the connections, prints a line, waits for SIGTERM, checks them.
pub(crate) fn run(args: &HoldArgs) -> Result<HoldReport, Error> {
    let go_on = StopSignal::prepare()?;
    allow_files(args.count as u64 + 64)?;
    let begin = Instant::now();
    let shares = spread(args.count, args.workers.max(1));
    let mut opened: Vec<Opened> = std::thread::scope(|scope| {
        let workers: Vec<_> = shares
            .into_iter()
            .map(|numbers| scope.spawn(|| open_share(&args.targets.all(), numbers)))
            .collect();
        workers
            .into_iter()
            .map(|w| w.join().expect("a worker never panics"))
            .collect()
    });
    let held = opened.iter().map(|o| o.streams.len()).sum();
    let first_failure = opened.iter().find_map(|o| o.first_failure.clone());
    print_line(&Held {
        held,
        failed: args.count - held,
        seconds: begin.elapsed().as_secs_f64(),
    })?;

    go_on.wait(Duration::from_secs_f64(args.seconds))?;
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(args.proof_seconds);
    let alive = std::thread::scope(|scope| {
        let workers: Vec<_> = opened
            .iter_mut()
            .map(|o| scope.spawn(move || prove(&mut o.streams, end)))
            .collect();
        workers
            .into_iter()
            .map(|w| w.join().expect("a worker never panics"))
            .sum()
    });
    Ok(HoldReport {
        held,
        alive,
        seconds: begin.elapsed().as_secs_f64(),
        first_failure,
    })
}

/// Splits `count` numbers into `workers` runs of nearly the same length.
fn spread(count: usize, workers: usize) -> Vec<std::ops::Range<usize>> {
    (0..workers)
        .map(|w| w * count / workers..(w + 1) * count / workers)
        .collect()
}

/// One worker's connections.
struct Opened {
    streams: Vec<TcpStream>,
    first_failure: Option<String>,
}

/// Opens one worker's connections and stops at the first failure: by then the result is clear, and
/// a hundred thousand timeouts would take hours.
fn open_share(targets: &[SocketAddr], numbers: std::ops::Range<usize>) -> Opened {
    let mut streams = Vec::with_capacity(numbers.len());
    for number in numbers {
        match open(targets[number % targets.len()], Close::Rst) {
            Ok(stream) => streams.push(stream),
            Err(error) => {
                return Opened {
                    streams,
                    first_failure: Some(error.to_string()),
                };
            }
        }
    }
    Opened {
        streams,
        first_failure: None,
    }
}

/// Returns how many of `streams` echo a byte before `end`.
fn prove(streams: &mut [TcpStream], end: Instant) -> usize {
    let mut alive = 0;
    for group in streams.chunks_mut(MAX_CONCURRENT_CHECKS) {
        let asked: Vec<&mut TcpStream> = group
            .iter_mut()
            .filter_map(|s| s.write_all(b"?").is_ok().then_some(s))
            .collect();
        alive += asked
            .into_iter()
            .filter_map(|s| answers(s, end).then_some(()))
            .count();
    }
    alive
}

/// Returns true if the byte comes back before `end`. After `end` only data that is already there
/// counts.
fn answers(stream: &mut TcpStream, end: Instant) -> bool {
    let left = end.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
    let readable = poll(
        &mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)],
        timeout,
    );
    readable == Ok(1) && matches!(stream.read(&mut [0; 8]), Ok(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_numbers_once() {
        for (count, workers) in [(0, 1), (1, 2), (7, 3), (100_000, 2)] {
            let all: Vec<usize> = spread(count, workers).into_iter().flatten().collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }
}
