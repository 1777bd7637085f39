//! The controller's process and the connection to it.
//!
//! A thread of its own connects, starts the controller where none answers, and writes; another one reads. The engine
//! never waits for either: it leaves the latest desired state, and finds the latest report. The process is in a group of
//! its own and outlives the daemon, as the traffic does. A lock in the run directory keeps a second one away.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use braid_balance::{
    CachedPath, Counters, Flow, FlowActivity, KernelTime, Name, PathCacheEntry, Sticky, Traffic,
    UplinkCounters, prefix_of,
};
use braid_core::UplinkId;
use braid_host::program;
use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::held_answers::{HeldAnswer, HeldAnswers};
use super::messages::{
    AnswerMessage, Envelope, ReleasedFlow, Report, StickyKey, StickyReport, UplinkReport, VERSION,
    judged_line, names_line, path_cache_entry, paths_line,
};
use super::tracker;

/// Pause between two attempts to connect, and least time between two starts of the process.
const CONNECT_INTERVAL: Duration = Duration::from_millis(50);
/// Pause after a conversation that has ended.
const END_PAUSE: Duration = Duration::from_millis(500);
/// Time without a report, of which there is one a second, after which a controller counts as hung.
const REPORT_TIMEOUT: Duration = Duration::from_secs(15);
const RESTART_INTERVAL: Duration = Duration::from_secs(1);
/// Time for the process to end.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Reasons of the controller that are counted.
const REASONS: [&str; 30] = [
    "no_uplink",
    "class_blocked",
    "client_over_limit",
    "client_unanswered",
    "flow_table_full",
    "table_full",
    "no_port",
    "not_translated",
    "fragment_lost",
    "names_late",
    "answers_unheld",
    "quic_replayed",
    "tcp_closed",
    "reset_sent",
    "rule_restored",
    "race_begun",
    "race_repeated",
    "race_copy",
    "race_none_left",
    "race_undecided",
    "race_lost",
    "race_refused",
    "race_late",
    "race_won",
    "race_over_rate",
    "race_crowded",
    "path_remembered",
    "path_predicted",
    "path_silent",
    "tracker_refused",
];

/// The connection's state, followed by those who wait for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Status {
    /// The controller has answered on the present connection.
    answers: bool,
    /// Revision that the controller follows, with rules and gateways in place.
    ready: Option<u64>,
    /// Reason that new flows get no uplinks; `None`: they do.
    problem: Option<String>,
}

#[derive(Default)]
struct State {
    /// The latest desired state, as a line.
    desired: Option<(u64, String)>,
    /// Revision that was written to the present connection.
    written: u64,
    /// Lines besides.
    commands: Vec<String>,
    forecasts: Option<String>,
    restored: Option<String>,
    /// Names of remote addresses, which a new controller is told.
    names: BTreeMap<IpAddr, Name>,
    /// Meaning of their marks, once it is known.
    meaning: Option<u32>,
    /// Choices of sticky clients.
    sticky: BTreeMap<StickyKey, Sticky>,
    connection_over: bool,
    /// Number of the present connection.
    conversation: u64,
    /// Version that the controller speaks, if it is another one.
    speaks: Option<u32>,
    foreign_rules: u32,
    table_full: bool,
    ending: bool,
    /// Time of the last report.
    reported: Option<Instant>,
    flows: Vec<(u64, Flow)>,
    /// Counters of this daemon's time, and of the controller's at the last report.
    totals: BTreeMap<u8, UplinkCounters>,
    /// The same at the report before, and the times of both.
    before: BTreeMap<u8, UplinkCounters>,
    counted: Option<(Instant, Instant)>,
    last: BTreeMap<u8, UplinkReport>,
    reasons: BTreeMap<String, u64>,
    activity: Vec<FlowActivity>,
    /// The path cache, by the first address of each network.
    paths: BTreeMap<IpAddr, Vec<(Instant, CachedPath)>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    status: watch::Sender<Status>,
    answers: HeldAnswers,
}

