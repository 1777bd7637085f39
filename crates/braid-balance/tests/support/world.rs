//! A machine with two uplinks, an internet, and a LAN behind it:
//!
//! ```text
//!            lan0 10.1.0.1 ┌──────┐ wan0 203.0.113.2 ── 203.0.113.1 ┌──────┐
//! client ──────────────────┤ host │                                 │ inet │ 192.0.2.80
//! 10.1.0.2                 └──────┘ wan1 198.51.100.2 ─ 198.51.100.1└──────┘ 2001:db8:80::80
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use aya::maps::{HashMap, Map, MapData};
use aya::programs::{SchedClassifier, TcAttachType};
use braid_balance::{
    Attachments, ClassEntry, ClassId, Datapath, HookKind, Layer, LbMethod, NextHop, Opened,
    Options, UplinkEntry,
};
use braid_core::UplinkId;

use super::net::{Namespace, serve};
use super::{BpfFs, tun, unique};

pub const SERVER_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 80));
pub const SERVER_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0x80, 0, 0, 0, 0, 0x80));
/// The servers' port.
pub const PORT: u16 = 7777;
/// QUIC's port, where UDP is a flow per five-tuple.
pub const QUIC: u16 = 443;
/// Outside addresses of the two uplinks.
pub const OUTSIDE: [[IpAddr; 2]; 2] = [
    [
        IpAddr::V4(Ipv4Addr::new(203, 0, 113, 2)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2)),
    ],
    [
        IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 2)),
    ],
];
const NETWORKS: [(&str, &str); 2] = [("203.0.113", "2001:db8:1:"), ("198.51.100", "2001:db8:2:")];

pub struct World {
    pub host: Namespace,
    pub inet: Namespace,
    pub client: Namespace,
    layer: Layer,
    bpffs: BpfFs,
}

impl World {
    /// Builds it, without any program, with Ethernet uplinks.
    pub fn new() -> Self {
        Self::with_uplinks(Layer::L2)
    }

    /// Builds it with uplinks of a kind: veth or TUN.
    pub fn with_uplinks(layer: Layer) -> Self {
        let name = unique();
        let host = Namespace::new(&format!("{name}-host"));
        let inet = Namespace::new(&format!("{name}-inet"));
        let client = Namespace::new(&format!("{name}-lan"));
        for (uplink, (v4, v6)) in NETWORKS.iter().enumerate() {
            let (wan, isp) = (format!("wan{uplink}"), format!("isp{uplink}"));
            match layer {
                Layer::L2 => join(&host, &wan, &inet, &isp),
                Layer::L3 => tun::join(&host, &wan, &inet, &isp),
            }
            host.ip(&format!("addr add {v4}.2/24 dev wan{uplink}"));
            host.ip(&format!("addr add {v6}:2/64 dev wan{uplink} nodad"));
            inet.ip(&format!("addr add {v4}.1/24 dev isp{uplink}"));
            inet.ip(&format!("addr add {v6}:1/64 dev isp{uplink} nodad"));
            host.sysctl(&format!("net.ipv4.conf.wan{uplink}.rp_filter"), "2");
        }
        inet.ip(&format!("addr add {SERVER_V4}/32 dev lo"));
        inet.ip(&format!("addr add {SERVER_V6}/128 dev lo nodad"));
        join(&host, "lan0", &client, "eth0");
        host.ip("addr add 10.1.0.1/24 dev lan0");
        host.ip("addr add fd00:1::1/64 dev lan0 nodad");
        client.ip("addr add 10.1.0.2/24 dev eth0");
        client.ip("addr add fd00:1::2/64 dev eth0 nodad");
        client.ip("route add default via 10.1.0.1");
        client.ip("route add default via fd00:1::1");
        host.sysctl("net.ipv4.ip_forward", "1");
        host.sysctl("net.ipv6.conf.all.forwarding", "1");
        let world = Self {
            host,
            inet,
            client,
            layer,
            bpffs: BpfFs::mount(),
        };
        world.steer();
        world
    }

