//! Commands and options. Nouns show, verbs change.

#[cfg(feature = "hub")]
pub mod hub;

use std::ffi::OsString;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use braid_core::units::duration;
use braid_daemon::config::Policy;
use braid_daemon::report::{MeasuredDirection, MeasurementMethod};
use braid_host::run_dir;
use braid_host::state_dir;
use braid_host::web::Role;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::destination::{Destination, Endpoint, parse_dscp, parse_protocol, parse_uid};

const EXIT_CODES: &str =
    "Exit codes: 0 fine, 1 failed, 2 usage, 3 daemon not reachable, 4 degraded";

/// Make several internet uplinks act as one
#[derive(Debug, Parser)]
#[command(name = "braid", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Cli {
    /// Directory for everything that belongs to one running instance
    #[arg(long, global = true, env = "BRAID_RUN_DIR", default_value = run_dir::DEFAULT, value_name = "DIR")]
    pub run_dir: PathBuf,
    /// Directory for state that survives a reboot, such as the hub that this machine has joined
    #[arg(long, global = true, env = "BRAID_STATE_DIR", default_value = state_dir::DEFAULT, value_name = "DIR")]
    pub state_dir: PathBuf,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the daemon: new flows are spread over all uplinks
    ///
    /// Without a configuration every device with a default route is an uplink, and each new flow
    /// takes the uplink that is expected to finish a transfer first. Returns when the daemon is
    /// ready. A daemon that was killed is replaced without a lost packet.
    Up(UpArgs),
    /// Stop the daemon and restore the machine's settings; also after a crash of the daemon
    Down(Output),
    /// Reload the configuration, all of it or nothing
    ///
    /// Running flows keep their uplinks. If the new configuration is refused, the old one stays in
    /// force and `braid status` says so.
    Reload(Output),
    /// Return new flows to uplinks that `failback = "never"` holds back
    Failback(Output),
    /// Join a hub: each flow then uses all uplinks at once, through the hub
    ///
    /// TOKEN is printed by `braid hub invite NAME` on the hub and works for one machine. A running
    /// daemon connects at once, and this command waits for the hub's answer. Exit code 4 means that
    /// the hub has not answered yet; the daemon keeps trying. Without a daemon, the next `braid up`
    /// connects.
    Join {
        /// Token printed by the hub; `-` reads it from standard input
        #[cfg_attr(feature = "scan", arg(required_unless_present = "scan"))]
        #[cfg_attr(not(feature = "scan"), arg(required = true))]
        token: Option<String>,
        /// Picture with the token's QR code, PNG or JPEG: a photograph or a screenshot
        #[cfg(feature = "scan")]
        #[arg(long, value_name = "FILE", conflicts_with = "token")]
        scan: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Leave the hub: flows are spread over the uplinks again
    Leave,
    /// Show the bond: its links, what each carries and why
    ///
    /// One line per link. RATE is the sending rate. SKEW is the one-way delay beyond that of the
    /// fastest link. RANDOM and CONGESTED count packets lost without and with a queue. Exit code 4
    /// means that the hub cannot be reached.
    Bond(Output),
    /// Show uplinks, flows and health problems
    ///
    /// SHARE % is the fraction of new flows that an uplink gets. Exit code 4 means degraded: a
    /// health line names the problem and the fix.
    Status(Output),
    /// Show the addresses of every uplink, and why it is used or not
    Uplinks(UplinksArgs),
    /// Set an uplink aside for maintenance, and use it again
    #[command(subcommand)]
    Uplink(UplinkCommand),
    /// Show rules, switch one off, and on again
    #[command(subcommand)]
    Rule(RuleCommand),
    /// Show every flow and the uplink that carries it
    Flows(FlowsArgs),
    /// Show the path cache: measured round trips and loss by destination and uplink
    ///
    /// One line per network (an IPv4 /24 or an IPv6 /48) and uplink, the most recently used network
    /// first. VALID says whether the entry decides about new flows under policy race or fastest.
    Paths(Output),
    /// Measure the capacity of an uplink, by a transfer over it alone or by trains of packets
    ///
    /// A transfer downloads the contents of a URL, or uploads data to it, over a few connections, and ends as
    /// soon as the rate is known: after a second or two. `--method dispersion` spends tens or hundreds of
    /// kilobytes in place of megabytes, and is less exact; without a URL it sends echo requests, which show the
    /// slower of both directions. The daemon then takes the result for the uplink's
    /// capacity, until the uplink's own traffic shows another one. A configured capacity stays a ceiling.
    /// Exit code 4 means that some of several uplinks or directions could not be measured.
    Measure(MeasureArgs),
    /// Show the last day of an uplink: rates, capacity, round trips, loss and state
    ///
    /// Rows of bars over the whole time, then a table of means; STATE is the worst of the step. The daemon
    /// keeps seconds for an hour and minutes for a day, also over restarts. What it has of an uplink that is
    /// gone is shown as well. `--record` writes the capacity of each second for `braid emulate --trace`; a
    /// comment in the file says which seconds were measured. Exit code 4 means that it has one direction alone.
    History(HistoryArgs),
    /// Explain why a flow takes its uplink, or which one a new flow would take
    ///
    /// DESTINATION is an address or a name, with or without a port. Existing flows that match are
    /// listed too; `--protocol`, `--source` and a port narrow them down to one.
    Explain(ExplainArgs),
    /// Show uplinks, flows, and why packets were sent or dropped, live; q quits
    #[cfg(feature = "top")]
    Top {
        /// Seconds between two updates
        #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_pace)]
        every: f64,
    },
    /// Show what changed, when and why
    Events(EventsArgs),
    /// Show alarms, and try how people are told
    #[command(subcommand)]
    Alarm(AlarmCommand),
    /// Run a program on one uplink
    ///
    /// New flows of the program and of its children take that uplink until the program ends. Signals
    /// are forwarded to the program, and its exit code is returned; 126 and 127 mean that it could
    /// not be started. Name lookups that a local resolver (systemd-resolved) does on its behalf are
    /// not included.
    Run(RunArgs),
    /// Check this machine and print a fix for each finding
    ///
    /// Changes nothing. FAIL means that Braid cannot run (exit code 1). WARN means that something
    /// may not work as expected (exit code 4).
    Doctor {
        /// Configuration file; /etc/braid/braid.toml by default, if it exists
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Run the hub (the far end of bonds) in the foreground, or manage its clients
    ///
    /// Without a subcommand it runs the hub: it listens on UDP port 27243, generates its key on the
    /// first start, and forwards the clients' packets to the internet with this machine's address.
    /// `braid hub invite NAME` prints a token; `braid join TOKEN` on the client completes the set-up.
    #[cfg(feature = "hub")]
    Hub(hub::HubArgs),
    /// Print a new key pair in base64: the private key and the public key derived from it
    #[cfg(feature = "hub")]
    Keygen(Output),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Manage the page for browsers, which `[web] listen` switches on
    #[command(subcommand)]
    Web(WebCommand),
    /// Show the versions of the program, the kernel and the datapath
    Version(Output),
    /// Print a shell completion script for `braid`
    ///
    /// For example: braid completions bash > /etc/bash_completion.d/braid
    #[cfg(feature = "manual")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages, one per command
    #[cfg(feature = "manual")]
    Man {
        /// Output directory; created if its parent exists
        directory: PathBuf,
    },
    /// Emulate a link between two network namespaces
    #[cfg(feature = "emulate")]
    Emulate(Box<braid_emulate::cli::EmulateArgs>),
    /// Talk to the control socket of a running `braid emulate`
    #[cfg(feature = "emulate")]
    EmulateCtl(braid_emulate::cli::EmulateCtlArgs),
    /// Split single flows over the paths of a switch fabric, and reorder them at the far edge
    #[cfg(feature = "edge")]
    #[command(subcommand)]
    Edge(braid_edge::cli::EdgeCommand),
    /// Run topologies and experiments in network namespaces (braid-lab)
    #[command(disable_help_flag = true)]
    Lab(ExternalArgs),
    /// Run OpenFlow applications (braid-sdn)
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
    /// Configuration file; /etc/braid/braid.toml by default, if it exists
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Stay in the foreground and log to standard error
    #[arg(long)]
    pub foreground: bool,
    /// Policy for new flows; overrides the configuration
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<PolicyName>,
    /// Weight of an uplink; overrides the configuration
    #[arg(long = "weight", value_name = "NAME=N", value_parser = parse_weight)]
    pub weights: Vec<(String, NonZeroU32)>,
    #[command(flatten)]
    pub output: Output,
    /// Standard output is a pipe to the process that started this one
    #[arg(long, hide = true, requires = "foreground")]
    pub detached: bool,
}

/// Values of `--policy`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PolicyName {
    /// Round robin: each new flow takes the next uplink
    Rr,
    /// Weighted round robin: each new flow takes the next uplink, in proportion to the weights
    Wrr,
    /// A source address keeps its uplink
    HashSource,
    /// A pair of source and destination addresses keeps its uplink
    HashPair,
    /// Each new flow takes the next uplink, in proportion to the spare capacity
    LeastLoaded,
    /// Each new connection takes the uplink on which its destination answers first
    Race,
    /// Each new connection takes the uplink with the shortest predicted transfer time
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
    /// Print only the names, one per line
    #[arg(long, conflicts_with = "json")]
    pub names: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Subcommand)]
