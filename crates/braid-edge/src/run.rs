//! A running edge: the eBPF programs, the resequencer's thread, and the thread that follows the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use braid_device::PacketSender;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::getpid;
use tokio::sync::watch;

use crate::controller::{self, Endpoint, FetchError, PathCounts, Report};
use crate::datapath::{
    Counted, Datapath, Devices, Hook, LEASE_RENEWAL, Layer, TagAction, TrafficCounters,
    monotonic_time,
};
use crate::driver::{Driver, Handle, MAX_QUEUED_REPLIES, Repair};
use crate::l3_paths::L3Paths;
use crate::l3_planner::Plan;
use crate::pair_monitor::PathQueue;
use crate::pair_prober::{PairProber, PathStates, ProbedEdge, ProbedPair, QUEUE_LIFETIME};
use crate::pair_repair::{PathLoss, Repairs};
use crate::path_loss::{RecentLoss, SentCounters};
use crate::path_prober::PathProber;
use crate::reorder_tap::ReorderTap;
use crate::reorderer::{Reordering, tag_action};
use crate::status::{listen, serve};
use crate::table::{Egress, Ingress, Table};
use crate::{Error, epoch, status};

mod report;

/// Delay before a failed request to the controller is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Shortest time between two requests that are given up because there is more to report: the controller
/// answers a limited number of them at once.
const URGENT_INTERVAL: Duration = Duration::from_secs(2);
/// Time for which the tags of removed paths stay valid: packets that waited in queues may arrive for as
/// long as the controller keeps the tags' rules.
const RETIRED_TAG_LIFETIME: Duration = Duration::from_secs(8);

/// Options of an edge.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name in the controller's configuration.
    pub name: String,
    /// Devices that the edge connects.
    pub devices: Devices,
    /// Source of the paths.
    pub control: ControlSource,
    /// Method by which packets are put in order.
    pub reordering: Reordering,
    /// Repair of losses.
    pub repair: Repair,
    /// True if other edges are asked to add shims to packets without readable sequence numbers.
    pub shim: bool,
    /// Method by which programs are attached.
    pub hook: Hook,
    /// Directory of the status socket.
    pub run_dir: PathBuf,
}

/// Source of paths and shares.
#[derive(Debug, Clone)]
pub enum ControlSource {
    /// Controllers, of which one leads: tagged paths.
    Controllers(Vec<Endpoint>),
    /// A file: layer-3 paths.
    File(PathBuf),
}

impl std::fmt::Display for ControlSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ControlSource::Controllers(endpoints) => {
                let names: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
                f.write_str(&names.join(", "))
            }
            ControlSource::File(path) => path.display().fmt(f),
        }
    }
}

/// State shared by the threads.
struct Edge {
    options: Options,
    datapath: Mutex<Datapath>,
    driver: Handle,
    state: Mutex<EdgeState>,
    /// Wakes the followers: there is more to report.
    urgent: watch::Sender<()>,
}

#[derive(Default)]
struct EdgeState {
    table: Option<Table>,
    /// The last answer of each controller, or of the file of layer-3 paths.
    answers: Vec<Answer>,
    /// Leadership of the controller whose table is in effect.
    leadership: u64,
    /// Tagged paths as this edge's probes show them.
    path_states: PathStates,
    /// Paths of which copies are kept.
    copied: BTreeSet<u16>,
    /// Paths that flows avoid which keep to one path.
    avoided: BTreeSet<u16>,
    /// Pairs to probe, until the prober has taken them.
    probed_pairs: Option<Vec<ProbedPair>>,
    /// Layer-3 paths that are down.
    silent_paths: Vec<String>,
    /// Prefixes of each layer-3 path, by tag.
    path_addresses: BTreeMap<u16, String>,
    /// Sources that have had several paths, and are resequenced from then on.
    resequenced: BTreeSet<String>,
    /// Tags of removed paths, and when they become invalid.
    retiring: BTreeMap<u16, Instant>,
}