/// The answers of name servers that the controller holds.
#[derive(Clone)]
pub(super) struct AnswerQueue(Arc<Shared>);

impl AnswerQueue {
    /// Returns the answers themselves.
    pub fn held(&self) -> &HeldAnswers {
        &self.0.answers
    }

    /// Lets an answer go inside whose names have been told.
    pub fn release(&self, answer: &HeldAnswer) {
        let mut state = self.0.lock();
        if state.conversation == answer.conversation {
            state.commands.push(judged_line(answer.number));
            self.0.changed.notify_all();
        }
    }
}

/// A wait, apart from the engine, until the controller follows a desired state.
pub(crate) struct Acceptance {
    status: watch::Receiver<Status>,
    revision: u64,
    /// Run directory of a switch that decides by itself, from a cache that follows its rules a moment later.
    switch: Option<PathBuf>,
}

impl Acceptance {
    /// Returns the same wait until the cache of the switch in this run directory follows too.
    pub fn by_switch(self, ovs_run_dir: PathBuf) -> Self {
        let switch = Some(ovs_run_dir);
        Self { switch, ..self }
    }

    /// Waits; false if that takes too long.
    pub async fn wait(mut self, timeout: Duration) -> bool {
        let is_followed = |status: &Status| status.ready.is_some_and(|at| at >= self.revision);
        let all = async {
            if self.status.wait_for(is_followed).await.is_err() {
                return false;
            }
            let Some(switch) = self.switch else {
                return true;
            };
            let asked = spawn_blocking(move || tracker::wait_for_cache(&switch));
            matches!(asked.await, Ok(Ok(())))
        };
        tokio::time::timeout(timeout, all).await.unwrap_or(false)
    }
}

pub(super) struct Controller {
    shared: Arc<Shared>,
    status: watch::Receiver<Status>,
}

