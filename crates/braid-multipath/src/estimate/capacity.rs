//! Rate control of a link: a rate proven by delivery, steered by the link's queue.
//!
//! - **Proven**: [`Capacity::proven`] (C) rises only to delivered rates, half-way per sample; at
//!   the start, before the link first queued, all the way. Packets merely sent prove nothing.
//! - **Queue target**: the rate is `C · (1 + (T − q)/τ)`, within 0.5 and 1.25 times C, so that a
//!   full link holds a queue of `T`: enough never to run dry, too little to be felt. `T` is 8 ms,
//!   or twice the link's jitter, or three times the scatter of the delay between reports, since
//!   both look like a queue.
//! - **Doubt at the start**: on a link whose delay scatters, the delay of a flow's first round trips
//!   is jitter as likely as a queue. So low samples do not lower the proven rate until the delay is
//!   longer than any jitter, much is lost, or the rate of a loaded link has stopped growing, as BBR
//!   leaves its start-up. A guess is kept for half a second from the first sample that contradicts it.
//! - **Down only with cause**: a low sample counts only if there is a queue and the link was
//!   loaded. Otherwise the sender had nothing more to send. A C that decayed on every low sample
//!   would collapse.
//! - **Guessed**: the first train is believed, and may have been a token bucket's burst. As long as
//!   nothing delivered has confirmed it, two samples in a row with a queue and much less delivered
//!   correct it, on a link that is not loaded, too.
//! - **Not by itself**: on a link whose delay scatters a low sample counts only if less arrived than
//!   was sent. Delay there may be no queue; the rate is lowered for it, and what arrives then is as
//!   low as what was sent.
//! - **At once**: at twice the queue target, or in a burst of congestive loss, C falls to the
//!   delivered rate. Half-way steps would fill a queue of seconds on a link that lost three
//!   quarters of its rate.
//! - **Up only on demand**: with a local backlog, a loaded link and no queue on it, the factor
//!   grows to 1.5 and then 2. Without a backlog the link is not probed: other traffic would pay for
//!   it.
//! - **Loss without a queue** is either radio loss, for which the rate compensates, or a policer,
//!   at which the link is not pushed. The module `policer` probes the link to tell them apart.
//! - **Drain**: delay above the base that stays the same while everything sent is delivered may be
//!   a queue, or persistent delay that does not depend on the rate. Before the rate is lowered for
//!   it, the link is drained, that is, sent clearly less for a moment: a queue shrinks then.
//!   Persistent delay is not counted as queue.
//! - **Unsteady**: none of this holds on a link that stalls, as under a radio scheduler. There the
//!   rate is a mean over several stalls and a window limits the packets in flight. A low mean
//!   counts as far as the link had a queue. If such a link
//!   runs dry while packets wait, its window is larger until it has a queue again. The module
//!   `stall` has the reasons.
//! - **Drift**: a link with a queue delivers its capacity, whatever it is sent. If the delivered
//!   rate drifts with the sent rate while packets wait for a link that is held back by its delay,
//!   the link is drained, too.

use std::time::Duration;

use braid_core::{Rate, Time};

use super::SentAt;
use super::persistent_delay::{DrainResult, PersistentDelay};
use super::policer::{Load, Policer};

/// Rate of a new link: enough for a TCP flow's first windows, until the first reports arrive.
const INITIAL_RATE: Rate = Rate::from_bits_per_sec(4_000_000);

/// No estimate falls below this, so that the link stays measurable.
const MIN_RATE_BIT_S: f64 = 100_000.0;

/// Share of a train's rate that is believed.
const TRAIN_RATE_SHARE: f64 = 0.95;

/// A link that is sent less than this share of its rate is not loaded.
const MIN_LOADED_SHARE: f64 = 0.45;

/// Least queue target.
const MIN_QUEUE_TARGET: Duration = Duration::from_millis(8);

/// Largest queue target, on links with much jitter.
pub(super) const MAX_QUEUE_TARGET: Duration = Duration::from_millis(30);

/// Delay of the control loop: travel of a report and the wait for it.
const LOOP_DELAY: Duration = Duration::from_millis(25);

/// Consecutive reports with a backlog and no queue after which a link is sent twice its proven
/// rate.
const PROBE_REPORTS: u32 = 4;

