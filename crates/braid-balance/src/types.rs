//! Types of the datapath's interface.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use braid_core::UplinkId;
use serde::Serialize;

use crate::KernelTime;

/// Options for loading and pinning.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory inside a bpffs that belongs to this instance alone. Created if missing.
    pub pin_dir: PathBuf,
    /// The kind of hook that programs are attached to.
    pub hook: HookKind,
    /// Attach although another party's program sits on the hook; ours then runs first and passes on
    /// the packets that are not ours. `false`: refuse, naming the program.
    pub coexist: bool,
    /// Maximum number of established flows, at least 1. One takes 360 bytes of kernel memory when
    /// in use, nothing before.
    pub max_flows: u32,
    /// Maximum number of embryonic flows (not answered yet), at least 1; the least recently used
    /// one is evicted. Memory for all is allocated at start: about 350 bytes each.
    pub max_embryonic: u32,
}

impl Options {
    /// Returns the defaults: pinned under `pin_dir`, best hook, 262,144 flows, 65,536 embryos.
    pub fn new(pin_dir: impl Into<PathBuf>) -> Self {
        Self {
            pin_dir: pin_dir.into(),
            hook: HookKind::Auto,
            coexist: false,
            max_flows: 262_144,
            max_embryonic: 65_536,
        }
    }
}

/// The kind of hook that programs are attached to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HookKind {
    /// TCX where the kernel has it, else clsact.
    #[default]
    Auto,
    /// TCX links (Linux 6.6), pinned.
    Tcx,
    /// The clsact qdisc with a direct-action filter.
    Clsact,
}

/// State that [`Datapath::open`](crate::Datapath::open) found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Nothing was pinned: loaded and pinned now.
    Fresh,
    /// The same programs were pinned already; flows and attachments are as they were.
    Adopted,
    /// Another build's programs were pinned with the same map layout: the programs were replaced
    /// in place, flows are as they were.
    Upgraded {
        /// Version of the replaced build.
        from: String,
    },
}

/// Counts of what [`remove`](crate::remove) took away; all zero if there was nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Attachments to devices.
    pub attachments: usize,
    /// Pinned programs.
    pub programs: usize,
    /// Pinned maps.
    pub maps: usize,
}

/// IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "ipv4")]
    V4,
    /// IPv6.
    #[serde(rename = "ipv6")]
    V6,
}

/// Layer of a device: with or without Ethernet headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Ethernet (also veth, TAP, bridges, Wi-Fi).
    L2,
    /// Bare IP packets (tun, ppp, wwan in raw-IP mode).
    L3,
}

/// An uplink, as the programs see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkEntry {
    /// Stable number of the uplink; flows refer to it.
    pub id: UplinkId,
    /// Interface index.
    pub ifindex: u32,
    /// The device's link layer: with Ethernet headers or without.
    pub layer: Layer,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Source address and gateway of IPv4; `None`: no IPv4 here.
    pub v4: Option<NextHop<Ipv4Addr>>,
    /// Source address and gateway of IPv6; `None`: no IPv6 here.
    pub v6: Option<NextHop<Ipv6Addr>>,
    /// Source ports (and ICMP echo ids) for flows whose own port is taken, not empty. Keep it
    /// outside `ip_local_port_range` and inside `ip_local_reserved_ports`.
    pub ports: RangeInclusive<u16>,
    /// True if it is up. `false`: no new flows are put here, and existing ones other than open TCP
    /// connections move with their next packet from inside, if another uplink takes flows of their
    /// family.
    pub accepts_new: bool,
    /// True if its open TCP connections are over: their next segment from inside is answered with a
    /// reset. For an uplink that is dead; without effect while no other takes flows of the family.
    pub resets_tcp: bool,
    /// Number that changes when the uplink's paths do; entries of the path cache from another epoch
    /// are void.
    pub epoch: u32,
    /// True if a process carries its packets: it takes flows only while that process renews its
    /// [`Lease`](crate::Lease). Without renewal the datapath takes it for down.
    pub leased: bool,
    /// True if its UDP flows wait for it while it takes no new flows; otherwise they take another
    /// uplink with their next packet.
    pub waits: bool,
    /// True if it loses packets: SYNs, and what QUIC clients and resolvers send before the first
    /// answer, go twice.
    pub sends_twice: bool,
}

