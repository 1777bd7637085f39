//! The server of the lab's internet: echoes TCP and UDP, sinks and counts datagrams.

mod datagrams;
mod streams;

use crate::error::Error;
use crate::print_line;
use crate::socket::allow_files;
use crate::stop_signal::StopSignal;
use crate::target::parse_ports;
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Ports to listen on, on every address; the first one serves datagrams
    #[arg(long, default_value = "7000-7015", value_parser = parse_ports, value_name = "PORTS")]
    ports: RangeInclusive<u16>,
    /// Address to serve datagrams on; repeat it for several
    #[arg(long = "datagrams-on", value_name = "ADDRESS")]
    datagram_addresses: Vec<IpAddr>,
    /// Threads that serve TCP
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Connections to allow for; several servers may share the ports where one process may not open
    /// enough files
    #[arg(long, default_value_t = 15_000)]
    connections: u64,
    /// Longest time to serve, in seconds; SIGTERM ends it earlier, and both print the report
    #[arg(long, default_value_t = 900.0, value_name = "SECONDS")]
    seconds: f64,
}

/// First line: every port is listening.
#[derive(Debug, Serialize)]
pub(crate) struct Ready {
    pub ready: bool,
}

/// Last line.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ServeReport {
    /// Accepted TCP connections.
    accepted: u64,
    /// The same by source address.
    sources: BTreeMap<IpAddr, u64>,
    /// Datagrams that arrived at the socket but found its buffer full: the server's fault, so any
    /// of them voids a measurement.
    datagrams_dropped: u64,
}

/// Serves until SIGTERM or time ends it.
pub(crate) fn run(args: &ServeArgs) -> Result<ServeReport, Error> {
    let go_on = StopSignal::prepare()?;
    allow_files(args.connections + 1024)?;
    let stop = AtomicBool::new(false);
    let mut workers = Vec::new();
    for _ in 0..args.threads.max(1) {
        workers.push(streams::Worker::listen(args.ports.clone())?);
    }
    let sink = datagrams::Sink::bind(&args.datagram_addresses, *args.ports.start())?;
    std::thread::scope(|scope| {
        let sink = scope.spawn(|| sink.run(&stop));
        let workers: Vec<_> = workers
            .into_iter()
            .map(|worker| scope.spawn(|| worker.run(&stop)))
            .collect();
        let waited = print_line(&Ready { ready: true })
            .and_then(|()| go_on.wait(Duration::from_secs_f64(args.seconds)));
        stop.store(true, Ordering::Release);

        let mut report = ServeReport {
            datagrams_dropped: sink.join().expect("the sink never panics")?,
            ..ServeReport::default()
        };
        for worker in workers {
            for (source, count) in worker.join().expect("a worker never panics")? {
                report.accepted += count;
                *report.sources.entry(source).or_default() += count;
            }
        }
        waited.map(|()| report)
    })
}

/// Interval at which a serving thread checks whether to stop, in milliseconds.
const POLL_TIMEOUT_MS: u8 = 100;

/// Pause of a serving thread between two rounds of events. Without it every packet wakes the
/// server, and a wake-up costs more than the measured work (the reason for interrupt moderation in
/// network cards).
const BATCH_PAUSE: Duration = Duration::from_micros(300);