/// A queue shows a round trip after the rate was raised. More than this must not have grown by
/// then, or a link with a long round trip drops packets each time that it is probed.
const MAX_PROBE_QUEUE: Duration = Duration::from_millis(100);

/// An unexplained queue may lower the rate to this share of its anchor before the link is drained.
const MIN_ANCHOR_SHARE: f64 = 0.9;

/// A link held back by its delay while packets wait is drained if its delivered rate changed by
/// [`MIN_DRIFT`] within [`DRIFT_SPAN`]: the delay may be no queue at all.
const DRIFT_SPAN: Duration = Duration::from_millis(500);
const MIN_DRIFT: f64 = 0.02;

/// An unsteady link with less queue than this runs dry as soon as its rate grows. Its mean follows
/// a rate that doubles by 0.3 s, in which a TCP flow's own queue would have filled the link. After
/// two reports in a row without a queue, while packets wait, its window is larger by the first
/// factor, and after [`PROBE_REPORTS`] by the second.
const DRY_QUEUE: Duration = Duration::from_millis(5);
const DRY_GAINS: (f64, f64) = (1.3, 1.6);

/// An unsteady link is taken to be busy for this share of the time at least.
const MIN_BUSY_SHARE: f64 = 0.25;

/// More sent than delivered by this factor is lost, or waits on the link.
const MAX_HELD_RATIO: f64 = 1.1;

/// Bits of a full packet.
const PACKET_BITS: f64 = 12_000.0;

/// A delivered rate is believed up to this multiple of the sent rate: more than an emptying queue
/// produces, and little enough for the queue to show an error by the next sample.
const MAX_DELIVERED_RATIO: f64 = 1.25;

/// Delivered and sent rates within this ratio count as equal.
const SAME_RATE_TOLERANCE: f64 = 0.1;

/// At its start a link is sent bursts at this multiple of its rate, with a window as much larger: a
/// flow in slow start doubles each round trip, and takes packets spaced at a rate found too low for
/// a queue.
const START_GAIN: f64 = 2.0;

/// Longest delay above the base that may be jitter at the start.
const MAX_DOUBTFUL_QUEUE: Duration = Duration::from_millis(60);

/// The start ends when the proven rate of a loaded link has not grown by this factor for
/// [`START_SPAN`], as in BBR.
const START_GROWTH: f64 = 1.25;
const START_SPAN: Duration = Duration::from_millis(500);

/// Demand of the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Every packet could be sent.
    Met,
    /// Packets wait for links.
    Backlog,
}

/// Measurement of a link over a few consecutive reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Delivered rate, by the receiver's clock.
    pub delivered: Rate,
    /// Rate at which these packets were sent.
    pub offered: Rate,
    /// Packets that arrived.
    pub arrived: u64,
    /// Packets lost in between.
    pub lost: u64,
    /// Packets arrived and lost since the last sample.
    pub fresh: (u64, u64),
    /// Fraction lost over the last seconds.
    pub average: f64,
}

impl Sample {
    /// Returns the fraction lost, 0 to 1.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.lost as f64 / ((self.lost + self.arrived) as f64).max(1.0)
    }
}

/// Current queue on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    /// One-way delay above the base delay.
    pub delay: Duration,
    /// Jitter of the link.
    pub jitter: Duration,
    /// Lowest round-trip time of the link.
    pub rtt_min: Duration,
    /// The highest packet known to have arrived; none if its send time is not known.
    pub sent: Option<SentAt>,
}

/// Samples that contradict a train's rate.
#[derive(Debug, Clone, Copy, Default)]
struct Guess {
    /// The last ones in a row.
    contradictions: u32,
    /// The time of the first one.
    contradicted_since: Option<Time>,
}