/// Source address and gateway of one IP version on an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop<A> {
    /// Source address outside.
    pub address: A,
    /// Next hop; `None`: every destination is on the link (point-to-point).
    pub gateway: Option<A>,
    /// Length in bits of the prefix that `address` shares with its link; destinations in it are
    /// reached without the gateway.
    pub on_link: Option<u8>,
}

/// Devices that the programs are attached to: the desired state, by interface index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachments {
    /// The device that routing sends outbound traffic into (`braid0`).
    pub steer: u32,
    /// Devices whose incoming packets may be replies.
    pub uplinks: Vec<u32>,
    /// Those of the uplinks' devices whose outgoing packets are shaped; empty where shaping is off.
    pub shaped: Vec<u32>,
    /// Devices of a gateway's inside; empty on a plain host. Only Ethernet devices get the fast
    /// path, others are left to the stack.
    pub lans: Vec<u32>,
}

/// Method by which a new flow picks its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LbMethod {
    /// `slot[counter++]`, one counter for all CPUs: exact (weighted) round robin.
    RoundRobin,
    /// `slot[hash of the inner address]`: a client keeps its uplink.
    HashSource,
    /// `slot[hash of inner and remote address]`: a client keeps its uplink per destination.
    HashPair,
    /// The candidate whose SYN/ACK returns first, or that has the shortest cached RTT; round robin
    /// for flows that are neither raced nor in the path cache.
    Race,
    /// The candidate with the shortest predicted transfer; otherwise like `Race`.
    Fastest,
}

/// Reason why a flow is on its uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The next slot of the table.
    NextSlot,
    /// The slot of its inner address' hash.
    HashSource,
    /// The slot of its address pair's hash.
    HashPair,
    /// The next usable slot: the first one's uplink could not take the flow.
    NextUsable,
    /// The hash of the address pair, for TCP seen in mid-stream without a flow.
    Midstream,
    /// The bucket of its ends' hash, in a group of a switch.
    Group,
    /// Its client's uplink for the same site.
    Sticky,
    /// The only uplink that its rule names.
    Only,
    /// Another uplink, as its own has died or lost its address.
    Moved,
    /// A better uplink that has come back.
    Failback,
    /// The uplink that answered its SYN first in a race.
    Raced,
    /// The uplink with the shortest cached RTT to its destination.
    Remembered,
    /// The uplink with the shortest predicted transfer.
    Predicted,
    /// The uplink that its class prefers to all others.
    Preferred,
    /// The uplink with its destination on the link.
    OnLink,
}

/// Number of a class of traffic, `0..64`, each with slot tables of its own. 0 is the default, for
/// flows that match no rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ClassId(pub u8);

/// Transport protocol of a flow, as its IANA number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Protocol(pub u8);

/// Key by which flows of a protocol are told apart behind one outer address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// A port, or an echo's id.
    ByPort,
    /// The remote's address alone: each remote serves one inside host.
    ByAddress,
    /// None: the protocol cannot be translated.
    None,
}

impl Protocol {
    /// Protocols between routers of one link: IGMP, EIGRP, OSPF, PIM and VRRP.
    const OF_LINKS: [u8; 5] = [2, 88, 89, 103, 112];

    /// Returns how the programs translate this protocol (`fill_key` in `bpf/flow/flow.h`).
    #[must_use]
    pub fn translation(self) -> Translation {
        match self.0 {
            // TCP, UDP, ICMP and ICMPv6.
            6 | 17 | 1 | 58 => Translation::ByPort,
            // IPIP, 6in4, GRE, ESP and SCTP.
            4 | 41 | 47 | 50 | 132 => Translation::ByAddress,
            _ => Translation::None,
        }
    }

    /// Returns true if routers of one link speak it among themselves, so that no router answers for
    /// the receiver.
    #[must_use]
    pub fn is_of_links(self) -> bool {
        Self::OF_LINKS.contains(&self.0)
    }
}

/// State of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowState {
    /// TCP: SYN seen from inside. Others: sent, no answer yet.
    New,
    /// TCP: answered, the inside's final ACK not seen yet.
    Answered,
    /// Traffic both ways.
    Established,
    /// TCP: one side has sent FIN.
    FinWait,
    /// TCP: both sides have sent FIN.
    Closing,
    /// TCP: RST seen, nothing after it.
    Reset,
}