    /// braid0 and the routing into it, as the daemon does it. One next hop stands for all
    /// destinations: on-link, each would take an entry of the neighbour table.
    fn steer(&self) {
        let host = &self.host;
        host.ip("link add braid0 type veth peer name braid1");
        for device in ["braid0", "braid1"] {
            host.ip(&format!("link set {device} addrgenmode none"));
            host.ip(&format!("link set {device} arp off up"));
        }
        host.ip("addr add 192.0.0.8/32 dev braid0");
        host.ip("addr add 64:ff9b:1:6272::8/128 dev braid0 nodad");
        for (uplink, (v4, v6)) in NETWORKS.iter().enumerate() {
            for (family, from, gateway) in [
                ("-4", format!("{v4}.2"), format!("{v4}.1")),
                ("-6", format!("{v6}:2"), format!("{v6}:1")),
            ] {
                let table = 45521 + uplink;
                host.ip(&format!(
                    "{family} rule add pref 32764 from {from} lookup {table}"
                ));
                host.ip(&format!(
                    "{family} route add default via {gateway} dev wan{uplink} table {table}"
                ));
            }
        }
        for (family, inner, hop) in [
            ("-4", "192.0.0.8", "192.0.0.9"),
            ("-6", "64:ff9b:1:6272::8", "64:ff9b:1:6272::9"),
        ] {
            let route = format!("default via {hop} dev braid0 onlink src {inner}");
            host.ip(&format!("{family} route add {route} table 45520"));
            host.ip(&format!(
                "{family} rule add pref 32763 lookup main suppress_prefixlength 0"
            ));
            host.ip(&format!("{family} rule add pref 32765 lookup 45520"));
        }
    }

    pub fn serve(&self) {
        for address in [SERVER_V4, SERVER_V6] {
            for port in [PORT, QUIC] {
                serve(&self.inet, address, port);
            }
        }
    }

    /// Moves the servers to `peer`, behind a link that carries `mtu` bytes. Call before anything
    /// serves; the network in between forwards.
    pub fn narrow(&self, peer: &Namespace, mtu: u32) {
        let inet = &self.inet;
        inet.sysctl("net.ipv4.ip_forward", "1");
        inet.sysctl("net.ipv6.conf.all.forwarding", "1");
        join(inet, "narrow", peer, "eth0");
        inet.ip(&format!("link set narrow mtu {mtu}"));
        inet.ip("addr add 172.16.0.1/24 dev narrow");
        inet.ip("addr add fd00:2::1/64 dev narrow nodad");
        peer.ip("addr add 172.16.0.2/24 dev eth0");
        peer.ip("addr add fd00:2::2/64 dev eth0 nodad");
        // Answers must fit the uplinks, but the servers must not say so when a connection opens.
        for gateway in ["172.16.0.1", "fd00:2::1"] {
            peer.ip(&format!(
                "route add default via {gateway} mtu {mtu} advmss 1440"
            ));
        }
        for (server, via) in [(SERVER_V4, "172.16.0.2"), (SERVER_V6, "fd00:2::2")] {
            inet.ip(&format!("addr del {server} dev lo"));
            inet.ip(&format!("route add {server} via {via}"));
            peer.ip(&format!("addr add {server} dev lo nodad"));
            serve(peer, server, PORT);
        }
        for (namespace, device) in [(inet, "narrow"), (peer, "eth0")] {
            namespace.run(&format!("ethtool -K {device} tx off tso off gso off"));
        }
    }

    /// Another LAN, of one client behind lan1.
    pub fn add_lan(&self, client: &Namespace) {
        join(&self.host, "lan1", client, "eth0");
        self.host.ip("addr add 10.3.0.1/24 dev lan1");
        self.host.ip("addr add fd00:3::1/64 dev lan1 nodad");
        client.ip("addr add 10.3.0.2/24 dev eth0");
        client.ip("addr add fd00:3::2/64 dev eth0 nodad");
        client.ip("route add default via 10.3.0.1");
        client.ip("route add default via fd00:3::1");
    }

    /// Switches transmit offloads everywhere; off, every checksum is a real one.
    pub fn offloads(&self, on: bool) {
        let word = if on { "on" } else { "off" };
        let host = ["wan0", "wan1", "lan0", "braid0", "braid1"];
        let devices = host.into_iter().map(|device| (&self.host, device));
        let others = [
            (&self.inet, "isp0"),
            (&self.inet, "isp1"),
            (&self.client, "eth0"),
        ];
        for (namespace, device) in devices.chain(others) {
            namespace.run(&format!(
                "ethtool -K {device} tx {word} tso {word} gso {word}"
            ));
        }
    }

    pub fn pin_dir(&self) -> PathBuf {
        self.bpffs.path().join("test")
    }

    /// Empties a pinned table whose keys are tuples, as eviction might.
    pub fn empty(&self, table: &str) {
        let path = self.pin_dir().join("datapath/maps").join(table);
        let data = MapData::from_pin(path).expect("pinned");
        let size = data.info().expect("a map").value_size();
        let map = Map::from_map_data(data).expect("a map");
        match size {
            40 => drain::<40>(map),
            160 => drain::<160>(map),
            other => panic!("{table}: values of {other} bytes"),
        }
    }

    pub fn options(&self, hook: HookKind) -> Options {
        Options {
            hook,
            max_flows: 4096,
            max_embryonic: 1024,
            ..Options::new(self.pin_dir())
        }
    }

