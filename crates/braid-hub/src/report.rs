//! What the hub's API answers and `--json` prints: one set of types for both.

use std::collections::BTreeMap;
use std::net::IpAddr;

use braid_core::Rate;
use braid_daemon::config::Quota;
use braid_daemon::report::HealthProblem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer to `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// Version of the hub.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Its public key, base64.
    pub key: String,
    /// Where it listens, UDP.
    pub listen: Vec<String>,
    /// The inner device.
    pub device: String,
    /// The inner networks.
    pub networks: Vec<String>,
    /// What becomes of packets for elsewhere: nat, routed, off.
    pub forward: String,
    /// How many clients there are.
    pub clients: ClientCounts,
    /// Handshakes by what they came to, since the start.
    pub handshakes: BTreeMap<String, u64>,
    /// Datagrams that were refused, by reason, since the start.
    pub rejected: BTreeMap<String, u64>,
    /// Packets for inner addresses that no connected client has, since the start.
    pub unrouted_packets: u64,
    /// What is not as it should be.
    pub health: Vec<HealthProblem>,
}

/// How many clients there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientCounts {
    /// Those that a machine has joined as.
    pub joined: u64,
    /// Of those, the ones with a session.
    pub connected: u64,
    /// Those whose token nobody has used, and still may.
    pub invited: u64,
    /// Those that are not served any more.
    pub revoked: u64,
}

/// Answer to `GET /v1/clients`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientsReport {
    /// All of them, the oldest first.
    pub clients: Vec<ClientReport>,
}

/// A client. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientReport {
    /// Its name.
    pub name: String,
    /// invited, expired, joined or revoked.
    pub state: String,
    /// Whether it has a session.
    pub connected: bool,
    /// Its inner addresses.
    pub addresses: Vec<IpAddr>,
    /// Its public key, base64, once a machine has joined as it.
    pub key: Option<String>,
    /// Most that is passed on for it in each direction; no limit if none.
    #[schemars(with = "Option<String>")]
    pub rate: Option<Rate>,
    /// How much is passed on for it in a day or a month, both directions together; once that is used up,
    /// `rate` is what is left to it until the next one.
    pub quota: Option<Quota>,
    /// What it has used of that; none without a quota.
    pub quota_used_bytes: Option<u64>,
    /// When it was invited.
    pub created_unix_ms: u64,
    /// Until when its token may be used, while nobody has.
    pub expires_unix_ms: Option<u64>,
    /// When something of it was heard last.
    pub last_seen_unix_ms: Option<u64>,
    /// Bytes of packets that came from it, since it was invited.
    pub rx_bytes: u64,
    /// Bytes of packets that went to it, since it was invited.
    pub tx_bytes: u64,
    /// Packets of its with a source that is not its own, since the start: refused.
    pub spoofed_packets: u64,
    /// Packets beyond its rate, since the start: dropped.
    pub capped_packets: u64,
    /// Handshakes with its token by machines other than the one that joined, since the start: refused.
    pub token_misuses: u64,
    /// Its links, while it has a session.
    pub links: Vec<LinkReport>,
}

impl ClientReport {
    /// What is left of its quota, zero once that is used up; none without a quota.
    #[must_use]
    pub fn quota_left_bytes(&self) -> Option<u64> {
        let volume = self.quota?.volume.get();
        Some(volume.saturating_sub(self.quota_used_bytes?))
    }
}

/// A link of a client, as the hub sees it. What is measured is of the direction to the client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LinkReport {
    /// Its number.
    pub id: u8,
    /// The client's address on it, once proven.
    pub remote: Option<String>,
    /// Whether it carries data.
    pub in_use: bool,
    /// Smoothed round-trip time in milliseconds; none before the first report.
    pub rtt_ms: Option<f64>,
    /// What is lost of late, 0 to 1.
    pub loss: f64,
    /// What it is sent at, bit/s.
    pub rate_bit_s: u64,
    /// Its part of what was sent in the last second, 0 to 1.
    pub share: f64,
    /// Bytes received on it, with headers, in this session.
    pub rx_bytes: u64,
    /// Bytes sent on it, with headers, in this session.
    pub tx_bytes: u64,
}

/// Body of `POST /v1/invitations`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InviteRequest {
    /// What the client is called.
    pub name: String,
    /// Where it finds the hub; empty: as the configuration says, or the machine's own addresses.
    #[serde(default)]
    pub address: Vec<String>,
    /// Inner addresses that it is to have; of networks that none is named of it gets the next.
    #[serde(default)]
    pub inner: Vec<IpAddr>,
    /// Most that is passed on for it in each direction.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub rate: Option<Rate>,
    /// For how long its token may be used, seconds.
    pub valid_ms: u64,
}

/// Answer to `POST /v1/invitations`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InviteReport {
    /// What the client is called.
    pub name: String,
    /// For `braid join`. It is told this once: the hub does not keep it.
    pub token: String,
    /// The client's inner addresses.
    pub addresses: Vec<IpAddr>,
    /// Where the token says that the hub is.
    pub hub: Vec<String>,
    /// Until when it may be used, seconds since 1970.
    pub expires_unix_ms: u64,
    /// What may keep it from working.
    pub warnings: Vec<String>,
}

/// Answer to `DELETE /v1/clients/NAME`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RevokeReport {
    /// What the client is called.
    pub name: String,
    /// True if it had been revoked before, so that nothing has changed.
    #[serde(default)]
    pub was_revoked: bool,
    /// True if a machine had joined as it until now.
    pub had_joined: bool,
}
