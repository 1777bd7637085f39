//! What can be typed. Nouns show, verbs change.

#[cfg(feature = "hub")]
pub mod hub;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;

use braid_daemon::config::Policy;
use braid_daemon::{run_dir, state_dir};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::destination::{Destination, Endpoint, parse_protocol};

const EXIT_CODES: &str =
    "Exit codes: 0 fine, 1 failed, 2 usage, 3 daemon not reachable, 4 degraded";

/// Several uplinks carry one machine's traffic.
#[derive(Debug, Parser)]
#[command(name = "braid", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Cli {
    /// Directory that everything of one instance lives under
    #[arg(long, global = true, env = "BRAID_RUN_DIR", default_value = run_dir::DEFAULT, value_name = "DIR")]
    pub run_dir: PathBuf,
    /// Directory of what outlives a reboot: whom this machine has joined
    #[arg(long, global = true, env = "BRAID_STATE_DIR", default_value = state_dir::DEFAULT, value_name = "DIR")]
    pub state_dir: PathBuf,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start: new flows leave over all uplinks from now on
    ///
    /// Without a configuration every device that a default route leaves through is an uplink, and
    /// each new flow goes where a transfer is expected to be over first. Returns when the daemon is
    /// at work. A daemon that was killed is replaced without a lost packet.
    Up(UpArgs),
    /// End, and leave the machine as it was found; also after a crash
    Down(Output),
    /// Read the configuration again: all of it or nothing
    ///
    /// Running flows keep their uplinks. After a refusal the old configuration stays at work, and
    /// `braid status` says so.
    Reload(Output),
    /// Let uplinks back that `failback = "never"` keeps waiting
    Failback(Output),
    /// Join a hub: flows go over all uplinks at once, through it
    ///
    /// TOKEN is what `braid hub invite NAME` printed on the hub; it is good for one machine. A daemon
    /// that runs calls the hub at once, and this waits until it has answered: exit code 4 means that
    /// it has not, and goes on being called. Without a daemon the next `braid up` calls it.
    Join {
        /// What the hub printed; `-` reads it from standard input
        token: String,
        #[command(flatten)]
        output: Output,
    },
    /// Leave the hub that was joined: flows are shared out over the uplinks again
    Leave,
    /// Show the bond: its links, what each carries and why
    ///
    /// A line for each link. RATE is what it is sent at, SPREAD by how much packets take longer by it
    /// than by the fastest one, RANDOM and CONGESTED packets lost without and with a queue. Exit code 4
    /// means that the hub is out of reach.
    Bond(Output),
    /// Show uplinks, flows and what is not as it should be
    ///
    /// SHARE % is the part of new flows that an uplink gets. Exit code 4 means degraded: a health
    /// line says what is the matter and what to do.
    Status(Output),
    /// Show every uplink's addresses, and why it is used or not
    Uplinks(UplinksArgs),
    /// Show every flow and the uplink that carries it
    Flows(FlowsArgs),
    /// Show what is remembered of the ways to destinations
    ///
    /// A network (a /24 of IPv4, a /48 of IPv6) and an uplink a line, those first that were asked for
    /// last. COUNTS says whether it decides about new flows under policy race or fastest.
    Paths(Output),
    /// Show why a flow went where it is, or where a new one would go
    ///
    /// DESTINATION is an address or a name, with or without a port. Flows at work that it describes
    /// are listed too; `--protocol`, `--source` and a port narrow them down to one.
    Explain(ExplainArgs),
    /// Show uplinks, flows and reasons as they change; q quits
    #[cfg(feature = "top")]
    Top {
        /// Seconds between two looks
        #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_pace)]
        every: f64,
    },
    /// Show what changed, when and why
    Events(EventsArgs),
    /// Run a program on one uplink
    ///
    /// New flows of the program and of what it starts take that uplink until it ends. Signals are
    /// passed on to it, and its exit code is this command's; 126 and 127 say that it could not be
    /// started. Name servers that the machine asks on its behalf (systemd-resolved) are not part of
    /// it.
    Run(RunArgs),
    /// Check this machine and print the mending command for each finding
    ///
    /// Changes nothing. FAIL means that Braid cannot run (exit code 1), WARN that something may not
    /// behave as expected (exit code 4).
    Doctor {
        /// Configuration file that names the uplinks; /etc/braid/braid.toml if it is there
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Run the far end of bonds in the foreground, or see to its clients
    ///
    /// Without a word more it runs: listens on UDP port 27243, makes its key at the first start, and
    /// passes clients' packets on to the internet with this machine's address. `braid hub invite NAME`
    /// prints a token; `braid join TOKEN` on the other side is all the set-up there is.
    #[cfg(feature = "hub")]
    Hub(hub::HubArgs),
    /// Print a new key pair, base64: the private key, and the public key that follows from it
    #[cfg(feature = "hub")]
    Keygen(Output),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show the versions of the program, the kernel and the datapath
    Version(Output),
    /// Print what makes a shell complete `braid` commands
    ///
    /// For example: braid completions bash > /etc/bash_completion.d/braid
    #[cfg(feature = "manual")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages, one a command
    #[cfg(feature = "manual")]
    Man {
        /// Directory to write them to; made if it is not there and the one above it is
        directory: PathBuf,
    },
    /// Emulate a link between two network namespaces
    #[cfg(feature = "emulate")]
    Emulate(Box<braid_emulate::cli::EmulateArgs>),
    /// Talk to the control socket of a running `braid emulate`
    #[cfg(feature = "emulate")]
    EmulateCtl(braid_emulate::cli::EmulateCtlArgs),
    /// Split single flows over the paths of a network of switches, and put them in order
    #[cfg(feature = "edge")]
    #[command(subcommand)]
    Edge(braid_edge::cli::EdgeCommand),
    /// Topologies and experiments in network namespaces (runs braid-lab)
    #[command(disable_help_flag = true)]
    Lab(ExternalArgs),
    /// OpenFlow applications (runs braid-sdn)
    #[command(disable_help_flag = true)]
    Sdn(ExternalArgs),
}

