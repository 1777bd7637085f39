//! Status reports of a running tunnel.

use std::net::SocketAddr;
use std::time::Duration;

use braid_core::{Bytes, Rate};
use braid_multipath::LinkId;
use braid_multipath::liveness::Verdict;

use crate::proto::handshake::{ListenerCounters, PublicKey};
use crate::proto::header_compression::CompressionSavings;
use crate::proto::reject::Rejects;
use crate::proto::seal::Cipher;
use crate::proto::tunnel::PolicyStatus;

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: Bytes,
}

impl Traffic {
    pub(super) fn add(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += Bytes::new(bytes);
    }
}

/// A client's tunnel.
#[derive(Clone, Debug)]
pub struct ClientStatus {
    /// The current session; none before the first handshake, after a close by the hub, or once it
    /// has expired.
    pub session: Option<SessionStatus>,
    /// Its links, by id.
    pub links: Vec<LinkStatus>,
    /// Counters of inner packets.
    pub flow: FlowStatus,
    /// The inner device.
    pub tun: TunStatus,
    /// State of the policy at the hub.
    pub policy: PolicyStatus,
}

/// A session's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// Time since the last handshake.
    pub age: Duration,
    /// Time since the last authentic packet.
    pub since_received: Duration,
    /// Cipher of its packets.
    pub cipher: Cipher,
}

/// Round-trip time of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttStatus {
    /// Smoothed.
    pub smoothed: Duration,
    /// Its mean deviation.
    pub variation: Duration,
    /// Least observed.
    pub min: Duration,
}

/// A link of a tunnel. Measurements are of the sending direction unless stated otherwise.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// Its id.
    pub id: LinkId,
    /// Validated address of its other end.
    pub remote: Option<SocketAddr>,
    /// Largest UDP payload that it carries.
    pub max_payload_bytes: u16,
    /// True if it works, and may carry data.
    pub in_use: bool,
    /// True if its data is sent in cleartext, as GRE.
    pub cleartext: bool,
    /// Verdict of liveness and loss; none until it is in use.
    pub verdict: Option<Verdict>,
    /// Send rate.
    pub rate: Rate,
    /// Delivery rate of the last sample.
    pub delivered: Option<Rate>,
    /// Round-trip time; none before the first report.
    pub rtt: Option<RttStatus>,
    /// One-way delay without queue, minus that of the fastest link.
    pub owd_skew: Option<Duration>,
    /// One-way delay above its minimum: time in the network's queues.
    pub queue: Duration,
    /// Mean deviation of the one-way delay.
    pub jitter: Duration,
    /// Recent loss, 0 to 1.
    pub loss_fast: f64,
    /// Loss over a longer time, 0 to 1.
    pub loss_slow: f64,
    /// Packets lost without a queue.
    pub lost_random: u64,
    /// Packets lost to a full queue.
    pub lost_congestive: u64,
    /// Its share of the bytes that all links of the tunnel sent in the last second or so, 0 to 1; 0
    /// if there were none.
    pub share: f64,
    /// Datagrams sent, with IP and UDP headers.
    pub sent: Traffic,
    /// Authentic datagrams received, with IP and UDP headers.
    pub received: Traffic,
    /// Inner packets that arrived on it after the resequencer had given them up; forwarded.
    pub late: u64,
    /// Inner packets that arrived on it after a copy; dropped.
    pub duplicates: u64,
    /// Gaps that expired while this link could still have filled them.
    pub gaps_expired: u64,
    /// Datagrams that its socket refused.
    pub send_errors: u64,
    /// Bulk flows sent over it, if it is so slow that it carries nothing else; none for other links.
    pub bulk_flows: Option<usize>,
    /// Error that keeps it from having a working socket.
    pub error: Option<String>,
}

/// Counters of inner packets since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowStatus {
    /// Median time in the reorder buffer of all inner packets received.
    pub reorder_delay_p50: Duration,
    /// 99th percentile of the same.
    pub reorder_delay_p99: Duration,
    /// Received in order.
    pub in_order: u64,
    /// Held until a missing packet came, or was given up.
    pub held: u64,
    /// Delivered at once, since their class needs no order.
    pub unordered: u64,
    /// Gaps known to be lost: packets sent later have arrived on every link.
    pub known_lost: u64,
    /// Gaps given up at their deadline.
    pub expired: u64,
    /// Gaps given up for lack of memory.
    pub forced: u64,
    /// Packets queued for links.
    pub backlog_packets: u64,
    /// Their bytes.
    pub backlog_bytes: Bytes,
    /// Dropped by CoDel.
    pub dropped: u64,
    /// Marked by CoDel.
    pub marked: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// Delivered with a smaller receive window than they came with.
    pub lowered_windows: u64,
    /// Not sent: TCP segments whose data waited already.
    pub spurious_retransmissions: u64,
    /// Retransmitted.
    pub repaired: u64,
    /// Savings of header compression.
    pub saved: CompressionSavings,
    /// Datagrams refused, by reason.
    pub rejects: Rejects,
}

/// The inner device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunStatus {
    /// Inner packets read from it.
    pub read: Traffic,
    /// Inner packets written to it.
    pub written: Traffic,
    /// Inner packets that could not be parsed, or that the kernel refused.
    pub refused: u64,
}

/// A hub.
#[derive(Clone, Debug)]
pub struct HubStatus {
    /// Its peers, by key.
    pub peers: Vec<PeerStatus>,
    /// Handshake counters.
    pub listener: ListenerCounters,
    /// Datagrams refused before they reached a peer's tunnel.
    pub rejects: Rejects,
    /// The inner device.
    pub tun: TunStatus,
    /// Inner packets from the device for addresses of no peer with a session.
    pub unrouted: u64,
}

/// A peer of a hub.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// Its public key.
    pub key: PublicKey,
    /// The hub's key by which it last came since the hub's start, if it has.
    pub came_by: Option<PublicKey>,
    /// The current session, if any.
    pub session: Option<SessionStatus>,
    /// Its links, by id.
    pub links: Vec<LinkStatus>,
    /// Counters of inner packets.
    pub flow: FlowStatus,
    /// Inner packets to it.
    pub sent: Traffic,
    /// Inner packets from it.
    pub received: Traffic,
    /// Inner packets from it with a source that is not its own; dropped.
    pub spoofed: u64,
    /// Inner packets beyond its rate; dropped.
    pub capped: u64,
}
