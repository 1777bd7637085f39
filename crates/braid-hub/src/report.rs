//! Replies of the hub's API, which `--json` prints too.

use std::collections::BTreeMap;
use std::net::IpAddr;

use braid_core::Rate;
use braid_host::config::Quota;
use braid_host::report::HealthProblem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer to `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// Version of the hub.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Its public key, base64.
    pub key: String,
    /// Its key before that, while clients may still use it.
    #[serde(default)]
    pub previous_key: Option<PreviousKeyReport>,
    /// True if its store is sealed by the credential `braid.seal`.
    #[serde(default)]
    pub is_sealed: bool,
    /// Addresses that it listens on, UDP.
    pub listen: Vec<String>,
    /// The inner device.
    pub device: String,
    /// The inner networks.
    pub networks: Vec<String>,
    /// Treatment of packets to other networks: nat, routed, off.
    pub forward: String,
    /// Numbers of clients.
    pub clients: ClientCounts,
    /// Handshakes by outcome, since the start.
    pub handshakes: BTreeMap<String, u64>,
    /// Refused datagrams by reason, since the start.
    pub rejected: BTreeMap<String, u64>,
    /// Packets for inner addresses of no connected client, since the start.
    pub unrouted_packets: u64,
    /// Current health problems.
    pub health: Vec<HealthProblem>,
}

/// A key that was replaced, during the overlap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PreviousKeyReport {
    /// The public key, base64.
    pub key: String,
    /// End of the overlap, milliseconds since 1970: it is not valid any more then, and is erased a quarter of an hour later.
    pub until_unix_ms: u64,
    /// Clients that have not come by the current key yet.
    pub clients: Vec<String>,
}

/// Numbers of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientCounts {
    /// Clients that a machine has joined as.
    pub joined: u64,
    /// Joined clients with a session.
    pub connected: u64,
    /// Clients whose token is unused and still valid.
    pub invited: u64,
    /// Clients that are no longer served.
    pub revoked: u64,
}

/// Answer to `GET /v1/clients`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientsReport {
    /// All clients, the oldest first.
    pub clients: Vec<ClientReport>,
}

/// A client. Instants are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientReport {
    /// Its name.
    pub name: String,
    /// invited, expired, joined or revoked.
    pub state: String,
    /// True if it has a session.
    pub connected: bool,
    /// Its inner addresses.
    pub addresses: Vec<IpAddr>,
    /// Its public key, base64, once a machine has joined as it.
    pub key: Option<String>,
    /// Most that the hub forwards for it in each direction; no limit if none.
    #[schemars(with = "Option<String>")]
    pub rate: Option<Rate>,
    /// Its quota per day or month, both directions together. Once that is used up, `rate` is the
    /// rate left until the next period.
    pub quota: Option<Quota>,
    /// Used part of its quota; none without a quota.
    pub quota_used_bytes: Option<u64>,
    /// Time of its invitation.
    pub created_unix_ms: u64,
    /// Expiry of its unused token.
    pub expires_unix_ms: Option<u64>,
    /// Time of its last packet.
    pub last_seen_unix_ms: Option<u64>,
    /// Bytes of inner packets from it since its invitation.
    pub rx_bytes: u64,
    /// Bytes of inner packets to it since its invitation.
    pub tx_bytes: u64,
    /// Packets from it with a source that is not its own, since the start: dropped.
    pub spoofed_packets: u64,
    /// Packets beyond its rate, since the start: dropped.
    pub capped_packets: u64,
    /// Handshakes with its token by other machines than the one that joined, since the start:
    /// refused.
    pub token_misuses: u64,
    /// Its links, while it has a session.
    pub links: Vec<LinkReport>,
    /// Packets for it before its links; none without a session.
    #[serde(default)]
    pub queue: Option<QueueReport>,
}

impl ClientReport {
    /// Rest of its quota, zero once that is used up; none without a quota.
    #[must_use]
    pub fn quota_left_bytes(&self) -> Option<u64> {
        let volume = self.quota?.volume.get();
        Some(volume.saturating_sub(self.quota_used_bytes?))
    }
}

/// Inner packets to a client that wait for its links, and what became of others, in its present session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueReport {
    /// Packets that wait now.
    pub backlog_packets: u64,
    /// Bytes of those packets.
    pub backlog_bytes: u64,
    /// Packets dropped by queue management.
    pub dropped: u64,
    /// Packets marked by it instead (ECN).
    pub marked: u64,
    /// Packets dropped because the queue was full.
    pub overflowed: u64,
    /// Acknowledgements from the client whose receive windows were lowered, so that the senders of its downloads keep the queue short.
    pub lowered_windows: u64,
    /// TCP segments dropped because their data waited already.
    pub spurious_retransmissions: u64,
    /// Packets retransmitted.
    pub retransmitted: u64,
}

/// A link of a client, as the hub sees it. Measurements are of the direction to the client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LinkReport {
    /// Its id.
    pub id: u8,
    /// The client's validated address on it.
    pub remote: Option<String>,
    /// True if it carries data.
    pub in_use: bool,
    /// Smoothed round-trip time in milliseconds; none before the first report.
    pub rtt_ms: Option<f64>,
    /// Recent loss, 0 to 1.
    pub loss: f64,
    /// Send rate, bit/s.
    pub rate_bit_s: u64,
    /// Its share of the bytes sent in the last second, 0 to 1.
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
    /// Name of the client.
    pub name: String,
    /// Addresses of the hub for the token; if empty, those of the configuration, or the machine's
    /// own.
    #[serde(default)]
    pub address: Vec<String>,
    /// Wanted inner addresses; in other networks the client gets the next free one.
    #[serde(default)]
    pub inner: Vec<IpAddr>,
    /// Most that the hub forwards for it in each direction.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub rate: Option<Rate>,
    /// Validity of its token, milliseconds.
    pub valid_ms: u64,
}

/// Answer to `POST /v1/invitations`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InviteReport {
    /// Name of the client.
    pub name: String,
    /// Token for `braid join`. It is shown only once: the hub does not store it.
    pub token: String,
    /// QR code of the token: a string for each row, a `1` for each dark square and a `0` for each light one. Around it
    /// belong four light squares.
    #[serde(default)]
    pub qr_code: Vec<String>,
    /// The client's inner addresses.
    pub addresses: Vec<IpAddr>,
    /// Addresses of the hub in the token.
    pub hub: Vec<String>,
    /// Expiry of the token, milliseconds since 1970.
    pub expires_unix_ms: u64,
    /// Reasons why it may not work.
    pub warnings: Vec<String>,
}

/// Answer to `DELETE /v1/clients/NAME`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RevokeReport {
    /// Name of the client.
    pub name: String,
    /// True if it was revoked before, so that nothing has changed.
    #[serde(default)]
    pub was_revoked: bool,
    /// True if a machine had joined as it.
    pub had_joined: bool,
    /// The reason why a restart would let it in again, if the revocation is not on disk yet.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Body of `POST /v1/key`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateKeyRequest {
    /// Time for which the present key stays valid besides the new one, milliseconds.
    pub overlap_ms: u64,
}

/// Answer to `POST /v1/key` and `DELETE /v1/key/previous`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KeyReport {
    /// The hub's public key, base64.
    pub key: String,
    /// Its key before that, while clients may still use it.
    pub previous_key: Option<PreviousKeyReport>,
    /// Clients that are shut out, or may be; and the reason why a restart would bring the previous key back, if its end
    /// is not on disk yet.
    pub warnings: Vec<String>,
}
