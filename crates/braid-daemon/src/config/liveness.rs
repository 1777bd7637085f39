//! How uplinks are watched.

use std::time::Duration;

use braid_core::Share;
use braid_core::units::duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target::{HttpTarget, Target};

/// How uplinks are watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LivenessConfig {
    /// Watch at all. `false`: an uplink is dead when its device says so, and only then.
    pub enabled: bool,
    /// Whom to ask. Empty: three well-known resolvers in each family, by ICMP.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
    /// How many targets must answer for an uplink to be alive.
    pub quorum: u32,
    /// Time between two background probes of an uplink.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub interval: Duration,
    /// The same for an idle uplink that is metered.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub metered_interval: Duration,
    /// Good probes in a row that bring an uplink back.
    pub rise: u32,
    /// Tell TCP connections on a dead uplink at once by a reset, so that programs connect anew.
    pub tcp_reset: bool,
    /// A page that no captive portal can forge unnoticed; none: portals are not looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portal: Option<HttpTarget>,
    /// The page's exact text; none: status 204 without a body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portal_expect: Option<String>,
    /// Loss of probes above which an uplink counts as degraded.
    #[schemars(with = "String")]
    pub degraded_loss: Share,
    /// Round-trip time above which an uplink counts as degraded.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub degraded_rtt: Duration,
}

impl Default for LivenessConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            targets: Vec::new(),
            quorum: 1,
            interval: Duration::from_secs(1),
            metered_interval: Duration::from_secs(10),
            rise: 5,
            tcp_reset: true,
            portal: None,
            portal_expect: None,
            degraded_loss: "25 %".parse().expect("a share"),
            degraded_rtt: Duration::from_secs(1),
        }
    }
}
