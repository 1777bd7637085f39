//! Small datagrams as fast as possible, counted where they arrive.

use crate::batch::Batch;
use crate::error::Error;
use crate::socket::{SOCKET_TIMEOUT, datagram_to};
use crate::target::Targets;
use crate::wire::{Datagram, Kind, LENGTH};
use clap::Args;
use serde::Serialize;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Datagrams per system call, all of one flow.
const BATCH: usize = 32;

/// Wait for a reply before the query is repeated.
const QUERY_INTERVAL: Duration = Duration::from_millis(200);

/// IPv4 and UDP headers.
const HEADERS: u16 = 20 + 8;

/// Shortest packet of the generator.
const MIN_PACKET_BYTES: u16 = HEADERS + LENGTH as u16;

#[derive(Debug, Args)]
pub(crate) struct UdpRateArgs {
    #[command(flatten)]
    targets: Targets,
    /// Flows (source ports), divided among the threads
    #[arg(long, default_value_t = 64)]
    flows: usize,
    /// Threads that send
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Bytes of every IPv4 packet
    #[arg(long, default_value_t = MIN_PACKET_BYTES, value_name = "BYTES",
          value_parser = clap::value_parser!(u16).range(i64::from(MIN_PACKET_BYTES)..=1500))]
    packet: u16,
    /// Duration of sending, in seconds
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    seconds: f64,
}

/// Result of the load.
#[derive(Debug, Serialize)]
pub(crate) struct UdpRateReport {
    sent: u64,
    delivered: u64,
    /// Duration of sending.
    seconds: f64,
    /// Delivered per second of sending.
    rate: f64,
}

/// Opens the flows, sends, and queries the sink.
pub(crate) fn run(args: &UdpRateArgs) -> Result<UdpRateReport, Error> {
    let target = args.targets.datagram();
    let run = std::process::id();
    let flows: Vec<UdpSocket> = (0..args.flows.max(1))
        .map(|_| datagram_to(target))
        .collect::<Result<_, _>>()?;
    // An answered flow is established for every gateway on the path, as in real use.
    for flow in &flows {
        ask(
            flow,
            Datagram {
                kind: Kind::Echo,
                run,
                number: 0,
            },
        )?;
    }
    let payload = usize::from(args.packet - HEADERS);
    let per_thread = flows.len().div_ceil(args.threads.max(1));
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(args.seconds);
    let sent: Result<Vec<u64>, Error> = std::thread::scope(|scope| {
        let workers: Vec<_> = flows
            .chunks(per_thread)
            .map(|share| scope.spawn(move || send(share, payload, run, end)))
            .collect();
        workers
            .into_iter()
            .map(|w| w.join().expect("a worker never panics"))
            .collect()
    });
    let seconds = begin.elapsed().as_secs_f64();
    let delivered = settled_count(&flows[0], run)?;
    Ok(UdpRateReport {
        sent: sent?.iter().sum(),
        delivered,
        seconds,
        rate: delivered as f64 / seconds,
    })
}

/// Sends batches of datagrams of `payload` bytes, flow after flow, until `end`. Bytes beyond
/// [`LENGTH`] are zeros, which the receiver cuts off.
fn send(flows: &[UdpSocket], payload: usize, run: u32, end: Instant) -> Result<u64, Error> {
    let mut batch = Batch::connected(BATCH, payload);
    let bytes = Datagram {
        kind: Kind::Count,
        run,
        number: 0,
    }
    .bytes();
    for index in 0..BATCH {
        batch.datagram_mut(index)[..LENGTH].copy_from_slice(&bytes);
    }
    let mut sent = 0;
    for flow in flows.iter().cycle() {
        if Instant::now() >= end {
            break;
        }
        match batch.send(flow, BATCH) {
            Ok(taken) => sent += taken as u64,
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(e) => return Err(Error::new("send datagrams", e)),
        }
    }
    Ok(sent)
}

/// Returns the sink's count of `run`, once two replies in a row agree: until then datagrams may
/// still be in flight.
fn settled_count(flow: &UdpSocket, run: u32) -> Result<u64, Error> {
    let mut last = None;
    let end = Instant::now() + SOCKET_TIMEOUT;
    for number in 1.. {
        let count = ask(
            flow,
            Datagram {
                kind: Kind::Query,
                run,
                number,
            },
        )?;
        if last == Some(count) || Instant::now() >= end {
            return Ok(count);
        }
        last = Some(count);
    }
    unreachable!("the loop over all numbers returns")
}

/// Repeats a query until it is answered; returns the number in the reply.
fn ask(flow: &UdpSocket, question: Datagram) -> Result<u64, Error> {
    let end = Instant::now() + SOCKET_TIMEOUT;
    let explain = |e| Error::new("ask the sink", e);
    flow.set_read_timeout(Some(QUERY_INTERVAL))
        .map_err(explain)?;
    loop {
        flow.send(&question.bytes()).map_err(explain)?;
        let mut bytes = [0; LENGTH + 1];
        match flow.recv(&mut bytes) {
            Ok(length) => {
                let answer = Datagram::parse(&bytes[..length]);
                if let Some(answer) =
                    answer.filter(|a| (a.kind, a.run) == (question.kind, question.run))
                {
                    return Ok(answer.number);
                }
            }
            Err(e) if Instant::now() >= end => return Err(explain(e)),
            Err(_) => {}
        }
    }
}
