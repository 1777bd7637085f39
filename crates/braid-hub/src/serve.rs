//! The hub's loop: one thread that owns the book and does one thing at a time. Packets have a thread
//! of their own, which never waits for this one.

use std::cell::Cell;
use std::net::IpAddr;
use std::time::Duration;

use axum::response::Response;
use braid_bond::io::{self, Enrol, HubEvent, Tun};
use braid_bond::proto::handshake::{Identity, PublicKey, terms};
use braid_bond::token::InvitationId;
use braid_daemon::api_socket;
use braid_daemon::config::ConfigError;
use braid_daemon::metrics::offer;
use braid_daemon::peer::PeerAuth;
use braid_daemon::quota::STORE_INTERVAL;
use braid_daemon::run_dir::RunDir;
use braid_daemon::service_notify::ServiceNotifier;
use braid_daemon::user_error::UserError;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, timeout};

use crate::api::{self, Job};
use crate::client_registry::ClientRegistry;
use crate::config::HubConfig;
use crate::host_setup::{self, bond_failure, has_family};
use crate::hub::{Hub, now, peer, random};
use crate::nftables::Filter;
use crate::pool::AddressPool;
use crate::store::{Embedded, Store, StoredIdentity};

/// How often figures are taken into the book.
const RECORD_INTERVAL: Duration = Duration::from_secs(2);
/// How often they are kept: what a `kill -9` may cost of them. Those of quotas are kept as the daemon's are.
const PERSIST_INTERVAL: Duration = Duration::from_secs(60);
/// How long the last answers may take to go out before the hub ends all the same.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// How long a hub may take to end when another process asks it to.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Questions that may wait for the loop; more askers wait at the socket.
const MAX_QUEUED_JOBS: usize = 16;
/// News of the packets' thread that may wait for the loop. More is dropped: a key that is not heard
/// asks again, and what else there is to hear is for the log.
const MAX_QUEUED_EVENTS: usize = 256;

/// News of the packets' thread.
enum PacketThreadEvent {
    Enrol(PublicKey, InvitationId),
    Event(HubEvent),
}

/// Runs the hub until SIGTERM or SIGINT. What it changed stays, so that connections go on with the next one; see
/// [`down`]. `ready` is told once it serves. SIGHUP has it read its configuration anew by `read`.
///
/// # Errors
/// Why it could not start, or why it stopped by itself.
pub async fn run(
    run_dir: RunDir,
    read: impl Fn() -> Result<HubConfig, ConfigError>,
    ready: impl FnOnce(&Hub),
) -> Result<(), UserError> {
    let read = || {
        let mut config = read()?;
        config
            .listen
            .retain(|address| address.ip() != unspecified_v6() || has_family(address.ip()));
        Ok(config)
    };
    let config = read()?;
    let gate = PeerAuth::new(&config.api)?;
    run_dir.create()?;
    let _lock = run_dir
        .lock()
        .map_err(|failure| match failure.code.as_str() {
            "second-daemon" => {
                failure.fix("braid hub status shows what it does; it ends by SIGTERM")
            }
            _ => failure,
        })?;
    let signals = Signals::new()?;
    let mut store = Embedded::open(&config.store)?;
    let founding = store.load_or_create(StoredIdentity {
        private: random()?,
        global: random()?,
    })?;
    let epoch = store.count_start()?;
    let identity = Identity::new(founding.private);
    let pool = AddressPool::new(config.networks(founding.global));
    let pool = pool.map_err(|error| UserError::new("pool", error.to_string()))?;
    let mut registry = ClientRegistry::open(Box::new(store), pool.clone())?;
    registry.configure(config.clients.clone(), now());
    host_setup::remove_other_devices(&run_dir, &config.device)?;
    host_setup::check(&pool, &config.device)?;
    let was_clean = !run_dir.state().exists();
    let served = Cell::new(false);
    let ready = |hub: &Hub| {
        served.set(true);
        ready(hub);
    };
    let outcome = async {
        // Before the device: whatever is there after an error, `braid hub down` knows of it.
        let filter = host_setup::filter(&config, &registry, now());
        host_setup::set_up(&config, filter.as_ref(), &run_dir).await?;
        let tun = host_setup::open_device(&config, &pool).await?;
        serve(
            &run_dir, config, &read, identity, epoch, registry, filter, tun, gate, signals, ready,
        )
        .await
    };
    let outcome = outcome.await;
    if outcome.is_err() && was_clean && !served.get() {
        host_setup::undo(&run_dir).await?;
    }
    outcome
}