/// Outcome of the last request for a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Answer {
    /// There was none yet.
    #[default]
    None,
    /// The table in effect is the newest one.
    Followed,
    /// The controller does not lead, for this reason.
    Misdirected(String),
    /// No new table is followed, for this reason; a stable code, and a text.
    Failed(&'static str, String),
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs an edge until SIGTERM or SIGINT; calls `ready` once packets pass.
pub fn run(options: Options, ready: impl FnOnce()) -> Result<(), Error> {
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGTERM);
    ends.add(Signal::SIGINT);
    // Before any thread starts, so that all inherit it.
    ends.thread_block()
        .map_err(|errno| Error::system("blocking signals", errno.into()))?;
    let l3_paths = match &options.control {
        ControlSource::Controllers(_) => None,
        ControlSource::File(path) => Some(L3Paths::open(path)?),
    };
    let socket = status::socket(&options.run_dir, &options.name);
    let listener = listen(&socket)?;
    let tap = ReorderTap::create(&options.devices.hold)?;
    let layer = match &l3_paths {
        None => Layer::Two,
        Some(_) => Layer::Three,
    };
    let epoch = epoch::next(&socket.with_extension("epoch"))?;
    let mut datapath =
        Datapath::attach(&options.devices, layer, options.hook, options.shim, epoch)?;
    let (answered, answers) = mpsc::sync_channel(MAX_QUEUED_REPLIES);
    let outside = datapath.outside_index();
    let unopened = |source| Error::system("opening a socket for tagged frames", source);
    let sender = match layer {
        Layer::Two => Some(PacketSender::open(outside).map_err(unopened)?),
        Layer::Three => None,
    };
    let (driver, handle) = Driver::new(tap, options.reordering, layer, answered, sender)?;
    let mut state = EdgeState::default();
    let prober = match l3_paths {
        None => None,
        Some(l3_paths) => {
            datapath.set_l3_paths(&l3_paths)?;
            state.path_addresses = path_addresses(&l3_paths);
            Some(PathProber::new(l3_paths)?)
        }
    };
    let edge = Arc::new(Edge {
        options,
        datapath: Mutex::new(datapath),
        driver: handle.clone(),
        state: Mutex::new(state),
        urgent: watch::Sender::new(()),
    });
    let resequencer = spawn("resequencer", || {
        let ended = driver.run();
        // An edge cannot work without this thread: end the process.
        let _ = kill(getpid(), Signal::SIGTERM);
        ended
    })?;
    if let Some(prober) = prober {
        let following = Arc::clone(&edge);
        spawn("prober", move || {
            prober.run(&answers, |plan| following.apply_plan(plan));
        })?;
    } else {
        let prober = PairProber::new(outside).map_err(unopened)?;
        let probed = Arc::clone(&edge);
        spawn("prober", move || prober.run(&answers, probed.as_ref()))?;
    }
    if let ControlSource::Controllers(endpoints) = edge.options.control.clone() {
        // Each is asked all the time: the next leader's answer comes as soon as it leads.
        for (number, endpoint) in endpoints.into_iter().enumerate() {
            let following = Arc::clone(&edge);
            spawn("follower", move || follow(&following, number, &endpoint))?;
        }
    }
    let renewing = Arc::clone(&edge);
    spawn("renewer", move || renew(&renewing))?;
    let answering = Arc::clone(&edge);
    spawn("status", move || serve(&listener, || answering.status()))?;
    ready();
    ends.wait()
        .map_err(|errno| Error::system("waiting for a signal", errno.into()))?;
    handle.end();
    let ended = resequencer.join();
    // The other threads hold the datapath too, and run until the process exits.
    locked(&edge.datapath).detach();
    let _ = std::fs::remove_file(&socket);
    ended.unwrap_or(Ok(()))
}

fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<thread::JoinHandle<T>, Error> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(body);
    thread.map_err(|source| Error::system("starting a thread", source))
}