/// Rate controller of one link.
#[derive(Debug, Clone)]
pub struct Capacity {
    proven: f64,
    queue: Queue,
    /// True once the link has queued: the end of its start.
    started: bool,
    /// True once a train has been believed.
    seeded: bool,
    /// While the proven rate is a train's, which nothing delivered has confirmed.
    guess: Option<Guess>,
    /// True if the packets of the last sample were sent at the allowed rate.
    loaded: bool,
    /// Consecutive reports with a backlog, at the allowed rate, and without a queue.
    unmet_reports: u32,
    demand: Demand,
    policer: Policer,
    persistent_delay: PersistentDelay,
    /// Consecutive samples with an apparent queue although everything sent was delivered.
    unexplained: u32,
    /// Highest proven rate since the last decrease with a known cause; zero right after one.
    anchor: f64,
    /// Since when packets have waited for a link that is loaded but held back by its delay, and the
    /// rate proven then.
    held: Option<(Time, f64)>,
    /// Time of the last report.
    at: Time,
    /// Delivered rate in bit/s: smoothed, but no more than the last sample.
    delivered: Option<f64>,
    unsteady: bool,
    /// True after a restart.
    restarted: bool,
    /// When the proven rate last grew by [`START_GROWTH`], and to what, or was last unused.
    grew: (Time, f64),
}

impl Default for Capacity {
    fn default() -> Capacity {
        Capacity::new(INITIAL_RATE)
    }
}

impl Capacity {
    /// Begins at a known rate.
    #[must_use]
    pub fn new(initial: Rate) -> Capacity {
        Capacity {
            proven: (initial.bits_per_sec() as f64).max(MIN_RATE_BIT_S),
            queue: Queue {
                delay: Duration::ZERO,
                jitter: Duration::ZERO,
                rtt_min: Duration::ZERO,
                sent: None,
            },
            started: false,
            seeded: false,
            guess: None,
            loaded: false,
            unmet_reports: 0,
            demand: Demand::Met,
            policer: Policer::default(),
            persistent_delay: PersistentDelay::default(),
            unexplained: 0,
            anchor: 0.0,
            held: None,
            at: Time::ZERO,
            delivered: None,
            unsteady: false,
            restarted: false,
            grew: (Time::ZERO, 0.0),
        }
    }

    /// Restarts, as for a link that returns: measurements made while it failed do not hold. Its
    /// earlier rate is as good a guess as any, unless it is next to nothing. No further train is
    /// believed, since after a stall a backlog looks like one.
    pub fn restart(&mut self) {
        *self = Capacity {
            proven: self.proven.max(INITIAL_RATE.bits_per_sec() as f64),
            seeded: self.seeded || self.started,
            restarted: true,
            ..Capacity::default()
        };
    }

    /// Sets whether the link stalls. If so, its rate comes from [`handle_mean`](Self::handle_mean).
    pub fn set_unsteady(&mut self, unsteady: bool) {
        self.unsteady = unsteady;
    }

    /// Returns true if the link stalls.
    #[must_use]
    pub fn is_unsteady(&self) -> bool {
        self.unsteady
    }

    /// Takes the delivered and sent rates over a span longer than the link's stalls. The rate falls
    /// only if the link was sent what is allowed: otherwise the sender had nothing more to send. `busy` is the fraction of the
    /// span in which the link had a queue. Without one it would have carried more, so the rate does not fall below what was
    /// delivered per busy time, or four times what was delivered: where reports come late, because the way back is full, the
    /// window holds packets back. That is not so where much of what was sent is lost, as at a policer or a short queue.
    pub fn handle_mean(&mut self, delivered: Rate, offered: Rate, busy: f64) {
        if !self.unsteady {
            return;
        }
        let offered = offered.bits_per_sec() as f64;
        // The window bounds the backlog on the link.
        let delivered = delivered.bits_per_sec() as f64;
        let loaded = offered >= 0.85 * self.proven
            || (offered >= MIN_LOADED_SHARE * self.proven && offered > 1.1 * delivered);
        self.loaded = loaded;
        if delivered > self.proven || loaded {
            self.started = true;
            let lost = offered > MAX_HELD_RATIO * delivered;
            let busy = if lost { 1.0 } else { busy.max(MIN_BUSY_SHARE) };
            let carried = delivered / busy;
            self.proven = delivered.max(self.proven.min(carried)).max(MIN_RATE_BIT_S);
        }
    }