#[derive(Clone, Copy, Debug, Args)]
pub struct Output {
    /// Print JSON as described by docs/api.schema.json
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct UpArgs {
    /// Configuration file; /etc/braid/braid.toml is read if it is there and none is named
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Stay in the foreground and log to standard error
    #[arg(long)]
    pub foreground: bool,
    /// How new flows are shared out, over the configuration's word
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<PolicyName>,
    /// Weight of an uplink, over the configuration's word
    #[arg(long = "weight", value_name = "NAME=N", value_parser = parse_weight)]
    pub weights: Vec<(String, NonZeroU32)>,
    #[command(flatten)]
    pub output: Output,
    /// Standard output is the starting process' pipe
    #[arg(long, hide = true, requires = "foreground")]
    pub detached: bool,
}

/// The policies as words of the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PolicyName {
    /// Each new flow takes the next uplink, all alike
    Rr,
    /// Each new flow takes the next uplink, in proportion to the weights
    Wrr,
    /// A source address keeps its uplink
    HashSource,
    /// A pair of source and destination addresses keeps its uplink
    HashPair,
    /// Each new flow takes the next uplink, in proportion to what each has left
    LeastLoaded,
    /// Each new connection takes the uplink that its destination answers first by
    Race,
    /// Each new connection takes the uplink that promises the fastest transfer
    Fastest,
}

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Policy {
        match name {
            PolicyName::Rr => Policy::Rr,
            PolicyName::Wrr => Policy::Wrr,
            PolicyName::HashSource => Policy::HashSource,
            PolicyName::HashPair => Policy::HashPair,
            PolicyName::LeastLoaded => Policy::LeastLoaded,
            PolicyName::Race => Policy::Race,
            PolicyName::Fastest => Policy::Fastest,
        }
    }
}