impl Controller {
    /// Starts to connect. `switch` is the socket for the bridge.
    ///
    /// # Errors
    /// There is no controller's program, or no thread.
    pub fn start(run_dir: &RunDir, switch: &Path) -> Result<Self, UserError> {
        let program = program::find("braid-sdn").ok_or_else(|| {
            UserError::new(
                "no-program",
                "the OpenFlow controller, braid-sdn, is not installed",
            )
            .fix("install it (package braid-sdn), or set kind = \"ebpf\" in [datapath]")
        })?;
        let (sender, status) = watch::channel(Status {
            answers: false,
            ready: None,
            problem: Some("the controller does not answer yet".to_owned()),
        });
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            status: sender,
            answers: HeldAnswers::new().map_err(|error| UserError::io("make an event", &error))?,
        });
        let process = Process {
            program,
            run_dir: run_dir.path().to_owned(),
            switch: switch.to_owned(),
            log: run_dir.openflow_log(),
            child: None,
            started: None,
            replaced: false,
        };
        let (socket, kept) = (run_dir.openflow_socket(), Arc::clone(&shared));
        thread::Builder::new()
            .name("openflow".to_owned())
            .spawn(move || run(&shared, &socket, process))
            .map_err(|error| UserError::io("start a thread", &error))?;
        Ok(Self {
            shared: kept,
            status,
        })
    }

    /// Stops writing and reading; the process goes on.
    pub fn stop(&self) {
        self.shared.lock().ending = true;
        self.shared.changed.notify_all();
    }

    pub fn send_desired(&self, revision: u64, line: String) {
        self.shared.lock().desired = Some((revision, line));
        self.shared.changed.notify_all();
    }

    pub fn send_release(&self, flows: &[ReleasedFlow]) {
        self.send_command(serde_json::json!({ "release": flows }).to_string());
    }

    /// Leaves a line; it is lost if the connection ends before it is written.
    pub fn send_command(&self, line: String) {
        self.shared.lock().commands.push(line);
        self.shared.changed.notify_all();
    }

    /// Leaves the forecasts, which replace earlier ones that are not written yet.
    pub fn send_forecasts(&self, line: String) {
        self.shared.lock().forecasts = Some(line);
        self.shared.changed.notify_all();
    }

    /// Leaves the path cache of an earlier instance, for when the controller follows a state: epochs are part of it.
    pub fn send_paths(&self, line: String) {
        self.shared.lock().restored = Some(line);
        self.shared.changed.notify_all();
    }

    /// Tells the controller names of remote addresses.
    pub fn learn_names(&self, names: &[(IpAddr, Name)]) {
        let mut state = self.shared.lock();
        state.names.extend(names.iter().copied());
        let told = names.iter().map(|(address, name)| (address, name));
        self.tell_names(&mut state, told, &[]);
    }

    /// Has the controller forget all names, unless their marks had this meaning before.
    pub fn keep_names(&self, meaning: u32) {
        let mut state = self.shared.lock();
        if state.meaning != Some(meaning) {
            state.names.clear();
            state.meaning = Some(meaning);
        }
        self.tell_names(&mut state, std::iter::empty(), &[]);
    }

    pub fn forget_names(&self, remotes: &[IpAddr]) {
        let mut state = self.shared.lock();
        for remote in remotes {
            state.names.remove(remote);
        }
        self.tell_names(&mut state, std::iter::empty(), remotes);
    }

    fn tell_names<'n>(
        &self,
        state: &mut State,
        names: impl Iterator<Item = (&'n IpAddr, &'n Name)>,
        forgotten: &[IpAddr],
    ) {
        if let Some(meaning) = state.meaning {
            state.commands.push(names_line(meaning, names, forgotten));
            self.shared.changed.notify_all();
        }
    }

    /// Returns the answers of name servers that the controller holds.
    pub fn answers(&self) -> AnswerQueue {
        AnswerQueue(Arc::clone(&self.shared))
    }

    pub fn sticky(&self) -> Vec<Sticky> {
        self.shared.lock().sticky.values().copied().collect()
    }

    /// Has the controller forget choices; returns how many. One that is younger than the last report stays.
    pub fn forget_sticky(&self, which: impl Fn(&Sticky) -> bool) -> usize {
        let mut state = self.shared.lock();
        let chosen = state.sticky.iter().filter(|(_, sticky)| which(sticky));
        let keys: Vec<StickyKey> = chosen.map(|(key, _)| key.clone()).collect();
        if !keys.is_empty() {
            state.sticky.retain(|_, sticky| !which(sticky));
            let line = serde_json::json!({ "forget_sticky": keys }).to_string();
            state.commands.push(line);
            self.shared.changed.notify_all();
        }
        keys.len()
    }

    pub fn flow_activity(&self) -> Vec<FlowActivity> {
        self.shared.lock().activity.clone()
    }

    pub fn path_cache(&self) -> Vec<PathCacheEntry> {
        let now = Instant::now();
        let state = self.shared.lock();
        let entry = |(prefix, paths): (&IpAddr, &Vec<_>)| path_cache_entry(*prefix, paths, now);
        state.paths.iter().map(entry).collect()
    }

    pub fn path_cache_entry(&self, remote: IpAddr) -> Option<PathCacheEntry> {
        let prefix = prefix_of(remote).0;
        let state = self.shared.lock();
        let paths = state.paths.get(&prefix)?;
        Some(path_cache_entry(prefix, paths, Instant::now()))
    }

    /// Waits until the controller listens; not for long.
    pub async fn wait_answer(&mut self, timeout: Duration) {
        let answer = self.status.wait_for(|status| status.answers);
        // A bridge without a controller tries again and again.
        let _ = tokio::time::timeout(timeout, answer).await;
    }

    /// Returns a wait until the controller follows this revision.
    pub fn acceptance(&self, revision: u64) -> Acceptance {
        Acceptance {
            status: self.status.clone(),
            revision,
            switch: None,
        }
    }

    pub fn problem(&self) -> Option<String> {
        let problem = self.status.borrow().problem.clone();
        problem.or_else(|| {
            let silent = self.shared.lock().reported?.elapsed();
            let text = || {
                format!(
                    "the controller has reported nothing for {} s",
                    silent.as_secs()
                )
            };
            (silent >= REPORT_TIMEOUT).then(text)
        })
    }

    /// Returns the number of rules in the bridge that somebody else has added.
    pub fn foreign_rules(&self) -> u32 {
        self.shared.lock().foreign_rules
    }

    /// Returns true if the bridge had no room for a rule a moment ago.
    pub fn is_table_full(&self) -> bool {
        self.shared.lock().table_full
    }

    pub fn for_each_flow(&self, mut what: impl FnMut(u64, &Flow)) {
        let state = self.shared.lock();
        state
            .flows
            .iter()
            .for_each(|(number, flow)| what(*number, flow));
    }

    /// Returns the counters for each uplink that is known.
    ///
    /// Packets and bytes are a report old and pass evenly from one report to the next: rates are measured once a second,
    /// as often as reports come, and would now see none of them, now two.
    pub fn counters(&self, known: impl Iterator<Item = UplinkId>) -> Counters {
        let state = self.shared.lock();
        let now = Instant::now();
        let passed = state.counted.map_or(1.0, |(before, last)| {
            let period = last.saturating_duration_since(before).as_secs_f64();
            let since = now.saturating_duration_since(last).as_secs_f64();
            (since / period.max(1e-3)).min(1.0)
        });
        let counters = |id: UplinkId| {
            let total = state.totals.get(&id.0).copied().unwrap_or_default();
            let before = state.before.get(&id.0).copied().unwrap_or_default();
            UplinkCounters {
                tx: between(before.tx, total.tx, passed),
                rx: between(before.rx, total.rx, passed),
                ..total
            }
        };
        let count =
            |reason: &&'static str| (*reason, state.reasons.get(*reason).copied().unwrap_or(0));
        Counters {
            reasons: REASONS.iter().map(count).collect(),
            uplinks: known.map(|id| (id, counters(id))).collect(),
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked has left plain data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_problem(&self, problem: String) {
        self.status.send_if_modified(|status| {
            let told = Status {
                answers: false,
                ready: None,
                problem: Some(problem),
            };
            let changed = *status != told;
            *status = told;
            changed
        });
    }

    fn handle_answer(&self, told: &AnswerMessage) {
        let conversation = self.lock().conversation;
        self.answers.push(HeldAnswer {
            conversation,
            number: told.number,
            packet: told.packet(),
        });
    }

    fn handle_report(&self, report: Report) {
        let problem = match (report.connected, report.ready) {
            (false, _) => Some("the bridge is not connected to its controller".to_owned()),
            (true, false) => Some("the controller is still reading the bridge".to_owned()),
            (true, true) => None,
        };
        let status = Status {
            answers: true,
            ready: report.ready.then_some(report.revision),
            problem,
        };
        let mut state = self.lock();
        let now = Instant::now();
        state.reported = Some(now);
        // Reports of a change of state come between two readings of the counters.
        if report.flows.is_some() {
            state.before = state.totals.clone();
            state.counted = Some((state.counted.map_or(now, |(_, last)| last), now));
        }
        for uplink in &report.uplinks {
            let last = state.last.insert(uplink.id, *uplink);
            add(state.totals.entry(uplink.id).or_default(), uplink, last);
        }
        (state.foreign_rules, state.table_full) = (report.foreign_rules, report.table_full);
        state.reasons = report.reasons;
        state.activity = report.activity.iter().map(|told| told.activity()).collect();
        for network in &report.paths {
            match network.paths.is_empty() {
                true => state.paths.remove(&network.prefix),
                false => state.paths.insert(network.prefix, network.measured(now)),
            };
        }
        for told in report.sticky {
            match told.sticky(KernelTime::now()) {
                Some(sticky) => state.sticky.insert(told.key, sticky),
                None => state.sticky.remove(&told.key),
            };
        }
        if let Some(flows) = report.flows {
            let now = KernelTime::now();
            state.flows = flows
                .iter()
                .map(|told| (told.number, told.flow(now)))
                .collect();
        }
        drop(state);
        self.status.send_if_modified(|before| {
            let changed = *before != status;
            *before = status;
            changed
        });
    }
}

/// Returns the traffic at a part of the way from one count to the next.
fn between(before: Traffic, after: Traffic, passed: f64) -> Traffic {
    let part = |before: u64, after: u64| {
        let more = after.saturating_sub(before);
        after - more + (more as f64 * passed) as u64
    };
    Traffic {
        packets: part(before.packets, after.packets),
        bytes: part(before.bytes, after.bytes),
    }
}

/// Adds the traffic since the last report. A controller that has started anew counts from zero.
fn add(total: &mut UplinkCounters, now: &UplinkReport, last: Option<UplinkReport>) {
    let since = |of: fn(&UplinkReport) -> u64| {
        let before = last.as_ref().map_or(0, of);
        of(now).checked_sub(before).unwrap_or(of(now))
    };
    total.tx.packets += since(|told| told.tx_packets);
    total.tx.bytes += since(|told| told.tx_bytes);
    total.rx.packets += since(|told| told.rx_packets);
    total.rx.bytes += since(|told| told.rx_bytes);
    total.flows_opened += since(|told| told.flows_opened);
    total.rtt_us_sum += since(|told| told.rtt_us_sum);
    total.rtt_samples += since(|told| told.rtt_samples);
}

/// The controller's process, if it is this daemon's child.
struct Process {
    program: PathBuf,
    run_dir: PathBuf,
    switch: PathBuf,
    log: PathBuf,
    child: Option<Child>,
    started: Option<Instant>,
    /// A controller of another version was ended; the program on disk may be that one again.
    replaced: bool,
}

impl Process {
    /// Starts it unless it runs, or was started a moment ago. One that finds another one at work ends at once.
    fn start(&mut self) -> io::Result<()> {
        let runs = match &mut self.child {
            Some(child) => child.try_wait()?.is_none(),
            None => false,
        };
        let recent = self
            .started
            .is_some_and(|at| at.elapsed() < RESTART_INTERVAL);
        if runs || recent {
            return Ok(());
        }
        self.started = Some(Instant::now());
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.log)?;
        let mut command = Command::new(&self.program);
        command
            .args(["host", "run", "--run-dir"])
            .arg(&self.run_dir)
            .arg("--switch")
            .arg(&self.switch)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0);
        self.child = Some(command.spawn()?);
        tracing::info!("OpenFlow controller started");
        Ok(())
    }
}

