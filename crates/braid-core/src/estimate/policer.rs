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
const MIN_PROBED_LOSS: f64 = 0.015;

/// So many lost packets of a sample tell something.
const MIN_LOST_PACKETS: u64 = 5;

/// So much of what was sent before is sent while the link is asked, and while it is not to be pushed.
const PROBE_RATE_SHARE: f64 = 0.9;
const POLICED_RATE_SHARE: f64 = 0.98;

/// The answer rests on so many packets, or on what came in this time.
const MIN_PROBE_PACKETS: u64 = 600;
const MAX_PROBE: Duration = Duration::from_millis(500);

/// By this factor and more falls what a policer took.
const POLICER_LOSS_RATIO: f64 = 3.0;

/// How long it holds that loss is random.
const RANDOM_SPAN: Duration = Duration::from_secs(5);

/// How long a policed link is not pushed, at first and at most.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Random loss above this is not made up for.
const MAX_COMPENSATED_LOSS: f64 = 0.3;

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
enum State {
    /// Nothing to ask.
    Idle,
    /// A little less is sent since `since`; before, the fraction `before` was lost. `arrived` and
    /// `lost` count what was sent since: what is reported from a round trip after it on.
    Probing {
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
    state: State,
    backoff: Duration,
}

impl Default for Policer {
    fn default() -> Policer {
        Policer {
            state: State::Idle,
            backoff: MIN_BACKOFF,
        }
    }
}

impl Policer {
    /// Takes a sample; returns whether it has just shown a policer: then what it delivered is the
    /// link's rate.
    pub fn handle_sample(&mut self, now: Time, sample: &Sample, load: Load) -> bool {
        match self.state {
            State::Idle => self.handle_loss(now, sample, load, MIN_PROBED_LOSS),
            State::Random { until, lost } if now < until => {
                self.handle_loss(now, sample, load, lost * 1.5 + MIN_PROBED_LOSS);
            }
            State::Random { .. } => {
                self.handle_loss(now, sample, load, MIN_PROBED_LOSS);
                if sample.loss() < MIN_PROBED_LOSS {
                    self.state = State::Idle;
                }
            }
            State::Probing { since, .. } if now.since(since) < load.trip => {}
            State::Probing { .. } => return self.handle_probe(now, sample, load.loaded),
            State::Policed { until } if now >= until => self.state = State::Idle,
            State::Policed { .. } => {}
        }
        false
    }

    /// Asks, if more is lost than is known of.
    fn handle_loss(&mut self, now: Time, sample: &Sample, load: Load, known: f64) {
        let significant = sample.lost >= MIN_LOST_PACKETS && sample.loss() > known;
        if significant && load.unexplained {
            self.state = State::Probing {
                since: now,
                before: sample.loss().min(sample.average),
                arrived: 0,
                lost: 0,
            };
        }
    }

    fn handle_probe(&mut self, now: Time, sample: &Sample, loaded: bool) -> bool {
        let State::Probing {
            since,
            before,
            ref mut arrived,
            ref mut lost,
        } = self.state
        else {
            return false;
        };
        *arrived += sample.fresh.0;
        *lost += sample.fresh.1;
        let all = *arrived + *lost;
        if all < MIN_PROBE_PACKETS && now.since(since) < MAX_PROBE {
            return false;
        }
        let after = *lost as f64 / (all as f64).max(1.0);
        // What came since is little, because little was sent: it says nothing.
        if !loaded {
            self.state = State::Idle;
            return false;
        }
        let policed = after < before / POLICER_LOSS_RATIO;
        if policed {
            let until = now + self.backoff;
            self.state = State::Policed { until };
            self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        } else {
            let until = now + RANDOM_SPAN;
            self.state = State::Random { until, lost: after };
            self.backoff = MIN_BACKOFF;
        }
        policed
    }

    /// The most to send, as a part of what the link has proven; no limit if none.
    pub fn max_share(&self) -> Option<f64> {
        match self.state {
            State::Probing { .. } => Some(PROBE_RATE_SHARE),
            State::Policed { .. } => Some(POLICED_RATE_SHARE),
            State::Idle | State::Random { .. } => None,
        }
    }

    /// Radio loss takes its part after the bottleneck as well as before it: to fill the link, so
    /// much more must be sent.
    pub fn compensated(&self, delivered: f64) -> f64 {
        match self.state {
            State::Random { lost, .. } => delivered / (1.0 - lost.min(MAX_COMPENSATED_LOSS)),
            _ => delivered,
        }
    }
}
