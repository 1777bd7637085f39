//! The command line: `braid emulate` and `braid emulate-ctl`.

use std::io::Write;
use std::path::PathBuf;

use braid_core::Share;
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::config::{Aqm, BurstSetting, RateSetting, Span};
use crate::delay::Distribution;
use crate::io::control::{self, BlackHole, Change, Request};
use crate::io::{Direction, Emulator, EmulatorError, Endpoint, Mac, Options};
use crate::queue::Limit;
use crate::{Config, Settings};

/// Emulate a link: rate, delay, loss and queue between two TAP devices, which are made for it and
/// vanish with it. "Up" is from a to b, "down" from b to a; an option without a direction is for
/// both. Without any the link is perfect: unlimited rate, no delay, no loss. Its queue holds 100 ms.
/// Rates count whole Ethernet frames.
#[derive(Debug, Args)]
pub struct EmulateArgs {
    /// One end: a namespace in /run/netns (or - for the current one) and the device to create there
    #[arg(long, value_name = "NETNS:DEV", allow_hyphen_values = true)]
    pub a: Endpoint,
    /// The other end
    #[arg(long, value_name = "NETNS:DEV", allow_hyphen_values = true)]
    pub b: Endpoint,
    /// MAC address of the device at a [default: the kernel's choice]
    #[arg(long, value_name = "MAC")]
    pub mac_a: Option<Mac>,
    /// MAC address of the device at b [default: the kernel's choice]
    #[arg(long, value_name = "MAC")]
    pub mac_b: Option<Mac>,
    #[command(flatten)]
    both: LinkArgs,
    #[command(flatten)]
    up: UpArgs,
    #[command(flatten)]
    down: DownArgs,
    /// Seed of the random numbers: equal seeds and packets give equal results
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Socket on which to listen for "braid emulate-ctl"
    #[arg(long, value_name = "SOCK")]
    pub control: Option<PathBuf>,
    /// File for one CSV line per packet: its arrival, start of sending and due time, and its fate
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// End after this time [default: on SIGTERM or SIGINT]
    #[arg(long = "for", value_name = "TIME")]
    pub run_for: Option<Span>,
}

/// Change or query a running emulator.
#[derive(Debug, Args)]
pub struct EmulateCtlArgs {
    /// Its control socket
    #[arg(value_name = "SOCK")]
    pub socket: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Change settings; omitted ones stay as they are
    Set {
        /// Direction of the change
        #[arg(long, value_enum, default_value_t)]
        direction: Direction,
        #[command(flatten)]
        settings: LinkArgs,
    },
    /// Drop all packets (on), or none (off)
    Blackhole {
        /// State of the black hole
        #[arg(value_parser = ["on", "off"])]
        state: String,
        /// Direction of the black hole
        #[arg(long, value_enum, default_value_t)]
        direction: Direction,
    },
    /// Show the counters as JSON
    Stats,
}

