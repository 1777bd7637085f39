//! The daemon's event loop: one thread owns everything and handles one event at a time.

use std::future::pending;
use std::os::fd::OwnedFd;
use std::time::Duration;

use braid_host::api_socket;
use braid_host::peer::PeerAuth;
use braid_host::run_dir::{NetworkClaim, RunDir};
use braid_host::service_notify::ServiceNotifier;
use braid_host::state::PreviousState;
use braid_host::state_dir::StateDir;
use braid_host::user_error::UserError;
use braid_host::web::WebAccess;
use braid_uplink::liveness::ProbeResult;
use braid_uplink::{NetworkMonitor, Snapshot};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep_until, timeout};

use crate::alarms;
use crate::api::stream::LiveFeed;
use crate::api::{self, ApiState, Job, metrics_listener};
use crate::bond::BondEvent;
use crate::config::{Settings, SettingsSource};
use crate::doctor::preflight;
use crate::engine::{Engine, Started};
use crate::path_cache_store::PathCacheSnapshot;
use crate::report::{DownReport, UpReport};
use crate::teardown;
use crate::user_errors;

/// Shortest interval between two sweeps of the flow table. Idle times are minutes; closed TCP flows free their
/// ports a few seconds late at worst, and a reused port needs no sweep.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after a sweep, in units of its duration: at most a twentieth of the time goes into sweeping.
const SWEEP_PAUSE_FACTOR: u32 = 20;
/// Interval between two looks at the control groups that rules name.
const CGROUP_INTERVAL: Duration = Duration::from_secs(1);
/// Delay until a failed change is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time for the last answers of the API before the daemon ends anyway.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Requests that may wait for the loop; further clients wait at the socket.
const MAX_WAITING_REQUESTS: usize = 16;

/// Options of the daemon.
pub struct DaemonOptions {
    /// The run directory.
    pub run_dir: RunDir,
    /// The state directory, which outlives a reboot.
    pub state_dir: StateDir,
    /// Source of the settings.
    pub settings_source: SettingsSource,
    /// Commit of the build, for `GET /v1/version`.
    pub commit: Option<&'static str>,
}

/// Observer of a daemon's start.
pub trait ProgressObserver {
    /// Called at each step of the start.
    fn step(&mut self, what: &str);
    /// Called when the start is complete: everything is in the kernel, and the API answers.
    fn ready(&mut self, report: UpReport);
}

