//! What is remembered of the ways to destinations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer to `GET /v1/paths`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathsReport {
    /// Every network of which something is remembered, those first that were asked for last.
    pub destinations: Vec<DestinationReport>,
}

/// A network that flows went to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DestinationReport {
    /// The network: a /24 of IPv4, a /48 of IPv6.
    pub network: String,
    /// What is known of the ways there, by uplink.
    pub paths: Vec<PathReport>,
}

/// The way to a network by one uplink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathReport {
    /// Name of the uplink.
    pub uplink: String,
    /// Round trip of handshakes, in milliseconds; none where it is not known, or where the last SYN
    /// got no answer.
    pub rtt_ms: Option<f64>,
    /// Milliseconds since the last handshake.
    pub age_ms: u64,
    /// TCP packets with data that were watched, in both directions; halved now and then.
    pub data_packets: u32,
    /// Of those, how many were lost.
    pub lost_packets: u32,
    /// How long a transfer of 1 MB would take by it from now, in milliseconds; none where no policy
    /// goes by that.
    pub predicted_ms: Option<f64>,
    /// Whether it decides about new flows. It does not where it is older than `memory` in `[race]`, or
    /// where the uplink has failed or leads elsewhere since.
    pub valid: bool,
}
