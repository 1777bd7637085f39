//! What is sent over the bond, and how its packets are shared out over the uplinks.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::matcher::as_text;

/// The bond: one more way out, over all uplinks at once. It is there after `braid join`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BondConfig {
    /// Which flows take it.
    pub flows: BondFlows,
    /// What becomes of them while the hub is out of reach.
    pub fallback: Fallback,
    /// How packets are shared out over the uplinks.
    pub scheduler: BondScheduler,
}

/// A word of a fixed list, its names in the order of the documentation.
macro_rules! words {
    ($type:ident, $what:literal, $($variant:ident = $name:literal),+) => {
        impl $type {
            /// The words a user may write.
            pub const NAMES: &'static [&'static str] = &[$($name),+];
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($type::$variant => $name),+
                })
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($name => Ok($type::$variant),)+
                    _ => Err(format!(
                        concat!("no ", $what, " {:?}; there are {}"),
                        text,
                        Self::NAMES.join(", ")
                    )),
                }
            }
        }
    };
}

/// Which flows take the bond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BondFlows {
    /// All that no rule sends elsewhere.
    #[default]
    All,
    /// Those that a rule sends there, and no others.
    Ruled,
}

words!(BondFlows, "choice of flows", All = "all", Ruled = "ruled");

/// What becomes of the bond's flows while the hub is out of reach.
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
pub enum Fallback {
    /// They are shared out over the uplinks, as if there were no bond.
    #[default]
    Balance,
    /// They go nowhere: what belongs into the bond is never seen outside it.
    Block,
}

words!(Fallback, "fallback", Balance = "balance", Block = "block");

/// How packets are shared out over the uplinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BondScheduler {
    /// Each packet takes the uplink by which it arrives first, by what was measured of them.
    #[default]
    Adaptive,
    /// The cheapest uplink is filled until it loses packets; the next ones carry what it loses.
    Overflow,
    /// In turns, by the weights of the uplinks.
    Weighted,
}

words!(
    BondScheduler,
    "scheduler",
    Adaptive = "adaptive",
    Overflow = "overflow",
    Weighted = "weighted"
);

/// How packets of a flow are treated inside the bond.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum BondClass {
    /// In order, over all uplinks.
    Ordered,
    /// By the uplink with the least delay, and none waits for another.
    Unordered,
    /// Twice, by two uplinks; the first to arrive counts.
    Redundant,
    /// By one uplink as long as that is enough.
    Pinned,
}

words!(
    BondClass,
    "class",
    Ordered = "ordered",
    Unordered = "unordered",
    Redundant = "redundant",
    Pinned = "pinned"
);
as_text!(BondClass);
