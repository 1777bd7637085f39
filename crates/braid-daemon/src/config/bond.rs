//! `[bond]`: flows over the bond, and the distribution of its packets over the uplinks.

use std::time::Duration;

use braid_core::units::duration;
use braid_host::as_text;
use braid_multipath::bond::MAX_EXTRA_DELAY;
use braid_multipath::resequence::Reordering;
use braid_multipath::schedule::Parameters;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words::words;

/// The bond: a virtual uplink over all uplinks at once. It exists after `braid join`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BondConfig {
    /// Flows that take the bond.
    pub flows: BondFlows,
    /// Action for the bond's flows while the hub is unreachable.
    pub fallback: Fallback,
    /// Scheduler that distributes packets over the uplinks.
    pub scheduler: BondScheduler,
    /// Encapsulation of the bond's data.
    pub encapsulation: Encapsulation,
    /// Parameters of the scheduler `overflow`.
    pub overflow: OverflowConfig,
    /// Reordering of packets, at both ends.
    pub reordering: BondReordering,
    /// With `fixed-timeout`: how long a packet is held for a missing one.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub reordering_timeout: Duration,
    /// Longest extra delay of an uplink for which bulk flows use it; zero to leave slower ones out.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub max_extra_delay: Duration,
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
            max_extra_delay: MAX_EXTRA_DELAY,
        }
    }
}

impl BondConfig {
    /// Returns the longest extra delay to tell the hub; none for the usual one.
    #[must_use]
    pub fn told_extra_delay(&self) -> Option<Duration> {
        Some(self.max_extra_delay).filter(|extra| *extra != MAX_EXTRA_DELAY)
    }

    /// Returns the setting in the bond's own type.
    #[must_use]
    pub fn ordering(&self) -> Reordering {
        match self.reordering {
            BondReordering::Adaptive => Reordering::Adaptive,
            BondReordering::FixedTimeout => Reordering::FixedTimeout(self.reordering_timeout),
        }
    }
}

/// Parameters of the scheduler `overflow`, named as in its paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OverflowConfig {
    /// Growth of a costlier uplink's weight with the loss on a cheaper one.
    pub k: Thousandths,
    /// Time without loss after which weight is given back; a multiple of `t_report`.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub t_dwd: Duration,
    /// Interval at which loss is evaluated.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub t_report: Duration,
    /// Weight of the cheapest uplink.
    pub w_fixed: u32,
    /// Maximum weight of any other uplink.
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
    /// Returns the parameters in the scheduler's own type.
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

/// A number with three decimals, stored in thousandths.
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

/// Flows that take the bond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BondFlows {
    /// All flows that no rule sends elsewhere.
    #[default]
    All,
    /// Only flows that a rule sends there.
    Ruled,
}

words!(BondFlows, "choice of flows", All = "all", Ruled = "ruled");

/// Action for the bond's flows while the hub is unreachable.
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
    /// They are distributed over the uplinks, as if there were no bond.
    #[default]
    Balance,
    /// They are blocked: traffic that belongs in the bond never leaves outside it.
    Block,
}

words!(Fallback, "fallback", Balance = "balance", Block = "block");

/// Scheduler that distributes packets over the uplinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BondScheduler {
    /// Each packet takes the uplink on which it should arrive first, according to measurements.
    #[default]
    Adaptive,
    /// The cheapest uplink is filled until it loses packets; the next ones carry the excess.
    Overflow,
    /// Weighted round robin over the uplinks.
    Weighted,
}

words!(
    BondScheduler,
    "scheduler",
    Adaptive = "adaptive",
    Overflow = "overflow",
    Weighted = "weighted"
);

/// Reordering of received packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BondReordering {
    /// By measurements of the uplinks: packets wait for a missing one while it may still arrive.
    #[default]
    Adaptive,
    /// By a fixed time-out, as in the paper of `overflow`; for comparison.
    FixedTimeout,
}

words!(
    BondReordering,
    "reordering",
    Adaptive = "adaptive",
    FixedTimeout = "fixed-timeout"
);

/// Encapsulation of the bond's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Encapsulation {
    /// Encrypted, in UDP.
    #[default]
    Udp,
    /// Unencrypted, as GRE, if the hub allows it too: for trusted networks.
    Gre,
}

words!(Encapsulation, "encapsulation", Udp = "udp", Gre = "gre");

/// Treatment of a flow's packets inside the bond.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum BondClass {
    /// In order, over all uplinks.
    Ordered,
    /// Over the uplink with the least delay, without reordering.
    Unordered,
    /// Duplicated over two uplinks; the first copy to arrive is used.
    Redundant,
    /// Over one uplink as long as its rate suffices.
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
    fn the_hub_is_told_an_extra_delay_that_is_not_the_usual_one() {
        let told = |text: &str| Config::parse("test", text).unwrap().bond.told_extra_delay();
        assert_eq!(told(""), None);
        assert_eq!(told("[bond]\nmax_extra_delay = '400 ms'"), None);
        let none = told("[bond]\nmax_extra_delay = '0 ms'");
        assert_eq!(none, Some(Duration::ZERO));
    }

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
