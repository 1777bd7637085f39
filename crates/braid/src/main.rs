//! The braid command line.
//!
//! Standard output is the answer, standard error everything else. The data comes from the
//! daemon's local API; `--json` prints the same data.
#![forbid(unsafe_code)]

mod alarm;
mod bond;
mod cli;
mod client;
mod destination;
#[cfg(feature = "edge")]
mod edge;
mod events;
mod explain;
mod external;
mod history;
#[cfg(feature = "hub")]
mod hub;
#[cfg(feature = "manual")]
mod manual;
mod measure;
mod missing_features;
mod paths;
mod pause;
mod recording;
mod run;
#[cfg(feature = "scan")]
mod scan;
mod show;
mod spark;
mod table;
mod terminal;
#[cfg(feature = "top")]
mod top;
mod up;
mod web;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use braid_daemon::config::{Config, DEFAULT_PATH, Overrides, Settings};
#[cfg(feature = "edge")]
use braid_daemon::doctor::Finding;
use braid_daemon::doctor::preflight::kernel_release;
use braid_daemon::doctor::{self, Level};
use braid_daemon::report::{DoctorReport, FlowsReport, StatusReport, UplinksReport, VersionReport};
use braid_host::config::ConfigError;
use braid_host::run_dir::RunDir;
use braid_host::seal::SealKey;
use braid_host::state_dir::StateDir;
use braid_host::user_error::UserError;
use serde::de::DeserializeOwned;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::{
    AlarmCommand, Cli, Command, ConfigCommand, FlowsArgs, Output, RuleCommand, UplinkCommand,
    UplinksArgs, WebCommand,
};
use crate::client::NoAnswer;
use crate::terminal::{answer, answer_either, answer_json, paint, show_error};

/// Commit that this program was built from.
const COMMIT: Option<&str> = option_env!("BRAID_COMMIT");

/// Reasons why a command failed, each with its exit code.
#[derive(Debug)]
enum CommandError {
    /// The command failed: 1; or 2 after a usage error.
    UserError(UserError),
    /// The configuration is wrong: 1.
    Config(ConfigError),
    /// The daemon does not answer: 3.
    Unreachable(UserError),
    /// `braid doctor` found that Braid cannot run here: 1.
    Unfit,
    /// The command worked, and the state that it shows is degraded: 4.
    Degraded,
    /// The program of `braid run` ended with this code, or could not be started.
    Ended(u8),
}

/// Subdirectory of the run directory for a hub.
const HUB_DIRECTORY: &str = "hub";

type CommandResult = Result<(), CommandError>;

impl From<UserError> for CommandError {
    fn from(failure: UserError) -> CommandError {
        CommandError::UserError(failure)
    }
}

impl From<NoAnswer> for CommandError {
    fn from(no_answer: NoAnswer) -> CommandError {
        match no_answer {
            NoAnswer::Unreachable(failure) => CommandError::Unreachable(failure),
            NoAnswer::Refused(failure) => CommandError::UserError(failure),
        }
    }
}

fn main() -> ExitCode {
    let cli = match missing_features::parse() {
        Ok(cli) => cli,
        Err(failure) => {
            show_error(&failure, false);
            return ExitCode::from(2);
        }
    };
    start_log();
    let json = wants_json(&cli.command);
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(CommandError::Unfit) => ExitCode::from(1),
        Err(CommandError::Degraded) => ExitCode::from(4),
        Err(CommandError::Ended(code)) => ExitCode::from(code),
        Err(CommandError::UserError(failure)) => {
            show_error(&failure, json);
            ExitCode::from(if failure.code == "usage" { 2 } else { 1 })
        }
        Err(CommandError::Unreachable(failure)) => {
            show_error(&failure, json);
            ExitCode::from(3)
        }
        Err(CommandError::Config(error)) => {
            eprint!("{}", error.render(paint(&io::stderr())));
            ExitCode::from(1)
        }
    }
}

/// A state directory whose secrets are sealed, if the service manager gives a credential for that.
fn sealing(state_dir: &Path) -> Result<StateDir, UserError> {
    Ok(StateDir::new(state_dir).with_seal(SealKey::from_environment()?))
}

