//! Probes the tagged paths to all other edges: the pace of the probes (pure), and the thread that sends
//! them on the outside device and takes their replies.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use braid_core::Time;
use braid_device::PacketSender;
use ring::rand::{SecureRandom, SystemRandom};

use crate::avoided_paths::{AvoidedPaths, PathNow};
use crate::driver::{MAX_QUEUED_REPLIES, ProbeReply};
use crate::pair_monitor::{PairMonitor, PathQueue};
use crate::pair_repair::{AskedEdge, CopiedPath, PairRepair, PathLoss, Repairs};
use crate::path_loss::{RecentLoss, SentCounters};
use crate::probe::{Offer, TAGGED_REQUEST_LENGTH, TaggedReply, TaggedRequest};
use crate::table::Table;

/// Shortest interval of the probes of a path that packets take.
const USED_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of the others', and the longest one of any.
const UNUSED_INTERVAL: Duration = Duration::from_millis(200);
/// Time without a packet after which a path counts as unused; as the controller has it.
const USED_TIME: Duration = Duration::from_secs(6);
/// Probes a second by one edge: 256 used paths are probed every 32 ms.
const MAX_PROBES_PER_SECOND: u32 = 8_000;
/// Part of a path's rate that its probes may take, as its inverse. Replies take as much on the way back.
const PROBE_SHARE: u64 = 200;
/// Interval of looks at which paths are used.
const PACING_INTERVAL: Duration = Duration::from_millis(500);
/// Shortest time between two turns of the thread: a quarter of the shortest interval, over which the
/// probes of a pair's paths are spread.
const TURN_INTERVAL: Duration = Duration::from_millis(5);

/// Weight of the newest sample in the mean load of flows that keep to their path, as its inverse.
const KEPT_LOAD_SHARE: u64 = 4;

/// Time for which a measured queue holds. An unused path is probed every 200 ms.
pub const QUEUE_LIFETIME: Duration = Duration::from_millis(400);
/// Smallest change of the part beyond the estimate that is followed at once: less than a frame at 6 Mbit/s; and of the whole queue, by
/// which flows are kept fair.
const MIN_EXCESS_CHANGE: Duration = Duration::from_millis(2);
const MIN_QUEUE_CHANGE: Duration = Duration::from_millis(10);

/// The paths between this edge and another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbedPair {
    /// The other edge.
    pub target: String,
    /// Tags of the paths there, each with its rate in bit/s; 0: unknown.
    pub paths: BTreeMap<u16, u64>,
    /// Tags of the paths from there.
    pub returns: Vec<u16>,
}

impl ProbedPair {
    /// Returns the pairs of a table that have several paths: an only one is judged by nothing.
    pub fn of(table: &Table) -> Vec<ProbedPair> {
        let pair = |egress: &crate::table::Egress| {
            let mut paths: BTreeMap<u16, u64> = egress.slots.iter().map(|tag| (*tag, 0)).collect();
            for path in &egress.paths {
                paths.insert(path.tag, path.rate_bit_s);
            }
            let back = table.ingress.iter();
            let back = back.filter(|ingress| ingress.source == egress.target);
            ProbedPair {
                target: egress.target.clone(),
                paths,
                returns: back
                    .flat_map(|ingress| ingress.paths.iter().map(|path| path.tag))
                    .collect(),
            }
        };
        let pairs = table.egress.iter().map(pair);
        pairs.filter(|pair| pair.paths.len() > 1).collect()
    }
}

/// States of the paths from this edge, for the controller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathStates {
    /// Tags of the paths whose probes are answered by their other edge.
    pub probed: BTreeSet<u16>,
    /// Those among them that are silent.
    pub silent: BTreeSet<u16>,
}

/// Load of a path by flows that keep to one.
#[derive(Debug, Default, Clone, Copy)]
struct KeptLoad {
    /// Bytes since the beginning, and when they were counted.
    last: Option<(Time, u64)>,
    /// None before there were two counts.
    bit_s: Option<u64>,
}

impl KeptLoad {
    fn handle_bytes(&mut self, now: Time, bytes: u64) {
        let Some((at, before)) = self.last.replace((now, bytes)) else {
            return;
        };
        let (past, bits) = (
            now.since(at).as_millis() as u64,
            8 * bytes.saturating_sub(before),
        );
        if let Some(latest) = (1_000 * bits).checked_div(past) {
            let before = self.bit_s.unwrap_or(latest);
            self.bit_s = Some(before - before / KEPT_LOAD_SHARE + latest / KEPT_LOAD_SHARE);
        }
    }
}

