//! `braid up` and `braid down`.

use std::path::PathBuf;
use std::process::Command;

use braid_daemon::config::{Config, Overrides, Settings, SettingsSource};
use braid_daemon::doctor::preflight;
use braid_daemon::launch::{self, Pipe};
use braid_daemon::report::{DownReport, UpReport};
use braid_daemon::serve::{self, DaemonOptions, ProgressObserver};
use braid_daemon::teardown;
use braid_host::config::ConfigError;
use braid_host::run_dir::RunDir;
use braid_host::state_dir::StateDir;
use braid_host::user_error::UserError;

use crate::cli::{Output, UpArgs};
use crate::client::{self, NoAnswer};
use crate::terminal::{Progress, answer, answer_either, answer_json};
use crate::{CommandError, CommandResult, runtime, show};

/// Starts the daemon, in the background unless asked otherwise.
pub fn up(run_dir: RunDir, state_dir: StateDir, arguments: &UpArgs) -> CommandResult {
    if arguments.detached {
        return detached(run_dir, state_dir, arguments);
    }
    let options = daemon_options(run_dir.clone(), state_dir, arguments)?;
    preflight::check()?;
    if arguments.foreground {
        let mut herald = Terminal {
            json: arguments.output.json,
        };
        return Ok(runtime()?.block_on(serve::run(options, &mut herald))?);
    }
    let progress = Progress::of("braid up");
    progress.step("starting the daemon");
    let command = again(&run_dir, &options)?;
    let was_clean = !run_dir.state().exists();
    let report = launch::background(command, &run_dir, |what| progress.step(what));
    drop(progress);
    match report {
        Ok(report) => announce(&report, arguments.output.json),
        Err(failure) if failure.code == launch::INTERRUPTED => {
            Err(interrupted(&run_dir, was_clean, failure))
        }
        Err(failure) => Err(failure.into()),
    }
}

/// Undoes a start that a signal interrupted, if no datapath was there before.
fn interrupted(run_dir: &RunDir, was_clean: bool, failure: UserError) -> CommandError {
    if !was_clean {
        let fix = "traffic goes on as before; braid up takes it over, braid down undoes everything";
        return failure.fix(fix).into();
    }
    let undone = runtime().map_err(CommandError::from);
    match undone.and_then(|runtime| runtime.block_on(clean_up(run_dir))) {
        Ok(_) => failure
            .fix("the machine is as it was; braid up starts it again")
            .into(),
        Err(stop) => stop,
    }
}

fn announce(report: &UpReport, json: bool) -> CommandResult {
    Ok(answer_either(json, report, |paint| {
        show::up(report, paint)
    })?)
}

fn daemon_options(
    run_dir: RunDir,
    state_dir: StateDir,
    arguments: &UpArgs,
) -> Result<DaemonOptions, CommandError> {
    // The daemon works in another directory.
    let absolute =
        |path| std::path::absolute(path).map_err(|error| UserError::io("--config", &error));
    let settings_source = SettingsSource {
        file: arguments.config.as_ref().map(absolute).transpose()?,
        overrides: Overrides {
            policy: arguments.policy.map(Into::into),
            weights: arguments.weights.clone(),
        },
    };
    // Parsed here only for its diagnostics; the daemon reads it itself, now and at every reload.
    let (config, _) = Config::find(arguments.config.as_deref())?;
    Settings::new(config, &settings_source.overrides)?;
    Ok(DaemonOptions {
        run_dir,
        state_dir,
        settings_source,
        commit: crate::COMMIT,
    })
}

/// Returns the command that runs this program again as the daemon in the background.
fn again(run_dir: &RunDir, options: &DaemonOptions) -> Result<Command, UserError> {
    let settings_source = &options.settings_source;
    let program = std::env::current_exe().map_err(|error| UserError::io("find myself", &error))?;
    let mut command = Command::new(program);
    command
        .arg("--run-dir")
        .arg(run_dir.path())
        .arg("--state-dir")
        .arg(options.state_dir.path())
        .args(["up", "--foreground", "--detached"]);
    if let Some(config) = &settings_source.file {
        command.arg("--config").arg(config);
    }
    if let Some(policy) = settings_source.overrides.policy {
        command.arg("--policy").arg(policy.to_string());
    }
    for (name, weight) in &settings_source.overrides.weights {
        command.arg("--weight").arg(format!("{name}={weight}"));
    }
    Ok(command)
}

