//! What a running tunnel can tell.

use std::net::SocketAddr;
use std::time::Duration;

use crate::proto::handshake::{ListenerCounters, PublicKey};
use crate::proto::header_compression::CompressionSavings;
use crate::proto::reject::Rejects;
use crate::proto::seal::Cipher;
use crate::proto::tunnel::PolicyStatus;
use braid_core::liveness::Verdict;
use braid_core::{Bytes, LinkId, Rate};

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How many packets.
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
    /// The keys in use; none before the first handshake, after the hub closed, or once they are too old.
    pub session: Option<SessionStatus>,
    /// Its links, by id.
    pub links: Vec<LinkStatus>,
    /// What happened to inner packets.
    pub flow: FlowStatus,
    /// The inner device.
    pub tun: TunStatus,
    /// What the hub has made of how packets are to be treated.
    pub policy: PolicyStatus,
}

/// A session's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// Since the last handshake.
    pub age: Duration,
    /// Since something authentic came.
    pub since_received: Duration,
    /// What packets are sealed with.
    pub cipher: Cipher,
}

/// Round-trip time of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttStatus {
    /// Smoothed.
    pub smoothed: Duration,
    /// Its mean deviation.
    pub variation: Duration,
    /// The least seen.
    pub min: Duration,
}

/// A link of a tunnel. What is measured is of the sending direction, unless said otherwise.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// Which.
    pub id: LinkId,
    /// Where its other end is, if that has proved itself.
    pub remote: Option<SocketAddr>,
    /// UDP payload that it carries, bytes.
    pub max_payload_bytes: u16,
    /// Whether it has shown that it works, and may carry data.
    pub in_use: bool,
    /// Whether its data goes in the clear, as GRE.
    pub cleartext: bool,
    /// What its silence or its losses came to; none until it is in use.
    pub verdict: Option<Verdict>,
    /// What it is sent at.
    pub rate: Rate,
    /// What it delivered in the last sample.
    pub delivered: Option<Rate>,
    /// Round-trip time; none before the first report.
    pub rtt: Option<RttStatus>,
    /// By how much its one-way delay without queue exceeds that of the fastest link.
    pub owd_skew: Option<Duration>,
    /// One-way delay above its own least: what waits in the network's queues.
    pub queue: Duration,
    /// One-way delay's mean deviation.
    pub jitter: Duration,
    /// Lost of what was sent of late, 0 to 1.
    pub loss_fast: f64,
    /// The same over a longer time.
    pub loss_slow: f64,
    /// Packets lost without a queue.
    pub lost_random: u64,
    /// Packets lost to a full queue.
    pub lost_congestive: u64,
    /// Its part of the bytes that all links of the tunnel were given in the last second or so, 0 to 1;
    /// 0 if there were none.
    pub share: f64,
    /// Datagrams sent, with IP and UDP headers.
    pub sent: Traffic,
    /// Datagrams received that were authentic, with IP and UDP headers.
    pub received: Traffic,
    /// Inner packets that came on it after they had been given up; forwarded.
    pub late: u64,
    /// Inner packets that came on it after a copy; dropped.
    pub duplicates: u64,
    /// Gaps that were given up while this link could still have filled them.
    pub gaps_expired: u64,
    /// Datagrams that its socket did not take.
    pub send_errors: u64,
    /// Why it has no working socket.
    pub error: Option<String>,
}

/// What happened to inner packets since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowStatus {
    /// Median wait for order of all inner packets received.
    pub reorder_delay_p50: Duration,
    /// 99th percentile of the same.
    pub reorder_delay_p99: Duration,
    /// Received in order.
    pub in_order: u64,
    /// Held until something missing came, or was given up.
    pub held: u64,
    /// Passed on at once, since they do not ask for order.
    pub unordered: u64,
    /// Gaps known to be lost: every link had passed them.
    pub known_lost: u64,
    /// Gaps given up at their deadline.
    pub expired: u64,
    /// Gaps given up for want of memory.
    pub forced: u64,
    /// Packets that wait for links.
    pub backlog_packets: u64,
    /// Their bytes.
    pub backlog_bytes: Bytes,
    /// Dropped by CoDel.
    pub dropped: u64,
    /// Marked by CoDel.
    pub marked: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// Sent again.
    pub repaired: u64,
    /// What inner headers took less, as they are said once.
    pub saved: CompressionSavings,
    /// Datagrams refused, by reason.
    pub rejects: Rejects,
}

/// The inner device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunStatus {
    /// Inner packets that came from it.
    pub read: Traffic,
    /// Inner packets that went into it.
    pub written: Traffic,
    /// Inner packets that could not be read, or that the kernel did not take.
    pub refused: u64,
}

/// A hub.
#[derive(Clone, Debug)]
pub struct HubStatus {
    /// Those it serves, by key.
    pub peers: Vec<PeerStatus>,
    /// What handshakes came to.
    pub listener: ListenerCounters,
    /// Datagrams refused before they reached a peer's tunnel.
    pub rejects: Rejects,
    /// The inner device.
    pub tun: TunStatus,
    /// Inner packets from the device that belong to no peer with a session.
    pub unrouted: u64,
}

/// A peer of a hub.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// Who.
    pub key: PublicKey,
    /// The keys in use; none without a session.
    pub session: Option<SessionStatus>,
    /// Its links, by id.
    pub links: Vec<LinkStatus>,
    /// What happened to inner packets.
    pub flow: FlowStatus,
    /// Inner packets to it.
    pub sent: Traffic,
    /// Inner packets from it.
    pub received: Traffic,
    /// Inner packets from it whose source is not its own; dropped.
    pub spoofed: u64,
    /// Inner packets beyond its rate; dropped.
    pub capped: u64,
}