/// Times at which a path is probed, and its load, by which it is used.
#[derive(Debug)]
struct Pace {
    target: String,
    rate_bit_s: u64,
    interval: Duration,
    due: Time,
    /// Packets that were sent by it; none before the first count, which is of all times.
    packets: Option<u64>,
    /// Time at which their number last grew; of a new path, that at which it was added.
    used: Time,
    kept: KeptLoad,
}

impl Pace {
    fn is_used(&self, now: Time) -> bool {
        now.since(self.used) < USED_TIME
    }

    /// Returns the interval at which so many used paths can be probed.
    fn interval_among(&self, used: usize, now: Time) -> Duration {
        if !self.is_used(now) {
            return UNUSED_INTERVAL;
        }
        let shared = Duration::from_secs(used as u64) / MAX_PROBES_PER_SECOND;
        let bits = TAGGED_REQUEST_LENGTH as u64 * 8 * PROBE_SHARE * 1_000_000_000;
        let light = Duration::from_nanos(bits.checked_div(self.rate_bit_s).unwrap_or(0));
        USED_INTERVAL.max(shared).max(light).min(UNUSED_INTERVAL)
    }
}

/// Monitors of all pairs, and the pace of their probes. Pure.
#[derive(Debug, Default)]
pub struct Pairs {
    monitors: BTreeMap<String, PairMonitor>,
    /// Of pairs with a path that loses packets, or did lately, alone. With a token once copies are kept.
    repairs: BTreeMap<String, (PairRepair, Option<u64>)>,
    avoided: BTreeMap<String, AvoidedPaths>,
    /// The avoided paths as they were told last, those of pairs that have gone included.
    told_avoided: BTreeSet<u16>,
    /// Paths that carry little.
    light: BTreeSet<u16>,
    paces: BTreeMap<u16, Pace>,
}

impl Pairs {
    /// Sets the pairs. Paths that remain keep their state.
    pub fn set(&mut self, now: Time, pairs: &[ProbedPair]) {
        self.monitors
            .retain(|target, _| pairs.iter().any(|pair| pair.target == *target));
        self.repairs
            .retain(|target, _| self.monitors.contains_key(target));
        self.avoided
            .retain(|target, _| self.monitors.contains_key(target));
        let mut before = std::mem::take(&mut self.paces);
        for pair in pairs {
            let tags: Vec<u16> = pair.paths.keys().copied().collect();
            let monitor = self.monitors.entry(pair.target.clone()).or_default();
            monitor.set_paths(now, &tags, &pair.returns, UNUSED_INTERVAL);
            for (tag, rate_bit_s) in &pair.paths {
                let pace = before.remove(tag).filter(|pace| pace.target == pair.target);
                let mut pace = pace.unwrap_or_else(|| Pace {
                    target: pair.target.clone(),
                    rate_bit_s: 0,
                    interval: UNUSED_INTERVAL,
                    due: now,
                    packets: None,
                    used: now,
                    kept: KeptLoad::default(),
                });
                pace.rate_bit_s = *rate_bit_s;
                self.paces.insert(*tag, pace);
            }
        }
        self.set_paces(now);
    }

    /// Takes in how many packets were sent by each path, and sets the paces. All paths of a pair count as
    /// used if one is: its packets may take any.
    pub fn handle_traffic(&mut self, now: Time, sent: impl Fn(u16) -> u64) {
        let mut used = BTreeSet::new();
        for (tag, pace) in &mut self.paces {
            let packets = sent(*tag);
            if pace.packets.is_some_and(|before| packets > before) {
                used.insert(pace.target.clone());
            }
            pace.packets = Some(packets);
        }
        for pace in self.paces.values_mut() {
            if used.contains(&pace.target) {
                pace.used = now;
            }
        }
        self.set_paces(now);
    }

    fn set_paces(&mut self, now: Time) {
        let used = self.paces.values().filter(|pace| pace.is_used(now)).count();
        for monitor in self.monitors.values_mut() {
            let tags: Vec<u16> = monitor.tags().collect();
            let size = tags.len() as u32;
            for (place, tag) in (0..).zip(tags) {
                let Some(pace) = self.paces.get_mut(&tag) else {
                    continue;
                };
                let interval = pace.interval_among(used, now);
                if pace.interval != interval || pace.due <= now {
                    pace.interval = interval;
                    // Spread, so that another path's probe soon shows what is missing.
                    pace.due = now + interval * place / size;
                }
                monitor.set_interval(tag, interval);
            }
        }
    }

    /// Returns the paths to probe now. After a delay probes are not sent in a burst, and keep their phase.
    pub fn due(&mut self, now: Time) -> Vec<u16> {
        let mut due = Vec::new();
        for (tag, pace) in &mut self.paces {
            if pace.due <= now {
                due.push(*tag);
                let late = now.since(pace.due).as_nanos() / pace.interval.as_nanos().max(1);
                let missed = u32::try_from(late).unwrap_or(u32::MAX);
                pace.due = pace.due + pace.interval.saturating_mul(missed.saturating_add(1));
            }
        }
        due
    }

