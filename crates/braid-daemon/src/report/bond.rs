//! Reports on the bond.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{BondConfig, BondScheduler};

/// Body of `POST /v1/bond`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Token printed by `braid hub invite`.
    pub token: String,
}

/// Answer to `GET /v1/bond`, `POST /v1/bond` and `DELETE /v1/bond`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BondReport {
    /// State.
    pub state: BondState,
    /// The state in words, with the reason.
    pub why: String,
    /// The hub's addresses, from the token.
    pub hub: Vec<String>,
    /// The hub's name for this machine; none before the hub has answered, or if it has no name for it.
    pub name: Option<String>,
    /// Inner addresses assigned by the hub.
    pub addresses: Vec<String>,
    /// The `[bond]` configuration.
    pub config: BondConfig,
    /// Links: one per uplink that works, several while alternative paths over an uplink are tried.
    pub links: Vec<BondLinkReport>,
    /// Packet counters; none while no tunnel runs.
    pub packets: Option<BondPacketsReport>,
    /// Problems other than the state.
    pub problems: Vec<String>,
}

/// State of the bond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BondState {
    /// This machine has joined no hub.
    None,
    /// The hub has not answered yet.
    Connecting,
    /// It takes flows.
    Up,
    /// The hub could be reached before, and cannot be now.
    Lost,
    /// The hub refuses this machine.
    Refused,
    /// The tunnel does not run.
    Stopped,
}

impl BondState {
    /// Returns its name in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            BondState::None => "none",
            BondState::Connecting => "connecting",
            BondState::Up => "up",
            BondState::Lost => "lost",
            BondState::Refused => "refused",
            BondState::Stopped => "stopped",
        }
    }
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BondLinkState {
    /// Carries nothing: the hub has not answered on it yet.
    Trying,
    /// Carries packets.
    Active,
    /// Carries packets at a part of its rate, after a failure.
    Returning,
    /// Carries nothing: it has fallen silent.
    Suspect,
    /// Carries nothing: it loses too many packets.
    Quarantined,
    /// Carries nothing: its socket could not be opened.
    Failed,
}

impl BondLinkState {
    /// Returns its name in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            BondLinkState::Trying => "trying",
            BondLinkState::Active => "active",
            BondLinkState::Returning => "returning",
            BondLinkState::Suspect => "suspect",
            BondLinkState::Quarantined => "quarantined",
            BondLinkState::Failed => "failed",
        }
    }
}

/// One link of the bond. Measurements are of the direction to the hub, unless noted otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BondLinkReport {
    /// Name of its uplink.
    pub uplink: String,
    /// Number of the link, the same at the hub.
    pub id: u8,
    /// Address of the hub on this link.
    pub hub: String,
    /// State, which says whether it carries packets.
    pub state: BondLinkState,
    /// Fraction of the bytes sent over all links in about the last second, 0 to 1; 0 when idle.
    pub share: f64,
    /// Reason for its share.
    pub why: String,
    /// True if it carries inner packets unencrypted, as GRE.
    #[serde(default)]
    pub cleartext: bool,
    /// Sending rate, in bits per second.
    pub rate_bit_s: u64,
    /// Delivery rate in the last sample, in bits per second; none before the first.
    pub delivered_bit_s: Option<u64>,
    /// Smoothed round-trip time, in milliseconds; none before the first report.
    pub rtt_ms: Option<f64>,
    /// Minimum round-trip time, in milliseconds.
    pub rtt_min_ms: Option<f64>,
    /// One-way delay without queue beyond that of the fastest link, in milliseconds.
    pub owd_skew_ms: Option<f64>,
    /// Queueing delay in the network, one way, in milliseconds.
    pub queue_ms: f64,
    /// Mean deviation of the one-way delay, in milliseconds.
    pub jitter_ms: f64,
    /// Fraction of recently sent packets that were lost, 0 to 1.
    pub loss: f64,
    /// Packets lost without a queue.
    pub lost_random: u64,
    /// Packets lost to a full queue.
    pub lost_congestive: u64,
    /// Largest UDP payload that the path carries, in bytes.
    pub max_payload_bytes: u16,
    /// Bytes of datagrams sent, with IP and UDP headers.
    pub tx_bytes: u64,
    /// Bytes of datagrams received, with IP and UDP headers.
    pub rx_bytes: u64,
    /// Inner packets that arrived on it after they had been given up.
    pub late: u64,
    /// Inner packets that arrived on it after a copy of them.
    pub duplicates: u64,
    /// Gaps given up at their deadline while this link could still have filled them.
    pub gaps_expired: u64,
    /// Datagrams that the socket refused to send.
    pub send_errors: u64,
}

/// Counters of inner packets since the session began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BondPacketsReport {
    /// Scheduler that chooses links.
    pub scheduler: BondScheduler,
    /// Median delay of received packets in the reorder buffer, in milliseconds.
    pub reorder_delay_p50_ms: f64,
    /// 99th percentile of the same.
    pub reorder_delay_p99_ms: f64,
    /// Packets that arrived in order.
    pub in_order: u64,
    /// Packets that waited for a missing one.
    pub held: u64,
    /// Packets of classes without ordering.
    pub unordered: u64,
    /// Gaps declared lost because every link had delivered later packets.
    pub gaps_lost: u64,
    /// Gaps given up at their deadline.
    pub gaps_expired: u64,
    /// Gaps given up because the buffer was full.
    pub gaps_forced: u64,
    /// Packets that wait for a link now.
    pub backlog_packets: u64,
    /// Bytes of those packets.
    pub backlog_bytes: u64,
    /// Packets dropped before the links by queue management.
    pub dropped: u64,
    /// Packets marked there instead (ECN).
    pub marked: u64,
    /// Packets dropped there because the queue was full.
    pub overflowed: u64,
    /// Received acknowledgements of TCP flows whose receive windows were lowered, so that their senders keep the queue before the links short.
    #[serde(default)]
    pub lowered_windows: u64,
    /// TCP segments dropped because their data waited for the links already.
    #[serde(default)]
    pub spurious_retransmissions: u64,
    /// Packets retransmitted.
    pub retransmitted: u64,
    /// Bytes saved by header compression.
    #[serde(default)]
    pub header_bytes_saved: u64,
    /// Datagrams rejected: forged, replayed or malformed.
    pub rejected: u64,
}