fn run(cli: Cli) -> CommandResult {
    let run_dir = std::path::absolute(&cli.run_dir);
    let run_dir = RunDir::new(run_dir.map_err(|error| UserError::io("--run-dir", &error))?);
    let state_dir = std::path::absolute(&cli.state_dir);
    let state_dir = state_dir.map_err(|error| UserError::io("--state-dir", &error))?;
    match cli.command {
        Command::Up(arguments) => up::up(run_dir, sealing(&state_dir)?, &arguments),
        Command::Down(output) => up::down(&run_dir, output),
        Command::Reload(output) => change(&run_dir, "/v1/reload", output),
        #[cfg(feature = "scan")]
        Command::Join {
            scan: Some(picture),
            output,
            ..
        } => bond::join(&run_dir, &state_dir, &scan::token(&picture)?, output),
        Command::Join { token, output, .. } => {
            bond::join(&run_dir, &state_dir, &token.unwrap_or_default(), output)
        }
        Command::Leave => bond::leave(&run_dir, &state_dir),
        Command::Bond(output) => bond::bond(&run_dir, output),
        Command::Web(command) => web::web(&run_dir, &command, "reload it", CommandError::from),
        Command::Failback(output) => change(&run_dir, "/v1/failback", output),
        Command::Status(output) => status(&run_dir, output),
        Command::Uplinks(arguments) => uplinks(&run_dir, &arguments),
        Command::Uplink(command) => pause::uplink(&run_dir, &command),
        Command::Rule(command) => pause::rule(&run_dir, &command),
        Command::Flows(arguments) => flows(&run_dir, &arguments),
        Command::Paths(output) => paths::paths(&run_dir, output),
        Command::History(arguments) => history::history(&run_dir, &arguments),
        Command::Measure(arguments) => measure::measure(&run_dir, &arguments),
        Command::Explain(arguments) => explain::explain(&run_dir, &arguments),
        #[cfg(feature = "top")]
        Command::Top { every } => top::top(&run_dir, std::time::Duration::from_secs_f64(every)),
        Command::Events(arguments) => events::events(&run_dir, &arguments),
        Command::Alarm(command) => alarm::alarm(&run_dir, command),
        Command::Run(arguments) => run::run(&run_dir, &arguments),
        #[cfg(feature = "hub")]
        Command::Hub(arguments) => hub::hub(&run_dir, &arguments),
        #[cfg(feature = "hub")]
        Command::Keygen(output) => hub::keygen(output),
        #[cfg(feature = "manual")]
        Command::Completions { shell } => Ok(manual::completions(shell)?),
        #[cfg(feature = "manual")]
        Command::Man { directory } => Ok(manual::pages(&directory)?),
        Command::Version(output) => version(&run_dir, output),
        Command::Doctor { config, output } => examine(&run_dir, config.as_deref(), output),
        Command::Config(ConfigCommand::Check { file, config }) => {
            config_check(file.or(config).as_deref())
        }
        Command::Config(ConfigCommand::Show {
            config,
            effective,
            output,
        }) => config_show(config.as_deref(), effective, output),
        #[cfg(feature = "emulate")]
        Command::Emulate(arguments) => emulate(braid_emulate::cli::run(*arguments)),
        #[cfg(feature = "emulate")]
        Command::EmulateCtl(arguments) => emulate(braid_emulate::cli::control(arguments)),
        #[cfg(feature = "edge")]
        Command::Edge(command) => edge::edge(&run_dir, command),
        Command::Lab(external) => {
            Err(external::exec_program("lab", &external.arguments, &[]).into())
        }
        Command::Sdn(external) => {
            let environment = [
                ("BRAID_RUN_DIR", run_dir.path()),
                ("BRAID_STATE_DIR", &state_dir),
            ];
            Err(external::exec_program("sdn", &external.arguments, &environment).into())
        }
    }
}