    /// Returns when to call [`Pairs::due`].
    pub fn poll_timeout(&self) -> Option<Time> {
        self.paces.values().map(|pace| pace.due).min()
    }

    /// Records a probe of a path that is being sent, and returns it.
    pub fn handle_probe_sent(
        &mut self,
        now: Time,
        tag: u16,
        nonce: u64,
        line: (Duration, SentCounters),
    ) -> Option<TaggedRequest> {
        let target = &self.paces.get(&tag)?.target;
        let monitor = self.monitors.get_mut(target)?;
        monitor.handle_probe_sent(now, tag, nonce, line)
    }

    /// Returns the other edge of a path.
    fn target(&self, tag: u16) -> Option<&str> {
        self.paces.get(&tag).map(|pace| pace.target.as_str())
    }

    /// Returns the queue of each path.
    pub fn queues(&self, now: Time) -> BTreeMap<u16, PathQueue> {
        let monitors = self.monitors.values();
        monitors.flat_map(|monitor| monitor.queues(now)).collect()
    }

    /// Takes in how many packets that each path had lost were sent again by another one.
    pub fn handle_repeated(&mut self, repeated: &BTreeMap<u16, u64>) {
        for target in self.repairs.keys() {
            if let Some(monitor) = self.monitors.get_mut(target) {
                monitor.handle_repeated(|tag| repeated.get(&tag).copied().unwrap_or_default());
            }
        }
    }

    /// Returns what each path lost lately; none of those whose other edge does not tell.
    pub fn losses(&self, now: Time) -> BTreeMap<u16, RecentLoss> {
        let monitors = self.monitors.values();
        monitors.flat_map(|monitor| monitor.losses(now)).collect()
    }

    /// Takes in a reply.
    pub fn handle_reply(&mut self, now: Time, reply: &TaggedReply) {
        // It tells of the path that was probed, whatever path it came by.
        let probed = reply.reports[0].tag;
        let target = self.paces.get(&probed).map(|pace| &pace.target);
        if let Some(monitor) = target.and_then(|target| self.monitors.get_mut(target)) {
            monitor.handle_reply(now, reply);
        }
    }

    /// Takes in what each path lost lately, and the bytes that flows which keep to one path have sent by it since the
    /// beginning. Returns the paths that such flows are to avoid, if these are others than before.
    pub fn handle_losses(
        &mut self,
        now: Time,
        losses: &BTreeMap<u16, PathLoss>,
        kept_bytes: &BTreeMap<u16, u64>,
    ) -> Option<BTreeSet<u16>> {
        for (tag, bytes) in kept_bytes {
            if let Some(pace) = self.paces.get_mut(tag) {
                pace.kept.handle_bytes(now, *bytes);
            }
        }
        let is_light = |tag: &&u16| {
            let (loss, pace) = (losses.get(tag), self.paces.get(tag));
            loss.zip(pace)
                .is_some_and(|(loss, pace)| loss.is_light(pace.rate_bit_s))
        };
        self.light = losses.keys().filter(is_light).copied().collect();
        for (target, monitor) in &self.monitors {
            let avoided = self.avoided.entry(target.clone()).or_default();
            let path = |(tag, loss)| {
                let pace = self.paces.get(&tag);
                let path = PathNow {
                    loss,
                    is_clear: monitor.is_clear(now, tag, self.light.contains(&tag)),
                    rate_bit_s: pace.map_or(0, |pace| pace.rate_bit_s),
                    kept_bit_s: pace.and_then(|pace| pace.kept.bit_s).unwrap_or(0),
                };
                (tag, path)
            };
            avoided.handle_paths(now, &monitor.losses(now).map(path).collect());
        }
        let each = self.avoided.values();
        let avoided: BTreeSet<u16> = each.flat_map(AvoidedPaths::avoided).collect();
        let is_changed = avoided != self.told_avoided;
        self.told_avoided.clone_from(&avoided);
        is_changed.then_some(avoided)
    }

    /// Has copies kept of what is sent by paths that lost some packets lately. `token` returns an unpredictable number.
    pub fn handle_repairs(
        &mut self,
        now: Time,
        losses: &BTreeMap<u16, PathLoss>,
        mut token: impl FnMut() -> Option<u64>,
    ) {
        for (target, monitor) in &mut self.monitors {
            let loss = |tag: u16| Some((tag, *losses.get(&tag)?));
            let paths = monitor.tags().filter_map(loss).collect();
            let (mut repair, mut known) = self.repairs.remove(target).unwrap_or_default();
            repair.handle_paths(now, &paths);
            if repair.losing().next().is_some() {
                known = known.or_else(&mut token);
            }
            let copied: BTreeSet<u16> = repair.losing().collect();
            monitor.set_copied(|tag| copied.contains(&tag));
            if !repair.is_idle() {
                self.repairs.insert(target.clone(), (repair, known));
            }
        }
    }

