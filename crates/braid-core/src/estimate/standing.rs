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
const LESS: f64 = 0.7;

/// So much time's worth of packets must not have been sent before there is an answer: more than delay
/// scatters by from report to report.
const WORTH: f64 = 0.025;

/// And so many reports must have told of the second half of it.
const AFTER_LEAST: u32 = 3;

/// A queue falls by at least this part of that.
const FALLS: f64 = 0.4;

/// A link that was full and had a queue for so long is drained: at first and after delay was found to
/// stand higher than was known, since it may stand higher still; and at last. One that is quiet has its
/// queue from us, and is only drained so that the base is not forgotten, which is kept for
/// [`BASE_WINDOW`](super::BASE_WINDOW).
const EVERY_FIRST: Duration = Duration::from_millis(500);
const EVERY_MOST: Duration = Duration::from_secs(8);

/// A drain ends so long after the first packet sent in it, empty or not.
const DRAIN_MOST: Duration = Duration::from_millis(400);

/// Delay that scatters by more than this may well stand without a queue: more than the control's own
/// steps scatter it by under load, and while there was none.
const QUIET: f64 = 0.003;
const QUIET_IDLE: f64 = 0.0015;

/// The most that it scattered by is forgotten in so many seconds.
const FADES: f64 = 1.0;

/// A pause between reports counts for no more than this.
const FULL_STEP: Duration = Duration::from_millis(50);

/// Below this a queue counts as empty.
const EMPTY: Duration = Duration::from_millis(2);

/// A link that had a queue is not asked again for so long, at first and at most.
const HOLDS_FIRST: Duration = Duration::from_secs(1);
const HOLDS_MOST: Duration = Duration::from_secs(16);

/// What came of asking.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Answer {
    /// There was a queue: the link's rate is what it carried then, in bits per second.
    Queue(f64),
    /// There was none.
    Standing,
}

/// What is known of a link's standing delay. Times that are compared with noise are in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
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
    every: Duration,
    drain: Option<Drain>,
    /// Not to be asked before.
    next: Time,
    holds: Duration,
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

impl Default for Standing {
    fn default() -> Standing {
        Standing {
            level: Duration::ZERO,
            last: [Duration::ZERO; 2],
            scatter: 0.0,
            idle: 0.0,
            rough: 0.0,
            reported: Time::ZERO,
            full: Duration::ZERO,
            every: EVERY_FIRST,
            drain: None,
            next: Time::ZERO,
            holds: HOLDS_FIRST,
        }
    }
}

impl Standing {
    /// Takes the delay above the base that a report tells of, and the highest packet that it tells of.
    /// `loaded` says whether the link was sent what it was believed to carry.
    pub fn handle_delay(
        &mut self,
        now: Time,
        above: Duration,
        sent: Option<SentAt>,
        loaded: bool,
    ) -> Option<Answer> {
        let passed = now.since(self.reported);
        self.reported = now;
        self.handle_scatter(above, passed, loaded);
        if loaded {
            self.full += passed.min(FULL_STEP);
        }
        let least = above + 2 * self.scatter();
        if least < self.level && (loaded || self.drain.is_some()) {
            self.level = (self.level * 3 + least) / 4;
        }
        // What is taken for standing delay may be a queue by now: then a drain goes below it.
        let known = above < EMPTY || self.drain.is_none();
        if known && self.queue(above) < EMPTY {
            self.end(true);
            return None;
        }
        let drain = self.drain.as_mut()?;
        if drain
            .first
            .is_some_and(|first| now.since(first.at) >= DRAIN_MOST)
        {
            self.end(true);
            return None;
        }
        let worth = WORTH.max(6.0 * self.scatter);
        let answer = drain.handle_delay(above, sent?, worth)?;
        match answer {
            Answer::Queue(_) => {
                self.next = now + self.holds;
                self.holds = (self.holds * 2).min(HOLDS_MOST);
                // What fell was none of it.
                self.level = self.level.min(drain.lowest);
                if !drain.empties {
                    self.end(true);
                }
            }
            Answer::Standing => {
                let (before, after) = (self.level, drain.mean());
                self.level = after;
                self.holds = HOLDS_FIRST;
                self.end(after <= before + EMPTY.max(self.scatter()));
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
        let rough = (self.scatter / QUIET).max(self.idle / QUIET_IDLE);
        let fades = (passed.as_secs_f64() / FADES).min(1.0);
        self.rough = (self.rough * (1.0 - fades)).max(rough);
    }

    /// The link has been empty of late, or as empty as it gets; `same` says that nothing new was learned.
    fn end(&mut self, same: bool) {
        self.full = Duration::ZERO;
        if self.drain.take().is_some() {
            self.every = match same {
                true => (self.every * 2).min(EVERY_MOST),
                false => EVERY_FIRST,
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
        self.level < EMPTY && self.rough < 1.0 + packet / QUIET
    }

    /// Whether a queue has been there for so long that it should be emptied.
    pub fn is_due(&self, packet: f64) -> bool {
        let every = match self.is_quiet(packet) {
            true => EVERY_MOST,
            false => self.every,
        };
        self.drain.is_none() && self.full >= every
    }

    /// Whether it is not known if there is a queue.
    pub fn is_unknown(&self, now: Time) -> bool {
        now >= self.next
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
    pub fn most(&self) -> Option<f64> {
        self.drain.map(|drain| drain.carried * LESS)
    }
}

impl Drain {
    fn handle_delay(&mut self, above: Duration, sent: SentAt, worth: f64) -> Option<Answer> {
        if sent.at < self.since {
            self.before = (self.before + above) / 2;
            return None;
        }
        self.lowest = self.lowest.min(above);
        let first = *self.first.get_or_insert(sent);
        let bits = (sent.before.get() - first.before.get()) as f64 * 8.0;
        let missing = sent.at.since(first.at).as_secs_f64() - bits / self.carried;
        if missing >= worth / 2.0 {
            self.after.0 += above;
            self.after.1 += 1;
        }
        if missing < worth || self.after.1 < AFTER_LEAST {
            return None;
        }
        let fell = self.before.as_secs_f64() - self.mean().as_secs_f64();
        Some(match fell >= FALLS * missing {
            true => Answer::Queue(self.carried),
            false => Answer::Standing,
        })
    }

    fn mean(&self) -> Duration {
        self.after.0 / self.after.1.max(1)
    }
}
