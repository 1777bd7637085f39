//! The daemon's loop: one thread that owns everything and does one thing at a time.

use std::future::pending;
use std::time::Duration;

use braid_uplink::Watch;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::api::{self, Job};
use crate::engine::{Engine, Started};
use crate::failure::Failure;
use crate::metrics;
use crate::peer::Gate;
use crate::preflight;
use crate::report::{DownReport, UpReport};
use crate::run_dir::{NetworkClaim, RunDir};
use crate::settings::{Origin, Settings};
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
    pub origin: Origin,
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
        origin,
        commit,
    } = assignment;
    let settings = origin.read()?;
    let gate = Gate::new(settings.config.api.group.as_deref())?;
    run_dir.create()?;
    let _lock = run_dir.lock()?;
    // Signals from here on end the daemon in order, and not in the middle of a change.
    let signals = Signals::new()?;
    let listener = api::bind(&run_dir, &gate)?;
    let begun = begin(settings, origin, &run_dir, herald).await;
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
    tokio::spawn(metrics::export(jobs.clone()));
    let service = tokio::spawn(api::serve(listener, gate, jobs, commit, end_of_service));
    herald.ready(started.report);
    tracing::info!(pid = std::process::id(), "ready");

    let asked_down = follow(
        &run_dir,
        started.engine,
        started.watch,
        &mut questions,
        signals,
    )
    .await;
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
    origin: Origin,
    run_dir: &RunDir,
    herald: &mut dyn Herald,
) -> Result<(Started, NetworkClaim), Failure> {
    let claim = NetworkClaim::take()?;
    let step = |what: &str| herald.step(what);
    let started = Engine::start(settings, origin, run_dir.clone(), step).await?;
    Ok((started, claim))
}

/// Does what comes up until the end. Returns who asked for everything to be undone, if that is why.
async fn follow(
    run_dir: &RunDir,
    mut engine: Engine,
    mut watch: Watch,
    questions: &mut mpsc::Receiver<Job>,
    mut signals: Signals,
) -> Option<oneshot::Sender<Result<DownReport, Failure>>> {
    let mut sweep_at = Instant::now() + SWEEP_EVERY;
    let mut retry_at: Option<Instant> = None;
    loop {
        tokio::select! {
            told = signals.next() => match told {
                Told::End => return None,
                // Nobody waits for the answer: the log and the health lines have it.
                Told::Reload => drop(engine.reload().await),
            },
            job = questions.recv() => match job {
                Some(Job::Ask(question)) => question(&engine),
                Some(Job::Change(change)) => change(&mut engine),
                Some(Job::Reload(answer)) => {
                    let outcome = engine.reload().await;
                    // An asker that has hung up needs no answer.
                    let _ = answer.send(outcome.and_then(|()| engine.uplinks()));
                }
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
                if let Err(error) = run_dir.bound_log() {
                    tracing::debug!(%error, "cannot put the log aside");
                }
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

/// What a daemon is told by signals.
enum Told {
    /// SIGTERM or SIGINT.
    End,
    /// SIGHUP.
    Reload,
}

/// The signals that a daemon listens to.
struct Signals {
    reload: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Signals, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::io("listen for signals", &error));
        Ok(Signals {
            reload: listen(SignalKind::hangup())?,
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::End,
            _ = self.interrupt.recv() => Told::End,
            _ = self.reload.recv() => Told::Reload,
        }
    }
}
