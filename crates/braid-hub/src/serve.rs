//! The hub's main loop: one thread that owns the registry and does one thing at a time. Packets
//! have a thread of their own, which never waits for this one.

use std::cell::Cell;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use axum::response::Response;
use braid_bond::io::{self, Enrol, HubEvent, Tun};
use braid_bond::proto::handshake::{EpochKey, EpochKeys, PublicKey, terms};
use braid_bond::token::InvitationId;
use braid_host::api_socket;
use braid_host::config::ConfigError;
use braid_host::metrics::offer;
use braid_host::peer::PeerAuth;
use braid_host::privileges::{self, Confinement, Files};
use braid_host::quota::STORE_INTERVAL;
use braid_host::run_dir::RunDir;
use braid_host::seal::SealKey;
use braid_host::service_notify::ServiceNotifier;
use braid_host::state_dir::StateDir;
use braid_host::user_error::UserError;
use braid_host::web::{BoundPage, WebAccess};
use caps::Capability;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, sleep_until, timeout};

use crate::api::{self, Action, Job};
use crate::client_registry::ClientRegistry;
use crate::config::HubConfig;
use crate::host_setup::{self, bond_failure, has_family};
use crate::hub::{Hub, now, peer, random, random_key};
use crate::nftables::Filter;
use crate::pool::AddressPool;
use crate::store::{Embedded, Store, StoredIdentity};

/// Interval at which traffic is recorded in the registry.
const RECORD_INTERVAL: Duration = Duration::from_secs(2);
/// Interval at which counters are saved: a `kill -9` loses at most this. Quotas are saved as often
/// as the daemon's.
const PERSIST_INTERVAL: Duration = Duration::from_secs(60);
/// Longest wait for the last replies before the hub ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// Longest wait for a hub that another process stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Least time between two answers to all who want to see the hub's state. Each time the packet thread copies the state of
/// all peers, and packets wait.
const READ_INTERVAL: Duration = Duration::from_millis(100);
/// Most readers that are answered together; further requests wait in the queue.
const MAX_READERS: usize = 64;
/// Requests queued for the loop; further clients wait at the socket.
const MAX_QUEUED_JOBS: usize = 16;
/// Events of the packet thread queued for the loop. More are dropped: an unknown key asks again,
/// sessions of an epoch whose keys are dropped cannot be reset, and other events are only logged.
const MAX_QUEUED_EVENTS: usize = 256;

/// Capabilities that a start needs: the device, addresses, forwarding, the filter and larger buffers; ports below 1024;
/// the group of the API's socket; the packet thread's priority; GRE.
const STARTING: [Capability; 5] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_BIND_SERVICE,
    Capability::CAP_CHOWN,
    Capability::CAP_SYS_NICE,
    Capability::CAP_NET_RAW,
];
/// Those that the loop keeps, and `nft` gets: for the filter, which follows the clients. The packet thread keeps none.
const SERVING: [Capability; 1] = [Capability::CAP_NET_ADMIN];

/// Beginning of the names of the page's files, which are beside the store. A daemon may have its own there.
const PAGE_FILES: &str = "hub-web";

/// Event of the packet thread.
enum PacketThreadEvent {
    Enrol(PublicKey, InvitationId),
    Event(HubEvent),
}

/// Runs the hub until SIGTERM or SIGINT. The kernel set-up stays, so that connections continue with
/// the next hub; see [`down`]. `ready` is called once it serves. On SIGHUP it calls `read` to
/// reload its configuration, which is in `config_file`.
///
/// It gives up all privileges that it does not need; so must the caller have one thread.
///
/// # Errors
/// The hub cannot start, or has stopped by itself.
pub async fn run(
    run_dir: RunDir,
    config_file: &Path,
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
    privileges::keep_capabilities(&STARTING, &SERVING)?;
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
    let seal = SealKey::from_environment()?;
    let web = WebAccess::open(
        StateDir::new(folder_of(&config.store)).with_seal(seal.clone()),
        PAGE_FILES,
        "braid hub web token",
    )?;
    let mut store = Embedded::open(&config.store, seal)?;
    let identity = store.load_or_create(StoredIdentity::new(random_key()?, random()?))?;
    let epochs = EpochKeys::new(EpochKey::new(random_key()?), store.epochs()?);
    store.put_epochs(&epochs)?;
    let pool = AddressPool::new(config.networks(identity.global));
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
        // Before the device is opened: `braid hub down` must know of everything that an error
        // leaves.
        let filter = host_setup::filter(&config, &registry, now());
        host_setup::set_up(&config, filter.as_ref(), &run_dir).await?;
        let tun = host_setup::open_device(&config, &pool).await?;
        // Its certificate may be in any folder.
        let page = config.web.listen;
        let page = page.map(|listen| BoundPage::bind(&web, &config.web, listen));
        let page = page.transpose()?;
        keep_files(&run_dir, config_file, &config.store)?;
        serve(
            &run_dir, config, &read, identity, epochs, registry, filter, tun, gate, web, page,
            signals, ready,
        )
        .await
    };
    let outcome = outcome.await;
    if outcome.is_err() && was_clean && !served.get() {
        host_setup::undo(&run_dir).await?;
    }
    outcome
}

