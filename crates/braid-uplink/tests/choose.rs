//! Tables: a machine in, its uplinks and explanations out.

use std::fmt::Write as _;

use braid_uplink::{
    Address, Discovery, Error, Layer, Link, LinkState, Network, Override, Route, RouteHop,
    Selection, Snapshot, Uplink, UplinkSpec, choose, lans,
};

/// A machine, written down briefly: `link("dsl0")`, `address("dsl0 10.0.0.2/24")`,
/// `route("10.0.0.1 dsl0 100")`.
#[derive(Default)]
struct Machine(Snapshot);

impl Machine {
    fn link(mut self, name: &str, layer: Option<Layer>, state: LinkState, mtu: u32) -> Self {
        let index = u32::try_from(self.0.links.len()).unwrap() + 1;
        let name = name.to_owned();
        self.0.links.push(Link {
            index,
            name,
            layer,
            state,
            mtu,
        });
        self
    }

    fn ethernet(self, name: &str) -> Self {
        self.link(name, Some(Layer::L2), LinkState::Up, 1500)
    }

    fn index(&self, name: &str) -> u32 {
        self.0
            .link_named(name)
            .unwrap_or_else(|| panic!("no link {name}"))
            .index
    }

    /// `DEVICE ADDRESS/PREFIX [link] [tentative] [temporary] [deprecated]`
    fn address(mut self, text: &str) -> Self {
        let mut words = text.split(' ');
        let link = self.index(words.next().unwrap());
        let (address, prefix) = words.next().unwrap().split_once('/').unwrap();
        let flags: Vec<_> = words.collect();
        self.0.addresses.push(Address {
            link,
            address: address.parse().unwrap(),
            prefix: prefix.parse().unwrap(),
            global: !flags.contains(&"link"),
            usable: !flags.contains(&"tentative") && !flags.contains(&"deprecated"),
            temporary: flags.contains(&"temporary"),
        });
        self
    }

    /// `DEVICE ADDRESS/PREFIX`
    fn network(mut self, text: &str) -> Self {
        let (device, network) = text.split_once(' ').unwrap();
        let (address, prefix) = network.split_once('/').unwrap();
        self.0.networks.push(Network {
            link: self.index(device),
            address: address.parse().unwrap(),
            prefix: prefix.parse().unwrap(),
        });
        self
    }

    /// `METRIC GATEWAY@DEVICE …`, the gateway being `-` for none; the last word may be `ra`,
    /// `src=ADDRESS`, `mtu=N` or `6` for a route of IPv6.
    fn route(mut self, text: &str) -> Self {
        let mut words = text.split(' ');
        let metric = words.next().unwrap().parse().unwrap();
        let mut route = Route {
            v6: false,
            metric,
            advertised: false,
            source: None,
            mtu: None,
            hops: Vec::new(),
        };
        for word in words {
            if let Some((gateway, device)) = word.split_once('@') {
                let gateway = (gateway != "-").then(|| gateway.parse().unwrap());
                route.hops.push(RouteHop {
                    link: self.index(device),
                    gateway,
                });
            } else if let Some(source) = word.strip_prefix("src=") {
                route.source = Some(source.parse().unwrap());
            } else if let Some(mtu) = word.strip_prefix("mtu=") {
                route.mtu = Some(mtu.parse().unwrap());
            } else {
                route.v6 |= word == "6" || word == "ra";
                route.advertised |= word == "ra";
            }
        }
        self.0.routes.push(route);
        self
    }

    fn automatic(&self) -> String {
        render(&choose(&self.0, &Selection::Automatic))
    }

    fn named(&self, wanted: &[UplinkSpec]) -> String {
        render(&choose(
            &self.0,
            &Selection::named(wanted.to_vec()).unwrap(),
        ))
    }
}

fn render(found: &Discovery) -> String {
    let mut out = String::new();
    for u in &found.uplinks {
        write!(
            out,
            "{} {}#{} {} mtu {}",
            u.name, u.device, u.ifindex, u.layer, u.mtu
        )
        .unwrap();
        if let Some(x) = &u.v4 {
            let gateway = x.gateway.map_or("on-link".into(), |g| format!("via {g}"));
            write!(out, ", {} {gateway} others {:?}", x.address, x.others).unwrap();
        }
        if let Some(x) = &u.v6 {
            let gateway = x.gateway.map_or("on-link".into(), |g| format!("via {g}"));
            write!(out, ", {} {gateway} others {:?}", x.address, x.others).unwrap();
        }
        writeln!(out, " ({})", u.why).unwrap();
    }
    for r in &found.rejected {
        writeln!(out, "- {r}").unwrap();
    }
    out
}

