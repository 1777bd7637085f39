//! Opens and closes connections: as fast as possible (connection rate), or paced (latency).

use crate::error::Error;
use crate::percentile::Percentiles;
use crate::socket::{Close, SOCKET_TIMEOUT, open};
use crate::target::Targets;
use clap::Args;
use serde::Serialize;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(crate) struct ConnectArgs {
    #[command(flatten)]
    targets: Targets,
    /// Threads that open connections
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Duration, in seconds
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    seconds: f64,
    /// Stop after this many connections
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    count: u64,
    /// Connections per second over all workers; as many as possible by default
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Send one byte and wait for it to come back before closing
    #[arg(long)]
    exchange: bool,
    /// Way of closing a connection
    #[arg(long, value_enum, default_value_t = Close::Rst)]
    close: Close,
}

/// Result of the load.
#[derive(Debug, Serialize)]
pub(crate) struct ConnectReport {
    opened: u64,
    failed: u64,
    /// From the first attempt until the last worker stopped.
    seconds: f64,
    /// Opened per second.
    rate: f64,
    /// Time of the `connect` call alone, microseconds.
    connect_us: Percentiles,
    /// Text of the first failure.
    first_failure: Option<String>,
}

/// Result of one worker.
#[derive(Default)]
struct WorkerResult {
    times: Vec<Duration>,
    failed: u64,
    first_failure: Option<String>,
}

/// Runs the load; refused connections are counted, and do not end it.
pub(crate) fn run(args: &ConnectArgs) -> Result<ConnectReport, Error> {
    let begin = Instant::now();
    let ticket = AtomicU64::new(0);
    let shares: Vec<WorkerResult> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.workers.max(1))
            .map(|_| scope.spawn(|| work(args, begin, &ticket)))
            .collect();
        workers
            .into_iter()
            .map(|w| w.join().expect("a worker never panics"))
            .collect()
    });
    let seconds = begin.elapsed().as_secs_f64();
    let failed = shares.iter().map(|s| s.failed).sum();
    let first_failure = shares.iter().find_map(|s| s.first_failure.clone());
    let times: Vec<Duration> = shares.into_iter().flat_map(|s| s.times).collect();
    let opened = times.len() as u64;
    Ok(ConnectReport {
        opened,
        failed,
        seconds,
        rate: opened as f64 / seconds,
        connect_us: Percentiles::of(times),
        first_failure,
    })
}

/// Takes tickets until time or count run out. Workers share tickets, so that `--count` is exact and
/// destinations take turns over all workers.
fn work(args: &ConnectArgs, begin: Instant, ticket: &AtomicU64) -> WorkerResult {
    let targets = args.targets.all();
    let end = begin + Duration::from_secs_f64(args.seconds);
    let mut share = WorkerResult::default();
    loop {
        let number = ticket.fetch_add(1, Ordering::Relaxed);
        if number >= args.count || Instant::now() >= end {
            return share;
        }
        if let Some(rate) = args.rate {
            let due = begin + Duration::from_secs_f64(number as f64 / rate);
            if due >= end {
                return share;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        match once(targets[number as usize % targets.len()], args) {
            Ok(time) => share.times.push(time),
            Err(error) => {
                share.failed += 1;
                share.first_failure.get_or_insert_with(|| error.to_string());
            }
        }
    }
}

/// Opens one connection; returns the time of its `connect`.
fn once(target: SocketAddr, args: &ConnectArgs) -> std::io::Result<Duration> {
    let begin = Instant::now();
    let mut stream = open(target, args.close)?;
    let time = begin.elapsed();
    if args.exchange {
        stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
        stream.write_all(&[0])?;
        stream.read_exact(&mut [0])?;
    }
    Ok(time)
}
