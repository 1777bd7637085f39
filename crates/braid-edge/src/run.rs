//! An edge at work: the programs, the resequencer's thread, and what follows the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::getpid;

use crate::controller::{self, Passed, Place};
use crate::datapath::{Datapath, Devices, Hook, Layer, RENEWAL, Treatment};
use crate::driver::{ANSWERS, Driver, Handle};
use crate::hold::Hold;
use crate::keep::Keeper;
use crate::order::{Ordering, treatment};
use crate::plan::Plan;
use crate::status::{listen, serve};
use crate::table::{Inward, Table};
use crate::ways::Ways;
use crate::{Error, epoch, status};

mod telling;

/// How soon a controller that does not answer is asked again.
const AGAIN: Duration = Duration::from_millis(200);
/// How long tags are known that are no path's any more: packets may still come by them, and have
/// waited in queues for as long as the controller keeps the tags' rules.
const LINGER: Duration = Duration::from_secs(8);

/// What an edge is told at its start.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its name, as the controller's configuration has it.
    pub name: String,
    /// The devices that it joins.
    pub devices: Devices,
    /// Who says what its paths are.
    pub guide: Guide,
    /// How packets are put in order.
    pub ordering: Ordering,
    /// Whether others are asked to number what has no numbers that an edge can read.
    pub shim: bool,
    /// How its programs are put on the devices.
    pub hook: Hook,
    /// Where it answers.
    pub run_dir: PathBuf,
}

/// Who says what paths there are, and what each carries.
#[derive(Debug, Clone)]
pub enum Guide {
    /// A controller, of tags.
    Controller(Place),
    /// A file, of pairs of addresses.
    File(PathBuf),
}

impl std::fmt::Display for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Guide::Controller(place) => place.fmt(f),
            Guide::File(path) => path.display().fmt(f),
        }
    }
}