fn wanted(name: &str, device: &str) -> UplinkSpec {
    UplinkSpec {
        name: name.to_owned(),
        device: device.to_owned(),
        v4: Override::default(),
        v6: Override::default(),
    }
}

fn two_uplinks() -> Machine {
    Machine::default()
        .link("lo", None, LinkState::Up, 65536)
        .ethernet("lte0")
        .ethernet("dsl0")
        .address("lo 127.0.0.1/8")
        .address("lte0 10.2.0.2/24")
        .address("dsl0 10.1.0.2/24")
        .route("200 10.2.0.1@lte0")
        .route("100 10.1.0.1@dsl0")
}

#[test]
fn default_routes_are_taken_in_the_order_of_their_metrics() {
    assert_eq!(
        two_uplinks().automatic(),
        "dsl0 dsl0#3 l2 mtu 1500, 10.1.0.2 via 10.1.0.1 others [] (default route metric 100)\n\
         lte0 lte0#2 l2 mtu 1500, 10.2.0.2 via 10.2.0.1 others [] (default route metric 200)\n"
    );
}

/// A prefix of an address says nothing of that: routes of other devices and to other networks do not count,
/// nor does a host route.
#[test]
fn a_segment_is_what_the_main_table_has_on_the_link() {
    let machine = two_uplinks()
        .network("dsl0 10.1.0.0/24")
        .network("dsl0 10.9.0.0/16")
        .network("dsl0 10.1.0.2/32")
        .network("lte0 10.0.0.0/30")
        .network("lte0 10.2.0.2/32");
    let found = choose(&machine.0, &Selection::Automatic).uplinks;
    let segments = |uplink: &Uplink| -> Vec<String> {
        uplink.segments().iter().map(ToString::to_string).collect()
    };
    assert_eq!(segments(&found[0]), ["10.1.0.0/24"]);
    assert!(segments(&found[1]).is_empty());
    assert!(found.iter().all(|uplink| uplink.v6.is_none()));
}

#[test]
fn one_multipath_route_gives_several_uplinks() {
    let machine = Machine::default()
        .ethernet("a")
        .ethernet("b")
        .address("a 10.1.0.2/24")
        .address("b 10.2.0.2/24")
        .route("0 10.1.0.1@a 10.2.0.1@b");
    assert_eq!(
        machine.automatic(),
        "a a#1 l2 mtu 1500, 10.1.0.2 via 10.1.0.1 others [] (default route metric 0)\n\
         b b#2 l2 mtu 1500, 10.2.0.2 via 10.2.0.1 others [] (default route metric 0)\n"
    );
}

#[test]
fn each_family_has_its_own_way_out() {
    let machine = Machine::default()
        .ethernet("six")
        .ethernet("both")
        .address("six fe80::1/64 link")
        .address("six 2001:db8:1::1/64")
        .address("both 10.1.0.2/24")
        .address("both fe80::2/64 link")
        .address("both 2001:db8:2::5/64")
        .route("1024 fe80::ff@six ra")
        .route("0 10.1.0.1@both")
        .route("1024 fe80::fe@both ra mtu=1480");
    assert_eq!(
        machine.automatic(),
        "both both#2 l2 mtu 1480, 10.1.0.2 via 10.1.0.1 others [], \
         2001:db8:2::5 via fe80::fe others [] (default route metric 0; IPv6: default route metric 1024)\n\
         six six#1 l2 mtu 1500, 2001:db8:1::1 via fe80::ff others [] (IPv6: default route metric 1024)\n"
    );
}

#[test]
fn a_tunnel_needs_no_gateway() {
    let machine = Machine::default()
        .link("ppp0", Some(Layer::L3), LinkState::Up, 1492)
        .address("ppp0 203.0.113.7/32")
        .route("0 -@ppp0");
    assert_eq!(
        machine.automatic(),
        "ppp0 ppp0#1 l3 mtu 1492, 203.0.113.7 on-link others [] (default route metric 0)\n"
    );
}

