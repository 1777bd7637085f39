//! Small datagrams as fast as they go, counted where they arrive.

use crate::batch::Batch;
use crate::error::Error;
use crate::socket::{SOCKET_TIMEOUT, datagram_to};
use crate::target::Targets;
use crate::wire::{Datagram, Kind, LENGTH};
use clap::Args;
use serde::Serialize;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Datagrams per system call, and of one flow in a row.
const BATCH: usize = 32;

/// Wait for an answer before the question is repeated.
const QUERY_INTERVAL: Duration = Duration::from_millis(200);

/// IPv4 and UDP headers.
const HEADERS: u16 = 20 + 8;

/// The shortest packet that is one of ours.
const MIN_PACKET_BYTES: u16 = HEADERS + LENGTH as u16;

#[derive(Debug, Args)]
pub(crate) struct UdpRateArgs {
    #[command(flatten)]
    targets: Targets,
    /// Flows (source ports), shared out over the threads
    #[arg(long, default_value_t = 64)]
    flows: usize,
    /// Threads that send
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Bytes of every IPv4 packet
    #[arg(long, default_value_t = MIN_PACKET_BYTES, value_name = "BYTES",
          value_parser = clap::value_parser!(u16).range(i64::from(MIN_PACKET_BYTES)..=1500))]
    packet: u16,
    /// How long to send, in seconds
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    seconds: f64,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub(crate) struct UdpRateReport {
    sent: u64,
    delivered: u64,
    /// Time of sending.
    seconds: f64,
    /// Delivered per second of sending.
    rate: f64,
}

/// Opens the flows, sends, asks the sink.
pub(crate) fn run(args: &UdpRateArgs) -> Result<UdpRateReport, Error> {
    let target = args.targets.datagram();
    let run = std::process::id();
    let flows: Vec<UdpSocket> = (0..args.flows.max(1))
        .map(|_| datagram_to(target))
        .collect::<Result<_, _>>()?;
    // An answered flow is an established one for every gateway on the way, as it is in real life.
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

/// Sends batch after batch of datagrams of `payload` bytes, flow after flow, until `end`. What they
/// have beyond [`LENGTH`] is zeros, and cut off where they arrive.
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

/// The sink's count of `run`, once two answers in a row agree: until then datagrams may still be on
/// their way.
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

/// Sends a question until it is answered; the number in the answer.
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