    /// Returns the state of repair.
    pub fn repairs(&self, now: Time) -> Repairs {
        let mut repairs = Repairs::default();
        for (target, monitor) in &self.monitors {
            if let Some(offer) = monitor.offer(now) {
                let by = monitor.quick_ones();
                repairs
                    .asked
                    .insert(target.clone(), AskedEdge { offer, by });
            }
            let Some((repair, Some(token))) = self.repairs.get(target) else {
                continue;
            };
            let token = *token;
            let mut wait = None;
            for tag in repair.losing() {
                let Some((by, time)) = monitor.quickest(&[tag]) else {
                    continue;
                };
                let is_clear = monitor.is_clear(now, tag, self.light.contains(&tag));
                if is_clear {
                    wait = wait.max(Some(time));
                }
                let path = CopiedPath {
                    by,
                    token,
                    is_clear,
                };
                repairs.copied.insert(tag, path);
            }
            if let Some(wait) = wait {
                let offer = Offer { wait, token };
                let tags = monitor.tags();
                repairs.offers.extend(tags.map(|tag| (tag, offer)));
            }
        }
        repairs
    }

    /// Returns the tags of silent paths.
    fn silent(&self) -> BTreeSet<u16> {
        self.monitors
            .values()
            .flat_map(PairMonitor::silent)
            .collect()
    }

    /// Returns the states of all paths.
    pub fn states(&self, now: Time) -> PathStates {
        let mut states = PathStates {
            silent: self.silent(),
            ..PathStates::default()
        };
        for monitor in self.monitors.values() {
            if monitor.is_answered(now) {
                states.probed.extend(monitor.tags());
            }
        }
        states.probed.extend(&states.silent);
        states
    }
}

/// Queues as the program was told them. Pure.
#[derive(Debug, Default)]
struct ToldQueues {
    queues: BTreeMap<u16, PathQueue>,
    /// Time at which all were told.
    at: Time,
}

impl ToldQueues {
    /// Returns the queues that have changed, and all before they expire.
    fn poll_changes(
        &mut self,
        now: Time,
        mut queues: BTreeMap<u16, PathQueue>,
    ) -> BTreeMap<u16, PathQueue> {
        if now.since(self.at) >= QUEUE_LIFETIME / 4 {
            (self.at, self.queues) = (now, BTreeMap::new());
        }
        queues.retain(|tag, queue| {
            let before = self.queues.get(tag);
            before.is_none_or(|before| {
                before.excess.abs_diff(queue.excess) >= MIN_EXCESS_CHANGE
                    || before.whole.abs_diff(queue.whole) >= MIN_QUEUE_CHANGE
            })
        });
        self.queues.extend(&queues);
        queues
    }
}

/// Losses as the program was told them. Pure.
#[derive(Debug, Default)]
struct ToldLosses {
    losses: BTreeMap<u16, RecentLoss>,
    /// Time at which all were told.
    at: Time,
}

impl ToldLosses {
    /// Returns the losses of all paths if one has lost more, and before they expire.
    fn poll_changes(
        &mut self,
        now: Time,
        losses: BTreeMap<u16, RecentLoss>,
    ) -> Option<BTreeMap<u16, RecentLoss>> {
        let more = |(tag, loss): (&u16, &RecentLoss)| {
            let before = self.losses.get(tag).copied().unwrap_or_default();
            loss.events > before.events
        };
        let is_due = now.since(self.at) >= QUEUE_LIFETIME / 4 || losses.iter().any(more);
        if losses.is_empty() || !is_due {
            return None;
        }
        (self.at, self.losses) = (now, losses.clone());
        Some(losses)
    }
}