/// Declares the same options once per direction: the names differ by a suffix.
macro_rules! link_args {
    ($name:ident, $suffix:literal, $heading:literal) => {
        #[derive(Debug, Clone, Default, Args)]
        #[command(next_help_heading = $heading)]
        struct $name {
            /// Rate, such as 20Mbit/s, or "unlimited"
            #[arg(id = concat!("rate", $suffix), long = concat!("rate", $suffix), value_name = "RATE")]
            rate: Option<RateSetting>,
            /// File with a recorded rate: mahimahi, or CSV of seconds,Mbit/s; repeats
            #[arg(id = concat!("trace", $suffix), long = concat!("trace", $suffix), value_name = "FILE")]
            trace: Option<PathBuf>,
            /// One-way delay, such as 15ms
            #[arg(id = concat!("delay", $suffix), long = concat!("delay", $suffix), value_name = "TIME")]
            delay: Option<Span>,
            /// Variation of the delay, in order unless --reorder
            #[arg(id = concat!("jitter", $suffix), long = concat!("jitter", $suffix), value_name = "TIME")]
            jitter: Option<Span>,
            /// Distribution of the variation
            #[arg(id = concat!("jitter-dist", $suffix), long = concat!("jitter-dist", $suffix), value_name = "SHAPE", value_enum)]
            jitter_dist: Option<Distribution>,
            /// Let jitter change the order of packets
            #[arg(id = concat!("reorder", $suffix), long = concat!("reorder", $suffix), value_name = "true|false", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
            reorder: Option<bool>,
            /// Random loss, such as 1% or 0.01
            #[arg(id = concat!("loss", $suffix), long = concat!("loss", $suffix), value_name = "SHARE")]
            loss: Option<Share>,
            /// Bursty loss (Gilbert-Elliott): chance of turning bad, of turning good again, and
            /// optionally loss while bad and while good; or "off"
            #[arg(id = concat!("loss-burst", $suffix), long = concat!("loss-burst", $suffix), value_name = "P,R[,BAD,GOOD]")]
            loss_burst: Option<BurstSetting>,
            /// Queue limit as time, packets or bytes: 100ms, 1000p, 256KB
            #[arg(id = concat!("queue", $suffix), long = concat!("queue", $suffix), value_name = "LIMIT")]
            queue: Option<Limit>,
            /// Active queue management: what drops packets before the queue is full
            #[arg(id = concat!("aqm", $suffix), long = concat!("aqm", $suffix), value_name = "AQM", value_enum)]
            aqm: Option<Aqm>,
        }

        impl From<$name> for Settings {
            fn from(args: $name) -> Settings {
                let $name {
                    rate, trace, delay, jitter, jitter_dist, reorder, loss, loss_burst, queue, aqm,
                } = args;
                Settings {
                    rate, trace, delay, jitter, jitter_dist, reorder, loss, loss_burst, queue, aqm,
                }
            }
        }
    };
}

link_args!(LinkArgs, "", "The link, both directions");
link_args!(UpArgs, "-up", "Only from a to b");
link_args!(DownArgs, "-down", "Only from b to a");

/// Runs `braid emulate`: prints one line of JSON once both devices are up, and one with the
/// statistics at the end.
///
/// # Errors
/// See [`EmulatorError`].
pub fn run(args: EmulateArgs) -> Result<(), EmulatorError> {
    let both = Settings::from(args.both);
    let config = |own: Settings| own.or(both.clone()).applied_to(&Config::default());
    let mut emulator = Emulator::start(Options {
        up: config(args.up.into())?,
        down: config(args.down.into())?,
        a: args.a,
        b: args.b,
        mac_a: args.mac_a,
        mac_b: args.mac_b,
        seed: args.seed,
        control: args.control,
        log: args.log,
        run_for: args.run_for.map(|span| span.0),
    })?;
    let ready = serde_json::to_value(emulator.ready()).map_err(|error| EmulatorError::System {
        step: "write JSON",
        source: error.into(),
    })?;
    print(&ready)?;
    print(&emulator.run()?)
}

/// Runs `braid emulate-ctl`: prints the emulator's reply as one line of JSON.
///
/// # Errors
/// No emulator listens on the socket, or it refuses the request, with its own text.
pub fn control(args: EmulateCtlArgs) -> Result<(), EmulatorError> {
    let request = match args.command {
        Command::Set {
            direction,
            settings,
        } => Request::Set(Change {
            direction,
            settings: absolute(settings.into())?,
        }),
        Command::Blackhole { state, direction } => Request::Blackhole(BlackHole {
            direction,
            on: state == "on",
        }),
        Command::Stats => Request::Stats {},
    };
    print(&control::send_request(&args.socket, &request)?)
}

/// Makes a path absolute: the emulator may run in another directory.
fn absolute(mut settings: Settings) -> Result<Settings, EmulatorError> {
    if let Some(path) = &mut settings.trace {
        *path = std::path::absolute(&path).map_err(EmulatorError::system("find the trace"))?;
    }
    Ok(settings)
}

/// Prints a line; a reader that has closed the pipe is no error.
fn print(line: &Value) -> Result<(), EmulatorError> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(EmulatorError::system("print")(error))
        }
        _ => Ok(()),
    }
}