/// Renews the programs' lease for ever.
fn renew(edge: &Edge) {
    loop {
        thread::sleep(LEASE_RENEWAL);
        if let Err(error) = locked(&edge.datapath).renew() {
            tracing::warn!(%error, "the programs' settings were not renewed");
        }
    }
}

/// Returns a name for each layer-3 path, by tag.
fn path_addresses(l3_paths: &L3Paths) -> BTreeMap<u16, String> {
    let paths = l3_paths.edges.iter().flat_map(|edge| &edge.paths);
    paths
        .map(|path| (path.tag, format!("{} - {}", path.local, path.remote)))
        .collect()
}

/// Follows a controller's tables for ever. While no controller answers, the last table holds.
fn follow(edge: &Edge, number: usize, endpoint: &Endpoint) {
    let mut revision = String::new();
    let options = &edge.options;
    let mut urgency = edge.urgent.subscribe();
    let mut interrupted: Option<Instant> = None;
    loop {
        let mut is_urgent = false;
        let urgent = async {
            if let Some(at) = interrupted {
                tokio::time::sleep_until((at + URGENT_INTERVAL).into()).await;
            }
            // The sender is the edge's, which outlives this.
            let _ = urgency.changed().await;
            is_urgent = true;
        };
        let report = edge.report();
        let answer = controller::fetch_table(endpoint, &options.name, &revision, &report, urgent);
        if is_urgent {
            interrupted = Some(Instant::now());
            // It tells nothing of the controller.
            if matches!(answer, Ok(None)) {
                continue;
            }
        }
        let answer = match answer {
            Ok(Some(table)) => {
                revision.clone_from(&table.revision);
                match edge.take_over(table) {
                    Ok(true) => Answer::Followed,
                    Ok(false) => Answer::Misdirected(format!("{endpoint} led before another one")),
                    Err(error) => Answer::Failed("not-applied", error.to_string()),
                }
            }
            Ok(None) => Answer::Followed,
            Err(error @ FetchError::Misdirected(..)) => Answer::Misdirected(error.to_string()),
            Err(error) => Answer::Failed(code(&error), error.to_string()),
        };
        let failed = answer != Answer::Followed;
        edge.note(number, answer);
        if failed {
            // A restarted controller may have given the same revision to another plan.
            revision.clear();
            thread::sleep(RETRY_INTERVAL);
        }
    }
}

fn code(error: &FetchError) -> &'static str {
    match error {
        FetchError::Unreachable { .. } => "controller-silent",
        FetchError::Unknown(_) => "edge-unknown",
        FetchError::Unauthorized(..) => "key-refused",
        FetchError::Unverified(_) | FetchError::Refused { .. } | FetchError::Misdirected(..) => {
            "controller-refuses"
        }
        FetchError::Table(_) => "bad-table",
    }
}

impl Edge {
    fn note(&self, number: usize, answer: Answer) {
        let mut state = locked(&self.state);
        if state.answers.len() <= number {
            state.answers.resize(number + 1, Answer::None);
        }
        if state.answers[number] == answer {
            return;
        }
        match &answer {
            Answer::Failed(code, text) => {
                tracing::warn!(code, text, "no new table; the last one holds")
            }
            Answer::Misdirected(text) => tracing::info!(text, "waiting until it leads"),
            Answer::None | Answer::Followed => {
                tracing::info!(control = %self.options.control, number, "following");
            }
        }
        state.answers[number] = answer;
    }

    /// Applies a controller's table; returns false for one of an earlier leadership than that in effect, which came late.
    /// A controller that begins to lead has no plan yet: what the one before told holds.
    fn take_over(&self, table: Table) -> Result<bool, Error> {
        let mut state = locked(&self.state);
        // A single controller tells of no leadership.
        if (1..state.leadership).contains(&table.leadership) {
            return Ok(false);
        }
        if table.pending && state.table.is_some() {
            return Ok(true);
        }
        state.leadership = table.leadership;
        self.apply_to(&mut state, table).map(|()| true)
    }

