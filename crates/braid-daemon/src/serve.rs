//! The daemon's loop: one thread that owns everything and does one thing at a time.

use std::future::pending;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::api::{self, Job};
use crate::config::Config;
use crate::engine::{Engine, Started};
use crate::failure::Failure;
use crate::peer::Gate;
use crate::preflight;
use crate::report::UpReport;
use crate::run_dir::{NetworkClaim, RunDir};
use crate::settings::{Overrides, Settings};
use crate::teardown;

/// Least time between two sweeps of the flow table. Idle times are minutes; closed TCP flows free
/// their ports a few seconds late at worst, and a reused port needs no sweep.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// A sweep of a large table takes its time: at most a twentieth of it goes into sweeping.
const SWEEP_SHARE: u32 = 20;
/// How soon to try again after a change could not be followed.
const RETRY: Duration = Duration::from_secs(1);
/// How long the last answers may take to go out before the daemon ends all the same.
const FAREWELL: Duration = Duration::from_secs(2);
/// Questions that may wait for the loop; more askers wait at the socket.
const QUESTIONS: usize = 16;

/// What the daemon is to do.
pub struct Assignment {
    /// Where it lives.
    pub run_dir: RunDir,
    /// What it works by.
    pub config: Config,
    /// What the command line said besides.
    pub overrides: Overrides,
    /// Commit of the build, for `GET /v1/version`.
    pub commit: Option<&'static str>,
}

/// News from a daemon that starts.
pub trait Herald {
    /// What is being done now.
    fn step(&mut self, what: &str);
    /// It is at work: all that was asked for is in the kernel, and the API answers.
    fn ready(&mut self, report: UpReport);
}

/// Runs the daemon until it is told to end. Ended by a signal it leaves the traffic flowing; ended
/// by `POST /v1/down` it leaves the machine as it was found.
///
/// # Errors
/// Why it could not start; or, at the end, what could not be undone.
pub async fn run(assignment: Assignment, herald: &mut dyn Herald) -> Result<(), Failure> {
    preflight::check()?;
    let Assignment {
        run_dir,
        config,
        overrides,
        commit,
    } = assignment;
    let settings = Settings::new(config, &overrides)?;
    let gate = Gate::new(settings.config.api.group.as_deref())?;
    run_dir.create()?;
    let _lock = run_dir.lock()?;
    // Signals from here on end the daemon in order, and not in the middle of a change.
    let signals = Signals::new()?;
    let begun = begin(settings, &overrides, &run_dir, herald).await;
    if begun.is_err() && !run_dir.state().exists() {
        // Nothing was at work before and nothing is now: then nothing stays.
        run_dir.clear()?;
    }
    let (started, _claim) = begun?;

    let (jobs, mut questions) = mpsc::channel(QUESTIONS);
    let (end, ended) = oneshot::channel::<()>();
    let end_of_service = async {
        // Sent or dropped: either way the service is over.
        let _ = ended.await;
    };
    let listener = api::bind(&run_dir, &gate)?;
    let service = tokio::spawn(api::serve(listener, gate, jobs, commit, end_of_service));
    herald.ready(report(&started)?);
    tracing::info!(pid = std::process::id(), "ready");

    let asked_down = follow(started, &mut questions, signals).await;
    let outcome = match asked_down {
        Some(answer) => {
            let outcome = teardown::remove(&run_dir).await;
            tracing::info!("down");
            let result = outcome.as_ref().map(|_| ()).map_err(Failure::clone);
            // An asker that has hung up still gets the machine undone.
            let _ = answer.send(outcome);
            result
        }
        None => {
            tracing::info!("ending, traffic goes on; braid down removes everything");
            Ok(())
        }
    };
    drop(end);
    farewell(service).await;
    outcome
}

async fn begin(
    settings: Settings,
    overrides: &Overrides,
    run_dir: &RunDir,
    herald: &mut dyn Herald,
) -> Result<(Started, NetworkClaim), Failure> {
    let claim = NetworkClaim::take()?;
    let step = |what: &str| herald.step(what);
    let started = Engine::start(settings, overrides, run_dir.clone(), step).await?;
    Ok((started, claim))
}

/// Does what comes up until the end. Returns who asked for everything to be undone, if that is why.
async fn follow(
    started: Started,
    questions: &mut mpsc::Receiver<Job>,
    mut signals: Signals,
) -> Option<oneshot::Sender<Result<crate::report::DownReport, Failure>>> {
    let Started {
        mut engine,
        mut watch,
        ..
    } = started;
    let mut sweep_at = Instant::now() + SWEEP_EVERY;
    let mut retry_at: Option<Instant> = None;
    loop {
        tokio::select! {
            () = signals.any() => return None,
            job = questions.recv() => match job {
                Some(Job::Ask(question)) => question(&engine),
                Some(Job::Down(answer)) => return Some(answer),
                // The service holds the other end until the loop is over.
                None => return None,
            },
            change = watch.next(), if retry_at.is_none() => {
                let failed = match change {
                    Ok(snapshot) => engine.reconcile(&snapshot).await.err(),
                    Err(error) => Some(Failure::from(error)),
                };
                retry_at = note(&mut engine, failed);
            },
            () = until(retry_at) => {
                let failed = match braid_uplink::netlink::read().await {
                    Ok(snapshot) => engine.reconcile(&snapshot).await.err(),
                    Err(error) => Some(Failure::from(error)),
                };
                retry_at = note(&mut engine, failed);
            },
            () = sleep_until(sweep_at) => {
                let pause = match engine.sweep() {
                    Ok(report) => {
                        tracing::debug!(?report, "swept");
                        SWEEP_EVERY.max(report.took * SWEEP_SHARE)
                    }
                    Err(failure) => {
                        tracing::warn!(%failure, "cannot sweep the flow table");
                        SWEEP_EVERY
                    }
                };
                sweep_at = Instant::now() + pause;
            },
        }
    }
}

/// Remembers how following a change went; after a failure, when to try again.
fn note(engine: &mut Engine, failed: Option<Failure>) -> Option<Instant> {
    if let Some(failure) = &failed
        && engine.trouble.reconcile.as_ref() != Some(failure)
    {
        tracing::warn!(%failure, "cannot follow a change of the network");
    }
    engine.trouble.reconcile = failed;
    engine
        .trouble
        .reconcile
        .as_ref()
        .map(|_| Instant::now() + RETRY)
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

async fn farewell(service: JoinHandle<std::io::Result<()>>) {
    match timeout(FAREWELL, service).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => tracing::warn!(%error, "the API ended badly"),
        Ok(Err(error)) => tracing::warn!(%error, "the API ended badly"),
        Err(_) => tracing::debug!("an asker did not fetch its answer"),
    }
}

fn report(started: &Started) -> Result<UpReport, Failure> {
    let engine = &started.engine;
    Ok(UpReport {
        pid: std::process::id(),
        adopted: started.adopted,
        policy: engine.settings.config.policy,
        uplinks: engine.uplinks()?.uplinks,
        passed_over: engine.passed_over.iter().map(ToString::to_string).collect(),
    })
}

/// The signals that end a daemon.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Signals, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::io("listen for signals", &error));
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
