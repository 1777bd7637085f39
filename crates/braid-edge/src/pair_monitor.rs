//! Liveness of the tagged paths from this edge to another one. Pure.
//!
//! In the manner of BFD (RFC 5880) with a stateless reflector (S-BFD, RFC 7880), but paths lead one way
//! and are judged by comparison, as links are in `braid_multipath::liveness`:
//!
//! - **Reports**: a reply tells what came last by each path of the pair, whatever path the probe and the
//!   reply took. So a path that brings no replies is not blamed on those that replies take.
//! - A path is **silent** if a reply shows that none of its last probes came, although they had the time
//!   for it ([`MIN_SILENCE`], [`MIN_MISSED`], and the time-out of RFC 6298 for one more on its way), and no
//!   data either: a full queue drops probes too. Evidence is a reply over another path alone. So
//!   nothing is concluded while all paths are silent, this thread is late, or either machine stands
//!   still, and the last path is never left.
//! - Only probes that were **sent** count. Time is measured between sendings, so a late thread that
//!   sends and reads in a burst misses nothing.
//! - A missed probe counts only **beside one that came** by another path, sent within an interval of it. Those that
//!   went out before the other edge was there, or while nothing of the pair came through, tell nothing of one path.
//! - **Forgery**: nonces are unpredictable. What a report says of a path counts only if it is a nonce
//!   that was sent over that path, and it only leads forward in time: who does not see the probes of a
//!   path can neither revive nor end it, and a replay tells nothing new. Anybody who can send data under
//!   a path's tag can keep it from being left.
//! - **Queues**: a probe waits in the path's queue as any packet. Its time beyond the shortest one is that queue,
//!   and as far as it is longer than the queue that this edge estimated when it sent the probe, it is the path's
//!   *excess queue*. A probe that is not answered yet has been on its way as long.
//! - **Losses**: a reply also tells how many packets had come when a probe did ([`LossMeter`]).
//! - A silent path is used again after [`SIGNS_TO_RECOVER`] probes that came in a row, more if it keeps
//!   failing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use braid_core::Time;
use braid_multipath::estimate::Rtt;
use braid_multipath::liveness::FailureHistory;

use crate::path_loss::{LossMeter, OWN_QUEUE, RecentLoss, SentCounters};
use crate::probe::{MAX_REPORTS, Offer, PathReport, TaggedReply, TaggedRequest};

/// Time that the missed probes of a silent path stand for, at the interval of its probes.
pub const MIN_SILENCE: Duration = Duration::from_millis(80);
/// Fewest probes in a row that are missed: the usual detection multiplier of BFD.
pub const MIN_MISSED: u32 = 3;
/// Probes in a row that end a first silence.
const SIGNS_TO_RECOVER: u32 = 5;
/// Missed probes that start the count of these anew.
const MISSED_WHILE_SILENT: u32 = 2;
/// Time for which a path that has never brought a probe is not judged: the far edge may not know it yet.
const NEW_PATH_GRACE: Duration = Duration::from_secs(1);
/// Time for which replies are accepted, and for which a probe may count as missed.
const PROBE_LIFETIME: Duration = Duration::from_secs(3);
/// Round trips of which the shortest shows the queue: every second reply may return by a slower path.
const QUEUE_SAMPLES: usize = 3;
/// Time for which the longest queue is remembered at least, and half of the time at most.
const LONGEST_WINDOW: Duration = Duration::from_secs(15);
/// Longest time that a copy takes from the request on, and what is added to a round trip for it: the edges'
/// threads, and other things that their processors do.
const MAX_REPAIR_TIME: Duration = Duration::from_millis(250);
const REPAIR_PROCESSING: Duration = Duration::from_millis(20);
/// Steps of that time, so that not every round trip changes it.
const REPAIR_TIME_STEP_MS: u64 = 10;
/// Time after a reply for which its offer holds: a few replies may be lost.
const OFFER_LIFETIME: Duration = Duration::from_millis(300);
/// Time after a reply for which the other edge is known to answer.
const ANSWERED_TIME: Duration = Duration::from_secs(3);

/// Monitor of the paths to one other edge.
#[derive(Debug, Default)]
pub struct PairMonitor {
    paths: BTreeMap<u16, Path>,
    /// Paths from there, and when a reply came by each.
    returns: Vec<(u16, Option<Time>)>,
    /// Time of the last reply.
    last_reply: Option<Time>,
    /// The last offer of the other edge, and its time.
    offer: Option<(Time, Offer)>,
}

#[derive(Debug)]
struct Path {
    interval: Duration,
    /// Number of its probes.
    requests: usize,
    probes: VecDeque<Probe>,
    /// Nonce and time of sending of the last probe that is known to have come.
    heard: Option<(u32, Time)>,
    /// Time at which probing began.
    since: Time,
    /// Data came at this time or later.
    data: Time,
    rtt: Rtt,
    /// The last round trips, and the shortest one of all.
    round_trips: VecDeque<Duration>,
    shortest: Option<Duration>,
    /// The shortest one by each path back.
    shortest_by: BTreeMap<u16, Duration>,
    /// Queues by the last replies.
    queues: VecDeque<PathQueue>,
    /// Beginning of a window, and the longest queues in it and in the one before.
    longest: (Time, Duration, Duration),
    losses: LossMeter,
    /// Packets that it lost and that were sent again by another path, since the beginning.
    repeated: u64,
    silent: bool,
    signs: u32,
    failures: FailureHistory,
}

