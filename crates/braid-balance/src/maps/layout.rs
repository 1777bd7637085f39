//! Keys and values of the maps, as `bpf/layout.h` has them. Both sides assert sizes and offsets.
#![allow(unsafe_code)]

pub(crate) mod select;

use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::generated::{CLASSES, FAMILIES, LB_ROUND_ROBIN, MAX_REPLAY_BYTES, MAX_UPLINKS, SLOTS};

/// An IPv6 address, or an IPv4 one in v4-mapped form, network order.
pub(crate) type Address = [u8; 16];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, align(4))]
pub(crate) struct Tuple {
    pub local: Address,
    pub remote: Address,
    pub local_port: [u8; 2],
    pub remote_port: [u8; 2],
    pub protocol: u8,
    pub realm: u8,
    pub unused: [u8; 2],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct FlowValue {
    pub outer: Address,
    pub remote: Address,
    pub next_hop: Address,
    pub last_seen: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub inside_ack: u32,
    pub inside_next: u32,
    pub outside_next: u32,
    pub seen: u32,
    pub created: u64,
    pub inside_ifindex: u32,
    pub inside_mtu: u32,
    pub outer_port: [u8; 2],
    pub remote_port: [u8; 2],
    pub uplink: u8,
    pub state: u8,
    pub fins: u8,
    pub flags: u8,
    pub choice: u8,
    pub realm: u8,
    pub class: u8,
    pub rule: u8,
    pub came_from: u8,
    pub tick: u8,
    pub unused: [u8; 2],
    pub lost: u32,
    pub min_rtt: u32,
    pub stamp: [u8; 4],
    pub stamp_at: u32,
    pub stamp_packets: u32,
    pub last_rtt: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(4))]