/// Keeps the hub, its packet thread and `nft` to the files that they need.
fn keep_files(run_dir: &RunDir, config_file: &Path, store: &Path) -> Result<(), UserError> {
    // A start that fails undoes what it did to the machine.
    let machine = ["/dev/null", "/dev/net/tun", "/proc/sys/net"].map(Path::new);
    let write = [&machine[..], &[run_dir.path(), folder_of(store)]].concat();
    // Another file may be put in the configuration's place.
    let config = folder_of(config_file);
    let read: Vec<&Path> = config.exists().then_some(config).into_iter().collect();
    let confinement = privileges::keep_files(Files {
        read: &read,
        write: &write,
        prune: &[folder_of(run_dir.path())],
    })?;
    match confinement {
        Confinement::Full => {}
        Confinement::Partial => {
            tracing::info!("this kernel knows an older landlock: it keeps the hub from most files");
        }
        Confinement::None => {
            tracing::warn!("this kernel has no landlock: the hub can open every file of root's");
        }
    }
    Ok(())
}

fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        None => file,
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
    }
}

/// Stops a running hub, and restores the state of the machine before the first one. Returns a line
/// for each thing undone.
///
/// # Errors
/// It does not end, or the system refused; the remaining changes are still recorded.
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
    identity: StoredIdentity,
    epochs: EpochKeys,
    registry: ClientRegistry,
    filter: Option<Filter>,
    tun: Tun,
    gate: PeerAuth,
    web: WebAccess,
    page: Option<BoundPage>,
    signals: Signals,
    ready: impl FnOnce(&Hub),
) -> Result<(), UserError> {
    let (tell, events) = mpsc::channel(MAX_QUEUED_EVENTS);
    let keys = identity.keys_at(now());
    let handle = io::hub::start(io::HubConfig {
        tun,
        keys: keys.clone(),
        epochs,
        listen: config.listen.clone(),
        mark: None,
        gre: config.gre,
        peers: registry
            .joined_terms()
            .into_iter()
            .map(|answer| peer(answer, config.gre))
            .collect(),
        between_peers: config.between_clients,
        enrol: Some(enrol_callback(tell.clone())),
        events: Box::new(move |event| {
            let died = matches!(event, HubEvent::Failed(_));
            // The loop notices a failed packet thread by itself, and can do without other events.
            if tell.try_send(PacketThreadEvent::Event(event)).is_err() && !died {
                tracing::debug!("the event queue is full, an event is dropped");
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
    privileges::keep_capabilities(&SERVING, &SERVING)?;
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
    let page = page
        .map(|page| page.serve(api::page(jobs.clone())))
        .transpose()?;
    let service = tokio::spawn(api::serve(listener, gate, jobs, web, end_of_service));
    let mut hub = Hub::new(config, identity, keys, registry, filter, handle);
    ready(&hub);
    let notifier = ServiceNotifier::from_environment();
    notifier.ready();
    let outcome = event_loop(&mut hub, read, pending_jobs, events, signals, notifier).await;
    // Traffic until now counts. A failed packet thread has no status.
    let _ = hub.record();
    hub.persist();
    hub.handle.stop();
    drop(end);
    if let Some(page) = page {
        page.stop().await;
    }
    if timeout(SHUTDOWN_GRACE, service).await.is_err() {
        tracing::debug!("a client did not read its reply in time");
    }
    outcome
}

/// Hands unknown keys that name an invitation over to the loop.
fn enrol_callback(tell: mpsc::Sender<PacketThreadEvent>) -> Enrol {
    Box::new(move |key, options| {
        if let Some(invitation) = terms::invitation(options) {
            // A dropped key asks again.
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
    let mut readers: Vec<Action> = Vec::new();
    let mut next_read = Instant::now();
    loop {
        hub.forget_snapshot();
        tokio::select! {
            () = end(&mut signals.terminate, &mut signals.interrupt) => {
                notifier.stopping();
                return Ok(());
            }
            _ = signals.reload.recv() => {
                hub.reload(read());
                hub.update_filter().await;
            }
            Some(job) = pending_jobs.recv(), if readers.len() < MAX_READERS => match job {
                Job::Read(show) => readers.push(show),
                Job::Change(change) => {
                    change(hub);
                    // A client may have been invited or revoked.
                    hub.update_filter().await;
                }
            },
            () = sleep_until(next_read), if !readers.is_empty() => {
                next_read = Instant::now() + READ_INTERVAL;
                readers.drain(..).for_each(|show| show(hub));
                // An invitation may have expired.
                hub.update_filter().await;
            }
            Some(told) = events.recv() => match told {
                PacketThreadEvent::Enrol(key, invitation) => hub.enrol(key, invitation),
                PacketThreadEvent::Event(HubEvent::Peer(key, event)) => hub.handle_event(key, &event),
                // The registry notes an error.
                PacketThreadEvent::Event(HubEvent::Epochs(epochs)) => _ = hub.registry.put_epochs(&epochs),
                PacketThreadEvent::Event(HubEvent::NoGre(why)) => hub.gre_error = Some(why),
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

/// Signals that end a hub, and the one that reloads its configuration.
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
