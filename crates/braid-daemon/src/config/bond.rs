//! What is sent over the bond, and how its packets are shared out over the uplinks.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use braid_core::resequence::Reordering;
use braid_core::schedule::Parameters;
use braid_core::units::duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::matcher::as_text;

/// The bond: one more way out, over all uplinks at once. It is there after `braid join`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BondConfig {
    /// Which flows take it.
    pub flows: BondFlows,
    /// What becomes of them while the hub is out of reach.
    pub fallback: Fallback,
    /// How packets are shared out over the uplinks.
    pub scheduler: BondScheduler,
    /// What its data goes out as.
    pub encapsulation: Encapsulation,
    /// What `overflow` goes by.
    pub overflow: OverflowConfig,
    /// How packets are put back in order, at both ends.
    pub reordering: BondReordering,
    /// With `paper`: how long a packet is held for one that is missing.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub reordering_timeout: Duration,
}

impl Default for BondConfig {
    fn default() -> Self {
        BondConfig {
            flows: BondFlows::default(),
            fallback: Fallback::default(),
            scheduler: BondScheduler::default(),
            overflow: OverflowConfig::default(),
            encapsulation: Encapsulation::default(),
            reordering: BondReordering::default(),
            // [l3b] §5.3.
            reordering_timeout: Duration::from_millis(50),
        }
    }
}

impl BondConfig {
    /// As the bond takes it.
    #[must_use]
    pub fn ordering(&self) -> Reordering {
        match self.reordering {
            BondReordering::Adaptive => Reordering::Adaptive,
            BondReordering::FixedTimeout => Reordering::FixedTimeout(self.reordering_timeout),
        }
    }
}

/// The parameters of the scheduler `overflow`, by their names in its paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OverflowConfig {
    /// How steeply a dearer uplink's weight grows with what a cheaper one loses.
    pub k: Thousandths,
    /// After so long without loss weight is given back; a multiple of `t_report`.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub t_dwd: Duration,
    /// How often loss is looked at.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub t_report: Duration,
    /// Weight of the cheapest uplink.
    pub w_fixed: u32,
    /// Largest weight of any other.
    pub w_max: u32,
}

impl Default for OverflowConfig {
    fn default() -> Self {
        let usual = Parameters::default();
        OverflowConfig {
            k: Thousandths((usual.k * 1000.0) as u32),
            t_dwd: usual.t_dwd,
            t_report: usual.t_report,
            w_fixed: usual.w_fixed as u32,
            w_max: usual.w_max as u32,
        }
    }
}

impl OverflowConfig {
    /// As the scheduler takes them.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        Parameters {
            k: f64::from(self.k.0) / 1000.0,
            t_dwd: self.t_dwd,
            t_report: self.t_report,
            w_fixed: self.w_fixed.into(),
            w_max: self.w_max.into(),
        }
    }
}

/// A number with three decimals, as its thousandfold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "f64", into = "f64")]
#[schemars(with = "f64")]
pub struct Thousandths(pub u32);

impl From<f64> for Thousandths {
    fn from(number: f64) -> Self {
        Thousandths((number * 1000.0).round() as u32)
    }
}

impl From<Thousandths> for f64 {
    fn from(number: Thousandths) -> Self {
        f64::from(number.0) / 1000.0
    }
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

/// How packets are put back in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BondReordering {
    /// By what is measured of the uplinks: a missing packet is waited for while it may still come.
    #[default]
    Adaptive,
    /// By a time-out, as the paper that `overflow` comes from has it; for comparison.
    FixedTimeout,
}

words!(
    BondReordering,
    "reordering",
    Adaptive = "adaptive",
    FixedTimeout = "fixed-timeout"
);

/// What the bond's data goes out as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Encapsulation {
    /// Sealed, in UDP.
    #[default]
    Udp,
    /// In the clear, as GRE, if the hub wants that too: for networks that are trusted.
    Gre,
}

words!(Encapsulation, "encapsulation", Udp = "udp", Gre = "gre");

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_order_of_the_paper_has_a_time_out() {
        let ordering = |text: &str| Config::parse("test", text).unwrap().bond.ordering();
        let after = |ms| Reordering::FixedTimeout(Duration::from_millis(ms));
        assert_eq!(ordering(""), Reordering::Adaptive);
        assert_eq!(ordering("[bond]\nreordering = 'fixed-timeout'"), after(50));
        let text = "[bond]\nreordering = 'fixed-timeout'\nreordering_timeout = '80 ms'";
        assert_eq!(ordering(text), after(80));
    }
}