#[derive(Debug, Args)]
pub struct UplinksArgs {
    /// Their names alone, one a line
    #[arg(long, conflicts_with = "json")]
    pub names: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct FlowsArgs {
    /// Only flows on this uplink
    #[arg(long, value_name = "NAME")]
    pub uplink: Option<String>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Address or name, with a port or without: `198.51.100.1:443`, `[2001:db8::1]:443`, `example.org`
    #[arg(value_name = "DESTINATION")]
    pub destination: Destination,
    /// Transport protocol: tcp, udp, icmp, … or its IANA number
    #[arg(long, default_value = "tcp", value_name = "PROTOCOL", value_parser = parse_protocol)]
    pub protocol: u8,
    /// Address of the client behind this machine, with a port or without; this machine itself if
    /// none is named
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub source: Option<Endpoint>,
    /// Name that the client looked up, for rules that ask for it
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// Number of the user whose program it is, for rules that ask for it
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,
    /// Code point of its packets, for rules that ask for it
    #[arg(long, value_name = "DSCP", value_parser = clap::value_parser!(u8).range(0..64))]
    pub dscp: Option<u8>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Go on with what happens from now on, until interrupted; also over restarts of the daemon
    #[arg(long, short)]
    pub follow: bool,
    /// Only the last of what is remembered
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    /// Only what is about this uplink
    #[arg(long, value_name = "NAME")]
    pub uplink: Option<String>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The uplink, by the name that `braid uplinks` shows
    #[arg(long, value_name = "NAME")]
    pub uplink: String,
    /// What becomes of new flows while that uplink takes none
    #[arg(long, value_name = "WHAT", default_value = "block")]
    pub on_down: OnDownName,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

/// What becomes of flows whose uplink takes none, as words of the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum OnDownName {
    /// They are refused: nothing is seen on another uplink
    Block,
    /// They take the others
    Fallback,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration and show all that is wrong with it
    Check {
        /// The file; /etc/braid/braid.toml if none is named
        file: Option<PathBuf>,
        /// The same, as `braid up` has it
        #[arg(long, value_name = "FILE", conflicts_with = "file")]
        config: Option<PathBuf>,
    },
    /// Show the configuration
    Show {
        /// The file; /etc/braid/braid.toml if none is named
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Write out every default
        #[arg(long)]
        effective: bool,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub struct ExternalArgs {
    /// Passed on as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

fn parse_weight(text: &str) -> Result<(String, NonZeroU32), String> {
    let (name, weight) = text
        .split_once('=')
        .ok_or("write it as NAME=N, for example dsl=2")?;
    let weight = weight.parse().map_err(|_| {
        format!(
            "{weight:?} is no weight: write a whole number from 1; leave an uplink out of the \
                 configuration to send nothing over it"
        )
    })?;
    Ok((name.to_owned(), weight))
}

#[cfg(feature = "top")]
fn parse_pace(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.2..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("write a number of seconds from 0.2 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn weights_are_whole_and_above_zero() {
        assert_eq!(parse_weight("dsl=2").unwrap().1.get(), 2);
        for bad in ["dsl", "dsl=", "dsl=0", "dsl=-1", "dsl=1.5"] {
            assert!(parse_weight(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn external_commands_get_their_own_options() {
        let cli = Cli::try_parse_from(["braid", "lab", "run", "demo", "--quick"]).unwrap();
        let Command::Lab(external) = cli.command else {
            panic!("{cli:?}")
        };
        assert_eq!(external.arguments, ["run", "demo", "--quick"]);
        let cli = Cli::try_parse_from(["braid", "lab", "--help"]).unwrap();
        let Command::Lab(external) = cli.command else {
            panic!("{cli:?}")
        };
        assert_eq!(external.arguments, ["--help"]);
    }
}