pub(crate) struct NextHopValue {
    pub address: Address,
    pub gateway: Address,
    pub present: u8,
    pub has_gateway: u8,
    pub realm: u8,
    pub on_link: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct UplinkValue {
    pub next_hops: [NextHopValue; FAMILIES as usize],
    pub ifindex: u32,
    pub mtu: u32,
    pub port_low: u16,
    pub port_high: u16,
    pub layer: u8,
    pub accepts_new: u8,
    pub resets_tcp: u8,
    pub others: u8,
    pub epoch: u32,
    pub leased: u8,
    pub sends_twice: u8,
    pub unused: [u8; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct SlotBank {
    pub count: u32,
    pub lb_method: u16,
    pub prefers: u16,
    pub sticky: u32,
    pub candidates: u32,
    pub slot: [u8; SLOTS as usize],
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Settings {
    pub active: [u8; (CLASSES * FAMILIES) as usize],
    pub snoops_dns: u8,
    pub unused: [u8; 3],
    pub steer: u32,
    pub cache_ttl: u32,
    pub explore_one_in: u32,
    pub per_prefix: u32,
    pub total: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct TrafficValue {
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub flows_opened: u64,
    pub syns: u64,
    pub syn_repeats: u64,
    pub syn_answers: u64,
    pub repeats: u64,
    pub rtt_us_sum: u64,
    pub rtt_samples: u64,
    pub data_packets: u64,
    pub lost: u64,
    pub queueing_us_sum: u64,
    pub queueing_samples: u64,
    pub queued_us: u64,
    pub queue_seen: u64,
    pub last_rx: u64,
    pub flow_rtt_us_sum: u64,
    pub jitter_us_sum: u64,
    pub jitter_samples: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct ShapeRateValue {
    pub cost: u32,
    pub target: u32,
    pub limit: u32,
    pub is_shaped: u32,
    pub first_class: u32,
    pub behind: i32,
    pub look: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct VirtualQueueValue {
    pub empty_at: u64,
    pub first_above: u64,
    pub drop_next: u64,
    pub drops: u32,
    pub last_drops: u32,
    pub inverse_sqrt: u32,
    pub is_dropping: u32,
    pub cost: u32,
    pub look: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ShapeCountersValue {
    pub packets: u64,
    pub bytes: u64,
    pub dropped_packets: u64,
    pub dropped_bytes: u64,
    pub marked_packets: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct PathValue {
    pub rtt: u32,
    pub measured_at: u32,
    pub packets: u32,
    pub lost: u32,
    pub epoch: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct PathEntryValue {
    pub second: u32,
    pub races: u32,
    pub paths: [PathValue; MAX_UPLINKS as usize],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct ForecastValue {
    pub capacity: u32,
    pub spare: u32,
    pub busy: u32,
    pub loss: u32,
    pub tick: u32,
    pub opened: u32,
    pub active: u32,
    pub load_loss: u32,
    pub last_opened: u64,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RaceValue {
    pub flow: FlowValue,
    pub last_syn: u64,
    pub sequence: u32,
    pub preferred: u32,
    pub ports: [[u8; 2]; MAX_UPLINKS as usize],
    pub attempts: [u8; MAX_UPLINKS as usize],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct LanDevice {
    pub mtu: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, align(4))]
pub(crate) struct FragmentKey {
    pub source: Address,
    pub dest: Address,
    pub id: u32,
    pub protocol: u8,
    pub inbound: u8,
    pub realm: u8,
    pub unused: [u8; 1],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(4))]
pub(crate) struct FragmentValue {
    pub translated: Address,
    pub uplink: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct StoredPacketValue {
    pub at: u64,
    pub length: u32,
    pub unused: u32,
    pub bytes: [u8; MAX_REPLAY_BYTES as usize],
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ReplayBufferValue {
    pub after_receive: [StoredPacketValue; 2],
    pub unsolicited: [StoredPacketValue; 2],
    pub rx_packets: u64,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Meta {
    pub layout: u32,
    pub marks: u32,
    pub programs: u64,
    pub version: [u8; 24],
}

const _: () = {
    assert!(size_of::<Tuple>() == 40);
    assert!(size_of::<FlowValue>() == 160);
    assert!(offset_of!(FlowValue, last_seen) == 48);
    assert!(offset_of!(FlowValue, inside_ack) == 88);
    assert!(offset_of!(FlowValue, created) == 104);
    assert!(offset_of!(FlowValue, inside_ifindex) == 112);
    assert!(offset_of!(FlowValue, choice) == 128);
    assert!(offset_of!(FlowValue, came_from) == 132);
    assert!(offset_of!(Tuple, realm) == 37);
    assert!(offset_of!(NextHopValue, realm) == 34);
    assert!(size_of::<NextHopValue>() == 36);
    assert!(size_of::<UplinkValue>() == 96);
    assert!(offset_of!(UplinkValue, ifindex) == 72);
    assert!(offset_of!(UplinkValue, resets_tcp) == 86);
    assert!(offset_of!(UplinkValue, leased) == 92);
    assert!(size_of::<SlotBank>() == 16 + SLOTS as usize);
    assert!(size_of::<TrafficValue>() == 168);
    assert!(size_of::<ShapeRateValue>() == 28);
    assert!(size_of::<VirtualQueueValue>() == 48);
    assert!(size_of::<ShapeCountersValue>() == 40);
    assert!(size_of::<Settings>() == (CLASSES * FAMILIES) as usize + 24);
    assert!(size_of::<PathValue>() == 20);
    assert!(size_of::<PathEntryValue>() == 8 + MAX_UPLINKS as usize * 20);
    assert!(size_of::<ForecastValue>() == 40);
    assert!(size_of::<RaceValue>() == 160 + 16 + MAX_UPLINKS as usize * 3);
    assert!(size_of::<FragmentKey>() == 40);
    assert!(size_of::<FragmentValue>() == 20);
    assert!(size_of::<StoredPacketValue>() == 16 + MAX_REPLAY_BYTES as usize);
    assert!(size_of::<ReplayBufferValue>() == 4 * size_of::<StoredPacketValue>() + 8);
    assert!(size_of::<Meta>() == 40);
};

macro_rules! plain_old_data {
    ($($name:ty),*) => {
        $(
            // SAFETY: repr(C), integers and arrays of them only, every byte is a named field (the
            // sizes above leave no room for padding), every bit pattern is a value.
            unsafe impl aya::Pod for $name {}
        )*
    };
}
plain_old_data!(
    Tuple,
    FlowValue,
    NextHopValue,
    UplinkValue,
    SlotBank,
    Settings,
    TrafficValue,
    ShapeRateValue,
    VirtualQueueValue,
    ShapeCountersValue,
    PathEntryValue,
    ForecastValue,
    RaceValue,
    LanDevice,
    FragmentKey,
    FragmentValue,
    StoredPacketValue,
    ReplayBufferValue,
    Meta
);

pub(crate) fn from_v4(address: Ipv4Addr) -> Address {
    address.to_ipv6_mapped().octets()
}

pub(crate) fn from_v6(address: Ipv6Addr) -> Address {
    address.octets()
}

pub(crate) fn from_ip(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => from_v4(address),
        IpAddr::V6(address) => from_v6(address),
    }
}

/// The address of a map's, IPv4 where it is v4-mapped.
pub(crate) fn to_ip(address: Address) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(address)).to_canonical()
}

/// The socket address of a map's address and port, IPv4 where it is v4-mapped.
pub(crate) fn socket_address(address: Address, port: [u8; 2]) -> SocketAddr {
    SocketAddr::new(to_ip(address), u16::from_be_bytes(port))
}

impl SlotBank {
    /// Header of a class that has no uplink.
    pub(crate) const EMPTY: Self = Self {
        count: 0,
        lb_method: LB_ROUND_ROBIN as u16,
        prefers: 0,
        sticky: 0,
        candidates: 0,
        slot: [0; SLOTS as usize],
    };
}

impl Tuple {
    /// The reverse table's key for this forward key and its flow.
    pub(crate) fn reverse(&self, flow: &FlowValue) -> Self {
        Self {
            local: flow.outer,
            remote: self.remote,
            local_port: flow.outer_port,
            remote_port: self.remote_port,
            protocol: self.protocol,
            realm: flow.realm,
            unused: [0; 2],
        }
    }
}
