//! What goes in and out of the datapath, in Rust's own types.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use braid_core::UplinkId;
use serde::Serialize;

use crate::KernelTime;

/// How to load and pin.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory inside a bpffs that belongs to this instance alone. Created if missing.
    pub pin_dir: PathBuf,
    /// How programs are attached.
    pub hook: HookKind,
    /// Attach although another party's program sits on the hook; ours then runs first and hands on
    /// what is not ours. `false`: refuse, naming it.
    pub coexist: bool,
    /// Most established flows at once, at least 1. One takes 360 bytes of kernel memory when in use,
    /// nothing before.
    pub max_flows: u32,
    /// Most embryonic flows (no answer seen yet) at once, at least 1; the least recently used one
    /// makes room. Memory for all is taken at start: about 350 bytes each.
    pub max_embryonic: u32,
}

impl Options {
    /// The defaults: pinned under `pin_dir`, best hook, 262,144 flows, 65,536 embryos.
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

/// What [`Datapath::open`](crate::Datapath::open) found.
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

/// What [`remove`](crate::remove) took away; all zero if there was nothing.
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

/// Whether a device's frames begin with an Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Ethernet (also veth, TAP, bridges, Wi-Fi).
    L2,
    /// Bare IP packets (tun, ppp, wwan in raw-IP mode).
    L3,
}

/// One way out, as the programs see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkEntry {
    /// Stable number of the uplink; flows refer to it.
    pub id: UplinkId,
    /// Interface index.
    pub ifindex: u32,
    /// Whether the device has Ethernet headers.
    pub layer: Layer,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// IPv4 address to leave with; `None`: no IPv4 here.
    pub v4: Option<NextHop<Ipv4Addr>>,
    /// IPv6 address to leave with; `None`: no IPv6 here.
    pub v6: Option<NextHop<Ipv6Addr>>,
    /// Source ports (and ICMP echo ids) for flows whose own port is taken, not empty. Keep it
    /// outside `ip_local_port_range` and inside `ip_local_reserved_ports`.
    pub ports: RangeInclusive<u16>,
    /// Whether it is up. `false`: no new flows are put here, and existing ones other than open TCP
    /// connections move with their next packet from inside, if another uplink takes flows of their
    /// family.
    pub accepts_new: bool,
    /// Whether the inside is told that its open TCP connections here are over: their next segment
    /// is answered with a reset. For an uplink that is dead; without effect while no other takes
    /// flows of the family.
    pub resets_tcp: bool,
    /// Number of what its paths have been since it last changed; what was remembered under another
    /// one counts no more.
    pub epoch: u32,
    /// A process carries its packets: it takes flows only while that process renews its
    /// [`Lease`](crate::Lease). Without a word from it the datapath takes it for down.
    pub leased: bool,
    /// It takes no new flows for the moment, and UDP that it has waits for it; else UDP takes another uplink with its next
    /// packet.
    pub waits: bool,
}

/// How one IP version leaves through an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop<A> {
    /// Source address outside.
    pub address: A,
    /// Next hop; `None`: every destination is on the link (point-to-point).
    pub gateway: Option<A>,
    /// Length in bits of the prefix that `address` shares with those who are on the link, for whom the
    /// gateway is no next hop.
    pub on_link: Option<u8>,
}

/// Where the programs should sit: the desired state, by interface index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachments {
    /// The device that routing sends outbound traffic into (`braid0`).
    pub steer: u32,
    /// Devices whose incoming packets may be answers.
    pub uplinks: Vec<u32>,
    /// Devices of a gateway's inside; empty on a plain host. Only Ethernet devices get the fast
    /// path, others are left to the stack.
    pub lans: Vec<u32>,
}

/// How a new flow picks its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LbMethod {
    /// `slot[counter++]`, one counter for all CPUs: exact (weighted) round robin.
    RoundRobin,
    /// `slot[hash of the inner address]`: a client keeps its uplink.
    HashSource,
    /// `slot[hash of inner and remote address]`: a client keeps its uplink per destination.
    HashPair,
    /// The racer whose SYN/ACK returns first, or whose remembered RTT is the shortest; round robin
    /// for what is neither raced nor remembered.
    Race,
    /// The racer by which a transfer is predicted to be over first; else as `Race`.
    Fastest,
}