    /// Takes the state of the queue, with each report.
    pub fn handle_queue(&mut self, now: Time, queue: Queue, demand: Demand) {
        let answer = self
            .persistent_delay
            .handle_delay(now, queue.delay, queue.sent, self.loaded);
        if let Some(DrainResult::Queue(carried)) = answer {
            self.started = true;
            self.proven = self.proven.min(carried).max(MIN_RATE_BIT_S);
        }
        if answer.is_some() {
            self.anchor = self.proven;
        }
        let delay = self.persistent_delay.queue(queue.delay);
        let queue = Queue { delay, ..queue };
        self.queue = queue;
        self.at = now;
        if !self.loaded || self.proven > START_GROWTH * self.grew.1 {
            self.grew = (now, self.proven);
        }
        self.demand = demand;
        let drifts = self.probe(now);
        if answer == Some(DrainResult::Persistent) && demand == Demand::Backlog {
            self.unmet_reports = PROBE_REPORTS;
        }
        if self.unsteady {
            return;
        }
        let carried = self.delivered.filter(|d| *d > 0.8 * self.proven);
        let due = self.persistent_delay.is_due(self.packet());
        if let Some(delivered) = carried.filter(|_| due || drifts) {
            self.persistent_delay.drain(now, delivered, due);
        }
    }

    /// Counts reports that call for a higher rate. If only the link's delay speaks against it,
    /// returns true if the delivered rate drifts, as it would not on a link with a queue.
    fn probe(&mut self, now: Time) -> bool {
        let low = match (self.unsteady, self.is_quiet()) {
            (true, _) => DRY_QUEUE,
            (false, true) => self.target() / 2,
            (false, false) => self.target() * 4 / 5,
        };
        let wants = self.demand == Demand::Backlog && self.loaded;
        let slow = self.queue.delay >= low;
        self.unmet_reports = if wants && !slow {
            self.unmet_reports + 1
        } else {
            0
        };
        if !wants || !slow {
            self.held = None;
            return false;
        }
        let (since, proven) = *self.held.get_or_insert((now, self.proven));
        if now.since(since) < DRIFT_SPAN {
            return false;
        }
        self.held = None;
        let drifts = (self.proven - proven).abs() > MIN_DRIFT * proven;
        drifts && self.is_quiet() && self.persistent_delay.may_drain(now)
    }

    /// Takes the delivered rate of a packet train. It counts only until the link has proven more or
    /// has shown that it is full.
    pub fn handle_train(&mut self, train: Rate) {
        if !self.started && !self.seeded {
            self.seeded = true;
            let train = train.bits_per_sec() as f64 * TRAIN_RATE_SHARE;
            self.guess = (train > self.proven).then(Guess::default);
            self.proven = train.max(self.proven);
        }
    }

    /// Takes a sample. Call [`handle_queue`](Self::handle_queue) first.
    pub fn handle_sample(&mut self, now: Time, sample: &Sample) {
        if self.unsteady {
            return;
        }
        let offered = sample.offered.bits_per_sec() as f64;
        let delivered = self
            .policer
            .compensated(sample.delivered.bits_per_sec() as f64);
        // Packets that arrived much faster than they were sent had waited, perhaps for a process to
        // read them.
        let proven = delivered.min(MAX_DELIVERED_RATIO * offered);
        let (queue, target) = (self.queue.delay, self.target());
        // Sent at the allowed rate; or, while that was changing, faster than delivered.
        let allowed = self.proven * self.factor().min(1.0);
        let loaded = offered >= 0.85 * allowed
            || (offered >= MIN_LOADED_SHARE * self.proven && offered > 1.1 * proven);
        self.loaded = loaded;
        self.update_policer(now, sample);
        let smoothed = self.delivered.map_or(proven, |d| d + (proven - d) / 4.0);
        self.delivered = Some(smoothed.min(proven));
        if proven > self.proven {
            self.guess = None;
            let step = if self.started { 0.5 } else { 1.0 };
            self.proven += step * (proven - self.proven);
            self.anchor = self.anchor.max(self.proven);
            return;
        }
        let burst = sample.loss() > 0.2;
        self.check_guess(now, proven, burst);
        if queue <= target || !loaded {
            self.unexplained = 0;
            return;
        }
        if self.is_doubtful() && !burst {
            return;
        }
        if self.is_explained(now, proven, offered, burst) {
            self.lower_rate(proven, burst);
        }
    }

