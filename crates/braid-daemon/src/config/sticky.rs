//! `sticky`: how long a client keeps its uplink for a site.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use braid_core::units::duration;
use braid_host::as_text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `"off"`, or the time after a client's last new flow to a site during which its new flows to that
/// site take the same uplink: `"10 min"`, whole seconds, 1 s to 24 h.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Sticky {
    /// Each flow is placed independently.
    #[default]
    Off,
    /// For this long.
    For(Duration),
}

impl Sticky {
    const MAX_STICKY_TIME: Duration = Duration::from_secs(24 * 60 * 60);

    /// Returns the time, if there is one.
    #[must_use]
    pub fn time(self) -> Option<Duration> {
        match self {
            Sticky::Off => None,
            Sticky::For(time) => Some(time),
        }
    }
}

impl fmt::Display for Sticky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sticky::Off => f.write_str("off"),
            Sticky::For(time) => duration::display(*time).fmt(f),
        }
    }
}

impl FromStr for Sticky {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Sticky::Off);
        }
        let time = duration::parse(text).map_err(|error| error.to_string())?;
        if time.subsec_nanos() != 0 || time.is_zero() {
            return Err("not a whole number of seconds from 1".to_owned());
        }
        if time > Sticky::MAX_STICKY_TIME {
            return Err("longer than 24 h".to_owned());
        }
        Ok(Sticky::For(time))
    }
}

as_text!(Sticky);