pub enum UplinkCommand {
    /// Set an uplink aside: it takes no new flows, and the bond does not use it
    ///
    /// Open TCP connections stay on it until they end; other flows move with their next packet. It is still
    /// probed, and nothing about it is a health problem or raises an alarm. The pause outlives reloads,
    /// restarts and reboots. If no other uplink works, it is refused; if the others fail later, the paused
    /// one takes flows until one of them is back.
    Pause {
        /// Uplink name, as shown by `braid uplinks`
        #[arg(value_name = "UPLINK")]
        uplink: String,
        /// Time after which it is used again, such as "2 h"; without it, until `braid uplink resume`
        #[arg(long = "for", value_name = "TIME", value_parser = parse_pause)]
        span: Option<u64>,
        /// Pause it even if no other uplink works, and use it for nothing even then
        #[arg(long)]
        force: bool,
        /// Close its TCP connections at once, so that programs open new ones elsewhere
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Use an uplink again that was set aside
    Resume {
        /// Uplink name, as shown by `braid uplinks`
        #[arg(value_name = "UPLINK")]
        uplink: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Subcommand)]
pub enum RuleCommand {
    /// Show every rule of the configuration
    List(Output),
    /// Switch a rule off: it decides about no new flow
    ///
    /// Flows that it has placed stay where they are. The pause outlives reloads, restarts and reboots. Only a
    /// rule with a name of its own can be paused.
    Pause {
        /// Rule name, as shown by `braid rule list`
        #[arg(value_name = "RULE")]
        name: String,
        /// Time after which it is in force again, such as "2 h"; without it, until `braid rule resume`
        #[arg(long = "for", value_name = "TIME", value_parser = parse_pause)]
        span: Option<u64>,
        #[command(flatten)]
        output: Output,
    },
    /// Switch a rule on again
    Resume {
        /// Rule name, as shown by `braid rule list`
        #[arg(value_name = "RULE")]
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub struct FlowsArgs {
    /// Show only flows on this uplink
    #[arg(long, value_name = "NAME")]
    pub uplink: Option<String>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Uplink name, as shown by `braid uplinks`
    #[arg(value_name = "UPLINK")]
    pub uplink: String,
    /// Time until now, such as "10 min" or "6 h"; at most a day, which is the default
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub last: Option<u32>,
    /// Step of the table, or of the JSON; seconds for the last hour, minutes for more
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub step: Option<u32>,
    /// Write NAME-down.csv and NAME-up.csv, traces of the capacity that `braid emulate` plays; of the last
    /// hour unless `--last` or `--for` is given
    #[arg(long, value_name = "NAME", conflicts_with = "step")]
    pub record: Option<PathBuf>,
    /// Record from now on for this time, or until Ctrl-C; with `--last`, the time before it as well
    #[arg(long = "for", value_name = "TIME", requires = "record", value_parser = parse_seconds)]
    pub span: Option<u32>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct MeasureArgs {
    /// Uplink name, as shown by `braid uplinks`
    #[arg(value_name = "UPLINK", required_unless_present = "all")]
    pub uplink: Option<String>,
    /// Measure every uplink, one after the other
    #[arg(long, conflicts_with = "uplink")]
    pub all: bool,
    /// Method; the daemon takes no result of variable-packet-size
    #[arg(long, value_name = "METHOD", default_value = "transfer")]
    pub method: MethodName,
    /// Address that answers echo requests beyond the line, for the methods that send them; a public resolver by default
    #[arg(long, value_name = "ADDRESS", conflicts_with = "url")]
    pub target: Option<IpAddr>,
    /// http or https URL of a large file; for uploads, of something that takes 25 MB by POST, or 100 kB in small ones by
    /// dispersion
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Direction, as seen from this machine
    #[arg(long, value_name = "DIRECTION", default_value = "down")]
    pub direction: DirectionName,
    #[command(flatten)]
    pub output: Output,
}

/// Values of `--method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MethodName {
    /// Fill the line for a second or two
    Transfer,
    /// Send trains of packets and measure how far apart they arrive
    Dispersion,
    /// Measure round trips of packets of several sizes, for comparison; for lines that are as fast up as down
    VariablePacketSize,
}

impl MethodName {
    /// Returns its name in reports.
    pub fn reported(self) -> MeasurementMethod {
        match self {
            MethodName::Transfer => MeasurementMethod::Transfer,
            MethodName::Dispersion => MeasurementMethod::Dispersion,
            MethodName::VariablePacketSize => MeasurementMethod::VariablePacketSize,
        }
    }
}

/// Values of `--direction`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum DirectionName {
    /// Download
    Down,
    /// Upload
    Up,
    /// Download, then upload
    Both,
}

impl DirectionName {
    /// Returns the directions in the order in which they are measured.
    pub fn directions(self) -> &'static [MeasuredDirection] {
        match self {
            DirectionName::Down => &[MeasuredDirection::Down],
            DirectionName::Up => &[MeasuredDirection::Up],
            DirectionName::Both => &[MeasuredDirection::Down, MeasuredDirection::Up],
        }
    }
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Address or name, optionally with a port: `198.51.100.1:443`, `[2001:db8::1]:443`, `example.org`
    #[arg(value_name = "DESTINATION")]
    pub destination: Destination,
    /// Transport protocol: tcp, udp, icmp, … or an IANA number
    #[arg(long, default_value = "tcp", value_name = "PROTOCOL", value_parser = parse_protocol)]
    pub protocol: u8,
    /// Address of a client behind this machine, optionally with a port; this machine itself by
    /// default
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub source: Option<Endpoint>,
    /// Name that the client looked up, for rules that match on it
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// Numeric id of the program's user, for rules that match on it
    #[arg(long, value_name = "UID", value_parser = parse_uid)]
    pub uid: Option<u32>,
    /// DSCP of the flow's packets, a number or a name such as ef, for rules that match on it
    #[arg(long, value_name = "DSCP", value_parser = parse_dscp)]
    pub dscp: Option<u8>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Keep printing new events until interrupted, also across restarts of the daemon
    #[arg(long, short)]
    pub follow: bool,
    /// Show only the last N events
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    /// Show only events about this uplink
    #[arg(long, value_name = "NAME")]
    pub uplink: Option<String>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Subcommand)]
