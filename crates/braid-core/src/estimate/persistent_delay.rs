//! Delay that stands on a link however little is sent, told apart from a queue by asking.
//!
//! A link that makes each packet wait for the latest one before it, as radio links do that retransmit,
//! takes longer for many packets than for few: under load its delay stands at the upper end of what it
//! scatters over when idle. To the lowest delay ever seen that looks like a queue, and who slows down for
//! it slows down for ever.
//!
//! What tells them apart is that a queue shrinks by what is not sent. So the link is *drained*: it
//! is sent clearly less than it last carried, and once it is known what became of that,
//! - delay fell by as much as was not sent: it was a queue, and what the link carried then is its rate;
//! - it did not: what is left is *standing* delay, which queues are measured from.
//!
//! The same is done to a queue that has not been empty for long, since it would become the base that it is
//! measured by.

use std::time::Duration;

use super::SentAt;
use crate::Time;

/// How much of what the link carried is sent while it is drained.
const DRAIN_RATE_SHARE: f64 = 0.7;

/// So much time's worth of packets must not have been sent before there is an answer: more than delay
/// scatters by from report to report.
const MIN_WITHHELD_S: f64 = 0.025;

/// And so many reports must have told of the second half of it.
const MIN_AFTER_REPORTS: u32 = 3;

/// A queue falls by at least this part of that.
const MIN_FALL_SHARE: f64 = 0.4;

/// A link that was full and had a queue for so long is drained: at first and after delay was found to
/// stand higher than was known, since it may stand higher still; and at last. One that is quiet has its
/// queue from us, and is only drained so that the base is not forgotten, which is kept for
/// [`BASE_DELAY_WINDOW`](super::BASE_DELAY_WINDOW).
const MIN_DRAIN_INTERVAL: Duration = Duration::from_millis(500);
const MAX_DRAIN_INTERVAL: Duration = Duration::from_secs(8);

/// A drain ends so long after the first packet sent in it, empty or not.
const MAX_DRAIN: Duration = Duration::from_millis(400);

/// Delay that scatters by more than this may well stand without a queue: more than the control's own
/// steps scatter it by under load, and while there was none.
const MAX_QUIET_SCATTER_S: f64 = 0.003;
const MAX_QUIET_IDLE_SCATTER_S: f64 = 0.0015;

/// The most that it scattered by is forgotten in so many seconds.
const ROUGHNESS_FADE_S: f64 = 1.0;

/// A pause between reports counts for no more than this.
const MAX_REPORT_GAP: Duration = Duration::from_millis(50);

/// Below this a queue counts as empty.
const MAX_EMPTY_QUEUE: Duration = Duration::from_millis(2);

/// A link that had a queue is not asked again for so long, at first and at most.
const MIN_DRAIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_DRAIN_BACKOFF: Duration = Duration::from_secs(16);

/// What came of asking.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum DrainResult {
    /// There was a queue: the link's rate is what it carried then, in bits per second.
    Queue(f64),
    /// There was none.
    Persistent,
}

/// What is known of a link's standing delay. Times that are compared with noise are in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct PersistentDelay {
    level: Duration,
    /// The last two delays above the base, and how far one is from where they point, on average, in seconds.
    last: [Duration; 2],
    scatter: f64,
    /// The same, of reports of a link that was not full.
    idle: f64,
    /// The most that either was of late, of what makes a link suspicious: 1 and more does.
    rough: f64,
    /// The last report, and how long the link was full with a queue since it last had none.
    reported: Time,
    full: Duration,
    drain_interval: Duration,
    drain: Option<Drain>,
    /// Not to be asked before.
    next_drain: Time,
    drain_backoff: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Drain {
    since: Time,
    /// What the link carried when it began, in bits per second.
    carried: f64,
    /// Delay above the base, until what was sent since arrived; and the lowest since.
    before: Duration,
    lowest: Duration,
    /// The first packet reported of those sent since.
    first: Option<SentAt>,
    /// Sum and count of delays above the base since half of the answer was in.
    after: (Duration, u32),
    /// Whether it goes on until the queue is empty.
    empties: bool,
}

impl Default for PersistentDelay {
    fn default() -> PersistentDelay {
        PersistentDelay {
            level: Duration::ZERO,
            last: [Duration::ZERO; 2],
            scatter: 0.0,
            idle: 0.0,
            rough: 0.0,
            reported: Time::ZERO,
            full: Duration::ZERO,
            drain_interval: MIN_DRAIN_INTERVAL,
            drain: None,
            next_drain: Time::ZERO,
            drain_backoff: MIN_DRAIN_BACKOFF,
        }
    }
}

