//! Reports on the path cache.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer to `GET /v1/paths`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathsReport {
    /// Every cached network, the most recently used first.
    pub destinations: Vec<DestinationReport>,
}

/// A destination network in the path cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DestinationReport {
    /// The network: a /24 of IPv4, a /48 of IPv6.
    pub network: String,
    /// The paths to it, one per uplink.
    pub paths: Vec<PathReport>,
}

/// The path to a network over one uplink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathReport {
    /// Name of the uplink.
    pub uplink: String,
    /// Round-trip time of handshakes, in milliseconds; none if unknown, or if the last SYN got no answer.
    pub rtt_ms: Option<f64>,
    /// Milliseconds since the last handshake.
    pub age_ms: u64,
    /// TCP packets with data observed, in both directions; halved from time to time.
    pub data_packets: u32,
    /// Lost packets among those.
    pub lost_packets: u32,
    /// Predicted time of a 1 MB transfer over it, in milliseconds; none if no policy uses predictions.
    pub predicted_ms: Option<f64>,
    /// True if it decides about new flows: it is not older than `cache_ttl` in `[race]`, and the uplink
    /// has neither failed nor changed since.
    pub valid: bool,
}
