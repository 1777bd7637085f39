//! Loss without a queue: radio loss, or a policer's. Which, is asked of the link.
//!
//! For a moment a little less is sent than before.
//! - Loss falls: it was a policer, which drops what exceeds its rate. The link is not pushed again for a
//!   while, longer each time.
//! - It does not: it is random, and the rate makes up for what it takes.

use std::time::Duration;

use super::Sample;
use crate::Time;

/// Loss above this, without a queue, is worth asking the link about.
const ASK_ABOVE: f64 = 0.015;

/// So many lost packets of a sample tell something.
const ASK_LEAST: u64 = 5;

/// So much of what was sent before is sent while the link is asked, and while it is not to be pushed.
const LESS: f64 = 0.9;
const NOT_PUSHED: f64 = 0.98;

/// The answer rests on so many packets, or on what came in this time.
const ANSWER_PACKETS: u64 = 600;
const ANSWER_MOST: Duration = Duration::from_millis(500);

/// By this factor and more falls what a policer took.
const FALLS_BY: f64 = 3.0;

/// How long it holds that loss is random.
const ANSWER_HOLDS: Duration = Duration::from_secs(5);

/// How long a policed link is not pushed, at first and at most.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MOST: Duration = Duration::from_secs(10);

/// Random loss above this is not made up for.
const MADE_UP_MOST: f64 = 0.3;

/// How a sample's packets were sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Whether more waits to be sent, and no queue explains what is lost.
    pub unexplained: bool,
    /// Whether the link was sent what was allowed.
    pub loaded: bool,
    /// Between a change of what is sent and the report of it.
    pub trip: Duration,
}

#[derive(Debug, Clone, Copy)]
enum Asking {
    /// Nothing to ask.
    No,
    /// A little less is sent since `since`; before, the fraction `before` was lost. `arrived` and
    /// `lost` count what was sent since: what is reported from a round trip after it on.
    Less {
        since: Time,
        before: f64,
        arrived: u64,
        lost: u64,
    },
    /// It was a policer: no pushing until then.
    Policed { until: Time },
    /// It is random: make up for it until then.
    Random { until: Time, lost: f64 },
}

/// What is known of a link's loss without a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Policer {
    asking: Asking,
    backoff: Duration,
}

impl Default for Policer {
    fn default() -> Policer {
        Policer {
            asking: Asking::No,
            backoff: BACKOFF_FIRST,
        }
    }
}

impl Policer {
    /// Takes a sample; returns whether it has just shown a policer: then what it delivered is the
    /// link's rate.
    pub fn handle_sample(&mut self, now: Time, sample: &Sample, load: Load) -> bool {
        match self.asking {
            Asking::No => self.handle_loss(now, sample, load, ASK_ABOVE),
            Asking::Random { until, lost } if now < until => {
                self.handle_loss(now, sample, load, lost * 1.5 + ASK_ABOVE);
            }
            Asking::Random { .. } => {
                self.handle_loss(now, sample, load, ASK_ABOVE);
                if sample.loss() < ASK_ABOVE {
                    self.asking = Asking::No;
                }
            }
            Asking::Less { since, .. } if now.since(since) < load.trip => {}
            Asking::Less { .. } => return self.handle_answer(now, sample, load.loaded),
            Asking::Policed { until } if now >= until => self.asking = Asking::No,
            Asking::Policed { .. } => {}
        }
        false
    }

    /// Asks, if more is lost than is known of.
    fn handle_loss(&mut self, now: Time, sample: &Sample, load: Load, known: f64) {
        let tells = sample.lost >= ASK_LEAST && sample.loss() > known;
        if tells && load.unexplained {
            self.asking = Asking::Less {
                since: now,
                before: sample.loss().min(sample.average),
                arrived: 0,
                lost: 0,
            };
        }
    }

    fn handle_answer(&mut self, now: Time, sample: &Sample, loaded: bool) -> bool {
        let Asking::Less {
            since,
            before,
            ref mut arrived,
            ref mut lost,
        } = self.asking
        else {
            return false;
        };
        *arrived += sample.fresh.0;
        *lost += sample.fresh.1;
        let all = *arrived + *lost;
        if all < ANSWER_PACKETS && now.since(since) < ANSWER_MOST {
            return false;
        }
        let after = *lost as f64 / (all as f64).max(1.0);
        // What came since is little, because little was sent: it says nothing.
        if !loaded {
            self.asking = Asking::No;
            return false;
        }
        let policed = after < before / FALLS_BY;
        if policed {
            let until = now + self.backoff;
            self.asking = Asking::Policed { until };
            self.backoff = (self.backoff * 2).min(BACKOFF_MOST);
        } else {
            let until = now + ANSWER_HOLDS;
            self.asking = Asking::Random { until, lost: after };
            self.backoff = BACKOFF_FIRST;
        }
        policed
    }

    /// The most to send, as a part of what the link has proven; no limit if none.
    pub fn most(&self) -> Option<f64> {
        match self.asking {
            Asking::Less { .. } => Some(LESS),
            Asking::Policed { .. } => Some(NOT_PUSHED),
            Asking::No | Asking::Random { .. } => None,
        }
    }

    /// Radio loss takes its part after the bottleneck as well as before it: to fill the link, so
    /// much more must be sent.
    pub fn made_up(&self, delivered: f64) -> f64 {
        match self.asking {
            Asking::Random { lost, .. } => delivered / (1.0 - lost.min(MADE_UP_MOST)),
            _ => delivered,
        }
    }
}
