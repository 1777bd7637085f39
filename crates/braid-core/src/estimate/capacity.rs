//! How fast to send on a link: a rate proven by delivery, steered by the queue it makes.
//!
//! - **Proven**: [`Capacity::proven`] only rises to what arrived, half-way for each sample; in the
//!   beginning, before the link ever queued, all the way. What was merely sent proves nothing.
//! - **Queue target**: the rate is `C · (1 + (T − q)/τ)`, within 0.5 and 1.25, so that a full link
//!   holds a queue of `T`: enough never to run dry, little enough not to be felt. `T` is 8 ms, or
//!   twice the link's jitter, or three times what delay scatters by from report to report: those
//!   look like a queue and are none.
//! - **Down only with cause**: a low sample is the link's doing only if there is a queue and we
//!   loaded it; anything else means that nobody sent more. Letting C decay on any low sample
//!   collapses it.
//! - **At once**: with twice the target's queue, or a burst of congestive loss, C falls to what
//!   arrived: waiting half-way down fills a queue of seconds on a link that lost three quarters.
//! - **Up only on demand**: with a backlog of our own and no queue on the link, though it was sent
//!   what was allowed, the factor grows to 1.5 and 2. Without a backlog nothing is probed: others' traffic would pay for it.
//! - **Loss without a queue** is either radio loss, which the rate makes up for, or a policer's, and then
//!   the link is not pushed. Which, is asked of the link: the module `policer`.
//! - **Asked**: delay above the base that neither grows nor shrinks while all that was sent comes in may
//!   be a queue, or may stand there however little is sent. Before a rate is given up to it, the link is
//!   asked, by sending clearly less for a moment: a queue shrinks. What stands is not counted as queue.
//! - **Unsteady**: where the link stalls, as a radio scheduler does, none of that holds: the rate is a mean over
//!   several stalls, and a window limits what waits. The module `stall` says why.
//! - **Drift**: a link with a queue delivers what it carries, whatever it is sent. Where what arrives drifts
//!   with what is sent while packets wait for a link that is not pushed because of its delay, it is asked, too.

use std::time::Duration;

use super::SentAt;
use super::persistent_delay::{DrainResult, PersistentDelay};
use super::policer::{Load, Policer};
use crate::{Rate, Time};

/// What a new link is given: enough for a TCP flow's first windows, while the first reports come.
const INITIAL_RATE: Rate = Rate::from_bits_per_sec(4_000_000);

/// No estimate falls below this: a link must stay measurable.
const MIN_RATE_BIT_S: f64 = 100_000.0;

/// How much of a train's rate is believed.
const TRAIN_RATE_SHARE: f64 = 0.95;

/// The least queue that is aimed at.
const MIN_QUEUE_TARGET: Duration = Duration::from_millis(8);

/// The most, on links with much jitter.
pub(super) const MAX_QUEUE_TARGET: Duration = Duration::from_millis(30);

/// How long a report may have been under way and waited for: the control loop's own delay.
const LOOP_DELAY: Duration = Duration::from_millis(25);

/// Reports in a row that show a backlog and no queue, after which a link is sent twice what it has proven.
const PROBE_REPORTS: u32 = 4;

/// So much of a rate is given up to a queue that is not explained before it is asked about.
const MIN_ANCHOR_SHARE: f64 = 0.9;

/// Packets have waited for so long for a link that is not pushed because of its delay, and what arrives has
/// changed by this part meanwhile: then it is asked whether that delay is a queue at all.
const DRIFT_SPAN: Duration = Duration::from_millis(500);
const MIN_DRIFT: f64 = 0.02;

/// Bits of a full packet.
const PACKET_BITS: f64 = 12_000.0;

/// What came in is believed up to so many times what it was sent at: more than a queue that empties makes of it, and
/// little enough that the queue shows what was wrong with the next sample.
const MAX_DELIVERED_RATIO: f64 = 1.25;

/// What came is what was sent, within this.
const SAME_RATE_TOLERANCE: f64 = 0.1;

/// Whether the sender has more to send than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// All that came could be sent.
    Met,
    /// Packets wait for links.
    Backlog,
}

