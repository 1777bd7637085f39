//! `[shape]`: shaping of the uplinks.

use std::time::Duration;

use braid_core::units::duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Shaping of the uplinks by their measured capacity, so that no queue stands in the line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ShapeConfig {
    /// Shape all uplinks, in both directions. An uplink whose capacity is not known yet is not limited.
    pub enabled: bool,
    /// Delay in the virtual queue from which packets are dropped. More keeps single transfers faster and calls slower.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub target: Duration,
}

impl Default for ShapeConfig {
    /// More than CoDel's own target (RFC 8289 §4.4): no packet waits in a virtual queue, and with less of it senders
    /// that slow down leave the line idle.
    fn default() -> Self {
        Self {
            enabled: false,
            target: Duration::from_millis(8),
        }
    }
}