/// What the threads have in common.
struct Edge {
    options: Options,
    datapath: Mutex<Datapath>,
    driver: Handle,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    table: Option<Table>,
    /// Why the controller has no table for us; none while it has.
    problem: Option<(&'static str, String)>,
    /// Layer-3 paths that do not carry.
    silent: Vec<String>,
    /// Where each path's packets go, of layer-3 paths.
    ends: BTreeMap<u16, String>,
    /// Sources that had several paths at some time.
    ordered: BTreeSet<String>,
    /// Tags that were paths', and until when they are known.
    lingering: BTreeMap<u16, Instant>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs until SIGTERM or SIGINT; `ready` is called once packets pass.
pub fn run(options: Options, ready: impl FnOnce()) -> Result<(), Error> {
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGTERM);
    ends.add(Signal::SIGINT);
    // Before any thread is there, so that all have it so.
    ends.thread_block()
        .map_err(|errno| Error::system("blocking signals", errno.into()))?;
    let ways = match &options.guide {
        Guide::Controller(_) => None,
        Guide::File(path) => Some(Ways::open(path)?),
    };
    let socket = status::socket(&options.run_dir, &options.name);
    let listener = listen(&socket)?;
    let hold = Hold::create(&options.devices.hold)?;
    let layer = match &ways {
        None => Layer::Two,
        Some(_) => Layer::Three,
    };
    let epoch = epoch::next(&socket.with_extension("epoch"))?;
    let mut datapath =
        Datapath::attach(&options.devices, layer, options.hook, options.shim, epoch)?;
    let (answered, answers) = mpsc::sync_channel(ANSWERS);
    let answered = ways.is_some().then_some(answered);
    let (driver, handle) = Driver::new(hold, options.ordering, answered)?;
    let mut known = Known::default();
    let keeper = match ways {
        None => None,
        Some(ways) => {
            datapath.know(&ways)?;
            known.ends = names(&ways);
            Some(Keeper::new(ways)?)
        }
    };
    let edge = Arc::new(Edge {
        options,
        datapath: Mutex::new(datapath),
        driver: handle.clone(),
        known: Mutex::new(known),
    });
    let resequencer = spawn("resequencer", || {
        let ended = driver.run();
        // Whatever ended it, the edge is none without it.
        let _ = kill(getpid(), Signal::SIGTERM);
        ended
    })?;
    let following = Arc::clone(&edge);
    match keeper {
        Some(keeper) => spawn("keeper", move || {
            keeper.run(&answers, |plan| following.keep(plan));
        })?,
        None => spawn("follower", move || follow(&following))?,
    };
    let renewing = Arc::clone(&edge);
    spawn("renewer", move || renew(&renewing))?;
    let answering = Arc::clone(&edge);
    spawn("status", move || serve(&listener, || answering.status()))?;
    ready();
    ends.wait()
        .map_err(|errno| Error::system("waiting for a signal", errno.into()))?;
    handle.end();
    let ended = resequencer.join();
    // The other threads have it too, and end with the process alone.
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

/// Has the programs stay at work for ever.
fn renew(edge: &Edge) {
    loop {
        thread::sleep(RENEWAL);
        if let Err(error) = locked(&edge.datapath).renew() {
            tracing::warn!(%error, "the programs go by what they were told last");
        }
    }
}

/// What layer-3 paths are called.
fn names(ways: &Ways) -> BTreeMap<u16, String> {
    let paths = ways.edges.iter().flat_map(|edge| &edge.paths);
    paths
        .map(|way| (way.tag, format!("{} - {}", way.here, way.there)))
        .collect()
}

/// Asks the controller for ever. While it does not answer, the last table holds.
fn follow(edge: &Edge) {
    let mut revision = String::new();
    let options = &edge.options;
    let Guide::Controller(place) = &options.guide else {
        return;
    };
    loop {
        let answer = controller::ask(
            place,
            &options.name,
            &revision,
            &edge.passed(),
            options.shim,
        );
        let problem = match answer {
            Ok(Some(table)) => {
                revision.clone_from(&table.revision);
                edge.apply(table)
                    .err()
                    .map(|error| ("not-applied", error.to_string()))
            }
            Ok(None) => None,
            Err(error) => Some((code(&error), error.to_string())),
        };
        let failed = problem.is_some();
        edge.note(problem);
        if failed {
            // A controller that comes back may have made another plan under the same name.
            revision.clear();
            thread::sleep(AGAIN);
        }
    }
}

fn code(error: &controller::NoTable) -> &'static str {
    match error {
        controller::NoTable::Unreachable { .. } => "controller-silent",
        controller::NoTable::Unknown(_) => "edge-unknown",
        controller::NoTable::Shut(..) => "key-refused",
        controller::NoTable::Strange(_) | controller::NoTable::Refused { .. } => {
            "controller-refuses"
        }
        controller::NoTable::Table(_) => "bad-table",
    }
}

impl Edge {
    fn note(&self, problem: Option<(&'static str, String)>) {
        let mut known = locked(&self.known);
        if known.problem == problem {
            return;
        }
        match &problem {
            Some((code, text)) => tracing::warn!(code, text, "no new table; the last one holds"),
            None => tracing::info!(guide = %self.options.guide, "following"),
        }
        known.problem = problem;
    }

    /// Follows what was planned for layer-3 paths, if it can.
    fn keep(&self, plan: Plan) -> bool {
        locked(&self.known).silent = plan.silent;
        let problem = self.apply(plan.table).err();
        let followed = problem.is_none();
        self.note(problem.map(|error| ("not-applied", error.to_string())));
        followed
    }

    /// How many packets passed by each path that is in use.
    fn passed(&self) -> Passed {
        let known = locked(&self.known);
        let mut datapath = locked(&self.datapath);
        let Some(table) = &known.table else {
            return Passed::default();
        };
        let mut counted = |sent, tags: BTreeSet<u16>| {
            let count = |tag| Some((tag, datapath.traffic(sent, tag).ok()?.packets));
            tags.into_iter().filter_map(count).collect()
        };
        let slots = table.outward.iter().flat_map(|each| &each.slots).copied();
        Passed {
            came: counted(false, inward_tags(&table.inward).collect()),
            sent: counted(true, slots.collect()),
        }
    }

    /// Follows a table: what may come is known before it can come, and known a while after it may. One
    /// that is refused leaves the last one in effect.
    fn apply(&self, table: Table) -> Result<(), Error> {
        let mut known = locked(&self.known);
        let mut datapath = locked(&self.datapath);
        let now = Instant::now();
        let mut tags: BTreeMap<u16, Treatment> = BTreeMap::new();
        let mut lingering = known.lingering.clone();
        lingering.retain(|tag, until| {
            let keep = *until > now;
            if !keep {
                tags.insert(*tag, Treatment::Unknown);
            }
            keep
        });
        // A file's paths stay paths, in use here or not.
        if let Guide::Controller(_) = self.options.guide {
            let before = known.table.iter();
            let before = before.flat_map(|table| inward_tags(&table.inward));
            lingering.extend(before.map(|tag| (tag, now + LINGER)));
        }
        for inward in &table.inward {
            let ordered = known.ordered.contains(&inward.source);
            let treatment = treatment(self.options.ordering, inward, ordered);
            if treatment == Treatment::InOrder {
                known.ordered.insert(inward.source.clone());
            }
            for path in &inward.paths {
                lingering.remove(&path.tag);
                tags.insert(path.tag, treatment);
            }
        }
        self.driver.set_table(table.inward.clone());
        let followed = datapath.treat(tags);
        if let Err(error) = followed.and_then(|()| datapath.split(&table.outward)) {
            if let Some(last) = &known.table {
                self.driver.set_table(last.inward.clone());
                // What the kernel refuses of that too, the next table mends.
                let _ = datapath.split(&last.outward);
            }
            return Err(error);
        }
        let (generation, pairs) = (table.generation, table.outward.len());
        tracing::info!(generation, pairs, "following a new table");
        (known.table, known.lingering) = (Some(table), lingering);
        Ok(())
    }
}

fn inward_tags(inward: &[Inward]) -> impl Iterator<Item = u16> + '_ {
    inward
        .iter()
        .flat_map(|each| each.paths.iter().map(|path| path.tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{MAX_HOSTS, SLOTS};
    use crate::table::{InwardPath, Mac, Order, Outward};

    /// On no devices, with a resequencer that does not listen.
    fn edge(guide: Guide) -> Edge {
        let devices = Devices {
            inside: "inside".to_owned(),
            outside: vec!["outside".to_owned()],
            hold: "hold".to_owned(),
        };
        let options = Options {
            name: "ha".to_owned(),
            devices,
            guide,
            ordering: Ordering::Ours,
            shim: false,
            hook: Hook::Auto,
            run_dir: PathBuf::new(),
        };
        let datapath = Datapath::loaded(Layer::Two).expect("programs (needs root)");
        Edge {
            options,
            datapath: Mutex::new(datapath),
            driver: Handle::pair().expect("a socket pair").0,
            known: Mutex::new(Known::default()),
        }
    }

    fn table(generation: u64, hosts: u32, tags: [u16; 2]) -> Table {
        let macs = (0..hosts).map(u32::to_be_bytes);
        let outward = Outward {
            target: "hb".to_owned(),
            hosts: macs.map(|[a, b, c, d]| Mac([2, 0, a, b, c, d])).collect(),
            slots: vec![tags[0]; SLOTS as usize],
            shim: false,
            ceiling_bit_s: 0,
        };
        let path = |tag| InwardPath {
            tag,
            latency_ms: None,
        };
        let inward = Inward {
            source: "hb".to_owned(),
            order: Order::Resequence,
            threshold_packets: 16,
            size_packets: 32,
            paths: tags.map(path).to_vec(),
            gave_up: false,
        };
        Table::own(generation, vec![outward], vec![inward])
    }

    #[test]
    fn a_table_that_the_kernel_refuses_leaves_the_last_one_in_effect() {
        let edge = edge(Guide::Controller(Place::Unix(PathBuf::new())));
        edge.apply(table(1, 1, [2, 3])).expect("a table");
        edge.apply(table(2, MAX_HOSTS + 1, [4, 5]))
            .expect_err("more hosts than there may be");
        assert_eq!(locked(&edge.known).table, Some(table(1, 1, [2, 3])));
        assert!(locked(&edge.known).lingering.is_empty(), "they are in use");
        assert_eq!(locked(&edge.datapath).slots(0), [2; SLOTS as usize]);
        edge.apply(table(3, 1, [3, 4])).expect("a table");
        let known = locked(&edge.known);
        assert_eq!(known.table, Some(table(3, 1, [3, 4])));
        assert_eq!(known.lingering.keys().copied().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn layer_3_paths_are_known_as_long_as_they_are_in_the_file() {
        let edge = edge(Guide::File(PathBuf::new()));
        edge.apply(table(1, 1, [2, 3])).expect("a plan");
        edge.apply(table(2, 1, [2, 2])).expect("a plan without one");
        // The far edge may take it up again before this one does.
        assert!(locked(&edge.known).lingering.is_empty());
    }
}
