//! A train of numbered datagrams at a fixed rate, echoed by the server: losses, and the longest
//! silence.

use crate::error::Error;
use crate::socket::datagram_to;
use crate::target::Targets;
use crate::wire::{Datagram, Kind, LENGTH};
use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time after the last departure for which echoes are still accepted.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct PingTrainArgs {
    #[command(flatten)]
    targets: Targets,
    /// Datagrams per second over all flows
    #[arg(long, default_value_t = 1000.0, value_name = "PER_SECOND")]
    rate: f64,
    /// Duration of sending, in seconds
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    seconds: f64,
    /// Flows (source ports) used in turn
    #[arg(long, default_value_t = 1)]
    flows: usize,
}

/// Result of the train.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct PingTrainReport {
    sent: usize,
    received: usize,
    duplicated: usize,
    lost: usize,
    /// Longest time without any echo between the first and the last one, milliseconds.
    longest_gap_ms: f64,
    /// Departure of the first lost datagram, seconds since the start of the train.
    first_lost_at: Option<f64>,
    /// Departure of the last lost one.
    last_lost_at: Option<f64>,
}

/// Sends the train; a datagram that the kernel refuses counts as lost.
pub(crate) fn run(args: &PingTrainArgs) -> Result<PingTrainReport, Error> {
    let target = args.targets.datagram();
    let sockets: Vec<UdpSocket> = (0..args.flows.max(1))
        .map(|_| datagram_to(target))
        .collect::<Result<_, _>>()?;
    let run = std::process::id();
    let begin = Instant::now();
    let sending = AtomicBool::new(true);
    let (sent, arrivals) = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&sockets, run, begin, &sending));
        let sent = send(&sockets, run, args, begin);
        sending.store(false, Ordering::Release);
        (sent, receiver.join().expect("the receiver never panics"))
    });
    Ok(summary(sent, args.rate, &arrivals?))
}

/// Departures follow the clock and not the previous departure, so that a burst follows a stall and
/// the train keeps its length.
fn send(sockets: &[UdpSocket], run: u32, args: &PingTrainArgs, begin: Instant) -> usize {
    let count = (args.rate * args.seconds) as usize;
    for number in 0..count {
        let due = begin + Duration::from_secs_f64(number as f64 / args.rate);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let datagram = Datagram {
            kind: Kind::Echo,
            run,
            number: number as u64,
        };
        // A refused datagram shows as a missing echo, at its position in the train.
        let _ = sockets[number % sockets.len()].send(&datagram.bytes());
    }
    count
}

/// A returned echo.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    number: usize,
    /// Since the start of the train.
    at: Duration,
}

/// Collects echoes until `DRAIN_TIMEOUT` after the last departure.
fn receive(
    sockets: &[UdpSocket],
    run: u32,
    begin: Instant,
    sending: &AtomicBool,
) -> Result<Vec<Arrival>, Error> {
    let mut arrivals = Vec::new();
    let mut end: Option<Instant> = None;
    while end.is_none_or(|end| Instant::now() < end) {
        if end.is_none() && !sending.load(Ordering::Acquire) {
            end = Some(Instant::now() + DRAIN_TIMEOUT);
        }
        let mut fds: Vec<PollFd> = sockets
            .iter()
            .map(|s| PollFd::new(s.as_fd(), PollFlags::POLLIN))
            .collect();
        poll(&mut fds, PollTimeout::from(100_u8))
            .map_err(|e| Error::new("wait for echoes", e.into()))?;
        for (socket, fd) in sockets.iter().zip(&fds) {
            if !fd.any().unwrap_or(false) {
                continue;
            }
            let mut bytes = [0; LENGTH + 1];
            // An error here is an ICMP message about an earlier datagram: that one is missing.
            let Ok(length) = socket.recv(&mut bytes) else {
                continue;
            };
            if let Some(echo) = Datagram::parse(&bytes[..length]).filter(|d| d.run == run) {
                arrivals.push(Arrival {
                    number: echo.number as usize,
                    at: begin.elapsed(),
                });
            }
        }
    }
    Ok(arrivals)
}

/// Counts the missing ones among `sent` numbers that left at `rate` per second.
fn summary(sent: usize, rate: f64, arrivals: &[Arrival]) -> PingTrainReport {
    let mut seen = vec![false; sent];
    for arrival in arrivals {
        if let Some(seen) = seen.get_mut(arrival.number) {
            *seen = true;
        }
    }
    let lost = || {
        seen.iter()
            .enumerate()
            .filter(|(_, seen)| !**seen)
            .map(|(number, _)| number)
    };
    let received = sent - lost().count();
    let gaps = arrivals
        .windows(2)
        .map(|pair| pair[1].at.saturating_sub(pair[0].at));
    PingTrainReport {
        sent,
        received,
        duplicated: arrivals.len() - received,
        lost: sent - received,
        longest_gap_ms: gaps.max().unwrap_or_default().as_secs_f64() * 1e3,
        first_lost_at: lost().next().map(|number| number as f64 / rate),
        last_lost_at: lost().next_back().map(|number| number as f64 / rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(list: &[(usize, u64)]) -> Vec<Arrival> {
        let arrival = |&(number, ms)| Arrival {
            number,
            at: Duration::from_millis(ms),
        };
        list.iter().map(arrival).collect()
    }

    #[test]
    fn nothing_lost() {
        let report = summary(3, 10.0, &arrivals(&[(0, 1), (2, 250), (1, 251)]));
        assert_eq!((report.received, report.lost, report.duplicated), (3, 0, 0));
        assert_eq!(report.longest_gap_ms, 249.0);
        assert_eq!((report.first_lost_at, report.last_lost_at), (None, None));
    }

    #[test]
    fn losses_and_copies_are_told_apart() {
        let report = summary(5, 10.0, &arrivals(&[(0, 1), (0, 2), (4, 401)]));
        assert_eq!((report.received, report.lost, report.duplicated), (2, 3, 1));
        assert_eq!(
            (report.first_lost_at, report.last_lost_at),
            (Some(0.1), Some(0.3))
        );
    }

    #[test]
    fn silence_from_the_begin() {
        let report = summary(2, 1.0, &[]);
        assert_eq!(
            (report.received, report.lost, report.longest_gap_ms),
            (0, 2, 0.0)
        );
    }
}
