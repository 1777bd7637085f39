//! How new flows are shared out, and what happens when an uplink is back: words of a fixed list.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How new flows are shared out over the uplinks.
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
    /// Each new flow takes the next uplink, all alike.
    Rr,
    /// Each new flow takes the next uplink, in proportion to the weights.
    Wrr,
    /// A source address keeps its uplink; weights set how many sources each gets.
    HashSource,
    /// A pair of source and destination addresses keeps its uplink.
    HashPair,
    /// Each new flow takes the next uplink, in proportion to what each has left of its capacity.
    LeastLoaded,
    /// A new TCP connection takes the uplink that its destination answers first by: its SYN goes out
    /// on all, or what earlier ones found is remembered. Weights are for flows that cannot be raced.
    Race,
    /// As `race`, and the uplink by which a transfer would take the shortest time wins: by its round
    /// trip, its loss and what it has left.
    #[default]
    Fastest,
}

impl Policy {
    /// The words a user may write, in the order of the documentation.
    pub const NAMES: [&'static str; 7] = [
        "rr",
        "wrr",
        "hash-source",
        "hash-pair",
        "least-loaded",
        "race",
        "fastest",
    ];

    /// Whether weights mean anything under this policy.
    #[must_use]
    pub fn uses_weights(self) -> bool {
        self != Policy::Rr
    }

    /// Whether the destination's answer says which uplink a flow takes.
    #[must_use]
    pub fn races(self) -> bool {
        matches!(self, Policy::Race | Policy::Fastest)
    }

    /// The word for it.
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

/// What an uplink that is back gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Failback {
    /// Nothing, until the uplinks that took over die in their turn, or until the user says so by
    /// `braid reload` or `braid failback`. A restart of the daemon says so too.
    Never,
    /// Its share of new flows.
    #[default]
    NewFlows,
    /// New flows, and the QUIC flows that were moved away from it.
    MoveQuic,
    /// New flows, and all that were moved away from it and can be moved or are idle.
    MoveIdle,
}

impl Failback {
    /// The words a user may write, in the order of the documentation.
    pub const NAMES: [&'static str; 4] = ["never", "new-flows", "move-quic", "move-idle"];
}

impl fmt::Display for Failback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failback::Never => "never",
            Failback::NewFlows => "new-flows",
            Failback::MoveQuic => "move-quic",
            Failback::MoveIdle => "move-idle",
        })
    }
}

impl FromStr for Failback {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "never" => Ok(Failback::Never),
            "new-flows" => Ok(Failback::NewFlows),
            "move-quic" => Ok(Failback::MoveQuic),
            "move-idle" => Ok(Failback::MoveIdle),
            _ => Err(format!(
                "no failback {text:?}; there are {}",
                Failback::NAMES.join(", ")
            )),
        }
    }
}