/// Packets and bytes. A super-packet counts as the packets that it will be split into; bytes are
/// those of IP packets, with one header per super-packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A flow of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Inside address; the port is the ICMP echo id, zero for protocols without ports.
    pub inner: SocketAddr,
    /// The remote end; `None` where the mapping serves every remote (UDP other than QUIC).
    pub remote: Option<SocketAddr>,
    /// Outside address and port.
    pub outer: SocketAddr,
    /// The uplink that carries it.
    pub uplink: UplinkId,
    /// State.
    pub state: FlowState,
    /// True if it is in the table that nothing is evicted from.
    pub assured: bool,
    /// True if packets of its LAN take the fast path past the stack.
    pub fast: bool,
    /// Reason for its uplink.
    pub choice: Choice,
    /// The class whose slot table chose.
    pub class: ClassId,
    /// Position of the rule that put it in its class; `None`: no rule did.
    pub rule: Option<usize>,
    /// The uplink that it was last moved from; `None`: it was never moved.
    pub came_from: Option<UplinkId>,
    /// Time of its first packet.
    pub created: KernelTime,
    /// Time of its last packet, in either direction.
    pub last_seen: KernelTime,
    /// From inside.
    pub tx: Traffic,
    /// To inside.
    pub rx: Traffic,
}

/// Result of one sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SweepReport {
    /// Established flows left.
    pub established: usize,
    /// Embryos left.
    pub embryos: usize,
    /// Flows removed because they were idle too long for their state.
    pub expired: usize,
    /// Halves of a pair that were removed or completed.
    pub repaired: usize,
    /// Time the sweep took.
    #[serde(skip)]
    pub took: Duration,
}

/// Counters since the programs were first loaded; they survive the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets per exit reason, every reason once, in the order of `bpf/reasons.h`.
    pub reasons: Vec<(&'static str, u64)>,
    /// Traffic per uplink that has an entry.
    pub uplinks: Vec<(UplinkId, UplinkCounters)>,
}

/// One uplink's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UplinkCounters {
    /// Sent through it.
    pub tx: Traffic,
    /// Received through it: for our flows, and for forwarded and published ports.
    pub rx: Traffic,
    /// Flows put on it.
    pub flows_opened: u64,
    /// SYNs that opened a flow.
    pub syns: u64,
    /// SYNs sent again because they were not answered.
    pub syn_repeats: u64,
    /// SYNs that were accepted or refused.
    pub syn_answers: u64,
    /// TCP segments with data that the inside has retransmitted.
    pub repeats: u64,
    /// Microseconds from SYN, or QUIC Initial, to its answer, summed over
    /// [`UplinkCounters::rtt_samples`].
    pub rtt_us_sum: u64,
    /// Handshakes measured: those whose first packet was sent once.
    pub rtt_samples: u64,
    /// TCP segments with data, in both directions.
    pub data_packets: u64,
    /// Those of them that indicate a loss: retransmissions from inside, and gaps before segments
    /// from outside. A link that reorders looks worse than it is.
    pub lost: u64,
    /// Microseconds by which round trips of flows that move data exceed the flow's shortest one,
    /// summed over [`UplinkCounters::queueing_samples`].
    pub queueing_us_sum: u64,
    /// Round trips measured in such flows, by TCP timestamps.
    pub queueing_samples: u64,
    /// Microseconds for which a queue is seen to have stood: of each of these round trips the growth, without the uplink's
    /// silence before its end, as far back as the last one that showed a queue.
    pub queued_us: u64,
    /// Microseconds from the last one that did to this reading of the counters.
    pub queue_unseen_us: u64,
    /// Microseconds of these round trips themselves, summed over [`UplinkCounters::queueing_samples`].
    pub flow_rtt_us_sum: u64,
    /// Microseconds by which one of them differs from the one before in the same flow, summed over
    /// [`UplinkCounters::jitter_samples`].
    pub jitter_us_sum: u64,
    /// Round trips that had one before in the same flow.
    pub jitter_samples: u64,
}

/// Kernel memory held by one map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapMemory {
    /// Map name.
    pub map: String,
    /// Bytes, as the kernel accounts them.
    pub bytes: u64,
}
