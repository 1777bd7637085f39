//! How the bond is doing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{BondConfig, BondScheduler};

/// Body of `POST /v1/bond`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// What `braid hub invite` printed.
    pub token: String,
}

/// Answer to `GET /v1/bond`, `POST /v1/bond` and `DELETE /v1/bond`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BondReport {
    /// How it is doing.
    pub state: BondState,
    /// That in words, with the reason.
    pub why: String,
    /// Where the hub is, as the token says.
    pub hub: Vec<String>,
    /// What the hub calls this machine; none before it has answered, or if it has no name for it.
    pub name: Option<String>,
    /// Inner addresses, which the hub gave.
    pub addresses: Vec<String>,
    /// What is configured of it.
    pub config: BondConfig,
    /// Its links, one for each uplink that works, more where it is tried which way works.
    pub links: Vec<BondLinkReport>,
    /// What happened to its packets; none while nothing carries them.
    pub packets: Option<BondPacketsReport>,
    /// What is not as it should be, besides its state.
    pub problems: Vec<String>,
}

/// How the bond is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BondState {
    /// This machine has joined no hub.
    None,
    /// The hub has not answered yet.
    Connecting,
    /// It takes flows.
    Up,
    /// It did: the hub is out of reach.
    Lost,
    /// The hub does not want this machine.
    Refused,
    /// What carries its packets does not run.
    Stopped,
}

impl BondState {
    /// The word for it.
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

/// Whether a link carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BondLinkState {
    /// Nobody has answered on it yet.
    Trying,
    /// It does.
    Active,
    /// It does, with a part of its rate: it has come back.
    Returning,
    /// It does not: it has fallen silent.
    Suspect,
    /// It does not: it loses too much.
    Quarantined,
    /// It cannot: there is no socket for it.
    Failed,
}

impl BondLinkState {
    /// The word for it.
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

/// One link of the bond. What is measured is of the way to the hub, unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BondLinkReport {
    /// Its uplink's name.
    pub uplink: String,
    /// Its number.
    pub id: u8,
    /// The hub's address on it.
    pub hub: String,
    /// Whether it carries packets.
    pub state: BondLinkState,
    /// Part of the bytes that all links were given in the last second or so, 0 to 1; 0 when idle.
    pub share: f64,
    /// What decides about its share.
    pub why: String,
    /// Whether inner packets go by it in the clear, as GRE.
    #[serde(default)]
    pub cleartext: bool,
    /// What it is sent at, in bits per second.
    pub rate_bit_s: u64,
    /// What it delivered in the last sample, in bits per second; none before the first.
    pub delivered_bit_s: Option<u64>,
    /// Smoothed round-trip time, in milliseconds; none before the first report.
    pub rtt_ms: Option<f64>,
    /// The least round-trip time seen, in milliseconds.
    pub rtt_min_ms: Option<f64>,
    /// By how much its one-way delay without queue exceeds the fastest link's, in milliseconds.
    pub owd_skew_ms: Option<f64>,
    /// What waits in the network's queues, as one-way delay in milliseconds.
    pub queue_ms: f64,
    /// Mean deviation of its one-way delay, in milliseconds.
    pub jitter_ms: f64,
    /// Fraction lost of what was sent of late, 0 to 1.
    pub loss: f64,
    /// Packets lost without a queue.
    pub lost_random: u64,
    /// Packets lost to a full queue.
    pub lost_congestive: u64,
    /// UDP payload that it carries, in bytes.
    pub max_payload_bytes: u16,
    /// Bytes of datagrams sent, with IP and UDP headers.
    pub tx_bytes: u64,
    /// Bytes of datagrams received, with IP and UDP headers.
    pub rx_bytes: u64,
    /// Inner packets that came on it after they had been given up.
    pub late: u64,
    /// Inner packets that came on it after a copy.
    pub duplicates: u64,
    /// Gaps that were given up while this link could still have filled them.
    pub gaps_expired: u64,
    /// Datagrams that its socket did not take.
    pub send_errors: u64,
}

/// What happened to inner packets since the session began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BondPacketsReport {
    /// Who chooses links.
    pub scheduler: BondScheduler,
    /// Median wait for order of what came, in milliseconds.
    pub reorder_delay_p50_ms: f64,
    /// 99th percentile of the same.
    pub reorder_delay_p99_ms: f64,
    /// Came in order.
    pub in_order: u64,
    /// Waited for something missing.
    pub held: u64,
    /// Did not ask for order.
    pub unordered: u64,
    /// Gaps known to be lost: every link had passed them.
    pub gaps_lost: u64,
    /// Gaps given up at their deadline.
    pub gaps_expired: u64,
    /// Gaps given up for want of memory.
    pub gaps_forced: u64,
    /// Packets that wait for links now.
    pub backlog_packets: u64,
    /// Their bytes.
    pub backlog_bytes: u64,
    /// Dropped before the links, so that no queue grows in them.
    pub dropped: u64,
    /// Marked there instead (ECN).
    pub marked: u64,
    /// Dropped there because the queue was full.
    pub overflowed: u64,
    /// Sent again.
    pub retransmitted: u64,
    /// Bytes that inner headers took less, as they are said once.
    #[serde(default)]
    pub header_bytes_saved: u64,
    /// Datagrams refused: forged, replayed, not understood.
    pub rejected: u64,
}