    /// Applies a plan for layer-3 paths; returns false if it was refused.
    fn apply_plan(&self, plan: Plan) -> bool {
        locked(&self.state).silent_paths = plan.silent_paths;
        let answer = match self.apply(plan.table) {
            Ok(()) => Answer::Followed,
            Err(error) => Answer::Failed("not-applied", error.to_string()),
        };
        let followed = answer == Answer::Followed;
        self.note(0, answer);
        followed
    }

    /// Returns the report for the controller.
    fn report(&self) -> Report {
        let counts = self.path_counts();
        Report {
            counts,
            states: locked(&self.state).path_states.clone(),
            shim: self.options.shim,
        }
    }

    /// Returns the packet counters of all paths in use.
    fn path_counts(&self) -> PathCounts {
        let state = locked(&self.state);
        let mut datapath = locked(&self.datapath);
        let Some(table) = &state.table else {
            return PathCounts::default();
        };
        let mut counted = |which, tags: BTreeSet<u16>| -> Vec<(u16, TrafficCounters)> {
            let count = |tag| Some((tag, datapath.traffic(which, tag).ok()?));
            tags.into_iter().filter_map(count).collect()
        };
        let slots = table.egress.iter().flat_map(|each| &each.slots).copied();
        let Ok(at) = monotonic_time() else {
            return PathCounts::default();
        };
        let received = counted(Counted::Received, ingress_tags(&table.ingress).collect());
        let sent = counted(Counted::Sent, slots.collect());
        let packets = |counted: &[(u16, TrafficCounters)]| {
            counted
                .iter()
                .map(|(tag, each)| (*tag, each.packets))
                .collect()
        };
        PathCounts {
            rx: packets(&received),
            rx_bytes: received
                .iter()
                .map(|(tag, each)| (*tag, each.bytes))
                .collect(),
            tx: packets(&sent),
            counted: at,
        }
    }

    /// Applies a table. Tags become valid before packets can arrive by them, and stay valid for a while
    /// afterwards. If the table is refused, the last one stays in effect.
    fn apply(&self, table: Table) -> Result<(), Error> {
        self.apply_to(&mut locked(&self.state), table)
    }

    fn apply_to(&self, state: &mut EdgeState, table: Table) -> Result<(), Error> {
        let mut datapath = locked(&self.datapath);
        let now = Instant::now();
        let mut tags: BTreeMap<u16, TagAction> = BTreeMap::new();
        let mut retiring = state.retiring.clone();
        retiring.retain(|tag, until| {
            let keep = *until > now;
            if !keep {
                tags.insert(*tag, TagAction::Drop);
            }
            keep
        });
        // Layer-3 paths stay valid whether or not this edge uses them.
        if let ControlSource::Controllers(_) = self.options.control {
            let before = state.table.iter();
            let before = before.flat_map(|table| ingress_tags(&table.ingress));
            retiring.extend(before.map(|tag| (tag, now + RETIRED_TAG_LIFETIME)));
        }
        for ingress in &table.ingress {
            let resequenced = state.resequenced.contains(&ingress.source);
            let tag_action = tag_action(self.options.reordering, ingress, resequenced);
            if tag_action == TagAction::Resequence {
                state.resequenced.insert(ingress.source.clone());
            }
            for path in &ingress.paths {
                retiring.remove(&path.tag);
                tags.insert(path.tag, tag_action);
            }
        }
        self.driver.set_table(table.ingress.clone());
        let silent = state.path_states.silent.clone();
        let known = state.table.iter();
        let known: BTreeSet<u16> = known
            .flat_map(|table| ingress_tags(&table.ingress))
            .chain(state.retiring.keys().copied())
            .collect();
        let followed = ingress_tags(&table.ingress)
            .filter(|tag| !known.contains(tag))
            .try_for_each(|tag| datapath.forget_arrivals(tag))
            .and_then(|()| datapath.set_tag_actions(tags))
            .and_then(|()| datapath.set_egress(&usable(&table.egress, &silent)));
        if let Err(error) = followed {
            if let Some(last) = &state.table {
                self.driver.set_table(last.ingress.clone());
                // If the kernel refuses this too, the next table repairs it.
                let _ = datapath.set_egress(&usable(&last.egress, &silent));
            }
            return Err(error);
        }
        state.probed_pairs = Some(ProbedPair::of(&table));
        let (generation, pairs) = (table.generation, table.egress.len());
        tracing::info!(generation, pairs, "following a new table");
        (state.table, state.retiring) = (Some(table), retiring);
        Ok(())
    }
}