    pub fn uplinks(&self) -> Vec<UplinkEntry> {
        let ethernet = self.layer == Layer::L2;
        let entry = |id: u8| {
            let [v4, v6] = OUTSIDE[usize::from(id)];
            let (IpAddr::V4(v4), IpAddr::V6(v6)) = (v4, v6) else {
                unreachable!()
            };
            let mut gateway6 = v6.segments();
            gateway6[7] = 1;
            let [a, b, c, _] = v4.octets();
            UplinkEntry {
                id: UplinkId(id),
                ifindex: self.host.ifindex(&format!("wan{id}")),
                layer: self.layer,
                mtu: 1500,
                v4: Some(NextHop {
                    address: v4,
                    gateway: ethernet.then(|| Ipv4Addr::new(a, b, c, 1)),
                    on_link: None,
                }),
                v6: Some(NextHop {
                    address: v6,
                    gateway: ethernet.then(|| gateway6.into()),
                    on_link: None,
                }),
                ports: 16384..=32767,
                accepts_new: true,
                resets_tcp: false,
                epoch: 0,
                leased: false,
                waits: false,
                sends_twice: false,
            }
        };
        vec![entry(0), entry(1)]
    }

    pub fn attachments(&self) -> Attachments {
        Attachments {
            steer: self.host.ifindex("braid0"),
            uplinks: vec![self.host.ifindex("wan0"), self.host.ifindex("wan1")],
            shaped: vec![],
            lans: vec![self.host.ifindex("lan0")],
        }
    }

    /// Opens the datapath, puts it on the devices and lets both uplinks take turns.
    pub fn start(&self, options: &Options) -> (Datapath, Opened) {
        let (mut datapath, opened) = Datapath::open(options).expect("loading");
        datapath.set_uplinks(&self.uplinks()).expect("uplinks");
        self.set_slots(&mut datapath, LbMethod::RoundRobin, &[0, 1]);
        let attachments = self.attachments();
        self.host
            .enter(|| datapath.attach(&attachments))
            .expect("attaching");
        (datapath, opened)
    }

    /// Ids of the programs that run on the host's devices, by either kind of hook, sorted.
    pub fn run_ids(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        for device in ["braid0", "wan0", "wan1", "lan0"] {
            for (side, name) in [
                (TcAttachType::Ingress, "ingress"),
                (TcAttachType::Egress, "egress"),
            ] {
                let query = || SchedClassifier::query_tcx(device, side);
                let Ok((_, programs)) = self.host.enter(query) else {
                    continue;
                };
                ids.extend(programs.iter().map(aya::programs::ProgramInfo::id));
                let filters = self
                    .host
                    .run(&format!("tc filter show dev {device} {name}"));
                let numbers = filters.split(" id ").skip(1);
                ids.extend(numbers.map(|rest| {
                    rest.split_whitespace()
                        .next()
                        .and_then(|id| id.parse::<u32>().ok())
                        .expect("an id")
                }));
            }
        }
        ids.sort_unstable();
        ids
    }

    pub fn set_slots(&self, datapath: &mut Datapath, method: LbMethod, slots: &[u8]) {
        let slots: Vec<_> = slots.iter().copied().map(UplinkId).collect();
        let class = ClassEntry {
            id: ClassId::default(),
            lb_method: method,
            sticky: None,
            v4: slots.clone(),
            v6: slots,
            prefers: None,
            candidates: Vec::new(),
        };
        datapath.set_classes(&[class]).expect("slots");
    }
}

/// The uplink that a server's view of the source address tells.
pub fn uplink_of(seen: SocketAddr) -> usize {
    let found = OUTSIDE
        .iter()
        .position(|addresses| addresses.contains(&seen.ip()));
    found.unwrap_or_else(|| panic!("{seen} is no uplink's address"))
}

/// The count of a reason.
pub fn reason(datapath: &Datapath, name: &str) -> u64 {
    let counters = datapath.counters().expect("counters");
    let found = counters.reasons.iter().find(|(reason, _)| *reason == name);
    found.unwrap_or_else(|| panic!("no reason {name}")).1
}

fn join(a: &Namespace, device_a: &str, b: &Namespace, device_b: &str) {
    a.ip(&format!(
        "link add {device_a} type veth peer name {device_b} netns {}",
        b.name()
    ));
    a.ip(&format!("link set {device_a} up"));
    b.ip(&format!("link set {device_b} up"));
}

fn drain<const VALUE: usize>(map: Map)
where
    [u8; VALUE]: aya::Pod,
{
    let mut table: HashMap<_, [u8; 40], [u8; VALUE]> = HashMap::try_from(map).expect("a hash map");
    let keys: Vec<_> = table.keys().map(|key| key.expect("a key")).collect();
    for key in keys {
        table.remove(&key).expect("an entry");
    }
}
