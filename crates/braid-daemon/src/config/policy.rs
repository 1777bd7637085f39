//! The policy for new flows, their first packets, and the failback after an uplink's return.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words::words;

/// Policy that distributes new flows over the uplinks.
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
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Round robin: each new flow takes the next uplink.
    Rr,
    /// Weighted round robin: each new flow takes the next uplink, in proportion to the weights.
    Wrr,
    /// A source address keeps its uplink; weights set how many sources each gets.
    HashSource,
    /// A pair of source and destination addresses keeps its uplink.
    HashPair,
    /// Each new flow takes the next uplink, in proportion to the spare capacities.
    LeastLoaded,
    /// A new TCP connection takes the uplink on which its destination answers first. Its SYN is sent on
    /// all uplinks, or the path cache decides. Weights apply to other flows of which nothing is known.
    Race,
    /// As `race`, but the uplink with the shortest predicted transfer time wins, from its round-trip
    /// time, loss and spare capacity.
    #[default]
    Fastest,
}

impl Policy {
    /// The accepted keywords, in the order of the documentation.
    pub const NAMES: [&'static str; 7] = [
        "rr",
        "wrr",
        "hash-source",
        "hash-pair",
        "least-loaded",
        "race",
        "fastest",
    ];

    /// Returns true if weights matter under this policy.
    #[must_use]
    pub fn uses_weights(self) -> bool {
        self != Policy::Rr
    }

    /// Returns true if connections are raced under this policy.
    #[must_use]
    pub fn races(self) -> bool {
        matches!(self, Policy::Race | Policy::Fastest)
    }

    /// Returns its keyword.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Policy::Rr => "rr",
            Policy::Wrr => "wrr",
            Policy::HashSource => "hash-source",
            Policy::HashPair => "hash-pair",
            Policy::LeastLoaded => "least-loaded",
            Policy::Race => "race",
            Policy::Fastest => "fastest",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "rr" => Ok(Policy::Rr),
            "wrr" => Ok(Policy::Wrr),
            "hash-source" => Ok(Policy::HashSource),
            "hash-pair" => Ok(Policy::HashPair),
            "least-loaded" => Ok(Policy::LeastLoaded),
            "race" => Ok(Policy::Race),
            "fastest" => Ok(Policy::Fastest),
            _ => Err(format!(
                "no policy {text:?}; there are {}",
                Policy::NAMES.join(", ")
            )),
        }
    }
}

/// Flows that return to an uplink that works again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Failback {
    /// None, until the uplinks that took over fail too, or until `braid reload`, `braid failback` or a
    /// restart of the daemon.
    Never,
    /// Its share of new flows.
    #[default]
    NewFlows,
    /// New flows, and the QUIC flows that were moved away from it.
    MoveQuic,
    /// New flows, and all that were moved away from it and are movable or idle.
    MoveIdle,
}

words!(
    Failback,
    "failback",
    Never = "never",
    NewFlows = "new-flows",
    MoveQuic = "move-quic",
    MoveIdle = "move-idle"
);

/// Copies of the first packets of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FirstPackets {
    /// Twice on uplinks that lose packets.
    #[default]
    TwiceIfLossy,
    /// Once.
    Once,
}

words!(
    FirstPackets,
    "choice for first packets",
    TwiceIfLossy = "twice-if-lossy",
    Once = "once"
);