impl ProbedEdge for Edge {
    fn poll_pairs(&self) -> Option<Vec<ProbedPair>> {
        locked(&self.state).probed_pairs.take()
    }

    fn sent(&self, tags: &[u16]) -> BTreeMap<u16, SentCounters> {
        let copies = self.driver.sent_copies();
        let mut datapath = locked(&self.datapath);
        let sent = |tag: &u16| {
            let TrafficCounters { packets, bytes } = datapath.traffic(Counted::Sent, *tag).ok()?;
            let packets = packets + copies.get(tag).copied().unwrap_or_default();
            Some((*tag, SentCounters { packets, bytes }))
        };
        tags.iter().filter_map(sent).collect()
    }

    fn kept_bytes(&self, tags: &[u16]) -> BTreeMap<u16, u64> {
        let mut datapath = locked(&self.datapath);
        let kept = |tag: &u16| Some((*tag, datapath.traffic(Counted::Kept, *tag).ok()?.bytes));
        tags.iter().filter_map(kept).collect()
    }

    fn repeated(&self) -> BTreeMap<u16, u64> {
        self.driver.repeated()
    }

    fn estimated_queues(&self, target: &str) -> BTreeMap<u16, Duration> {
        locked(&self.datapath)
            .estimated_queues(target)
            .unwrap_or_default()
    }

    fn follow_queues(&self, queues: &BTreeMap<u16, PathQueue>) {
        let end = monotonic_time().map(|now| now + QUEUE_LIFETIME);
        let set = end.and_then(|end| locked(&self.datapath).set_path_queues(queues, end));
        if let Err(error) = set {
            tracing::warn!(%error, "paths are chosen, and flows kept fair, by estimated queues");
        }
    }

    fn follow_losses(&self, losses: &BTreeMap<u16, RecentLoss>) {
        if let Err(error) = locked(&self.datapath).set_losses(losses, QUEUE_LIFETIME) {
            tracing::warn!(%error, "paths are chosen by what hosts send again");
        }
    }

    fn avoid(&self, avoided: &BTreeSet<u16>) {
        if let Err(error) = locked(&self.datapath).set_avoided(avoided) {
            tracing::warn!(%error, "flows keep to paths that lose packets");
        }
        tracing::info!(tags = ?avoided, "flows that keep to one path avoid these");
        locked(&self.state).avoided.clone_from(avoided);
    }

    fn repairs(&self) -> bool {
        self.options.repair == Repair::Auto
    }

    fn losses(&self, tags: &[u16]) -> BTreeMap<u16, PathLoss> {
        let repeated = self.driver.repeated();
        let mut datapath = locked(&self.datapath);
        let loss = |tag: &u16| {
            let (sent, lost) = datapath.loss(*tag).ok()?;
            let repeated = repeated.get(tag).copied().unwrap_or_default();
            Some((
                *tag,
                PathLoss {
                    sent,
                    lost,
                    repeated,
                },
            ))
        };
        tags.iter().filter_map(loss).collect()
    }