impl PersistentDelay {
    /// Takes the delay above the base that a report tells of, and the highest packet that it tells of.
    /// `loaded` says whether the link was sent what it was believed to carry.
    pub fn handle_delay(
        &mut self,
        now: Time,
        above: Duration,
        sent: Option<SentAt>,
        loaded: bool,
    ) -> Option<DrainResult> {
        let passed = now.since(self.reported);
        self.reported = now;
        self.handle_scatter(above, passed, loaded);
        if loaded {
            self.full += passed.min(MAX_REPORT_GAP);
        }
        let least = above + 2 * self.scatter();
        if least < self.level && (loaded || self.drain.is_some()) {
            self.level = (self.level * 3 + least) / 4;
        }
        // What is taken for standing delay may be a queue by now: then a drain goes below it.
        let known = above < MAX_EMPTY_QUEUE || self.drain.is_none();
        if known && self.queue(above) < MAX_EMPTY_QUEUE {
            self.end(true);
            return None;
        }
        let drain = self.drain.as_mut()?;
        if drain
            .first
            .is_some_and(|first| now.since(first.at) >= MAX_DRAIN)
        {
            self.end(true);
            return None;
        }
        let withheld = MIN_WITHHELD_S.max(6.0 * self.scatter);
        let answer = drain.handle_delay(above, sent?, withheld)?;
        match answer {
            DrainResult::Queue(_) => {
                self.next_drain = now + self.drain_backoff;
                self.drain_backoff = (self.drain_backoff * 2).min(MAX_DRAIN_BACKOFF);
                // What fell was none of it.
                self.level = self.level.min(drain.lowest);
                if !drain.empties {
                    self.end(true);
                }
            }
            DrainResult::Persistent => {
                let (before, after) = (self.level, drain.mean());
                self.level = after;
                self.drain_backoff = MIN_DRAIN_BACKOFF;
                self.end(after <= before + MAX_EMPTY_QUEUE.max(self.scatter()));
            }
        }
        Some(answer)
    }

    fn handle_scatter(&mut self, above: Duration, passed: Duration, loaded: bool) {
        let pointed = 2.0 * self.last[0].as_secs_f64() - self.last[1].as_secs_f64();
        let off = (above.as_secs_f64() - pointed).abs() / 2.0;
        self.last = [above, self.last[0]];
        self.scatter += (off - self.scatter) / 16.0;
        if !loaded && self.drain.is_none() {
            self.idle += (off - self.idle) / 16.0;
        }
        let rough = (self.scatter / MAX_QUIET_SCATTER_S).max(self.idle / MAX_QUIET_IDLE_SCATTER_S);
        let fades = (passed.as_secs_f64() / ROUGHNESS_FADE_S).min(1.0);
        self.rough = (self.rough * (1.0 - fades)).max(rough);
    }

    /// The link has been empty of late, or as empty as it gets; `same` says that nothing new was learned.
    fn end(&mut self, same: bool) {
        self.full = Duration::ZERO;
        if self.drain.take().is_some() {
            self.drain_interval = match same {
                true => (self.drain_interval * 2).min(MAX_DRAIN_INTERVAL),
                false => MIN_DRAIN_INTERVAL,
            };
        }
    }

    /// The queue, of a delay above the base.
    pub fn queue(&self, above: Duration) -> Duration {
        above.saturating_sub(self.level)
    }

    /// Delay that stands without a queue.
    pub fn level(&self) -> Duration {
        self.level
    }

    /// How far delay scatters from report to report; a queue that grows or shrinks evenly does not.
    pub fn scatter(&self) -> Duration {
        Duration::from_secs_f64(self.scatter)
    }

    /// Whether delay scatters too little to stand without a queue; `packet` is what a full one takes.
    pub fn is_quiet(&self, packet: f64) -> bool {
        self.level < MAX_EMPTY_QUEUE && self.rough < 1.0 + packet / MAX_QUIET_SCATTER_S
    }

    /// Whether a queue has been there for so long that it should be emptied.
    pub fn is_due(&self, packet: f64) -> bool {
        let drain_interval = match self.is_quiet(packet) {
            true => MAX_DRAIN_INTERVAL,
            false => self.drain_interval,
        };
        self.drain.is_none() && self.full >= drain_interval
    }

    /// Whether it is not known if there is a queue.
    pub fn is_unknown(&self, now: Time) -> bool {
        now >= self.next_drain
    }

    /// Begins to drain the link, which just carried so many bits per second.
    pub fn drain(&mut self, now: Time, carried: f64, empties: bool) {
        self.drain.get_or_insert(Drain {
            since: now,
            carried,
            before: self.last[0],
            lowest: Duration::MAX,
            first: None,
            after: (Duration::ZERO, 0),
            empties,
        });
    }

    /// The most to send while the link is drained, in bits per second; none if it is not.
    pub fn max_rate(&self) -> Option<f64> {
        self.drain.map(|drain| drain.carried * DRAIN_RATE_SHARE)
    }
}

impl Drain {
    fn handle_delay(
        &mut self,
        above: Duration,
        sent: SentAt,
        withheld: f64,
    ) -> Option<DrainResult> {
        if sent.at < self.since {
            self.before = (self.before + above) / 2;
            return None;
        }
        self.lowest = self.lowest.min(above);
        let first = *self.first.get_or_insert(sent);
        let bits = (sent.before.get() - first.before.get()) as f64 * 8.0;
        let missing = sent.at.since(first.at).as_secs_f64() - bits / self.carried;
        if missing >= withheld / 2.0 {
            self.after.0 += above;
            self.after.1 += 1;
        }
        if missing < withheld || self.after.1 < MIN_AFTER_REPORTS {
            return None;
        }
        let fell = self.before.as_secs_f64() - self.mean().as_secs_f64();
        Some(match fell >= MIN_FALL_SHARE * missing {
            true => DrainResult::Queue(self.carried),
            false => DrainResult::Persistent,
        })
    }

    fn mean(&self) -> Duration {
        self.after.0 / self.after.1.max(1)
    }
}