/// Runs the background daemon, which reports to the process that started it.
fn detached(run_dir: RunDir, state_dir: StateDir, arguments: &UpArgs) -> CommandResult {
    let mut pipe = Pipe::detach()?;
    let outcome = daemon_options(run_dir, state_dir, arguments)
        .and_then(|options| Ok(runtime()?.block_on(serve::run(options, &mut pipe))?));
    if let Err(stop) = &outcome {
        pipe.failed(match stop {
            CommandError::UserError(failure) => failure.clone(),
            // The starting process has read the file without an error a moment ago.
            CommandError::Config(error) => UserError::new("config", error.to_string()),
            CommandError::Unreachable(failure) => failure.clone(),
            CommandError::Unfit | CommandError::Degraded | CommandError::Ended(_) => {
                UserError::new("health", "not as it should be")
            }
        });
    }
    outcome
}

/// Start-up progress of a foreground daemon, printed to the terminal.
struct Terminal {
    json: bool,
}

impl ProgressObserver for Terminal {
    fn step(&mut self, what: &str) {
        tracing::info!("{what}");
    }

    fn ready(&mut self, report: UpReport) {
        if let Err(stop) = announce(&report, self.json) {
            tracing::warn!(?stop, "cannot tell that the daemon is ready");
        }
    }
}

/// Stops the daemon, or cleans up after one that died.
pub fn down(run_dir: &RunDir, output: Output) -> CommandResult {
    let progress = Progress::of("braid down");
    progress.step("undoing what was changed");
    let report = runtime()?.block_on(async {
        match run_dir.holder() {
            Some(pid) => ask_down(run_dir, pid).await,
            None => clean_up(run_dir).await,
        }
    })?;
    drop(progress);
    answer_down(&report, output, "braid")?;
    let hub = run_dir.path().join(crate::HUB_DIRECTORY);
    if !output.json && RunDir::new(hub).state().exists() {
        eprintln!("# a hub is, or was, at work here as well: braid hub down ends and undoes it");
    }
    Ok(())
}

/// Prints what was undone.
pub fn answer_down(report: &DownReport, output: Output, what: &str) -> CommandResult {
    if output.json {
        return Ok(answer_json(report)?);
    }
    let text = match report.undone.as_slice() {
        [] => format!("nothing to undo: {what} is not up\n"),
        undone => format!(
            "{}\n# down: the machine is as it was found\n",
            undone.join("\n")
        ),
    };
    Ok(answer(&text)?)
}

async fn ask_down(run_dir: &RunDir, pid: u32) -> Result<DownReport, CommandError> {
    match client::post(run_dir, "/v1/down").await {
        Ok(report) => Ok(report),
        Err(NoAnswer::Refused(failure)) => Err(failure.into()),
        // A user without access to the API may not stop the daemon either.
        Err(NoAnswer::Unreachable(failure)) if failure.code == "forbidden" => {
            Err(CommandError::Unreachable(failure))
        }
        Err(NoAnswer::Unreachable(failure)) => {
            let fix = format!("kill {pid}, then braid down again");
            Err(CommandError::Unreachable(failure.fix(fix)))
        }
    }
}

async fn clean_up(run_dir: &RunDir) -> Result<DownReport, CommandError> {
    let path: PathBuf = run_dir.path().to_owned();
    if !path.exists() {
        return Ok(DownReport::default());
    }
    preflight::check()?;
    let _lock = run_dir.lock()?;
    Ok(teardown::remove(run_dir).await?)
}

impl From<ConfigError> for CommandError {
    fn from(error: ConfigError) -> CommandError {
        CommandError::Config(error)
    }
}