/// Why a flow is where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The next slot of the table.
    NextSlot,
    /// The slot of its inner address' hash.
    HashSource,
    /// The slot of its address pair's hash.
    HashPair,
    /// Its slot's uplink could not take it, the next usable one did.
    NextUsable,
    /// TCP seen in mid-stream without a flow: by hash of the address pair.
    Midstream,
    /// Its client has been on this uplink for the same site lately.
    Sticky,
    /// A rule names this uplink and no other.
    Only,
    /// The uplink that it was on has died or lost its address.
    Moved,
    /// A better uplink has come back.
    Failback,
    /// Its SYN went out by several uplinks, and was answered here first.
    Raced,
    /// The uplink with the shortest remembered round trip to its destination.
    Remembered,
    /// The uplink by which a transfer is predicted to be over first.
    Predicted,
    /// The uplink that its class prefers to all others.
    Preferred,
    /// The uplink on whose own link its destination is.
    OnLink,
}

/// Number of a class of traffic, `0..64`, each with slot tables of its own. 0 is the default: what
/// no rule names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ClassId(pub u8);

/// Transport protocol of a flow, as its IANA number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Protocol(pub u8);

/// The way to tell flows of a protocol apart behind one outer address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// By a port, or an echo's id.
    ByPort,
    /// By the remote's address alone: each serves one inside host.
    ByAddress,
    /// They are not: it cannot be translated.
    None,
}

impl Protocol {
    /// Protocols between routers of one link: IGMP, EIGRP, OSPF, PIM and VRRP.
    const OF_LINKS: [u8; 5] = [2, 88, 89, 103, 112];

    /// Returns how the programs translate it (`fill_key` in `bpf/flow/flow.h`).
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

    /// Returns true if routers of one link speak it among themselves, so that nobody on the way answers for
    /// the receiver.
    #[must_use]
    pub fn is_of_links(self) -> bool {
        Self::OF_LINKS.contains(&self.0)
    }
}

/// Where a flow is in its life.
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

/// Packets and bytes. A super-packet counts as the packets that it will be cut into; bytes are
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
    /// Whether it is in the table that nothing evicts from.
    pub assured: bool,
    /// Whether a LAN's packets take the short way past the stack.
    pub fast: bool,
    /// Why it is on this uplink.
    pub choice: Choice,
    /// The class whose slot table chose.
    pub class: ClassId,
    /// Position of the rule that put it in its class; `None`: no rule did.
    pub rule: Option<usize>,
    /// The uplink that it was moved from last; `None`: it has always been here.
    pub came_from: Option<UplinkId>,
    /// When its first packet was seen.
    pub created: KernelTime,
    /// When its last packet was seen, in either direction.
    pub last_seen: KernelTime,
    /// From inside.
    pub tx: Traffic,
    /// To inside.
    pub rx: Traffic,
}

/// What one sweep did.
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
    /// Received through it: for flows of ours, and for forwarded and published ports.
    pub rx: Traffic,
    /// Flows put on it.
    pub flows_opened: u64,
    /// TCP connections asked for: SYNs that opened a flow.
    pub syns: u64,
    /// SYNs sent again, because nobody had answered.
    pub syn_repeats: u64,
    /// SYNs that were answered, by acceptance or refusal.
    pub syn_answers: u64,
    /// TCP segments with data that the inside has sent again.
    pub repeats: u64,
    /// Microseconds from SYN to its answer, complete_checksum over [`UplinkCounters::rtt_samples`].
    pub rtt_us_sum: u64,
    /// Handshakes measured: those whose SYN was sent once.
    pub rtt_samples: u64,
    /// TCP segments with data, in both directions.
    pub data_packets: u64,
    /// Of these, what tells of a loss: repeats from inside, and gaps before segments from outside.
    /// Where a link reorders, it looks worse than it is.
    pub lost: u64,
}

/// Kernel memory held by one map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapMemory {
    /// Map name.
    pub map: String,
    /// Bytes, as the kernel accounts them.
    pub bytes: u64,
}