/// Edge's side of the thread.
pub trait ProbedEdge {
    /// Returns the pairs if they are others than at the last call.
    fn poll_pairs(&self) -> Option<Vec<ProbedPair>>;
    /// Returns what was sent by each path.
    fn sent(&self, tags: &[u16]) -> BTreeMap<u16, SentCounters>;
    /// Returns the bytes that flows which keep to one path have sent by each.
    fn kept_bytes(&self, tags: &[u16]) -> BTreeMap<u16, u64>;
    /// Returns how many packets that each path had lost were sent again by another one.
    fn repeated(&self) -> BTreeMap<u16, u64>;
    /// Returns the estimated queue of each path to another edge.
    fn estimated_queues(&self, target: &str) -> BTreeMap<u16, Duration>;
    /// Follows queues of paths, for [`QUEUE_LIFETIME`].
    fn follow_queues(&self, queues: &BTreeMap<u16, PathQueue>);
    /// Follows what paths lost lately, for [`QUEUE_LIFETIME`].
    fn follow_losses(&self, losses: &BTreeMap<u16, RecentLoss>);
    /// Has flows that keep to one path avoid these paths, and no others.
    fn avoid(&self, avoided: &BTreeSet<u16>);
    /// Follows other states of paths.
    fn follow(&self, states: PathStates);
    /// Returns true if losses are to be repaired.
    fn repairs(&self) -> bool;
    /// Returns what each path lost lately.
    fn losses(&self, tags: &[u16]) -> BTreeMap<u16, PathLoss>;
    /// Keeps copies, offers them and asks for them.
    fn repair(&self, repairs: &Repairs);
}

/// Probes the tagged paths.
pub struct PairProber {
    pairs: Pairs,
    sender: PacketSender,
    random: SystemRandom,
    origin: Instant,
}

impl PairProber {
    /// Creates it; probes are sent on the device with this index.
    pub fn new(ifindex: u32) -> io::Result<PairProber> {
        Ok(PairProber {
            pairs: Pairs::default(),
            sender: PacketSender::open(ifindex)?,
            random: SystemRandom::new(),
            origin: Instant::now(),
        })
    }

    fn time(&self, at: Instant) -> Time {
        Time::ZERO + at.saturating_duration_since(self.origin)
    }