/// Keeps a connection to the controller until the end.
fn run(shared: &Arc<Shared>, socket: &Path, mut process: Process) {
    loop {
        if shared.lock().ending {
            return;
        }
        let stream = match UnixStream::connect(socket) {
            Ok(stream) => stream,
            Err(_) => {
                if let Err(error) = process.start() {
                    shared.set_problem(format!("the controller cannot be started: {error}"));
                }
                thread::sleep(CONNECT_INTERVAL);
                continue;
            }
        };
        if let Err(error) = converse(shared, stream) {
            tracing::debug!(%error, "connection to the OpenFlow controller ended");
        }
        if shared.lock().ending {
            return;
        }
        let other = shared.lock().speaks.take();
        if let Some(version) = other {
            shared.set_problem(format!(
                "the controller speaks version {version} with the daemon, which speaks {VERSION}: install braid and braid-sdn of one version"
            ));
            if !process.replaced {
                process.replaced = true;
                tracing::warn!(version, "ending an OpenFlow controller of another version");
                if let Err(error) = end(socket) {
                    tracing::warn!(%error, "it does not end");
                }
            }
            thread::sleep(END_PAUSE);
            continue;
        }
        process.replaced = false;
        shared.set_problem("the controller has ended and is started anew".to_owned());
        tracing::warn!("the OpenFlow controller has ended");
        // One that ends each conversation at once costs little.
        thread::sleep(END_PAUSE);
    }
}