pub enum AlarmCommand {
    /// Show every alarm and what it is raised for
    ///
    /// Exit code 4 means that an alarm is raised, or that a destination takes no messages.
    List(Output),
    /// Send a message to each destination now, and show which of them take it
    ///
    /// Exit code 4 means that one of them did not.
    Test {
        /// Alarm; all of them by default
        name: Option<String>,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Uplink name, as shown by `braid uplinks`
    #[arg(long, value_name = "NAME")]
    pub uplink: String,
    /// Action for new flows while the uplink takes none
    #[arg(long, value_name = "ACTION", default_value = "block")]
    pub on_down: OnDownName,
    /// Program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

/// Values of `--on-down`: the action for new flows while their uplink takes none.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum OnDownName {
    /// Refuse them: nothing is sent over another uplink
    Block,
    /// Send them over the other uplinks
    Fallback,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration and list every error in it
    Check {
        /// Configuration file; /etc/braid/braid.toml by default
        file: Option<PathBuf>,
        /// The same as FILE, as in `braid up`
        #[arg(long, value_name = "FILE", conflicts_with = "file")]
        config: Option<PathBuf>,
    },
    /// Show the configuration
    Show {
        /// Configuration file; /etc/braid/braid.toml by default
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Include every default value
        #[arg(long)]
        effective: bool,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Subcommand)]
pub enum WebCommand {
    /// Print a token with which a browser logs in to the page
    ///
    /// A role has one token, made when it is first asked for; it stays valid until it is replaced. A
    /// session lasts twelve hours for an operator, 30 days for a viewer.
    Token {
        /// Rights of whoever logs in with it
        #[arg(long, value_name = "ROLE", default_value = "operator")]
        role: RoleName,
        /// Replace the token: whoever is logged in with the old one is logged out
        #[arg(long)]
        new: bool,
        #[command(flatten)]
        output: Output,
    },
}

/// Values of `--role`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RoleName {
    /// Looks
    Viewer,
    /// Looks, and may pause uplinks and rules, reload the configuration, return flows to an uplink and test alarms; on a
    /// hub's page, invite and revoke clients
    Operator,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Role {
        match name {
            RoleName::Viewer => Role::Viewer,
            RoleName::Operator => Role::Operator,
        }
    }
}