/// What a few reports in a row say of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// What arrived, by the receiver's clock.
    pub delivered: Rate,
    /// What these packets had been sent at.
    pub offered: Rate,
    /// Packets that arrived.
    pub arrived: u64,
    /// Packets that were lost among them.
    pub lost: u64,
    /// The same two, only since the last sample.
    pub fresh: (u64, u64),
    /// The fraction that was lost over the last seconds.
    pub average: f64,
}

impl Sample {
    /// The fraction that was lost, 0 to 1.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.lost as f64 / ((self.lost + self.arrived) as f64).max(1.0)
    }
}

/// What the queue on a link looks like now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    /// One-way delay above its base.
    pub delay: Duration,
    /// The link's jitter.
    pub jitter: Duration,
    /// The link's lowest round trip.
    pub rtt_min: Duration,
    /// The highest packet that is known to have arrived; none if it is not known when it was sent.
    pub sent: Option<SentAt>,
}

/// The rate controller of one link.
#[derive(Debug, Clone)]
pub struct Capacity {
    proven: f64,
    queue: Queue,
    /// Whether the link ever queued: the end of its start.
    started: bool,
    /// Whether a train has been believed.
    seeded: bool,
    /// Whether the last sample was of packets sent at what was allowed.
    loaded: bool,
    /// Reports in a row with backlog, at what was allowed, and without a queue.
    unmet_reports: u32,
    demand: Demand,
    policer: Policer,
    persistent_delay: PersistentDelay,
    /// Samples in a row in which there seemed to be a queue and all came that was sent.
    unexplained: u32,
    /// The most that was proven since the link last had to slow down for a reason; zero right after.
    anchor: f64,
    /// Since when packets have waited though the link was sent what was allowed, because of its delay, and what
    /// was proven then.
    held: Option<(Time, f64)>,
    /// When the last report came.
    at: Time,
    /// Bits per second that came, smoothed, and no more than came last.
    delivered: Option<f64>,
    unsteady: bool,
}

impl Default for Capacity {
    fn default() -> Capacity {
        Capacity::new(INITIAL_RATE)
    }
}