/// Writes what there is to write until the connection ends.
fn converse(shared: &Arc<Shared>, mut stream: UnixStream) -> io::Result<()> {
    let reading = stream.try_clone()?;
    {
        let mut state = shared.lock();
        state.connection_over = false;
        state.conversation += 1;
        shared.answers.clear();
        state.written = 0;
        let names = |meaning| names_line(meaning, state.names.iter(), &[]);
        state.commands = state.meaning.map(names).into_iter().collect();
        let sticky = std::mem::take(&mut state.sticky);
        if !sticky.is_empty() {
            let now = KernelTime::now();
            let told = |(key, sticky): (&StickyKey, &Sticky)| StickyReport::told(key, sticky, now);
            let told: Vec<_> = sticky.iter().map(told).collect();
            let line = serde_json::json!({ "sticky": told }).to_string();
            state.commands.push(line);
        }
        // A controller that runs tells all that it knows; one that was started anew takes in what the last one knew.
        let known = std::mem::take(&mut state.paths);
        if !known.is_empty() {
            let now = Instant::now();
            let entry = |(prefix, paths): (&IpAddr, &Vec<_>)| path_cache_entry(*prefix, paths, now);
            let known: Vec<_> = known.iter().map(entry).collect();
            state.restored = Some(paths_line(&known));
        }
    }
    let reader = {
        let shared = Arc::clone(shared);
        thread::Builder::new()
            .name("openflow-read".to_owned())
            .spawn(move || read(&shared, reading))?
    };
    let outcome = write(shared, &mut stream);
    let _ = stream.shutdown(std::net::Shutdown::Both);
    let _ = reader.join();
    outcome
}