#[derive(Debug, Args)]
pub struct ExternalArgs {
    /// Arguments, passed on unchanged
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

fn parse_weight(text: &str) -> Result<(String, NonZeroU32), String> {
    let (name, weight) = text
        .split_once('=')
        .ok_or("write it as NAME=N, for example dsl=2")?;
    let weight = weight.parse().map_err(|_| {
        format!(
            "{weight:?} is not a weight: write a whole number from 1; leave an uplink out of the \
                 configuration to send nothing over it"
        )
    })?;
    Ok((name.to_owned(), weight))
}

fn parse_pause(text: &str) -> Result<u64, String> {
    let span = duration::parse(text).map_err(|error| error.to_string())?;
    match span.as_secs() {
        seconds @ 1..=31_622_400 => Ok(seconds),
        _ => Err("write a time from 1 s to a year (8784 h)".to_owned()),
    }
}

fn parse_seconds(text: &str) -> Result<u32, String> {
    let span = duration::parse(text).map_err(|error| error.to_string())?;
    match span.as_secs() {
        seconds @ 1..=86_400 => Ok(seconds as u32),
        _ => Err("write a time from 1 s to 24 h".to_owned()),
    }
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
    fn times_have_units_and_are_at_most_a_day() {
        assert_eq!(parse_seconds("10 min"), Ok(600));
        assert_eq!(parse_seconds("24h"), Ok(86_400));
        for bad in ["10", "0 s", "25 h", "1 day", ""] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
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