    fn repair(&self, repairs: &Repairs) {
        // Before the first copy comes.
        self.driver.set_repairs(repairs.clone());
        if let Err(error) = locked(&self.datapath).set_repairs(repairs) {
            tracing::warn!(%error, "no copies are kept");
        }
        let copied: BTreeSet<u16> = repairs.copied.keys().copied().collect();
        let mut state = locked(&self.state);
        if state.copied != copied {
            tracing::info!(tags = ?copied, "copies of what is sent by these paths are kept");
            state.copied = copied;
        }
    }

    /// Stops sending by silent paths, sends again by others, and tells the controller.
    fn follow(&self, states: PathStates) {
        let mut state = locked(&self.state);
        let before = std::mem::replace(&mut state.path_states, states);
        let silent = state.path_states.silent.clone();
        if silent == before.silent {
            return;
        }
        if let Some(table) = &state.table {
            let usable = usable(&table.egress, &silent);
            if let Err(error) = locked(&self.datapath).set_egress(&usable) {
                tracing::warn!(%error, "silent paths are not left");
            }
        }
        drop(state);
        for tag in silent.difference(&before.silent) {
            tracing::warn!(tag, "a path is silent");
        }
        for tag in before.silent.difference(&silent) {
            tracing::info!(tag, "a path is silent no more, or withdrawn");
        }
        // That a path works again changes nothing for the controller, which lets it rest.
        if !silent.is_subset(&before.silent) {
            self.urgent.send_replace(());
        }
    }
}

/// Returns what is sent to other edges while some paths are silent.
fn usable(egress: &[Egress], silent: &BTreeSet<u16>) -> Vec<Egress> {
    egress.iter().map(|each| each.without(silent)).collect()
}