/// Runs the daemon until it is told to end. After a signal it leaves the traffic flowing; after `POST /v1/down`
/// it restores the machine.
///
/// # Errors
/// The reason that it could not start, or the changes that could not be undone at the end.
pub async fn run(
    options: DaemonOptions,
    observer: &mut dyn ProgressObserver,
) -> Result<(), UserError> {
    preflight::check()?;
    let DaemonOptions {
        run_dir,
        state_dir,
        settings_source,
        commit,
    } = options;
    let settings = settings_source.read()?;
    let gate = PeerAuth::new(&settings.config.api)?;
    run_dir.create()?;
    let _lock = run_dir.lock()?;
    // From here on signals end the daemon in order, and not in the middle of a change.
    let signals = Signals::new()?;
    let listener = api_socket::bind(&run_dir, &gate)?;
    let web = WebAccess::open(state_dir.clone(), "web", "braid web token")?;
    let begun = begin(settings, settings_source, &run_dir, state_dir, observer).await;
    if begun.is_err() && !run_dir.state().exists() {
        // If nothing was at work before and nothing is now, no file stays.
        run_dir.clear()?;
    }
    let (started, claim) = begun?;

    let (jobs, mut requests) = mpsc::channel(MAX_WAITING_REQUESTS);
    let (end, ended) = oneshot::channel::<()>();
    let end_of_service = async {
        // Sent or dropped: either ends the service.
        let _ = ended.await;
    };
    tokio::spawn(metrics_listener::export(jobs.clone()));
    tokio::spawn(alarms::watch(jobs.clone()));
    let feed = LiveFeed::new();
    tokio::spawn(feed.clone().make(jobs.clone()));
    let api = ApiState {
        jobs,
        feed,
        web,
        commit,
    };
    tokio::spawn(api::serve_page(api.clone()));
    let service = tokio::spawn(api::serve(listener, gate.clone(), api, end_of_service));
    observer.ready(started.report);
    tracing::info!(pid = std::process::id(), "ready");

    let notifier = ServiceNotifier::from_environment();
    notifier.ready();
    let mut following = Loop {
        run_dir: &run_dir,
        engine: started.engine,
        gate,
        watch: started.watch,
        answers: started.answers,
        bond_events: started.bond_events,
        notices: readiness(started.notices)?,
        notifier,
        sweep_at: Instant::now() + SWEEP_INTERVAL,
        cgroups_at: Instant::now() + CGROUP_INTERVAL,
        retry_at: None,
    };
    let asked_down = following.follow(&mut requests, signals).await;
    following.notifier.stopping();
    following.engine.end_bond();
    following.engine.release_datapath();
    following.engine.history.finish();
    let outcome = match asked_down {
        Some(answer) => {
            let state = following.engine.state().clone();
            let snapshot = following.engine.path_cache_snapshot();
            let outcome = teardown::undo(&run_dir, PreviousState::State(state)).await;
            save_path_cache(snapshot, &run_dir);
            tracing::info!("down");
            let result = outcome.as_ref().map(|_| ()).map_err(UserError::clone);
            // The client of this answer may start another daemon at once.
            drop(claim);
            // The machine is restored even if the client has hung up.
            let _ = answer.send(outcome);
            result
        }
        None => {
            following.engine.note_end();
            tracing::info!("ending, traffic goes on; braid down removes everything");
            Ok(())
        }
    };
    // Waiting clients learn at once that this is over, and do not delay the end.
    drop(requests);
    drop(end);
    finish_service(service).await;
    outcome
}

/// Saves the path cache for the next instance. A failure loses nothing that cannot be learned again.
fn save_path_cache(snapshot: Result<Option<PathCacheSnapshot>, UserError>, run_dir: &RunDir) {
    let left = snapshot.and_then(|kept| kept.map_or(Ok(()), |kept| kept.save(run_dir)));
    if let Err(failure) = left {
        tracing::warn!(%failure, "cannot save the path cache");
    }
}

async fn begin(
    settings: Settings,
    settings_source: SettingsSource,
    run_dir: &RunDir,
    state_dir: StateDir,
    observer: &mut dyn ProgressObserver,
) -> Result<(Started, NetworkClaim), UserError> {
    let claim = NetworkClaim::take()?;
    let step = |what: &str| observer.step(what);
    let started =
        Engine::start(settings, settings_source, run_dir.clone(), state_dir, step).await?;
    Ok((started, claim))
}

/// State of the loop.
struct Loop<'a> {
    run_dir: &'a RunDir,
    engine: Engine,
    gate: PeerAuth,
    watch: NetworkMonitor,
    answers: mpsc::UnboundedReceiver<ProbeResult>,
    bond_events: mpsc::UnboundedReceiver<BondEvent>,
    notices: AsyncFd<OwnedFd>,
    notifier: ServiceNotifier,
    sweep_at: Instant,
    cgroups_at: Instant,
    /// Time of the retry of a change that failed.
    retry_at: Option<Instant>,
}

