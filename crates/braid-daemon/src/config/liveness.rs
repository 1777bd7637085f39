//! `[liveness]`: health checks of uplinks.

use std::time::Duration;

use braid_core::Share;
use braid_core::units::duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target::{HttpTarget, Target};

/// Health checks of uplinks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LivenessConfig {
    /// Enables health checks. If `false`, an uplink is dead only when its device is down.
    pub enabled: bool,
    /// Probe targets. Empty: three well-known resolvers in each family, by ICMP.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
    /// Number of targets that must answer for an uplink to be alive.
    pub quorum: u32,
    /// Time between two background probes of an uplink.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub interval: Duration,
    /// The same for an idle uplink that is metered.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub metered_interval: Duration,
    /// Consecutive good probes after which an uplink is used again.
    pub rise: u32,
    /// Reset TCP connections on a dead uplink at once, so that programs reconnect.
    pub tcp_reset: bool,
    /// Page whose expected answer reveals a captive portal; none: portals are not detected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portal: Option<HttpTarget>,
    /// Exact text of that page; none: status 204 without a body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portal_expect: Option<String>,
    /// Probe loss above which an uplink is degraded.
    #[schemars(with = "String")]
    pub degraded_loss: Share,
    /// Round-trip time above which an uplink is degraded.
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