    /// Lowers a rate that only a train has shown if the link queues again and again while it
    /// delivers much less: the train was a token bucket's burst. The link does not count as loaded
    /// then. Without any train the rate would be the initial one, so it does not fall below that.
    fn check_guess(&mut self, now: Time, delivered: f64, burst: bool) {
        let least = INITIAL_RATE.bits_per_sec() as f64;
        let wrong = self.queue.delay > self.target()
            && (least..MIN_LOADED_SHARE * self.proven).contains(&delivered);
        let doubtful = self.is_doubtful() && !burst;
        let Some(guess) = &mut self.guess else {
            return;
        };
        guess.contradictions = if wrong { guess.contradictions + 1 } else { 0 };
        if !wrong {
            return;
        }
        let since = *guess.contradicted_since.get_or_insert(now);
        let is_protected = doubtful && now.since(since) < START_SPAN;
        if guess.contradictions >= 2 && !is_protected {
            self.guess = None;
            self.proven = 1.05 * delivered;
        }
    }

    /// Returns true if, by all that is known, a queue explains the low sample; otherwise the link
    /// is being drained, or its sample is as low as what was sent.
    fn is_explained(&mut self, now: Time, proven: f64, offered: f64, burst: bool) -> bool {
        let (queue, target) = (self.queue.delay, self.target());
        let (same, high) = match self.is_quiet() {
            true => (SAME_RATE_TOLERANCE, 2 * target),
            false => (3.0 * SAME_RATE_TOLERANCE, target),
        };
        let same = (proven - offered).abs() <= same * offered && !burst;
        self.unexplained = if same { self.unexplained + 1 } else { 0 };
        if same && self.persistent_delay.max_rate().is_some() {
            return false;
        }
        let bent = self.proven < MIN_ANCHOR_SHARE * self.anchor;
        if same && (queue > high || bent) && self.persistent_delay.may_drain(now) {
            if self.unexplained >= 2 {
                self.persistent_delay.drain(now, proven, false);
            }
            return false;
        }
        if !same {
            self.anchor = 0.0;
            return true;
        }
        // A queue would shrink at less than the link's rate, and at more not all that is sent would arrive. Where delay is no queue,
        // each sample would lower the rate, and the next one is lower because of that.
        self.is_quiet()
    }

    fn update_policer(&mut self, now: Time, sample: &Sample) {
        let queued = self.queue.delay > self.target();
        let load = Load {
            unexplained: !queued && self.demand == Demand::Backlog,
            loaded: self.loaded,
            trip: self.queue.rtt_min + LOOP_DELAY,
        };
        if self.policer.handle_sample(now, sample, load) {
            let delivered = sample.delivered.bits_per_sec() as f64;
            self.started = true;
            self.proven = self.proven.min(delivered * 1.05).max(MIN_RATE_BIT_S);
        }
    }

    fn lower_rate(&mut self, proven: f64, burst: bool) {
        let (queue, target) = (self.queue.delay, self.target());
        self.started = true;
        if (queue > 2 * target || burst) && self.proven > 1.05 * proven {
            self.proven = 1.05 * proven;
        } else {
            self.proven += 0.5 * (proven - self.proven);
        }
        self.proven = self.proven.max(MIN_RATE_BIT_S);
    }

    /// Returns the proven rate.
    #[must_use]
    pub fn proven(&self) -> Rate {
        Rate::from_bits_per_sec(self.proven as u64)
    }