/// The queue in front of a path, as time, by its probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathQueue {
    /// All of it, and of the queue on the way back.
    pub whole: Duration,
    /// The part beyond the estimated one.
    pub excess: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Probe {
    nonce: u64,
    sent: Time,
    answered: bool,
    /// The path by which its reply is to come.
    back: u16,
    /// The estimated queue that it was sent into.
    estimated: Duration,
    /// Packets and bytes sent before it.
    before: SentCounters,
    /// True if it is known to have come.
    came: bool,
}

/// Returns how many probes in a row are missed on a silent path.
fn missed_limit(interval: Duration) -> u32 {
    let interval = interval.as_nanos().max(1);
    let spread = u32::try_from(MIN_SILENCE.as_nanos().div_ceil(interval)).unwrap_or(u32::MAX);
    spread.max(MIN_MISSED)
}

impl Path {
    fn new(now: Time, interval: Duration) -> Path {
        Path {
            interval,
            requests: 0,
            probes: VecDeque::new(),
            heard: None,
            since: now,
            data: Time::ZERO,
            rtt: Rtt::default(),
            round_trips: VecDeque::new(),
            shortest: None,
            shortest_by: BTreeMap::new(),
            queues: VecDeque::new(),
            longest: (now, Duration::ZERO, Duration::ZERO),
            losses: LossMeter::new(now),
            repeated: 0,
            silent: false,
            signs: 0,
            failures: FailureHistory::default(),
        }
    }

    fn handle_probe_sent(
        &mut self,
        now: Time,
        nonce: u64,
        back: u16,
        (estimated, before): (Duration, SentCounters),
    ) {
        while let Some(probe) = self.probes.front()
            && now.since(probe.sent) > PROBE_LIFETIME
        {
            self.probes.pop_front();
        }
        self.probes.push_back(Probe {
            nonce,
            sent: now,
            answered: false,
            back,
            estimated,
            before,
            came: false,
        });
    }

    fn handle_round_trip(&mut self, now: Time, round_trip: Duration) {
        self.rtt.handle_sample(now, round_trip);
        if self.round_trips.len() == QUEUE_SAMPLES {
            self.round_trips.pop_front();
        }
        self.round_trips.push_back(round_trip);
        let shortest = self.shortest.map_or(round_trip, |it| it.min(round_trip));
        self.shortest = Some(shortest);
        let (since, longest, before) = &mut self.longest;
        if now.since(*since) >= LONGEST_WINDOW {
            (*since, *before, *longest) = (now, *longest, Duration::ZERO);
        }
        if let Some(queue) = self.queue() {
            self.longest.1 = self.longest.1.max(queue);
        }
    }

    /// Takes in the round trip of a probe that was sent into an estimated queue, and answered by the path `back`.
    fn handle_queue(&mut self, back: u16, round_trip: Duration, estimated: Duration) {
        let shortest = self.shortest_by.entry(back).or_insert(round_trip);
        *shortest = round_trip.min(*shortest);
        let whole = round_trip.saturating_sub(*shortest);
        if self.queues.len() == QUEUE_SAMPLES {
            self.queues.pop_front();
        }
        self.queues.push_back(PathQueue {
            whole,
            excess: whole.saturating_sub(estimated),
        });
    }

    /// Returns the queue; none before there were enough replies.
    fn path_queue(&self, now: Time) -> Option<PathQueue> {
        let whole = self.queues.iter().map(|queue| queue.whole).min()?;
        let answered = self.queues.iter().map(|queue| queue.excess).min()?;
        let waiting = self.probes.iter().rev();
        let waiting: Vec<&Probe> = waiting.take_while(|probe| !probe.answered).collect();
        // The oldest one may be lost.
        let second = waiting
            .len()
            .checked_sub(2)
            .map(|place| self.waited(now, waiting[place]));
        (self.queues.len() == QUEUE_SAMPLES).then(|| PathQueue {
            whole,
            excess: answered.max(second.unwrap_or_default()),
        })
    }

    /// Returns the least queue beyond the estimated one by a probe that is not answered yet.
    fn waited(&self, now: Time, probe: &Probe) -> Duration {
        let shortest = self.shortest_by.get(&probe.back);
        shortest.map_or(Duration::ZERO, |shortest| {
            let past = now.since(probe.sent);
            past.saturating_sub(*shortest + probe.estimated)
        })
    }

    /// Returns the queue on this path, by the last probes; none before there were enough.
    fn queue(&self) -> Option<Duration> {
        let latest = self.round_trips.iter().min()?;
        (self.round_trips.len() == QUEUE_SAMPLES)
            .then(|| latest.saturating_sub(self.shortest.unwrap_or_default()))
    }

    /// Takes in a report, made later than `asked_at`; returns false if nothing can be concluded from it.
    fn handle_report(&mut self, asked_at: Time, now: Time, report: PathReport) -> bool {
        let came = self
            .probes
            .iter_mut()
            .find(|probe| probe.nonce as u32 == report.nonce);
        match (came, self.heard) {
            (Some(probe), before) => {
                probe.came = true;
                let Probe {
                    sent,
                    estimated,
                    before: counters,
                    ..
                } = *probe;
                if before.is_none_or(|(_, last)| last < sent) {
                    self.heard = Some((report.nonce, sent));
                    self.handle_sign(now);
                    if let Some(packets) = report.packets {
                        let repeated = self.repeated;
                        self.losses
                            .handle_sample(now, counters, packets, repeated, estimated);
                    }
                }
            }
            // Nothing since, or nothing ever.
            (None, Some((nonce, _))) if nonce == report.nonce => {}
            (None, None) if report.nonce == 0 => {}
            // The far edge has started anew: the path is as a new one.
            (None, Some(_)) if report.nonce == 0 => (self.heard, self.since) = (None, now),
            // Somebody else's probe, or one of this edge's before it was started.
            (None, _) => return false,
        }
        if let Some(age) = report.data_age {
            // A rounded age is up to a millisecond more.
            self.data = self
                .data
                .max(asked_at.before(age + Duration::from_millis(1)));
        }
        true
    }