impl Loop<'_> {
    /// Handles events until the end. Returns the channel for the answer if the end was requested through the
    /// API.
    async fn follow(
        &mut self,
        requests: &mut mpsc::Receiver<Job>,
        mut signals: Signals,
    ) -> Option<oneshot::Sender<Result<DownReport, UserError>>> {
        loop {
            let next_tick = Instant::from_std(self.engine.next_tick());
            let next_fragments = self.engine.next_fragments().map(Instant::from_std);
            tokio::select! {
                signal = signals.next() => match signal {
                    DaemonSignal::End => return None,
                    // Nobody waits for the answer: it is in the log and in the health problems.
                    DaemonSignal::Reload => drop(self.reload().await),
                },
                job = requests.recv() => match job {
                    Some(Job::Ask(question)) => question(&self.engine),
                    Some(Job::Change(change)) => change(&mut self.engine),
                    Some(Job::Reload(answer)) => {
                        let outcome = self.reload().await;
                        // A client that has hung up needs no answer.
                        let _ = answer.send(outcome.and_then(|()| self.engine.uplinks()));
                    }
                    Some(Job::FollowRules(answer)) => {
                        let outcome = self.follow_rules().await;
                        // As above.
                        let _ = answer.send(outcome.map(|()| self.engine.rules_report()));
                    }
                    Some(Job::TellSenders(answer)) => {
                        // As above.
                        let _ = answer.send(self.engine.tell_senders().await);
                    }
                    Some(Job::Down(answer)) => return Some(answer),
                    // The API service keeps the other end until the loop is over.
                    None => return None,
                },
                change = self.watch.next() => self.change(change).await,
                Some(bond_events) = self.bond_events.recv() => self.handle_bond_event(bond_events).await,
                () = until(self.retry_at) => {
                    let snapshot = braid_uplink::netlink::read().await;
                    self.retry_at = None;
                    self.change(snapshot).await;
                }
                Some(answer) = self.answers.recv() => {
                    let outcome = self.engine.handle_probe_result(answer);
                    self.handle_outcome(outcome);
                }
                Ok(mut ready) = self.notices.readable() => {
                    let outcome = self.engine.handle_upcalls();
                    if !matches!(outcome, Ok(true)) {
                        ready.clear_ready();
                    }
                    drop(ready);
                    self.handle_outcome(outcome.map(drop));
                }
                () = until(next_fragments) => {
                    let outcome = self.engine.forward_fragments();
                    self.handle_outcome(outcome);
                }
                () = sleep_until(next_tick) => self.tick().await,
                () = sleep_until(self.sweep_at) => self.sweep(),
                () = sleep_until(self.cgroups_at) => self.follow_cgroups().await,
            }
        }
    }

    async fn reload(&mut self) -> Result<(), UserError> {
        self.notifier.reloading();
        let outcome = self.engine.reload(&self.gate).await;
        if outcome.is_err() {
            // The old configuration may not be in place again either.
            self.retry_at.get_or_insert(Instant::now() + RETRY_DELAY);
        }
        self.notifier.ready();
        outcome
    }

    /// Has rules by control group hold for groups that have been made since, as those of units that were started.
    async fn follow_cgroups(&mut self) {
        self.cgroups_at = Instant::now() + CGROUP_INTERVAL;
        if self.engine.has_other_cgroups() {
            let outcome = self.follow_rules().await;
            self.handle_outcome(outcome);
        }
    }

    async fn follow_rules(&mut self) -> Result<(), UserError> {
        let outcome = self.engine.follow_rules().await;
        if outcome.is_err() {
            self.retry_at.get_or_insert(Instant::now() + RETRY_DELAY);
        }
        outcome
    }

    /// Handles a change of the network. While an earlier one waits for its retry, only what must not wait is
    /// done: otherwise this daemon's own unfinished changes would cause retries without pause.
    async fn change(&mut self, change: Result<Snapshot, braid_uplink::Error>) {
        self.note_unread();
        let outcome = match change {
            Ok(snapshot) if self.retry_at.is_some() => {
                let outcome = self.engine.notice(&snapshot);
                return self.handle_outcome(outcome);
            }
            Ok(snapshot) => self.engine.reconcile(&snapshot).await,
            Err(error) => Err(user_errors::of_uplinks(error)),
        };
        if outcome.is_ok() {
            self.engine.incidents.reconcile_error = None;
        }
        self.handle_outcome(outcome);
    }

    /// Handles all waiting events of the bond.
    async fn handle_bond_event(&mut self, bond_events: BondEvent) {
        self.engine.handle_bond_event(bond_events);
        while let Ok(bond_events) = self.bond_events.try_recv() {
            self.engine.handle_bond_event(bond_events);
        }
        let snapshot = braid_uplink::netlink::read().await;
        self.change(snapshot).await;
    }

    async fn tick(&mut self) {
        // After a long operation, answers may wait in their sockets. They are read before silence is judged:
        // the first yield finds them, the second delivers them.
        yield_now().await;
        yield_now().await;
        while let Ok(answer) = self.answers.try_recv() {
            let outcome = self.engine.handle_probe_result(answer);
            self.handle_outcome(outcome);
        }
        // The same holds for device events: a grace period may only end if none of these is unread.
        if let Ok(change) = timeout(Duration::ZERO, self.watch.next()).await {
            self.change(change).await;
        }
        self.note_unread();
        let outcome = self.engine.tick();
        if outcome.is_ok() {
            let status = self.engine.summary();
            self.notifier.worked(std::time::Instant::now(), status);
        }
        self.handle_outcome(outcome);
        let outcome = match self.engine.end_overdue_pauses() {
            Ok(true) => self.follow_rules().await,
            ended => ended.map(drop),
        };
        self.handle_outcome(outcome);
    }

    fn note_unread(&mut self) {
        let since = self.watch.unread_since().map(Instant::into_std);
        self.engine.note_unread(since);
    }

    fn sweep(&mut self) {
        let pause = match self.engine.sweep() {
            Ok(report) => {
                tracing::debug!(?report, "swept");
                SWEEP_INTERVAL.max(report.took * SWEEP_PAUSE_FACTOR)
            }
            Err(failure) => {
                tracing::warn!(%failure, "cannot sweep the flow table");
                SWEEP_INTERVAL
            }
        };
        self.sweep_at = Instant::now() + pause;
        if let Err(error) = self.run_dir.bound_log() {
            tracing::debug!(%error, "cannot put the log aside");
        }
    }

    /// Records a failed change and schedules its retry.
    fn handle_outcome(&mut self, outcome: Result<(), UserError>) {
        let Err(failure) = outcome else { return };
        let trouble = &mut self.engine.incidents.reconcile_error;
        if trouble.as_ref() != Some(&failure) {
            tracing::warn!(%failure, "cannot follow a change of the network");
        }
        *trouble = Some(failure);
        self.retry_at = Some(Instant::now() + RETRY_DELAY);
    }
}

/// Waits for a descriptor.
#[expect(
    deprecated,
    reason = "what replaces it is unsafe, for descriptors that somebody else may close; this one is owned"
)]
fn readiness(descriptor: OwnedFd) -> Result<AsyncFd<OwnedFd>, UserError> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
        .map_err(|error| UserError::io("listen to the datapath", &error))
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

async fn finish_service(service: JoinHandle<()>) {
    match timeout(SHUTDOWN_TIMEOUT, service).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the API server failed"),
        Err(_) => tracing::debug!("a client did not read its response in time"),
    }
}

/// Commands to the daemon by signal.
enum DaemonSignal {
    /// SIGTERM or SIGINT.
    End,
    /// SIGHUP.
    Reload,
}

/// The signals that the daemon handles.
struct Signals {
    reload: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Signals, UserError> {
        let listen =
            |kind| signal(kind).map_err(|error| UserError::io("listen for signals", &error));
        Ok(Signals {
            reload: listen(SignalKind::hangup())?,
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> DaemonSignal {
        tokio::select! {
            _ = self.terminate.recv() => DaemonSignal::End,
            _ = self.interrupt.recv() => DaemonSignal::End,
            _ = self.reload.recv() => DaemonSignal::Reload,
        }
    }
}