    /// Returns the current send rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        Rate::from_bits_per_sec((self.proven * self.factor()) as u64)
    }

    /// Returns the queue target: 8 ms, more where jitter would hide that.
    #[must_use]
    pub fn target(&self) -> Duration {
        if self.unsteady {
            return MAX_QUEUE_TARGET;
        }
        let scatter = 3 * self.persistent_delay.scatter();
        (2 * self.queue.jitter)
            .max(scatter)
            .clamp(MIN_QUEUE_TARGET, MAX_QUEUE_TARGET)
    }

    /// Returns the queue, without persistent delay.
    #[must_use]
    pub fn queue(&self) -> Duration {
        self.queue.delay
    }

    /// Returns true if there certainly is a queue.
    #[must_use]
    pub fn is_full(&self) -> bool {
        if self.unsteady {
            return self.queue.delay > self.target() / 2;
        }
        match self.is_quiet() {
            true => self.queue.delay > self.target() / 2,
            false => !self.persistent_delay.may_drain(self.at),
        }
    }

    /// Returns the scatter of the delay between reports without a queue.
    #[must_use]
    pub fn scatter(&self) -> Duration {
        self.persistent_delay.scatter()
    }

    /// Returns the persistent delay.
    #[must_use]
    pub fn persistent_delay(&self) -> Duration {
        self.persistent_delay.level()
    }

    /// Returns true once the link has shown that it is full.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.started
    }

    fn factor(&self) -> f64 {
        if self.unsteady {
            return 1.0;
        }
        let steer = self.steer();
        if let Some(most) = self.persistent_delay.max_rate() {
            return steer.min(most / self.proven);
        }
        if let Some(most) = self.policer.max_share() {
            return steer.min(most);
        }
        let rtt = self.queue.rtt_min.as_secs_f64().max(f64::EPSILON);
        let most = 1.0 + MAX_PROBE_QUEUE.as_secs_f64() / rtt;
        match self.unmet_reports {
            PROBE_REPORTS.. => steer.max(most.min(2.0)),
            2.. => steer.max(most.min(1.5)),
            _ => steer,
        }
    }

    /// Returns the factor by which a link at its start may exceed its rate.
    #[must_use]
    pub fn start_gain(&self) -> f64 {
        match self.is_starting() {
            true => START_GAIN,
            false => 1.0,
        }
    }

    /// Returns true at the start of a link whose delay scatters, while what looks like a queue may
    /// be jitter.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.is_starting() && !self.is_quiet() && self.queue.delay <= MAX_DOUBTFUL_QUEUE
    }

    fn is_starting(&self) -> bool {
        let grows = self.at.since(self.grew.0) < START_SPAN;
        !self.started && !self.restarted && grows
    }

    /// Returns the factor by which the window of an unsteady link is larger because it runs dry.
    #[must_use]
    pub fn dry_gain(&self) -> f64 {
        match self.unmet_reports {
            _ if !self.unsteady => 1.0,
            PROBE_REPORTS.. => DRY_GAINS.1,
            2.. => DRY_GAINS.0,
            _ => 1.0,
        }
    }

    /// Returns true if delay above the base is a queue. On a new link whose delay scatters it may be none, until a drain has told.
    #[must_use]
    pub fn is_delay_queue(&self) -> bool {
        self.unsteady || self.is_quiet() || !self.persistent_delay().is_zero()
    }

    fn is_quiet(&self) -> bool {
        self.persistent_delay.is_quiet(self.packet())
    }

    /// Returns the time of a full packet in seconds.
    fn packet(&self) -> f64 {
        PACKET_BITS / self.proven
    }

    fn steer(&self) -> f64 {
        let tau = 2.0 * (self.queue.rtt_min + LOOP_DELAY).as_secs_f64();
        let error = self.target().as_secs_f64() - self.queue.delay.as_secs_f64();
        (1.0 + error / tau).clamp(0.5, 1.25)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mbit(mbit: f64) -> Rate {
        Rate::from_bits_per_sec((mbit * 1e6) as u64)
    }

    /// The rate after means of a link of 20 Mbit/s that stalls, in Mbit/s.
    fn after(delivered: f64, offered: f64, busy: f64, means: u32) -> f64 {
        let mut capacity = Capacity::new(mbit(20.0));
        capacity.set_unsteady(true);
        for _ in 0..means {
            capacity.handle_mean(mbit(delivered), mbit(offered), busy);
        }
        capacity.proven().bits_per_sec() as f64 / 1e6
    }

    #[test]
    fn an_unsteady_link_falls_as_far_as_it_queues() {
        for (delivered, offered, busy, expected) in [
            // Held back by late reports: nothing queues, and all that is sent arrives.
            (17.5, 17.5, 0.0, 20.0),
            (17.5, 17.5, 0.9, 19.4),
            (17.5, 17.5, 1.0, 17.5),
            // A queue of others', or a slower link.
            (4.0, 17.5, 1.0, 4.0),
            // Policed without a queue.
            (4.0, 17.5, 0.0, 4.0),
            (6.0, 20.0, 0.3, 6.0),
            // Little was sent.
            (4.0, 4.0, 1.0, 20.0),
        ] {
            let rate = after(delivered, offered, busy, 10);
            assert!(
                (rate - expected).abs() < 0.1,
                "{delivered} {offered} {busy}: {rate}"
            );
        }
    }
}