#[test]
fn what_is_not_taken_is_explained() {
    let l2 = Some(Layer::L2);
    let machine = Machine::default()
        .link("off", l2, LinkState::AdminDown, 1500)
        .link("unplugged", l2, LinkState::NoCarrier, 1500)
        .link("waiting", l2, LinkState::Dormant, 1500)
        .link("can0", None, LinkState::Up, 16)
        .ethernet("bare")
        .ethernet("selfmade")
        .ethernet("mixed")
        .ethernet("braid0")
        .ethernet("quiet")
        .address("off 10.1.0.2/24")
        .address("unplugged 10.2.0.2/24")
        .address("waiting 10.3.0.2/24")
        .address("bare fe80::1/64 link")
        .address("selfmade 169.254.8.8/16")
        .address("mixed 10.7.0.2/24")
        .address("braid0 192.0.0.8/32")
        .address("quiet 10.9.0.2/24")
        .route("1 10.1.0.1@off")
        .route("2 10.2.0.1@unplugged")
        .route("3 10.3.0.1@waiting")
        .route("4 -@can0")
        .route("5 10.5.0.1@bare")
        .route("6 169.254.1.1@selfmade")
        .route("7 fe80::1@mixed")
        .route("0 -@braid0");
    assert_eq!(
        machine.automatic(),
        "- off: device is down\n\
         - unplugged: no carrier\n\
         - waiting: dormant: the link waits for authentication\n\
         - can0: its link layer does not lead to other hosts\n\
         - bare: no global address\n\
         - selfmade: no global address\n\
         - mixed: IPv4 default route via the IPv6 gateway fe80::1 is not supported\n"
    );
}

#[test]
fn a_family_that_does_not_work_does_not_spoil_the_other() {
    let machine = Machine::default()
        .ethernet("a")
        .address("a 10.1.0.2/24")
        .address("a 2001:db8::2/64 tentative")
        .route("0 10.1.0.1@a")
        .route("1024 fe80::1@a ra");
    assert_eq!(
        machine.automatic(),
        "a a#1 l2 mtu 1500, 10.1.0.2 via 10.1.0.1 others [] \
         (default route metric 0; IPv6: left out, no global address)\n"
    );
}

#[test]
fn a_second_gateway_on_one_device_is_left_out() {
    let machine = Machine::default()
        .ethernet("a")
        .address("a 10.1.0.2/24")
        .route("10 10.1.0.254@a")
        .route("5 10.1.0.1@a");
    assert_eq!(
        machine.automatic(),
        "a a#1 l2 mtu 1500, 10.1.0.2 via 10.1.0.1 others [] (default route metric 5)\n\
         - a: second gateway 10.1.0.254 on one device\n"
    );
}

#[test]
fn of_several_addresses_the_lasting_one_beside_the_gateway_is_used() {
    let cases = [
        // An address in the gateway's own subnet.
        (
            &["10.9.0.2/24", "10.1.0.2/24"][..],
            "0 10.1.0.1@a",
            "10.1.0.2",
        ),
        // The route's hint wins.
        (
            &["10.1.0.2/24", "10.1.0.3/24"],
            "0 10.1.0.1@a src=10.1.0.3",
            "10.1.0.3",
        ),
        // A hint that is not on the device does not.
        (&["10.1.0.2/24"], "0 10.1.0.1@a src=10.8.0.1", "10.1.0.2"),
        // Otherwise the kernel's order.
        (&["10.1.0.2/24", "10.1.0.3/24"], "0 10.1.0.1@a", "10.1.0.2"),
        // Stable before temporary: a flow outlives a privacy address.
        (
            &["2001:db8::77/64 temporary", "2001:db8::2/64"],
            "0 fe80::1@a ra",
            "2001:db8::2",
        ),
        // Reachable from anywhere before unique local.
        (
            &["fd00::2/64", "2001:db8::2/64"],
            "0 fe80::1@a ra",
            "2001:db8::2",
        ),
        // Unique local is better than nothing.
        (&["fd00::2/64"], "0 fe80::1@a ra", "fd00::2"),
        (
            &["2001:db8::1/64 deprecated", "2001:db8:1::1/64"],
            "0 fe80::1@a ra",
            "2001:db8:1::1",
        ),
    ];
    for (addresses, route, expected) in cases {
        let mut machine = Machine::default().ethernet("a");
        for address in addresses {
            machine = machine.address(&format!("a {address}"));
        }
        let found = choose(&machine.route(route).0, &Selection::Automatic);
        let uplink = &found.uplinks[0];
        let v4 = uplink
            .v4
            .as_ref()
            .map(|x| (x.address.to_string(), x.others.len()));
        let v6 = uplink
            .v6
            .as_ref()
            .map(|x| (x.address.to_string(), x.others.len()));
        assert_eq!(
            v4.or(v6),
            Some((expected.to_owned(), addresses.len() - 1)),
            "{addresses:?}"
        );
    }
}

#[test]
fn exactly_the_named_uplinks_are_taken_in_their_order() {
    let machine = two_uplinks()
        .ethernet("sat0")
        .address("sat0 10.3.0.2/24")
        .route("1 10.3.0.1@sat0");
    assert_eq!(
        machine.named(&[wanted("lte", "lte0"), wanted("dsl", "dsl0")]),
        "lte lte0#2 l2 mtu 1500, 10.2.0.2 via 10.2.0.1 others [] (default route metric 200)\n\
         dsl dsl0#3 l2 mtu 1500, 10.1.0.2 via 10.1.0.1 others [] (default route metric 100)\n"
    );
}

