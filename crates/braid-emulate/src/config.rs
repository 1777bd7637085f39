//! Parameters of one direction of a link, and their textual form.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use braid_core::units::{UnitError, duration};
use braid_core::{Rate, Share};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::delay::{Delay, Distribution};
use crate::loss::Burst;
use crate::queue::Limit;
use crate::rate::Speed;
use crate::trace::{Trace, TraceError};

/// Active queue management.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Aqm {
    /// None: a full queue drops arrivals.
    #[default]
    DropTail,
    /// CoDel (RFC 8289) on top of the limit.
    Codel,
}

/// Parameters of one direction of a link. The default is a perfect link.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Rate of the wire.
    pub speed: Speed,
    /// Propagation delay and jitter.
    pub delay: Delay,
    /// Random loss.
    pub loss: Share,
    /// Bursty loss, in addition to the random loss.
    pub burst: Option<Burst>,
    /// Limit of the queue.
    pub queue: Limit,
    /// Active queue management of the queue.
    pub aqm: Aqm,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            speed: Speed::Unlimited,
            delay: Delay::default(),
            loss: Share::NONE,
            burst: None,
            queue: Limit::DEFAULT,
            aqm: Aqm::DropTail,
        }
    }
}

/// A rate or the word `unlimited`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateSetting {
    /// A packet takes no time.
    Unlimited,
    /// A rate limit.
    Limited(Rate),
}

/// Bursty loss or the word `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BurstSetting {
    /// No bursty loss.
    Off,
    /// Bursty loss with these probabilities.
    On(Burst),
}

/// A duration, written as `40 ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for RateSetting {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        match text.trim() {
            "unlimited" => Ok(RateSetting::Unlimited),
            text => text.parse().map(RateSetting::Limited),
        }
    }
}

impl FromStr for BurstSetting {
    type Err = crate::loss::BurstError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            "off" => Ok(BurstSetting::Off),
            text => text.parse().map(BurstSetting::On),
        }
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        duration::parse(text).map(Span)
    }
}

impl fmt::Display for RateSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RateSetting::Unlimited => f.write_str("unlimited"),
            RateSetting::Limited(rate) => rate.fmt(f),
        }
    }
}

impl fmt::Display for BurstSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BurstSetting::Off => f.write_str("off"),
            BurstSetting::On(burst) => burst.fmt(f),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        duration::display(self.0).fmt(f)
    }
}

/// In JSON, these types have the same text as on the command line.
macro_rules! serde_as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

serde_as_text!(RateSetting, BurstSetting, Span);

/// Partial settings from the command line or the control socket; an omitted setting stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// A fixed rate, or `unlimited`. Excludes a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateSetting>,
    /// A file with a recorded rate. Excludes a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// One-way delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// Variation of the delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Span>,
    /// Distribution of the variation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_dist: Option<Distribution>,
    /// True if jitter may change the order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder: Option<bool>,
    /// Random loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Share>,
    /// Bursty loss, or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_burst: Option<BurstSetting>,
    /// Limit of the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Limit>,
    /// Drop-tail or CoDel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aqm: Option<Aqm>,
}

/// Reason why settings cannot be applied.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A rate and a trace for the same direction.
    #[error("rate and trace both say how fast the link is: give one of them")]
    RateAndTrace,
    /// The trace is unusable.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl Settings {
    /// The names of all settings on the control socket.
    pub const NAMES: [&str; 10] = [
        "rate",
        "trace",
        "delay",
        "jitter",
        "jitter_dist",
        "reorder",
        "loss",
        "loss_burst",
        "queue",
        "aqm",
    ];

    /// Returns these settings, with `other` for the omitted ones.
    #[must_use]
    pub fn or(self, other: Settings) -> Settings {
        // A rate for one direction conflicts with a trace for both, and vice versa.
        let speed = self.rate.is_some() || self.trace.is_some();
        let (rate, trace) = if speed {
            (self.rate, self.trace)
        } else {
            (other.rate, other.trace)
        };
        Settings {
            rate,
            trace,
            delay: self.delay.or(other.delay),
            jitter: self.jitter.or(other.jitter),
            jitter_dist: self.jitter_dist.or(other.jitter_dist),
            reorder: self.reorder.or(other.reorder),
            loss: self.loss.or(other.loss),
            loss_burst: self.loss_burst.or(other.loss_burst),
            queue: self.queue.or(other.queue),
            aqm: self.aqm.or(other.aqm),
        }
    }

    /// Returns `config` changed by these settings. Reads the trace.
    ///
    /// # Errors
    /// Both a rate and a trace, or an unusable trace; nothing has been changed then.
    pub fn applied_to(&self, config: &Config) -> Result<Config, ConfigError> {
        let speed = match (&self.rate, &self.trace) {
            (Some(_), Some(_)) => return Err(ConfigError::RateAndTrace),
            (Some(RateSetting::Unlimited), None) => Speed::Unlimited,
            (Some(RateSetting::Limited(rate)), None) => Speed::Fixed(*rate),
            (None, Some(path)) => Speed::Trace(Arc::new(Trace::read(path)?)),
            (None, None) => config.speed.clone(),
        };
        let delay = Delay {
            base: self.delay.map_or(config.delay.base, |span| span.0),
            jitter: self.jitter.map_or(config.delay.jitter, |span| span.0),
            distribution: self.jitter_dist.unwrap_or(config.delay.distribution),
            reorder: self.reorder.unwrap_or(config.delay.reorder),
        };
        Ok(Config {
            speed,
            delay,
            loss: self.loss.unwrap_or(config.loss),
            burst: match self.loss_burst {
                Some(BurstSetting::On(burst)) => Some(burst),
                Some(BurstSetting::Off) => None,
                None => config.burst,
            },
            queue: self.queue.unwrap_or(config.queue),
            aqm: self.aqm.unwrap_or(config.aqm),
        })
    }
}