fn write(shared: &Shared, stream: &mut UnixStream) -> io::Result<()> {
    loop {
        let mut state = shared.lock();
        let lines = loop {
            if state.ending || state.connection_over {
                return Ok(());
            }
            let mut lines = std::mem::take(&mut state.commands);
            let due = state
                .desired
                .clone()
                .filter(|(revision, _)| *revision > state.written);
            if let Some((revision, line)) = due {
                state.written = revision;
                lines.insert(0, line);
            }
            if state.written > 0 {
                lines.extend(state.forecasts.take());
                lines.extend(state.restored.take());
            }
            if !lines.is_empty() {
                break lines;
            }
            state = shared
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        for line in lines {
            stream.write_all(line.as_bytes())?;
            stream.write_all(b"\n")?;
        }
    }
}

fn read(shared: &Shared, stream: UnixStream) {
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { break };
        if let Ok(told) = serde_json::from_str::<Envelope>(&line) {
            if told.version != VERSION {
                shared.lock().speaks = Some(told.version);
                break;
            }
            if let Some(answer) = &told.answer {
                shared.handle_answer(answer);
                continue;
            }
        }
        match serde_json::from_str(&line) {
            Ok(report) => shared.handle_report(report),
            Err(error) => {
                tracing::warn!(%error, "unexpected line from the OpenFlow controller");
                break;
            }
        }
    }
    shared.lock().connection_over = true;
    shared.changed.notify_all();
}

/// Ends the controller. Returns `false` if there was none.
///
/// # Errors
/// It does not end.
pub(super) fn end(socket: &Path) -> Result<bool, UserError> {
    let Ok(mut stream) = UnixStream::connect(socket) else {
        return Ok(false);
    };
    let mut finish = || {
        stream.set_read_timeout(Some(END_TIMEOUT))?;
        stream.write_all(b"{\"end\":true}\n")?;
        // It closes the connection when it ends.
        io::copy(&mut stream, &mut io::sink())
    };
    finish().map_err(|error| {
        UserError::io("end the OpenFlow controller", &error)
            .fix("kill the process of braid-sdn host run, then braid down")
    })?;
    Ok(true)
}
