//! Loss without a queue: caused by a radio link or by a policer, told apart by probing.
//!
//! For a moment the link is sent a little less.
//! - The loss falls: a policer was dropping the excess. The link is not pushed again for a while,
//!   longer each time.
//! - It does not fall: the loss is random, and the rate compensates for it.

use std::time::Duration;

use braid_core::Time;

use super::Sample;

/// Loss without a queue above this is probed.
const MIN_PROBED_LOSS: f64 = 0.015;

/// Lost packets of a sample below which it is not significant.
const MIN_LOST_PACKETS: u64 = 5;

/// Share of the earlier rate to send during a probe, and share of the proven rate for a policed
/// link.
const PROBE_RATE_SHARE: f64 = 0.9;
const POLICED_RATE_SHARE: f64 = 0.98;

/// A probe ends after this many packets, or after [`MAX_PROBE`].
const MIN_PROBE_PACKETS: u64 = 600;
const MAX_PROBE: Duration = Duration::from_millis(500);

/// A policer's loss falls by at least this factor.
const POLICER_LOSS_RATIO: f64 = 3.0;

/// Time for which loss counts as random.
const RANDOM_SPAN: Duration = Duration::from_secs(5);

/// Time for which a policed link's rate is not raised, at first and at most.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Random loss above this is not compensated.
const MAX_COMPENSATED_LOSS: f64 = 0.3;

/// Conditions under which a sample's packets were sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// True if packets wait to be sent and no queue explains the loss.
    pub unexplained: bool,
    /// True if the link was sent the allowed rate.
    pub loaded: bool,
    /// Time from a change of the rate to the report about it.
    pub trip: Duration,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// No probe.
    Idle,
    /// A little less is sent since `since`; before, the fraction `before` was lost. `arrived` and
    /// `lost` count the packets sent since, which are those reported from one round trip later on.
    Probing {
        since: Time,
        before: f64,
        arrived: u64,
        lost: u64,
    },
    /// A policer: do not push before `until`.
    Policed { until: Time },
    /// Random loss: compensate for it before `until`.
    Random { until: Time, lost: f64 },
}

/// State of a link's loss without a queue.
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
    /// Takes a sample. Returns true if it completes the evidence for a policer: then its delivered
    /// rate is the link's rate.
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

    /// Begins a probe if the loss is higher than known.
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
        // Little arrived because little was sent: no result.
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

    /// Returns the highest share of the proven rate that may be sent; none for no limit.
    pub fn max_share(&self) -> Option<f64> {
        match self.state {
            State::Probing { .. } => Some(PROBE_RATE_SHARE),
            State::Policed { .. } => Some(POLICED_RATE_SHARE),
            State::Idle | State::Random { .. } => None,
        }
    }

    /// Returns the rate to send for a delivered one. Radio loss also takes its part after the
    /// bottleneck, so filling the link takes this much more.
    pub fn compensated(&self, delivered: f64) -> f64 {
        match self.state {
            State::Random { lost, .. } => delivered / (1.0 - lost.min(MAX_COMPENSATED_LOSS)),
            _ => delivered,
        }
    }
}