    /// Runs until the channel of replies is closed.
    pub fn run(mut self, replies: &Receiver<ProbeReply>, edge: &impl ProbedEdge) {
        if let Err(error) = braid_device::set_real_time() {
            tracing::info!(%error, "probing with ordinary priority: a busy machine delays probes");
        }
        let mut paced = Time::ZERO;
        let (mut states, mut told) = (PathStates::default(), ToldQueues::default());
        let mut told_losses = ToldLosses::default();
        let (is_repairing, mut repairs) = (edge.repairs(), Repairs::default());
        loop {
            let now = self.time(Instant::now());
            if let Some(pairs) = edge.poll_pairs() {
                self.pairs.set(now, &pairs);
                paced = Time::ZERO;
            }
            let is_paced = now.since(paced) >= PACING_INTERVAL || paced == Time::ZERO;
            if is_paced {
                paced = now;
                let tags: Vec<u16> = self.pairs.paces.keys().copied().collect();
                let sent = edge.sent(&tags);
                let sent = |tag: u16| sent.get(&tag).map_or(0, |sent| sent.packets);
                self.pairs.handle_traffic(now, sent);
                let losses = edge.losses(&tags);
                if let Some(avoided) =
                    self.pairs
                        .handle_losses(now, &losses, &edge.kept_bytes(&tags))
                {
                    edge.avoid(&avoided);
                }
                if is_repairing {
                    let token = || random_number(&self.random);
                    self.pairs.handle_repairs(now, &losses, token);
                }
            }
            if !self.pairs.repairs.is_empty() {
                self.pairs.handle_repeated(&edge.repeated());
            }
            // Queued replies arrived in time, however late they are read. The limit guards against a
            // flood; a reply that is not read tells nothing.
            for _ in 0..MAX_QUEUED_REPLIES {
                match replies.try_recv() {
                    Ok(ProbeReply::Tagged { reply, at }) => {
                        let at = self.time(at);
                        self.pairs.handle_reply(at, &reply);
                    }
                    Ok(ProbeReply::Layer3 { .. }) => {}
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            let now = self.time(Instant::now());
            if is_paced || self.pairs.silent() != states.silent {
                let found = self.pairs.states(now);
                if found != states {
                    states.clone_from(&found);
                    edge.follow(found);
                }
            }
            if is_repairing {
                let found = self.pairs.repairs(now);
                if found != repairs {
                    edge.repair(&found);
                    repairs = found;
                }
            }
            let queues = told.poll_changes(now, self.pairs.queues(now));
            if !queues.is_empty() {
                edge.follow_queues(&queues);
            }
            if let Some(losses) = told_losses.poll_changes(now, self.pairs.losses(now)) {
                edge.follow_losses(&losses);
            }
            self.send_probes(edge);
            let next = self.pairs.poll_timeout();
            let wait = next.map_or(PACING_INTERVAL, |next| {
                next.since(self.time(Instant::now()))
            });
            thread::sleep(wait.clamp(TURN_INTERVAL, PACING_INTERVAL));
        }
    }

    fn send_probes(&mut self, edge: &impl ProbedEdge) {
        let mut estimated: BTreeMap<String, BTreeMap<u16, Duration>> = BTreeMap::new();
        for tag in self.pairs.due(self.time(Instant::now())) {
            let Some(nonce) = random_number(&self.random) else {
                tracing::warn!("no random numbers: no probes");
                return;
            };
            // The second half is not 0.
            let nonce = nonce | 1;
            let Some(target) = self.pairs.target(tag).map(str::to_owned) else {
                continue;
            };
            let queues = estimated.entry(target);
            let queues = queues.or_insert_with_key(|target| edge.estimated_queues(target));
            let queue = queues.get(&tag).copied().unwrap_or_default();
            let sent = edge.sent(&[tag]).remove(&tag).unwrap_or_default();
            let now = self.time(Instant::now());
            let line = (queue, sent);
            let Some(request) = self.pairs.handle_probe_sent(now, tag, nonce, line) else {
                continue;
            };
            // A probe that cannot be sent counts as missed.
            if let Err(error) = self.sender.send(&request.frame()) {
                tracing::debug!(tag, %error, "a probe was not sent");
            }
        }
    }
}

fn random_number(random: &SystemRandom) -> Option<u64> {
    let mut bytes = [0; 8];
    random.fill(&mut bytes).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::PathReport;

    fn pair(target: &str, tags: std::ops::Range<u16>, rate_bit_s: u64) -> ProbedPair {
        ProbedPair {
            target: target.to_owned(),
            returns: tags.clone().map(|tag| tag + 1000).collect(),
            paths: tags.map(|tag| (tag, rate_bit_s)).collect(),
        }
    }

    /// Returns how often each path is probed within a second.
    fn probed(pairs: &mut Pairs, mut now: Time) -> BTreeMap<u16, usize> {
        let mut counts = BTreeMap::new();
        for _ in 0..1000 {
            now = now + Duration::from_millis(1);
            for tag in pairs.due(now) {
                *counts.entry(tag).or_default() += 1;
            }
        }
        counts
    }

    /// Makes pairs with four paths each, of which the first ones are used.
    fn pairs(count: u16, used: u16, rate_bit_s: u64) -> (Pairs, Time) {
        let all: Vec<ProbedPair> = (0..count)
            .map(|number| {
                let first = 2 + 4 * number;
                pair(&format!("e{number}"), first..first + 4, rate_bit_s)
            })
            .collect();
        let mut pairs = Pairs::default();
        let now = Time::ZERO + Duration::from_secs(1);
        pairs.set(now, &all);
        let now = now + USED_TIME;
        pairs.handle_traffic(now, |_| 1);
        // One path of each pair is enough.
        let sent = |tag| {
            if tag < 2 + 4 * used && tag % 4 == 2 {
                2
            } else {
                1
            }
        };
        pairs.handle_traffic(now, sent);
        (pairs, now)
    }

    #[test]
    fn used_paths_are_probed_50_times_a_second_and_others_5_times() {
        let (mut pairs, now) = pairs(2, 1, 0);
        let counts = probed(&mut pairs, now);
        for tag in 2..6 {
            assert!((49..=51).contains(&counts[&tag]), "{counts:?}");
        }
        for tag in 6..10 {
            assert!((4..=6).contains(&counts[&tag]), "{counts:?}");
        }
        let later = now + USED_TIME;
        pairs.handle_traffic(later, |_| 2);
        pairs.handle_traffic(later + USED_TIME, |_| 2);
        let counts = probed(&mut pairs, later + USED_TIME);
        assert!(counts.values().all(|count| *count <= 6), "{counts:?}");
    }

    #[test]
    fn new_paths_are_probed_as_used_ones() {
        let mut pairs = Pairs::default();
        let now = Time::ZERO + Duration::from_secs(1);
        pairs.set(now, &[pair("hb", 2..4, 0)]);
        let counts = probed(&mut pairs, now);
        assert!(counts.values().all(|count| *count >= 49), "{counts:?}");
    }

    #[test]
    fn an_edge_sends_a_bounded_number_of_probes() {
        for (count, each) in [(64, 31), (256, 8)] {
            let (mut pairs, now) = pairs(count, count, 0);
            let counts = probed(&mut pairs, now);
            let all: usize = counts.values().sum();
            assert!(
                all <= MAX_PROBES_PER_SECOND as usize + counts.len(),
                "{all}"
            );
            assert!(counts.values().all(|count| *count >= each), "{counts:?}");
        }
    }

    #[test]
    fn probes_of_slow_paths_leave_room() {
        // 10 Mbit/s, 1 Mbit/s, and next to nothing.
        for (rate, least, most) in [(10_000_000, 49, 51), (1_000_000, 5, 7), (1_000, 4, 6)] {
            let (mut pairs, now) = pairs(1, 1, rate);
            let counts = probed(&mut pairs, now);
            for count in counts.values() {
                assert!((least..=most).contains(count), "{rate}: {counts:?}");
                let bits = count * TAGGED_REQUEST_LENGTH * 8;
                assert!(rate < 10_000 || bits as u64 <= rate / 150, "{rate}: {bits}");
            }
        }
    }

    #[test]
    fn probes_of_a_pair_are_spread_also_after_a_pause() {
        let (mut pairs, now) = pairs(1, 1, 0);
        let mut now = now + Duration::from_millis(3333);
        pairs.due(now);
        let mut at = BTreeMap::new();
        for ms in 0..20 {
            now = now + Duration::from_millis(1);
            for tag in pairs.due(now) {
                at.insert(tag, ms);
            }
        }
        let mut times: Vec<i32> = at.into_values().collect();
        times.sort_unstable();
        assert_eq!(times.len(), 4);
        assert!(
            times.windows(2).all(|two| two[1] - two[0] == 5),
            "{times:?}"
        );
    }

    /// Sends probes for a second, which are all answered at once.
    fn run_answered(pairs: &mut Pairs, now: &mut Time, offer: Option<Offer>) {
        for _ in 0..100 {
            *now = *now + Duration::from_millis(10);
            for tag in pairs.due(*now) {
                let nonce = now.as_nanos() + u64::from(tag);
                let request = pairs
                    .handle_probe_sent(*now, tag, nonce, Default::default())
                    .expect("a path");
                let mut reply = TaggedReply {
                    tag: request.return_tag,
                    nonce,
                    reports: Default::default(),
                    offer,
                };
                reply.reports[0].tag = tag;
                pairs.handle_reply(*now, &reply);
            }
        }
    }

    #[test]
    fn queues_are_told_when_they_change_and_before_they_expire() {
        let ms = Duration::from_millis;
        let queue = |excess, whole| PathQueue {
            whole: ms(whole),
            excess: ms(excess),
        };
        let queues = |one, other| BTreeMap::from([(2, queue(one, 50)), (3, queue(other, 50))]);
        let mut told = ToldQueues::default();
        let mut poll = |at: u64, queues| {
            let changes = told.poll_changes(Time::ZERO + ms(1000 + at), queues);
            changes.keys().copied().collect::<Vec<u16>>()
        };
        assert_eq!(poll(0, queues(0, 30)), [2, 3]);
        assert_eq!(poll(10, queues(1, 30)), [0; 0]);
        assert_eq!(poll(20, queues(2, 31)), [2]);
        assert_eq!(poll(30, queues(3, 28)), [3]);
        assert_eq!(poll(99, queues(3, 28)), [0; 0]);
        assert_eq!(poll(100, queues(3, 28)), [2, 3]);
        let whole = |whole| BTreeMap::from([(2, queue(3, whole)), (3, queue(28, 50))]);
        assert_eq!(poll(110, whole(59)), [0; 0]);
        assert_eq!(poll(120, whole(60)), [2]);
        assert_eq!(poll(130, whole(50)), [2]);
    }

    /// Probes for half a second beside 400 packets a second by each path, of which path 3 loses one in forty; returns the
    /// avoided paths if they are others than before.
    fn avoided_after(pairs: &mut Pairs, now: &mut Time, sent: &mut u64) -> Option<BTreeSet<u16>> {
        for _ in 0..50 {
            *now = *now + Duration::from_millis(10);
            *sent += 4;
            for tag in pairs.due(*now) {
                let nonce = ((now.as_nanos() / 1_000) << 8 | u64::from(tag)) & 0xffff_ffff;
                let counters = SentCounters {
                    packets: *sent,
                    bytes: 1_500 * *sent,
                };
                let line = (Duration::ZERO, counters);
                let request = pairs.handle_probe_sent(*now, tag, nonce, line);
                let mut reply = TaggedReply {
                    tag: request.expect("a path").return_tag,
                    nonce,
                    reports: Default::default(),
                    offer: None,
                };
                let lost = if tag == 3 { *sent / 40 } else { 0 };
                reply.reports[0] = PathReport {
                    tag,
                    data_age: None,
                    nonce: nonce as u32,
                    packets: Some((*sent - lost) as u32),
                };
                pairs.handle_reply(*now, &reply);
            }
        }
        let losses = pairs.paces.keys().map(|tag| (*tag, PathLoss::default()));
        let kept = pairs.paces.keys().map(|tag| (*tag, 1_500 * *sent));
        let kept = kept.collect();
        pairs.handle_losses(*now, &losses.collect(), &kept)
    }

    #[test]
    fn paths_are_avoided_no_more_once_their_pair_has_gone() {
        let mut pairs = Pairs::default();
        let mut now = Time::ZERO + Duration::from_secs(1);
        let pair = pair("hb", 2..4, 100_000_000);
        pairs.set(now, std::slice::from_ref(&pair));
        let mut sent = 1_000;
        let mut look = |pairs: &mut Pairs| avoided_after(pairs, &mut now, &mut sent);
        let found = (0..20).find_map(|_| look(&mut pairs));
        assert_eq!(found, Some(BTreeSet::from([3])));
        // One of its paths was withdrawn, so that nothing chooses among them.
        pairs.set(Time::ZERO + Duration::from_secs(20), &[]);
        assert_eq!(look(&mut pairs), Some(BTreeSet::new()));
        assert_eq!(look(&mut pairs), None);
    }

    #[test]
    fn a_path_without_room_for_the_flows_of_another_is_none_for_them() {
        let mut pairs = Pairs::default();
        let mut now = Time::ZERO + Duration::from_secs(1);
        // By each path 4.8 Mbit/s of them.
        pairs.set(now, &[pair("hb", 2..4, 8_000_000)]);
        let mut sent = 1_000;
        let found = (0..20).find_map(|_| avoided_after(&mut pairs, &mut now, &mut sent));
        assert_eq!(found, None);
    }

    #[test]
    fn copies_are_kept_offered_and_asked_for_between_the_edges_of_a_pair_alone() {
        let mut pairs = Pairs::default();
        let mut now = Time::ZERO + Duration::from_secs(1);
        pairs.set(now, &[pair("hb", 2..4, 100_000_000), pair("hc", 4..6, 0)]);
        run_answered(&mut pairs, &mut now, None);
        let loss = |lost| PathLoss {
            sent: 10_000_000,
            lost,
            repeated: 0,
        };
        let losses: BTreeMap<u16, PathLoss> = (2..6).map(|tag| (tag, loss(0))).collect();
        let token = || -> Option<u64> { unreachable!("nothing was lost") };
        assert_eq!(pairs.handle_losses(now, &losses, &BTreeMap::new()), None);
        pairs.handle_repairs(now, &losses, token);
        assert_eq!(pairs.repairs(now), Repairs::default());
        let mut lossy = losses.clone();
        lossy.insert(3, loss(50_000));
        pairs.handle_repairs(now, &lossy, || Some(7));
        pairs.handle_repairs(now, &losses, token);
        let repairs = pairs.repairs(now);
        let copied = CopiedPath {
            by: 2,
            token: 7,
            is_clear: true,
        };
        assert_eq!(repairs.copied, BTreeMap::from([(3, copied)]));
        let offer = *repairs.offers.get(&2).expect("an offer");
        assert_eq!(repairs.offers, BTreeMap::from([(2, offer), (3, offer)]));
        assert_eq!(offer.token, 7);
        assert!(repairs.asked.is_empty());
        // The other edges ask for what they were offered, by paths that work.
        run_answered(&mut pairs, &mut now, Some(offer));
        let asked = pairs.repairs(now).asked;
        assert_eq!(asked.keys().collect::<Vec<_>>(), ["hb", "hc"]);
        assert_eq!(asked["hb"].by, [2, 3]);
        assert_eq!(asked["hc"].offer, offer);
        // The pair has gone.
        pairs.set(now, &[pair("hc", 4..6, 0)]);
        assert!(pairs.repairs(now).copied.is_empty());
    }

    #[test]
    fn paths_that_remain_keep_their_state() {
        let mut pairs = Pairs::default();
        let mut now = Time::ZERO + Duration::from_secs(1);
        pairs.set(now, &[pair("hb", 2..4, 0)]);
        for nonce in 1..400 {
            now = now + Duration::from_millis(10);
            for tag in pairs.due(now) {
                let request = pairs
                    .handle_probe_sent(now, tag, nonce, Default::default())
                    .expect("a path");
                let mut reply = TaggedReply {
                    tag: request.return_tag,
                    nonce,
                    reports: Default::default(),
                    offer: None,
                };
                // Path 2 brings nothing after the first.
                for (report, tag) in reply.reports.iter_mut().zip(request.asked) {
                    report.tag = tag;
                    report.nonce = nonce as u32;
                }
                if tag == 3 {
                    reply.reports[0].nonce = 1;
                    pairs.handle_reply(now, &reply);
                } else if nonce < 30 {
                    pairs.handle_reply(now, &reply);
                }
            }
        }
        assert_eq!(pairs.states(now).silent, BTreeSet::from([2]));
        pairs.set(now, &[pair("hb", 2..5, 0), pair("hc", 9..11, 0)]);
        assert_eq!(pairs.states(now).silent, BTreeSet::from([2]));
        assert_eq!(pairs.states(now).probed, BTreeSet::from([2, 3, 4]));
        pairs.set(now, &[pair("hb", 3..5, 0)]);
        assert!(pairs.states(now).silent.is_empty());
    }
}