    fn handle_sign(&mut self, now: Time) {
        if self.silent {
            self.signs += 1;
            self.silent = self.signs < self.failures.required_signs(now, SIGNS_TO_RECOVER);
        }
    }

    /// Returns when probes were sent that had not come at `asked_at` although they had the time for it, the last
    /// one first.
    fn missed(&self, asked_at: Time) -> impl Iterator<Item = Time> + '_ {
        let heard = self.heard.map_or(self.since, |(_, sent)| sent);
        let known = heard.max(self.data);
        let late = self.probes.iter().rev().map(|probe| probe.sent);
        late.take_while(move |sent| *sent > known)
            .filter(move |sent| *sent + self.rtt.rto() <= asked_at)
    }

    /// Returns true if a probe came that was sent within `span` of this time.
    fn came_beside(&self, at: Time, span: Duration) -> bool {
        let later = self.probes.iter().rev();
        let mut near = later.take_while(|probe| probe.sent + span >= at);
        near.any(|probe| probe.came && probe.sent <= at + span)
    }
}

impl PairMonitor {
    /// Sets the paths to the other edge, and those from there. What is known of others is forgotten.
    pub fn set_paths(&mut self, now: Time, tags: &[u16], returns: &[u16], interval: Duration) {
        self.paths.retain(|tag, _| tags.contains(tag));
        for tag in tags {
            self.paths
                .entry(*tag)
                .or_insert_with(|| Path::new(now, interval));
        }
        let known: BTreeMap<u16, Option<Time>> = self.returns.iter().copied().collect();
        let reply_at = |tag: &u16| (*tag, known.get(tag).copied().flatten());
        self.returns = returns.iter().map(reply_at).collect();
    }