fn wants_json(command: &Command) -> bool {
    match command {
        Command::Up(arguments) => arguments.output.json && !arguments.detached,
        Command::Uplinks(arguments) => arguments.output.json,
        Command::Flows(arguments) => arguments.output.json,
        #[cfg(feature = "edge")]
        Command::Edge(braid_edge::cli::EdgeCommand::Status(arguments)) => arguments.json,
        Command::Measure(arguments) => arguments.output.json,
        Command::History(arguments) => arguments.output.json,
        Command::Explain(arguments) => arguments.output.json,
        Command::Events(arguments) => arguments.output.json && !arguments.follow,
        #[cfg(feature = "hub")]
        Command::Hub(arguments) => arguments.wants_json(),
        #[cfg(feature = "hub")]
        Command::Keygen(output) => output.json,
        Command::Down(output)
        | Command::Reload(output)
        | Command::Failback(output)
        | Command::Status(output)
        | Command::Paths(output)
        | Command::Bond(output)
        | Command::Join { output, .. }
        | Command::Version(output)
        | Command::Doctor { output, .. }
        | Command::Uplink(
            UplinkCommand::Pause { output, .. } | UplinkCommand::Resume { output, .. },
        )
        | Command::Rule(
            RuleCommand::List(output)
            | RuleCommand::Pause { output, .. }
            | RuleCommand::Resume { output, .. },
        )
        | Command::Alarm(AlarmCommand::List(output) | AlarmCommand::Test { output, .. })
        | Command::Config(ConfigCommand::Show { output, .. })
        | Command::Web(WebCommand::Token { output, .. }) => output.json,
        _ => false,
    }
}

/// Starts logging to standard error; BRAID_LOG sets the level (`warn`, `debug`, `braid_daemon=trace`).
fn start_log() {
    let asked = std::env::var("BRAID_LOG").unwrap_or_else(|_| "info".into());
    let filter = asked.parse::<Targets>();
    let refused = filter.is_err();
    let colour = paint(&io::stderr()) == braid_host::config::Paint::Colour;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(colour);
    tracing_subscriber::registry()
        .with(filter.unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO)))
        .with(lines)
        .init();
    if refused {
        tracing::warn!(
            "BRAID_LOG cannot be {asked:?}, so it is info; write a level or PART=LEVEL, with commas between"
        );
    }
}

/// Returns a single-threaded runtime: every command and the daemon do one thing at a time.
fn runtime() -> Result<tokio::runtime::Runtime, UserError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| UserError::io("start the event loop", &error))
}

fn ask<T: DeserializeOwned>(run_dir: &RunDir, path: &str) -> Result<T, CommandError> {
    Ok(runtime()?.block_on(client::get(run_dir, path))?)
}

fn status(run_dir: &RunDir, output: Output) -> CommandResult {
    let report: StatusReport = ask(run_dir, "/v1/status")?;
    answer_either(output.json, &report, |paint| show::status(&report, paint))?;
    if report.health.is_empty() {
        Ok(())
    } else {
        Err(CommandError::Degraded)
    }
}

/// Sends a change that concerns the uplinks, and prints them.
fn change(run_dir: &RunDir, path: &str, output: Output) -> CommandResult {
    let answer = runtime()?.block_on(client::post(run_dir, path));
    let report: UplinksReport = answer?;
    answer_either(output.json, &report, |paint| {
        show::uplinks(&report.uplinks, paint)
    })?;
    Ok(())
}

fn uplinks(run_dir: &RunDir, arguments: &UplinksArgs) -> CommandResult {
    let report: UplinksReport = ask(run_dir, "/v1/uplinks")?;
    answer_either(arguments.output.json, &report, |paint| {
        if arguments.names {
            let names = report.uplinks.iter();
            return names.map(|uplink| format!("{}\n", uplink.name)).collect();
        }
        show::uplinks(&report.uplinks, paint)
    })?;
    Ok(())
}

