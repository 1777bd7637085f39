//! Workload generator of the lab.
//!
//! A process has one role: a server in the lab's internet, or one kind of load from a client. The
//! lab starts it inside a network namespace, reads one JSON object per line from its standard
//! output, and tells a waiting role by SIGTERM to go on. Every role also has a limit of its own, a
//! count or a time, so that nothing outlives a failed experiment. Bulk transfers are iperf3's.
//!
//! The generator must never be the bottleneck: connections are opened by plain blocking calls
//! (across veth pairs a connect is answered before the system call would sleep), datagrams are sent
//! in `sendmmsg` batches, and the counting side wakes up per batch and not per packet.

mod batch;
mod connect;
mod error;
mod hold;
mod percentile;
mod ping_train;
mod quic;
mod serve;
mod socket;
mod stop_signal;
mod syn_flood;
mod target;
mod udp_rate;
mod wire;

use clap::{Parser, Subcommand};
use error::Error;
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(
    name = "braid-load",
    about = "Generates the lab's load and measures it",
    version
)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Echo server: TCP on a range of ports, UDP echo and sink on the first of them
    Serve(serve::ServeArgs),
    /// Open and close connections: rate, or latency when paced
    Connect(connect::ConnectArgs),
    /// Open many connections, keep them, then check each with an echo
    Hold(hold::HoldArgs),
    /// Send small datagrams as fast as possible and ask the sink how many arrived
    UdpRate(udp_rate::UdpRateArgs),
    /// Send TCP SYNs from spoofed source addresses
    SynFlood(syn_flood::SynFloodArgs),
    /// Send numbered datagrams at a fixed rate and count the missing echoes
    PingTrain(ping_train::PingTrainArgs),
    /// Send one stream over QUIC to each client that connects
    QuicServe(quic::QuicServeArgs),
    /// Receive such a stream for some seconds
    QuicTake(quic::QuicTakeArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().role {
        Role::Serve(args) => serve::run(&args).and_then(|report| print_line(&report)),
        Role::Connect(args) => connect::run(&args).and_then(|report| print_line(&report)),
        Role::Hold(args) => hold::run(&args).and_then(|report| print_line(&report)),
        Role::UdpRate(args) => udp_rate::run(&args).and_then(|report| print_line(&report)),
        Role::SynFlood(args) => syn_flood::run(&args).and_then(|report| print_line(&report)),
        Role::PingTrain(args) => ping_train::run(&args).and_then(|report| print_line(&report)),
        Role::QuicServe(args) => quic::serve(&args),
        Role::QuicTake(args) => quic::take(&args).and_then(|report| print_line(&report)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("braid-load: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes one JSON object as one line and flushes it: the lab waits for lines.
pub(crate) fn print_line<T: Serialize>(report: &T) -> Result<(), Error> {
    let mut line =
        serde_json::to_string(report).map_err(|e| Error::new("encode the report", e.into()))?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| Error::new("write the report to standard output", e))
}