fn ingress_tags(ingress: &[Ingress]) -> impl Iterator<Item = u16> + '_ {
    ingress
        .iter()
        .flat_map(|each| each.paths.iter().map(|path| path.tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{MAX_HOSTS, SLOTS};
    use crate::table::{DeliveryOrder, Egress, IngressPath, Mac};

    /// An edge on no devices, with a resequencer that does not run.
    fn edge(control: ControlSource) -> Edge {
        let devices = Devices {
            inside: "inside".to_owned(),
            outside: vec!["outside".to_owned()],
            hold: "hold".to_owned(),
        };
        let options = Options {
            name: "ha".to_owned(),
            devices,
            control,
            reordering: Reordering::Adaptive,
            repair: Repair::Auto,
            shim: false,
            hook: Hook::Auto,
            run_dir: PathBuf::new(),
        };
        let datapath = Datapath::loaded(Layer::Two).expect("programs (needs root)");
        Edge {
            options,
            datapath: Mutex::new(datapath),
            driver: Handle::pair().expect("a socket pair").0,
            state: Mutex::new(EdgeState::default()),
            urgent: watch::Sender::new(()),
        }
    }

    fn table(generation: u64, hosts: u32, tags: [u16; 2]) -> Table {
        let macs = (0..hosts).map(u32::to_be_bytes);
        let egress = Egress {
            target: "hb".to_owned(),
            hosts: macs.map(|[a, b, c, d]| Mac([2, 0, a, b, c, d])).collect(),
            slots: vec![tags[0]; SLOTS as usize],
            shim: false,
            max_rate_bit_s: 0,
            paths: Vec::new(),
        };
        let path = |tag| IngressPath {
            tag,
            latency_ms: None,
        };
        let ingress = Ingress {
            source: "hb".to_owned(),
            order: DeliveryOrder::Resequence,
            threshold_packets: 16,
            size_packets: 32,
            paths: tags.map(path).to_vec(),
            path_withdrawn: false,
        };
        Table::own(generation, vec![egress], vec![ingress])
    }

    #[test]
    fn a_table_that_the_kernel_refuses_leaves_the_last_one_in_effect() {
        let edge = edge(ControlSource::Controllers(Vec::new()));
        edge.apply(table(1, 1, [2, 3])).expect("a table");
        edge.apply(table(2, MAX_HOSTS + 1, [4, 5]))
            .expect_err("more hosts than remote may be");
        assert_eq!(locked(&edge.state).table, Some(table(1, 1, [2, 3])));
        assert!(locked(&edge.state).retiring.is_empty(), "they are in use");
        assert_eq!(locked(&edge.datapath).slots(0), [2; SLOTS as usize]);
        edge.apply(table(3, 1, [3, 4])).expect("a table");
        let state = locked(&edge.state);
        assert_eq!(state.table, Some(table(3, 1, [3, 4])));
        assert_eq!(state.retiring.keys().copied().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_controller_without_a_plan_leaves_the_table_of_the_one_before_in_effect() {
        let edge = edge(ControlSource::Controllers(Vec::new()));
        let pending = || {
            let mut table = Table::own(0, Vec::new(), Vec::new());
            table.pending = true;
            table
        };
        // The first one of all is better than none.
        edge.take_over(pending()).expect("a table");
        assert_eq!(locked(&edge.state).table, Some(pending()));
        edge.take_over(table(7, 1, [2, 3])).expect("a table");
        edge.take_over(pending()).expect("a table");
        assert_eq!(locked(&edge.state).table, Some(table(7, 1, [2, 3])));
        assert_eq!(locked(&edge.datapath).slots(0), [2; SLOTS as usize]);
        edge.take_over(table(1, 1, [4, 5])).expect("a table");
        assert_eq!(locked(&edge.state).table, Some(table(1, 1, [4, 5])));
        // Another one leads; what the first still had to say comes after its table.
        let led = |leadership, tags| {
            let mut table = table(2, 1, tags);
            table.leadership = leadership;
            table
        };
        for (leadership, tags, taken) in [
            (40, [2, 3], true),
            (55, [4, 5], true),
            (40, [6, 7], false),
            (55, [6, 8], true),
            (0, [2, 3], true),
        ] {
            let before = locked(&edge.state).table.clone();
            let table = led(leadership, tags);
            assert_eq!(edge.take_over(table.clone()).expect("a table"), taken);
            let expected = if taken { Some(table) } else { before };
            assert_eq!(locked(&edge.state).table, expected);
        }
    }

    #[test]
    fn silent_paths_are_left_also_by_the_next_table_and_taken_back() {
        let edge = edge(ControlSource::Controllers(Vec::new()));
        let mut first = table(1, 1, [2, 3]);
        first.egress[0].slots[1] = 3;
        edge.apply(first.clone()).expect("a table");
        let pairs = edge.poll_pairs().expect("pairs");
        assert_eq!((pairs.len(), &pairs[0].returns), (1, &vec![2, 3]));
        assert_eq!(edge.poll_pairs(), None, "they are the same");
        let states = |silent: &[u16]| PathStates {
            probed: BTreeSet::from([2, 3]),
            silent: silent.iter().copied().collect(),
        };
        edge.follow(states(&[2]));
        assert_eq!(locked(&edge.datapath).slots(0), [3; SLOTS as usize]);
        assert_eq!(edge.report().states, states(&[2]));
        first.generation = 2;
        edge.apply(first.clone()).expect("a table");
        assert_eq!(locked(&edge.datapath).slots(0), [3; SLOTS as usize]);
        edge.follow(states(&[]));
        assert_eq!(locked(&edge.datapath).slots(0)[..3], [2, 3, 2]);
        // All of them: none is left.
        edge.follow(states(&[2, 3]));
        assert_eq!(locked(&edge.datapath).slots(0)[..3], [2, 3, 2]);
    }

    #[test]
    fn layer_3_paths_are_known_as_long_as_they_are_in_the_file() {
        let edge = edge(ControlSource::File(PathBuf::new()));
        edge.apply(table(1, 1, [2, 3])).expect("a plan");
        edge.apply(table(2, 1, [2, 2])).expect("a plan without one");
        // The far edge may take it up again before this one does.
        assert!(locked(&edge.state).retiring.is_empty());
    }
}