    /// Returns the paths to the other edge.
    pub fn tags(&self) -> impl Iterator<Item = u16> + '_ {
        self.paths.keys().copied()
    }

    /// Sets the interval at which a path is probed.
    pub fn set_interval(&mut self, tag: u16, interval: Duration) {
        if let Some(path) = self.paths.get_mut(&tag) {
            path.interval = interval;
        }
    }

    /// Records a probe of a path that is being sent, and returns it; none if no path leads back. Of each
    /// path every second one returns by the path by which the last reply came, the others by all in turn.
    /// `line`: this edge's estimate of the queue that it is sent into, and what was sent by the path before it.
    pub fn handle_probe_sent(
        &mut self,
        now: Time,
        tag: u16,
        nonce: u64,
        line: (Duration, SentCounters),
    ) -> Option<TaggedRequest> {
        let path = self.paths.get_mut(&tag)?;
        path.requests += 1;
        let best = self.returns.iter().max_by_key(|(_, at)| *at);
        let next = self
            .returns
            .get(path.requests / 2 % self.returns.len().max(1));
        let (return_tag, _) = match path.requests % 2 {
            0 => best?,
            _ => next?,
        };
        path.handle_probe_sent(now, nonce, *return_tag, line);
        let mut asked = [0; MAX_REPORTS];
        for (place, tag) in asked.iter_mut().zip(self.paths.keys()) {
            *place = *tag;
        }
        Some(TaggedRequest {
            tag,
            return_tag: *return_tag,
            nonce,
            asked,
        })
    }

    /// Takes in a reply. Replies to no outstanding probe are ignored.
    pub fn handle_reply(&mut self, now: Time, reply: &TaggedReply) {
        let asked = self.paths.iter_mut().find_map(|(tag, path)| {
            let probe = path
                .probes
                .iter_mut()
                .find(|probe| probe.nonce == reply.nonce && !probe.answered)?;
            probe.answered = true;
            let round_trip = now.since(probe.sent);
            let answered = (*tag, probe.sent, round_trip, probe.estimated);
            (round_trip <= PROBE_LIFETIME).then_some(answered)
        });
        let Some((tag, asked_at, round_trip, estimated)) = asked else {
            return;
        };
        self.last_reply = Some(now);
        self.offer = reply.offer.map(|offer| (now, offer));
        let back = self.returns.iter_mut().find(|(tag, _)| *tag == reply.tag);
        if let Some((_, at)) = back {
            *at = Some(now);
        }
        if let Some(path) = self.paths.get_mut(&tag) {
            path.handle_round_trip(now, round_trip);
            path.handle_queue(reply.tag, round_trip, estimated);
        }
        for report in reply.reports {
            self.handle_report(tag, asked_at, now, report);
        }
    }

    /// Takes in what a reply to a probe over the path `by` says of a path.
    fn handle_report(&mut self, by: u16, asked_at: Time, now: Time, report: PathReport) {
        let others = self.paths.iter();
        let others = others.filter(|(tag, path)| **tag != report.tag && !path.silent);
        let has_others = others.count() > 0;
        let Some(path) = self.paths.get_mut(&report.tag) else {
            return;
        };
        let is_known = path.handle_report(asked_at, now, report);
        // Its own probe came, so whatever is missing before it was lost, and it works.
        if !is_known || by == report.tag {
            return;
        }
        let limit = missed_limit(path.interval);
        let (missed, is_judged) = self.missed(report.tag, asked_at, limit);
        let Some(path) = self.paths.get_mut(&report.tag) else {
            return;
        };
        if path.silent && missed >= MISSED_WHILE_SILENT {
            path.signs = 0;
        }
        if !path.silent && missed >= limit && is_judged && has_others {
            path.failures.add(now);
            (path.silent, path.signs) = (true, 0);
        }
    }

    /// Returns how many probes of a path are missing at `asked_at` beside which others came, up to `limit`, and true
    /// if the path is not as new that the far edge may not know it yet.
    fn missed(&self, tag: u16, asked_at: Time, limit: u32) -> (u32, bool) {
        let Some(path) = self.paths.get(&tag) else {
            return (0, false);
        };
        let is_beside = |sent: &Time| {
            let mut others = self.paths.iter().filter(|(other, _)| **other != tag);
            others.any(|(_, other)| other.came_beside(*sent, path.interval.max(other.interval)))
        };
        let missed = || path.missed(asked_at).filter(is_beside);
        let count = missed().take(limit as usize).count() as u32;
        let is_old = |sent: Time| asked_at.since(sent) > NEW_PATH_GRACE;
        let is_judged = path.heard.is_some() || count >= limit && missed().any(is_old);
        (count, is_judged)
    }

    /// Returns the tags of silent paths.
    pub fn silent(&self) -> impl Iterator<Item = u16> + '_ {
        let silent = self.paths.iter().filter(|(_, path)| path.silent);
        silent.map(|(tag, _)| *tag)
    }

    /// Returns true if the queue of a path is too short to lose packets, by probes that were answered lately:
    /// shorter than half of a queue that was there lately; of a path that carries little (`is_light`) only
    /// shorter than any that counts.
    #[must_use]
    pub fn is_clear(&self, now: Time, tag: u16, is_light: bool) -> bool {
        let Some((path, queue)) = self.paths.get(&tag).and_then(|it| Some((it, it.queue()?)))
        else {
            return false;
        };
        let (_, longest, before) = path.longest;
        let is_short = is_light || 2 * queue < longest.max(before);
        self.is_answered(now) && queue < OWN_QUEUE && is_short
    }

    /// Returns the queue of each path, while the other edge answers.
    pub fn queues(&self, now: Time) -> impl Iterator<Item = (u16, PathQueue)> + '_ {
        let paths = self.paths.iter().filter(move |_| self.is_answered(now));
        paths.filter_map(move |(tag, path)| Some((*tag, path.path_queue(now)?)))
    }

    /// Sets of which paths copies are kept.
    pub fn set_copied(&mut self, is_copied: impl Fn(u16) -> bool) {
        for (tag, path) in &mut self.paths {
            path.losses.set_copied(is_copied(*tag));
        }
    }

    /// Takes in how many packets that each path had lost were sent again by another one until now.
    pub fn handle_repeated(&mut self, repeated: impl Fn(u16) -> u64) {
        for (tag, path) in &mut self.paths {
            path.repeated = repeated(*tag);
        }
    }

    /// Returns what each path lost lately of which the other edge tells its counts.
    pub fn losses(&self, now: Time) -> impl Iterator<Item = (u16, RecentLoss)> + '_ {
        let paths = self.paths.iter().filter(move |_| self.is_answered(now));
        paths.filter_map(move |(tag, path)| Some((*tag, path.losses.recent(now)?)))
    }

    /// Returns the quickest path that works, none of those in `without`, and the time from a request until
    /// what is sent by it has arrived.
    #[must_use]
    pub fn quickest(&self, without: &[u16]) -> Option<(u16, Duration)> {
        let works = |(tag, path): &(&u16, &Path)| {
            !path.silent && path.rtt.is_known() && !without.contains(tag)
        };
        let paths = self.paths.iter().filter(works);
        let (tag, path) = paths.min_by_key(|(_, path)| path.rtt.smoothed())?;
        let wait_ms = (path.rtt.rto() + REPAIR_PROCESSING).as_millis() as u64;
        let wait = Duration::from_millis(wait_ms.next_multiple_of(REPAIR_TIME_STEP_MS));
        Some((*tag, wait.min(MAX_REPAIR_TIME)))
    }

    /// Returns the quickest paths that work, few, for what has to arrive by one of them.
    #[must_use]
    pub fn quick_ones(&self) -> Vec<u16> {
        let (first, second) = (self.quickest(&[]), |first| self.quickest(&[first]));
        let first = first.map(|(tag, _)| tag);
        let second = first.and_then(second).map(|(tag, _)| tag);
        first.into_iter().chain(second).collect()
    }

    /// Returns the other edge's offer of copies.
    #[must_use]
    pub fn offer(&self, now: Time) -> Option<Offer> {
        let (at, offer) = self.offer?;
        (now.since(at) <= OFFER_LIFETIME).then_some(offer)
    }

    /// Returns true if the other edge answers probes.
    #[must_use]
    pub fn is_answered(&self, now: Time) -> bool {
        self.last_reply
            .is_some_and(|at| now.since(at) <= ANSWERED_TIME)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(20);
    const STEP: Duration = Duration::from_millis(1);
    /// One way, on each path.
    const DELAY: Duration = Duration::from_millis(2);

    /// The far edge's program.
    #[derive(Default)]
    struct Reflector {
        last: BTreeMap<u16, u32>,
        data: BTreeMap<u16, Time>,
        /// Packets that had come before the last probe, of paths that carry some.
        packets: BTreeMap<u16, u32>,
    }

    /// Two edges with paths 1… there and 101… back.
    struct Pair {
        monitor: PairMonitor,
        far: Reflector,
        now: Time,
        nonce: u64,
        /// Queue that this edge estimates on every path.
        estimated: Duration,
        paths: u16,
        /// Queue in front of some paths, there and back.
        queues: BTreeMap<u16, Duration>,
        /// Tags that bring nothing.
        cut: Vec<u16>,
        /// Tags that bring data all the time.
        busy: Vec<u16>,
        /// Packets sent by each path, and how many of them are lost.
        traffic: BTreeMap<u16, (u64, u64)>,
        /// Requests and replies under way, by when they arrive.
        requests: Vec<(Time, TaggedRequest)>,
        replies: Vec<(Time, TaggedReply)>,
        /// While it is true this edge's thread neither sends nor reads.
        stopped: bool,
        /// While it is false the far edge's programs are gone.
        answers: bool,
    }

    fn queue_of(queues: &BTreeMap<u16, Duration>, tag: u16) -> Duration {
        queues.get(&tag).copied().unwrap_or_default()
    }

    impl Pair {
        fn new(paths: u16) -> Pair {
            let tags: Vec<u16> = (1..=paths).collect();
            let returns: Vec<u16> = (101..=100 + paths).collect();
            let mut monitor = PairMonitor::default();
            let now = Time::ZERO + Duration::from_secs(1000);
            monitor.set_paths(now, &tags, &returns, INTERVAL);
            Pair {
                monitor,
                far: Reflector::default(),
                now,
                nonce: 0,
                estimated: Duration::ZERO,
                paths,
                queues: BTreeMap::new(),
                cut: Vec::new(),
                busy: Vec::new(),
                traffic: BTreeMap::new(),
                requests: Vec::new(),
                replies: Vec::new(),
                stopped: false,
                answers: true,
            }
        }

        /// Runs for a time; returns when the paths that are silent were others than before.
        fn run(&mut self, span: Duration) -> Option<Duration> {
            let (began, before) = (self.now, self.silent());
            let mut changed = None;
            while self.now.since(began) < span {
                self.step();
                if changed.is_none() && self.silent() != before {
                    changed = Some(self.now.since(began));
                }
            }
            changed
        }

        fn step(&mut self) {
            self.now = self.now + STEP;
            let ms = self.now.as_nanos() / 1_000_000;
            for tag in 1..=self.paths {
                // Spread over the interval.
                let phase = u64::from(tag - 1) * 20 / u64::from(self.paths);
                if !self.stopped && ms % 20 == phase {
                    self.nonce += 1;
                    let (packets, _) = self.traffic.get(&tag).copied().unwrap_or_default();
                    let sent = SentCounters {
                        packets,
                        bytes: 1_500 * packets,
                    };
                    let line = (self.estimated, sent);
                    let sent = self
                        .monitor
                        .handle_probe_sent(self.now, tag, self.nonce, line);
                    let arrival = self.now + DELAY + queue_of(&self.queues, tag);
                    self.requests.push((arrival, sent.expect("a probe")));
                }
                if self.busy.contains(&tag) && !self.cut.contains(&tag) {
                    self.far.data.insert(tag, self.now);
                }
            }
            for (_, request) in self.requests.extract_if(.., |(at, _)| *at <= self.now) {
                if self.cut.contains(&request.tag) || !self.answers {
                    continue;
                }
                self.far.last.insert(request.tag, request.nonce as u32);
                if let Some((sent, lost)) = self.traffic.get(&request.tag) {
                    let came = (sent - lost) as u32;
                    self.far.packets.insert(request.tag, came);
                }
                let reports = request.asked.map(|tag| PathReport {
                    tag,
                    data_age: self.far.data.get(&tag).map(|at| self.now.since(*at)),
                    nonce: self.far.last.get(&tag).copied().unwrap_or(0),
                    packets: self.far.packets.get(&tag).copied(),
                });
                if !self.cut.contains(&request.return_tag) {
                    let reply = TaggedReply {
                        tag: request.return_tag,
                        nonce: request.nonce,
                        reports,
                        offer: None,
                    };
                    let arrival = self.now + DELAY + queue_of(&self.queues, request.return_tag);
                    self.replies.push((arrival, reply));
                }
            }
            if !self.stopped {
                for (_, reply) in self.replies.extract_if(.., |(at, _)| *at <= self.now) {
                    self.monitor.handle_reply(self.now, &reply);
                }
            }
        }

        /// Returns the queues beyond the estimated ones, ms.
        fn excess_queues(&self) -> Vec<(u16, u128)> {
            let queues = self.monitor.queues(self.now);
            let excess = queues.map(|(tag, queue)| (tag, queue.excess.as_millis()));
            excess.collect()
        }

        /// Returns the whole queues, ms.
        fn whole_queues(&self) -> Vec<(u16, u128)> {
            let queues = self.monitor.queues(self.now);
            let whole = queues.map(|(tag, queue)| (tag, queue.whole.as_millis()));
            whole.collect()
        }

        fn silent(&self) -> Vec<u16> {
            self.monitor.silent().collect()
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_path_that_is_cut_is_noticed_within_120_ms() {
        for paths in 2..=4 {
            let mut pair = Pair::new(paths);
            assert_eq!(pair.run(SECOND), None);
            // Both ways, as of a wire.
            pair.cut = vec![1, 101];
            let noticed = pair.run(SECOND).expect("silence");
            // From the first of four missed probes to the last one, and at most an interval more for
            // the cut, and for the next probe that shows it.
            let bounds = 3 * INTERVAL..=6 * INTERVAL;
            assert!(bounds.contains(&noticed), "{paths}: {noticed:?}");
            assert_eq!(pair.silent(), [1]);
        }
    }

    #[test]
    fn a_queue_counts_as_far_as_it_was_not_estimated() {
        let mut pair = Pair::new(2);
        pair.run(SECOND);
        assert_eq!(pair.excess_queues(), [(1, 0), (2, 0)]);
        pair.queues.insert(1, Duration::from_millis(40));
        // The queue itself, and three replies that show it.
        pair.run(Duration::from_millis(40) + 4 * INTERVAL);
        assert_eq!(pair.excess_queues(), [(1, 40), (2, 0)]);
        pair.estimated = Duration::from_millis(30);
        pair.run(Duration::from_millis(40) + 4 * INTERVAL);
        assert_eq!(pair.excess_queues(), [(1, 10), (2, 0)]);
        assert_eq!(pair.whole_queues(), [(1, 40), (2, 0)]);
        pair.queues.clear();
        pair.run(4 * INTERVAL);
        assert_eq!(pair.excess_queues(), [(1, 0), (2, 0)]);
    }

    #[test]
    fn a_queue_shows_before_the_first_probe_has_passed_it() {
        let mut pair = Pair::new(2);
        pair.run(SECOND);
        pair.queues.insert(1, Duration::from_millis(200));
        pair.run(Duration::from_millis(100));
        let least = pair.excess_queues()[0].1;
        assert!((55..100).contains(&least), "{least}");
        // One probe that is lost is none.
        let mut pair = Pair::new(2);
        pair.run(SECOND);
        pair.cut = vec![1];
        pair.run(INTERVAL);
        pair.cut.clear();
        for _ in 0..100 {
            pair.step();
            assert_eq!(pair.excess_queues(), [(1, 0), (2, 0)]);
        }
    }

    #[test]
    fn a_longer_way_back_and_a_queue_there_are_no_queue_of_the_path() {
        let mut pair = Pair::new(2);
        pair.queues.insert(102, Duration::from_millis(65));
        pair.run(SECOND);
        for _ in 0..500 {
            pair.step();
            assert_eq!(pair.excess_queues(), [(1, 0), (2, 0)]);
            assert_eq!(pair.whole_queues(), [(1, 0), (2, 0)]);
        }
    }

    #[test]
    fn an_edge_that_answers_no_more_tells_no_queue() {
        let mut pair = Pair::new(2);
        pair.run(SECOND);
        pair.answers = false;
        pair.run(4 * SECOND);
        assert!(pair.excess_queues().is_empty());
    }

    #[test]
    fn a_path_is_not_blamed_for_the_way_back() {
        let mut pair = Pair::new(4);
        pair.run(SECOND);
        pair.cut = vec![101, 102, 103];
        assert_eq!(pair.run(5 * SECOND), None);
        pair.cut = vec![1, 101, 102, 103];
        let noticed = pair.run(SECOND).expect("silence");
        assert!(noticed <= Duration::from_millis(200), "{noticed:?}");
    }

    #[test]
    fn the_last_path_is_never_left() {
        let mut pair = Pair::new(3);
        pair.run(SECOND);
        for cut in 1..=3 {
            pair.cut.extend([cut, 100 + cut]);
            pair.run(SECOND);
        }
        assert_eq!(pair.silent(), [1, 2]);
        // All at once.
        let mut pair = Pair::new(3);
        pair.run(SECOND);
        pair.cut = vec![1, 2, 3];
        assert_eq!(pair.run(5 * SECOND), None);
    }

    #[test]
    fn the_last_path_is_kept_until_another_has_proved_itself() {
        let mut pair = Pair::new(2);
        pair.run(SECOND);
        for _ in 0..3 {
            pair.cut = vec![1, 101];
            pair.run(SECOND);
            pair.cut.clear();
            pair.run(SECOND);
        }
        pair.cut = vec![1, 101];
        pair.run(SECOND);
        assert_eq!(pair.silent(), [1]);
        pair.cut = vec![2, 102];
        for _ in 0..3000 {
            pair.step();
            assert!(pair.silent().len() <= 1);
        }
        assert_eq!(pair.silent(), [2]);
    }

    #[test]
    fn a_path_that_is_alone_is_not_judged() {
        let mut pair = Pair::new(1);
        pair.run(SECOND);
        pair.cut = vec![1];
        assert_eq!(pair.run(5 * SECOND), None);
    }

    #[test]
    fn a_stopped_edge_leaves_no_path() {
        for span in [50, 100, 300, 1_000, 10_000].map(Duration::from_millis) {
            let mut pair = Pair::new(4);
            pair.run(SECOND);
            pair.stopped = true;
            assert_eq!(pair.run(span), None);
            pair.stopped = false;
            assert_eq!(pair.run(2 * SECOND), None, "{span:?}");
            // One that fell silent meanwhile is noticed as soon as any other.
            pair.stopped = true;
            pair.cut = vec![2, 102];
            pair.run(span);
            pair.stopped = false;
            let noticed = pair.run(SECOND).expect("silence");
            assert!(noticed <= Duration::from_millis(130), "{noticed:?}");
        }
    }

    #[test]
    fn a_far_edge_that_stops_answering_costs_no_path_also_when_it_starts_anew() {
        let mut pair = Pair::new(4);
        pair.run(SECOND);
        pair.answers = false;
        assert_eq!(pair.run(5 * SECOND), None);
        assert!(!pair.monitor.is_answered(pair.now));
        (pair.far, pair.answers) = (Reflector::default(), true);
        assert_eq!(pair.run(5 * SECOND), None);
        assert!(pair.monitor.is_answered(pair.now));
    }

    #[test]
    fn a_far_edge_that_starts_later_costs_no_path() {
        for span in [500, 1_200, 3_000, 10_000].map(Duration::from_millis) {
            let mut pair = Pair::new(4);
            pair.answers = false;
            assert_eq!(pair.run(span), None);
            pair.answers = true;
            assert_eq!(pair.run(5 * SECOND), None, "{span:?}");
        }
    }

    /// As of a switch on the way that stands still, or of an edge's cable: the paths work again one after the other.
    #[test]
    fn a_pause_of_all_paths_costs_none_of_them() {
        for pause in [10, 30, 50, 70, 90, 120, 300, 2_000, 10_000] {
            for later in [0, 5, 25] {
                let mut pair = Pair::new(3);
                pair.run(SECOND + Duration::from_millis(pause % 20 + later));
                pair.cut = vec![1, 2, 3];
                let found = pair.run(Duration::from_millis(pause));
                pair.cut = vec![2, 3];
                let found = found.or(pair.run(Duration::from_millis(later)));
                pair.cut.clear();
                let found = found.or(pair.run(SECOND));
                assert_eq!(found, None, "{pause} ms, and {later} ms more");
                // One that stays away is found as ever.
                pair.cut = vec![2];
                pair.run(SECOND);
                assert_eq!(pair.silent(), [2]);
            }
        }
    }

    #[test]
    fn a_far_edge_that_does_not_know_probes_costs_no_path() {
        let mut pair = Pair::new(2);
        pair.answers = false;
        assert_eq!(pair.run(5 * SECOND), None);
        pair.cut = vec![1];
        assert_eq!(pair.run(5 * SECOND), None);
    }

    #[test]
    fn a_new_path_that_brings_nothing_is_left_after_a_second() {
        let mut pair = Pair::new(2);
        pair.cut = vec![2];
        let noticed = pair.run(3 * SECOND).expect("silence");
        assert!((SECOND..2 * SECOND).contains(&noticed), "{noticed:?}");
        assert_eq!(pair.silent(), [2]);
    }

    #[test]
    fn a_full_queue_that_drops_all_probes_is_no_silence() {
        let mut pair = Pair::new(2);
        pair.busy = vec![1];
        pair.run(SECOND);
        // Its probes are lost, its data are not.
        let lost = |pair: &mut Pair| pair.requests.retain(|(_, request)| request.tag != 1);
        for _ in 0..1000 {
            pair.step();
            lost(&mut pair);
        }
        assert!(pair.silent().is_empty());
        pair.busy.clear();
        for _ in 0..200 {
            pair.step();
            lost(&mut pair);
        }
        assert_eq!(pair.silent(), [1]);
    }

    #[test]
    fn a_path_that_keeps_failing_has_to_prove_itself_for_longer() {
        let mut pair = Pair::new(2);
        pair.run(SECOND);
        let mut waits = Vec::new();
        for _ in 0..3 {
            pair.cut = vec![1, 101];
            pair.run(SECOND);
            assert_eq!(pair.silent(), [1]);
            pair.cut.clear();
            waits.push(pair.run(3 * SECOND).expect("its return").as_millis());
        }
        for (wait, probes) in waits.iter().zip([5, 10, 20]) {
            let wanted = 20 * (probes - 1)..=20 * probes + 10;
            assert!(wanted.contains(wait), "{waits:?}");
        }
    }

    #[test]
    fn a_queue_is_the_excess_of_round_trips_by_whatever_path_replies_come() {
        let mut pair = Pair::new(2);
        assert!(!pair.monitor.is_clear(pair.now, 1, true));
        pair.run(SECOND);
        assert!(pair.monitor.is_clear(pair.now, 1, true));
        let trips = |pair: &mut Pair, ms: &[u64]| {
            for ms in ms {
                let path = pair.monitor.paths.get_mut(&1).expect("a path");
                path.handle_round_trip(pair.now, Duration::from_millis(*ms));
            }
            pair.monitor.is_clear(pair.now, 1, true)
        };
        // Every second reply takes a slower path.
        assert!(trips(&mut pair, &[104, 50, 104, 50, 104]));
        assert!(!trips(&mut pair, &[104, 54, 104]));
        assert!(pair.monitor.is_clear(pair.now, 2, true));
        // One that stays for longer than the shortest of recent round trips is remembered is a queue still.
        let path = pair.monitor.paths.get_mut(&1).expect("a path");
        for _ in 0..60 {
            pair.now = pair.now + SECOND;
            path.handle_round_trip(pair.now, Duration::from_millis(60));
        }
        assert_eq!(path.rtt.min(), Duration::from_millis(60));
        assert!(path.queue().is_some_and(|queue| queue >= OWN_QUEUE));
    }

    #[test]
    fn a_queue_that_may_be_full_explains_losses() {
        let mut pair = Pair::new(2);
        pair.run(SECOND);
        let trips = |pair: &mut Pair, ms: u64| {
            let path = pair.monitor.paths.get_mut(&1).expect("a path");
            (0..3).for_each(|_| path.handle_round_trip(pair.now, Duration::from_millis(4 + ms)));
            [false, true].map(|is_light| pair.monitor.is_clear(pair.now, 1, is_light))
        };
        // It never grew: it may hold nothing at all.
        assert_eq!(trips(&mut pair, 0), [false, true]);
        assert_eq!(trips(&mut pair, 20), [false, true]);
        assert_eq!(trips(&mut pair, 11), [false, true]);
        assert_eq!(trips(&mut pair, 9), [true, true]);
        assert_eq!(trips(&mut pair, 300), [false, false]);
        assert_eq!(trips(&mut pair, 49), [true, true]);
        // It is long ago.
        pair.run(31 * SECOND);
        assert_eq!(trips(&mut pair, 9), [false, true]);
    }

    #[test]
    fn an_offer_holds_for_a_moment_and_only_in_reply_to_a_probe() {
        let mut pair = Pair::new(2);
        pair.run(SECOND);
        let offer = Offer {
            wait: Duration::from_millis(50),
            token: 7,
        };
        let offered = TaggedReply {
            tag: 2,
            nonce: 12_345,
            reports: [PathReport::default(); MAX_REPORTS],
            offer: Some(offer),
        };
        pair.monitor.handle_reply(pair.now, &offered);
        assert_eq!(pair.monitor.offer(pair.now), None);
        let nonce = u64::MAX;
        let asked = pair
            .monitor
            .handle_probe_sent(pair.now, 1, nonce, Default::default());
        assert!(asked.is_some());
        let answer = TaggedReply { nonce, ..offered };
        pair.monitor.handle_reply(pair.now, &answer);
        assert_eq!(pair.monitor.offer(pair.now), Some(offer));
        assert_eq!(pair.monitor.offer(pair.now + OFFER_LIFETIME), Some(offer));
        assert_eq!(pair.monitor.offer(pair.now + SECOND), None);
    }

    #[test]
    fn copies_are_sent_by_the_quickest_of_the_other_paths() {
        let mut pair = Pair::new(3);
        assert_eq!(pair.monitor.quickest(&[]), None);
        pair.run(SECOND);
        let path = pair.monitor.paths.get_mut(&2).expect("a path");
        (0..20).for_each(|_| path.handle_round_trip(pair.now, Duration::from_millis(9)));
        let (tag, wait) = pair.monitor.quickest(&[1]).expect("a path");
        assert_eq!(tag, 3);
        assert_eq!(wait, Duration::from_millis(30));
        assert_eq!(pair.monitor.quick_ones(), [1, 3]);
        assert_eq!(pair.monitor.quickest(&[1, 3]).map(|(tag, _)| tag), Some(2));
        assert_eq!(pair.monitor.quickest(&[1, 2, 3]), None);
    }

    /// Actions of hosts that can send frames under a path's tag, and see none of its probes.
    #[test]
    fn forged_probes_neither_end_nor_revive_a_path() {
        let mut pair = Pair::new(2);
        pair.run(SECOND);
        let old = pair.far.last[&1];
        let forged = [0xdead_beef, old, 1];
        let mut own = Vec::new();
        for round in 0..1000 {
            pair.far.last.insert(1, forged[round % 2 * 2]);
            pair.step();
            // Its own replies are lost, so that only others tell of it.
            let requests = pair.requests.iter();
            let requests = requests.filter(|(_, request)| request.tag == 1);
            own.extend(requests.map(|(_, request)| request.nonce));
            pair.replies
                .retain(|(_, reply)| !own.contains(&reply.nonce));
        }
        assert!(pair.silent().is_empty());
        pair.run(SECOND);
        pair.cut = vec![1, 101];
        pair.run(SECOND);
        assert_eq!(pair.silent(), [1]);
        for round in 0..1000 {
            pair.far.last.insert(1, forged[round % 3]);
            pair.step();
        }
        assert_eq!(pair.silent(), [1]);
    }

    #[test]
    fn replies_that_are_replayed_or_made_up_tell_nothing() {
        let mut pair = Pair::new(2);
        let mut recorded = Vec::new();
        for _ in 0..1000 {
            pair.step();
            recorded.extend(pair.replies.iter().map(|(_, reply)| *reply));
        }
        pair.cut = vec![1, 101];
        pair.run(SECOND);
        assert_eq!(pair.silent(), [1]);
        for mut reply in recorded {
            pair.monitor.handle_reply(pair.now, &reply);
            reply.nonce ^= 1 << 40;
            pair.monitor.handle_reply(pair.now, &reply);
        }
        assert_eq!(pair.silent(), [1]);
    }

    proptest! {
        /// Whatever brings nothing for however long, and however often the thread stands still: a path
        /// that works all the time is never left, and one always stays.
        #[test]
        fn a_path_that_works_is_never_left(
            paths in 2_u16..=4,
            steps in proptest::collection::vec((1_u64..400, any::<u8>(), any::<bool>()), 1..30),
        ) {
            let mut pair = Pair::new(paths);
            for (ms, cut, stopped) in steps {
                // Path 1 works; the way back may fail as well.
                pair.cut = (2..=paths).filter(|tag| cut & (1 << tag) != 0).collect();
                pair.cut.extend((101..=100 + paths).filter(|tag| cut & (1 << (tag % 8)) != 0));
                pair.stopped = stopped;
                pair.run(Duration::from_millis(ms));
                prop_assert!(!pair.silent().contains(&1));
                prop_assert!(pair.silent().len() < usize::from(paths));
            }
        }
    }
}