fn flows(run_dir: &RunDir, arguments: &FlowsArgs) -> CommandResult {
    let mut report: FlowsReport = ask(run_dir, "/v1/flows")?;
    if let Some(uplink) = &arguments.uplink {
        report.flows.retain(|flow| flow.uplink == *uplink);
        if report.flows.is_empty() {
            runtime()?.block_on(check_uplink(run_dir, uplink))?;
        }
    }
    answer_either(arguments.output.json, &report, |paint| {
        show::flows(&report, paint)
    })?;
    Ok(())
}

/// Refuses an unknown uplink name.
async fn check_uplink(run_dir: &RunDir, name: &str) -> CommandResult {
    let report: UplinksReport = client::get(run_dir, "/v1/uplinks").await?;
    let known = || report.uplinks.iter().map(|uplink| uplink.name.as_str());
    match known().any(|known| known == name) {
        true => Ok(()),
        false => Err(UserError::unknown_uplink(name, known()).into()),
    }
}

/// Prints the versions. Without a daemon, the datapath's is unknown.
fn version(run_dir: &RunDir, output: Output) -> CommandResult {
    let daemon = ask::<VersionReport>(run_dir, "/v1/version").ok();
    let report = VersionReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: COMMIT.map(str::to_owned),
        kernel: kernel_release(),
        datapath: daemon.and_then(|daemon| daemon.datapath),
    };
    answer_either(output.json, &report, |_| show::version(&report))?;
    Ok(())
}

fn examine(run_dir: &RunDir, file: Option<&Path>, output: Output) -> CommandResult {
    let (config, _) = Config::find(file)?;
    let settings = Settings::new(config, &Overrides::default())?;
    let selection = settings.selection()?;
    let examination = doctor::examine(&settings, &selection, run_dir.path());
    let findings = runtime()?.block_on(examination);
    #[cfg(feature = "edge")]
    let findings = with_edge_programs(findings);
    let worst = doctor::worst(&findings);
    let report = DoctorReport { findings };
    answer_either(output.json, &report, |paint| show::doctor(&report, paint))?;
    match worst {
        Level::Ok => Ok(()),
        Level::Warn => Err(CommandError::Degraded),
        Level::Fail => Err(CommandError::Unfit),
    }
}

/// Adds the kernel's verdict on the edge's programs, unless a finding already says that programs
/// cannot be loaded.
#[cfg(feature = "edge")]
fn with_edge_programs(mut findings: Vec<Finding>) -> Vec<Finding> {
    if findings.iter().any(|finding| finding.code == "programs") {
        let refused = braid_edge::rehearse();
        let refused: Vec<_> = refused.iter().map(ToString::to_string).collect();
        findings.push(doctor::edge_programs(&refused));
    }
    findings
}

fn config_check(file: Option<&Path>) -> CommandResult {
    let (config, path) = Config::find(file)?;
    if let Some(path) = &path {
        let (_, warnings) = Config::look(path)?;
        eprint!("{}", warnings.render(paint(&io::stderr())));
    }
    let place = path.map_or_else(|| format!("no {DEFAULT_PATH}"), |p| p.display().to_string());
    let uplinks = match config.uplinks.len() {
        0 => "uplinks found by their default routes".to_owned(),
        1 => "1 uplink".to_owned(),
        n => format!("{n} uplinks"),
    };
    Ok(answer(&format!(
        "{place}: good ({uplinks}, policy {})\n",
        config.policy
    ))?)
}

fn config_show(file: Option<&Path>, effective: bool, output: Output) -> CommandResult {
    let (config, path) = Config::find(file)?;
    if output.json {
        return Ok(answer_json(&config)?);
    }
    if effective {
        return Ok(answer(&config.to_toml())?);
    }
    let text = match path {
        None => format!("# no {DEFAULT_PATH}: --effective shows what that means\n"),
        Some(path) => std::fs::read_to_string(&path)
            .map_err(|error| UserError::io(format!("read {}", path.display()), &error))?,
    };
    Ok(answer(&text)?)
}

#[cfg(feature = "emulate")]
fn emulate(outcome: Result<(), braid_emulate::io::EmulatorError>) -> CommandResult {
    outcome.map_err(|error| UserError::new("emulate", error.to_string()).into())
}
