//! Propagation delay and jitter, after the wire.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::queue::QueuedPacket;
use crate::rng::Rng;

/// Distribution of packets' delays around the mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Uniform within ± jitter.
    #[default]
    Uniform,
    /// Normal with the jitter as standard deviation, cut off at ± 3 of them.
    Normal,
    /// At least the delay; above it a Pareto distribution with shape 3 and the jitter as mean, cut
    /// off at 20 times it: mostly small, occasionally large.
    Pareto,
}

/// Delay and jitter of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delay {
    /// One-way delay; the mean for symmetric distributions.
    pub base: Duration,
    /// Variation; none at zero.
    pub jitter: Duration,
    /// Its distribution.
    pub distribution: Distribution,
    /// True if a packet may overtake another. Otherwise it waits until the other has left.
    pub reorder: bool,
}

impl Delay {
    /// Returns the largest delay of a packet.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.base
            + match self.distribution {
                Distribution::Uniform => self.jitter,
                Distribution::Normal => 3 * self.jitter,
                Distribution::Pareto => 20 * self.jitter,
            }
    }

    /// Returns the smallest delay of a packet.
    #[must_use]
    pub fn shortest(&self) -> Duration {
        self.base.saturating_sub(match self.distribution {
            Distribution::Uniform => self.jitter,
            Distribution::Normal => 3 * self.jitter,
            Distribution::Pareto => Duration::ZERO,
        })
    }

    fn draw(&self, rng: &mut Rng) -> Duration {
        if self.jitter.is_zero() {
            return self.base;
        }
        let scatter = match self.distribution {
            Distribution::Uniform => 2.0 * rng.unit() - 1.0,
            Distribution::Normal => normal(rng).clamp(-3.0, 3.0),
            // Lomax with shape 3 and scale 2 has mean 1.
            Distribution::Pareto => (2.0 * ((1.0 - rng.unit()).powf(-1.0 / 3.0) - 1.0)).min(20.0),
        };
        let nanos = self.base.as_nanos() as f64 + scatter * self.jitter.as_nanos() as f64;
        Duration::from_nanos(nanos.max(0.0) as u64)
    }
}

/// Standard normal distribution (Box and Muller).
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.unit()).cos()
}

/// Packets in flight, ordered by their time of leaving.
#[derive(Debug)]
pub(crate) struct DelayLine<P> {
    packets: VecDeque<(Time, QueuedPacket<P>)>,
}

impl<P> DelayLine<P> {
    pub fn new() -> DelayLine<P> {
        DelayLine {
            packets: VecDeque::new(),
        }
    }

    /// Takes a packet whose last bit left the wire at `at`.
    pub fn push(&mut self, at: Time, delay: &Delay, rng: &mut Rng, held: QueuedPacket<P>) {
        let mut out = at + delay.draw(rng);
        let last = self.packets.back().map_or(Time::ZERO, |(time, _)| *time);
        if !delay.reorder {
            out = out.max(last);
        }
        if out >= last {
            self.packets.push_back((out, held));
        } else {
            // Overtaking is rare and short, so the position is near the end, and moving is cheap.
            let place = self.packets.partition_point(|(time, _)| *time <= out);
            self.packets.insert(place, (out, held));
        }
    }

    /// Returns when the next packet leaves.
    pub fn next(&self) -> Option<Time> {
        self.packets.front().map(|(time, _)| *time)
    }

    /// Returns the next packet that has left by `now`, and when.
    pub fn pop(&mut self, now: Time) -> Option<(Time, QueuedPacket<P>)> {
        self.next().filter(|time| *time <= now)?;
        self.packets.pop_front()
    }
}