#[test]
fn the_configuration_may_fix_gateway_and_address() {
    let machine = Machine::default()
        .ethernet("a")
        .link("tun0", Some(Layer::L3), LinkState::Up, 1400)
        .address("a 10.1.0.2/24")
        .address("a 10.1.0.3/24")
        .address("tun0 10.8.0.2/32");
    let mut a = wanted("dsl", "a");
    a.v4.address = Some("10.1.0.3".parse().unwrap());
    a.v4.gateway = Some("10.1.0.254".parse().unwrap());
    let mut tun = wanted("vpn", "tun0");
    tun.v4.address = Some("10.8.0.2".parse().unwrap());
    assert_eq!(
        machine.named(&[a, tun]),
        "dsl a#1 l2 mtu 1500, 10.1.0.3 via 10.1.0.254 others [10.1.0.2] (configured)\n\
         vpn tun0#2 l3 mtu 1400, 10.8.0.2 on-link others [] (configured)\n"
    );
}

#[test]
fn a_named_uplink_that_cannot_be_used_says_why() {
    let machine = Machine::default()
        .ethernet("bare")
        .ethernet("lost")
        .ethernet("moved")
        .address("lost 10.2.0.2/24")
        .address("moved 10.3.0.9/24")
        .route("0 10.1.0.1@bare")
        .route("0 10.3.0.1@moved");
    let mut moved = wanted("moved", "moved");
    moved.v4.address = Some("10.3.0.2".parse().unwrap());
    assert_eq!(
        machine.named(&[
            wanted("lte", "wwan0"),
            wanted("a", "bare"),
            wanted("b", "lost"),
            moved
        ]),
        "- uplink \"lte\" (wwan0): no such device\n\
         - uplink \"a\" (bare): no global address\n\
         - uplink \"b\" (lost): no default route\n\
         - moved: 10.3.0.2 is not an address of the device\n"
    );
}

#[test]
fn contradictions_in_the_configuration_are_refused() {
    let error = |list: &[UplinkSpec]| Selection::named(list.to_vec()).unwrap_err().to_string();
    assert_eq!(
        error(&[wanted("dsl", "eth0"), wanted("lte", "eth0")]),
        "uplinks \"dsl\" and \"lte\" are both on eth0: an uplink needs a device of its own"
    );
    assert_eq!(
        error(&[wanted("dsl", "eth0"), wanted("dsl", "eth1")]),
        "two uplinks are named \"dsl\""
    );
    assert_eq!(
        error(&[wanted("dsl", "braid0")]),
        "uplink \"dsl\" is on braid0, which is braid's own device"
    );
    assert_eq!(Selection::named(Vec::new()).unwrap(), Selection::Automatic);
}

#[test]
fn no_uplink_at_all_lists_what_was_looked_at() {
    let empty = choose(&Snapshot::default(), &Selection::Automatic);
    assert_eq!(
        empty.require_any().unwrap_err().to_string(),
        "no uplink found: the main routing table has no default route"
    );
    let machine = Machine::default().ethernet("bare").route("0 10.1.0.1@bare");
    let error = choose(&machine.0, &Selection::Automatic)
        .require_any()
        .unwrap_err();
    assert!(matches!(&error, Error::NoUplink { rejected } if rejected.len() == 1));
    assert_eq!(
        error.to_string(),
        "no uplink found\n  bare: no global address"
    );
    assert!(
        choose(&two_uplinks().0, &Selection::Automatic)
            .require_any()
            .is_ok()
    );
}

#[test]
fn lan_devices_are_all_others_with_an_address() {
    let machine = two_uplinks()
        .ethernet("lan0")
        .ethernet("port")
        .link("br0", Some(Layer::L2), LinkState::NoCarrier, 1500)
        .link("off", Some(Layer::L2), LinkState::AdminDown, 1500)
        .ethernet("braid0")
        .address("lan0 192.168.1.1/24")
        .address("port fe80::3/64 link")
        .address("br0 fd00::1/64")
        .address("off 192.168.2.1/24")
        .address("braid0 192.0.0.8/32");
    let uplinks = choose(&machine.0, &Selection::Automatic).uplinks;
    let names: Vec<_> = lans(&machine.0, &uplinks)
        .into_iter()
        .map(|l| l.device)
        .collect();
    assert_eq!(names, ["lan0", "br0"]);
}