impl Capacity {
    /// Begins at a rate that is known from elsewhere, such as the last session.
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
        }
    }

    /// Begins anew, as for a link that returns: what was learned while it was not itself does not hold.
    /// What it carried before is as good a guess as any, unless that is next to nothing: no train is believed any more,
    /// since after a stall a backlog looks like one.
    pub fn restart(&mut self) {
        *self = Capacity {
            proven: self.proven.max(INITIAL_RATE.bits_per_sec() as f64),
            seeded: self.seeded || self.started,
            ..Capacity::default()
        };
    }

    /// Says whether the link stalls, so that its rate comes from [`handle_mean`](Self::handle_mean).
    pub fn set_unsteady(&mut self, unsteady: bool) {
        self.unsteady = unsteady;
    }

    /// Whether the link stalls.
    #[must_use]
    pub fn is_unsteady(&self) -> bool {
        self.unsteady
    }

    /// Takes what arrived over a span longer than the link's stalls, and what it had been sent at. Down only if that was
    /// what is allowed: else nobody sent more.
    pub fn handle_mean(&mut self, delivered: Rate, offered: Rate) {
        if !self.unsteady {
            return;
        }
        let offered = offered.bits_per_sec() as f64;
        // A backlog is no more than the window.
        let delivered = delivered.bits_per_sec() as f64;
        let loaded = offered >= 0.85 * self.proven
            || (offered >= 0.45 * self.proven && offered > 1.1 * delivered);
        self.loaded = loaded;
        if delivered > self.proven || loaded {
            self.started = true;
            self.proven = delivered.max(MIN_RATE_BIT_S);
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

    /// Counts reports that call for more. Where only the link's delay speaks against it, returns whether what arrives
    /// drifts, as it would not from a link with a queue.
    fn probe(&mut self, now: Time) -> bool {
        let low = match self.is_quiet() {
            true => self.target() / 2,
            false => self.target() * 4 / 5,
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
        drifts && self.is_quiet() && self.persistent_delay.is_unknown(now)
    }

    /// Takes what a train of packets came in at. It only counts until the link has proven more, or
    /// has shown that it is full.
    pub fn handle_train(&mut self, train: Rate) {
        if !self.started && !self.seeded {
            self.seeded = true;
            self.proven = (train.bits_per_sec() as f64 * TRAIN_RATE_SHARE).max(self.proven);
        }
    }

    /// Takes a sample of what arrived. Call [`handle_queue`](Self::handle_queue) first.
    pub fn handle_sample(&mut self, now: Time, sample: &Sample) {
        if self.unsteady {
            return;
        }
        let offered = sample.offered.bits_per_sec() as f64;
        let delivered = self
            .policer
            .compensated(sample.delivered.bits_per_sec() as f64);
        // What came in much faster than it was sent had waited, perhaps for a process to read it.
        let proven = delivered.min(MAX_DELIVERED_RATIO * offered);
        let (queue, target) = (self.queue.delay, self.target());
        // Sent at what we allowed; or, where that was changing, at more than came through.
        let allowed = self.proven * self.factor().min(1.0);
        let loaded =
            offered >= 0.85 * allowed || (offered >= 0.45 * self.proven && offered > 1.1 * proven);
        self.loaded = loaded;
        self.update_policer(now, sample);
        let smoothed = self.delivered.map_or(proven, |d| d + (proven - d) / 4.0);
        self.delivered = Some(smoothed.min(proven));
        if proven > self.proven {
            let step = if self.started { 0.5 } else { 1.0 };
            self.proven += step * (proven - self.proven);
            self.anchor = self.anchor.max(self.proven);
            return;
        }
        if queue <= target || !loaded {
            self.unexplained = 0;
            return;
        }
        let burst = sample.loss() > 0.2;
        if self.is_explained(now, proven, offered, burst) {
            self.lower_rate(proven, burst);
        }
    }

    /// Whether too little came because of a queue for all that is known; else the link is being asked.
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
        if same && (queue > high || bent) && self.persistent_delay.is_unknown(now) {
            if self.unexplained >= 2 {
                self.persistent_delay.drain(now, proven, false);
            }
            return false;
        }
        if !same {
            self.anchor = 0.0;
        }
        true
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

    /// What the link has proven to carry.
    #[must_use]
    pub fn proven(&self) -> Rate {
        Rate::from_bits_per_sec(self.proven as u64)
    }

    /// What to send at now.
    #[must_use]
    pub fn rate(&self) -> Rate {
        Rate::from_bits_per_sec((self.proven * self.factor()) as u64)
    }

    /// The queue that is aimed at: 8 ms, more where jitter would drown that.
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

    /// The queue, without delay that stands on the link however little is sent.
    #[must_use]
    pub fn queue(&self) -> Duration {
        self.queue.delay
    }

    /// Whether there is a queue for sure.
    #[must_use]
    pub fn is_full(&self) -> bool {
        if self.unsteady {
            return self.queue.delay > self.target() / 2;
        }
        match self.is_quiet() {
            true => self.queue.delay > self.target() / 2,
            false => !self.persistent_delay.is_unknown(self.at),
        }
    }

    /// How far delay scatters from report to report without a queue.
    #[must_use]
    pub fn scatter(&self) -> Duration {
        self.persistent_delay.scatter()
    }

    /// Delay that stands on the link however little is sent.
    #[must_use]
    pub fn persistent_delay(&self) -> Duration {
        self.persistent_delay.level()
    }

    /// Whether the link has shown that it is full.
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
        match self.unmet_reports {
            PROBE_REPORTS.. => steer.max(2.0),
            2.. => steer.max(1.5),
            _ => steer,
        }
    }

    fn is_quiet(&self) -> bool {
        self.persistent_delay.is_quiet(self.packet())
    }

    /// Seconds that a full packet takes.
    fn packet(&self) -> f64 {
        PACKET_BITS / self.proven
    }

    fn steer(&self) -> f64 {
        let tau = 2.0 * (self.queue.rtt_min + LOOP_DELAY).as_secs_f64();
        let error = self.target().as_secs_f64() - self.queue.delay.as_secs_f64();
        (1.0 + error / tau).clamp(0.5, 1.25)
    }
}