/// Ends a hub that runs, and leaves the machine as it was found before the first one; says what was undone.
///
/// # Errors
/// It does not end, or the system refused; what could not be undone is still written down.
pub async fn down(run_dir: &RunDir) -> Result<Vec<String>, UserError> {
    if !run_dir.path().exists() {
        return Ok(Vec::new());
    }
    if let Some(pid) = run_dir.holder() {
        let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM)
            .map_err(|errno| UserError::io(format!("end the hub, process {pid}"), &errno.into()))?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        while run_dir.holder().is_some() {
            if Instant::now() > deadline {
                let text = format!("the hub, process {pid}, has not ended in {STOP_TIMEOUT:?}");
                return Err(UserError::new("hub-runs", text)
                    .fix(format!("kill -9 {pid}, then braid hub down again")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let _lock = run_dir.lock()?;
    host_setup::undo(run_dir).await
}

fn unspecified_v6() -> IpAddr {
    std::net::Ipv6Addr::UNSPECIFIED.into()
}

#[expect(
    clippy::too_many_arguments,
    reason = "what `run` has prepared, handed over once"
)]
async fn serve(
    run_dir: &RunDir,
    config: HubConfig,
    read: &dyn Fn() -> Result<HubConfig, ConfigError>,
    identity: Identity,
    epoch: u64,
    registry: ClientRegistry,
    filter: Option<Filter>,
    tun: Tun,
    gate: PeerAuth,
    signals: Signals,
    ready: impl FnOnce(&Hub),
) -> Result<(), UserError> {
    let (tell, events) = mpsc::channel(MAX_QUEUED_EVENTS);
    let handle = io::hub::start(io::HubConfig {
        tun,
        identity: identity.clone(),
        epoch,
        listen: config.listen.clone(),
        mark: None,
        peers: registry
            .joined_terms()
            .into_iter()
            .map(|answer| peer(answer, config.gre))
            .collect(),
        between_peers: config.between_clients,
        enrol: Some(enrol_callback(tell.clone())),
        events: Box::new(move |event| {
            let died = matches!(event, HubEvent::Failed(_));
            // The loop notices a dead end by itself; everything else is for the log.
            if tell.try_send(PacketThreadEvent::Event(event)).is_err() && !died {
                tracing::debug!("more happens than can be told of");
            }
        }),
    })
    .map_err(bond_failure)?;
    let metrics =
        match config.metrics.listen {
            Some(address) => Some(TcpListener::bind(address).await.map_err(|error| {
                UserError::io(format!("[metrics] listen = \"{address}\""), &error)
            })?),
            None => None,
        };
    let listener = api_socket::bind(run_dir, &gate)?;
    let (jobs, pending_jobs) = mpsc::channel::<Job>(MAX_QUEUED_JOBS);
    let (end, ended) = oneshot::channel::<()>();
    let end_of_service = async {
        // Sent or dropped: either way the service is over.
        let _ = ended.await;
    };
    if let Some(metrics) = metrics {
        let jobs = jobs.clone();
        let answer = move || -> std::pin::Pin<Box<dyn Future<Output = Response> + Send>> {
            Box::pin(api::scrape(jobs.clone()))
        };
        tokio::spawn(offer(metrics, answer));
    }
    let service = tokio::spawn(api::serve(listener, gate, jobs, end_of_service));
    let mut hub = Hub::new(config, identity, registry, filter, handle);
    ready(&hub);
    let notifier = ServiceNotifier::from_environment();
    notifier.ready();
    let outcome = event_loop(&mut hub, read, pending_jobs, events, signals, notifier).await;
    // What was carried until now counts; of an end that died by itself there is nothing to ask.
    let _ = hub.record();
    hub.persist();
    hub.handle.stop();
    drop(end);
    if timeout(SHUTDOWN_GRACE, service).await.is_err() {
        tracing::debug!("an asker did not fetch its answer");
    }
    outcome
}

/// Hands keys that are not known, and name an invitation, over to the loop.
fn enrol_callback(tell: mpsc::Sender<PacketThreadEvent>) -> Enrol {
    Box::new(move |key, options| {
        if let Some(invitation) = terms::invitation(options) {
            // A key that is not heard asks again.
            let _ = tell.try_send(PacketThreadEvent::Enrol(key, invitation));
        }
        None
    })
}

async fn event_loop(
    hub: &mut Hub,
    read: &dyn Fn() -> Result<HubConfig, ConfigError>,
    mut pending_jobs: mpsc::Receiver<Job>,
    mut events: mpsc::Receiver<PacketThreadEvent>,
    mut signals: Signals,
    mut notifier: ServiceNotifier,
) -> Result<(), UserError> {
    let mut note = interval(RECORD_INTERVAL);
    note.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut keep = interval_at(Instant::now() + PERSIST_INTERVAL, PERSIST_INTERVAL);
    let mut count = interval_at(Instant::now() + STORE_INTERVAL, STORE_INTERVAL);
    loop {
        tokio::select! {
            () = end(&mut signals.terminate, &mut signals.interrupt) => {
                notifier.stopping();
                return Ok(());
            }
            _ = signals.reload.recv() => {
                hub.reload(read());
                hub.update_filter().await;
            }
            Some(job) = pending_jobs.recv() => {
                job(hub);
                // Somebody may have been invited or revoked.
                hub.update_filter().await;
            }
            Some(told) = events.recv() => match told {
                PacketThreadEvent::Enrol(key, invitation) => hub.enrol(key, invitation),
                PacketThreadEvent::Event(HubEvent::Peer(key, event)) => hub.handle_event(key, &event),
                PacketThreadEvent::Event(HubEvent::Failed(error)) => return Err(bond_failure(error)),
            },
            _ = note.tick() => {
                hub.record()?;
                let counts = hub.status()?.clients;
                let status = format!("{} of {} clients connected", counts.connected, counts.joined);
                notifier.worked(std::time::Instant::now(), status);
            }
            _ = keep.tick() => hub.persist(),
            _ = count.tick() => hub.persist_quotas(),
        }
    }
}

/// The signals that end a hub, and the one that has it read its configuration.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    reload: Signal,
}

impl Signals {
    fn new() -> Result<Signals, UserError> {
        let listen =
            |kind| signal(kind).map_err(|error| UserError::io("listen for signals", &error));
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            reload: listen(SignalKind::hangup())?,
        })
    }
}

async fn end(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
