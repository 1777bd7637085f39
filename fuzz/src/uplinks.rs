//! The choice of uplinks from the kernel's state.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use braid_uplink::{
    Address, Discovery, Layer, Link, LinkState, Network, OWN_DEVICES, Override, Route, RouteHop,
    Selection, Snapshot, UplinkSpec, choose, lans,
};

/// For any links, addresses and routes, chosen uplinks are up, are distinct devices and have an
/// address of their own, and every requested uplink is either chosen or explained.
pub fn uplinks(data: &[u8]) {
    let mut dice = Dice(data);
    let snapshot = dice.snapshot();
    let wanted = dice.several(4, Dice::wanted);
    // Contradictions are refused before the choice.
    let Ok(selection) = Selection::named(wanted.clone()) else {
        return;
    };
    let found = choose(&snapshot, &selection);
    assert_eq!(found, choose(&snapshot, &selection), "the same twice");
    for asked in &wanted {
        let taken = found.uplinks.iter().any(|u| u.name == asked.name);
        let mut rejected = found.rejected.iter();
        let explained = rejected.any(|r| r.candidate.name == asked.name);
        assert!(taken || explained, "{asked:?} is forgotten");
    }
    check(&snapshot, &found);
}

fn check(snapshot: &Snapshot, found: &Discovery) {
    let mut devices = BTreeSet::new();
    for uplink in &found.uplinks {
        let link = snapshot.link(uplink.ifindex).expect("a device");
        assert_eq!(link.state, LinkState::Up, "{uplink:?}");
        assert!(uplink.mtu <= link.mtu && Some(uplink.layer) == link.layer);
        assert!(devices.insert(uplink.ifindex), "{uplink:?} twice");
        assert!(!OWN_DEVICES.contains(&uplink.device.as_str()), "{uplink:?}");
        let v4 = uplink.v4.as_ref().map(|exit| IpAddr::from(exit.address));
        let v6 = uplink.v6.as_ref().map(|exit| IpAddr::from(exit.address));
        assert!(v4.is_some() || v6.is_some(), "{uplink:?} has no way out");
        for address in v4.into_iter().chain(v6) {
            let mut own = snapshot.addresses.iter();
            let theirs = own.any(|a| a.link == link.index && a.address == address && a.global);
            assert!(theirs, "{address} is not an address of {link:?}");
        }
    }
    for rejected in &found.rejected {
        assert!(!rejected.reason.to_string().is_empty());
    }
    for lan in lans(snapshot, &found.uplinks) {
        assert!(!devices.contains(&lan.ifindex), "{lan:?} is an uplink");
        assert!(!OWN_DEVICES.contains(&lan.device.as_str()), "{lan:?}");
    }
}

/// Decisions by bytes, one after the other; zeros at the end. A snapshot is read in the order of
/// its fields, each list behind its length.
struct Dice<'a>(&'a [u8]);

impl Dice<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    fn several<T>(&mut self, most: u8, one: fn(&mut Self) -> T) -> Vec<T> {
        let count = self.byte() % (most + 1);
        (0..count).map(|_| one(self)).collect()
    }

    fn perhaps<T>(&mut self, one: fn(&mut Self) -> T) -> Option<T> {
        self.flag().then(|| one(self))
    }

    fn snapshot(&mut self) -> Snapshot {
        let mut links = self.several(6, Self::link);
        // The kernel gives every device an index and a name of its own.
        for (link, index) in links.iter_mut().zip(1..) {
            link.index = index;
        }
        let mut names = BTreeSet::new();
        links.retain(|link| names.insert(link.name.clone()));
        Snapshot {
            links,
            addresses: self.several(8, Self::address),
            routes: self.several(6, Self::route),
            networks: self.several(6, Self::network),
        }
    }

    fn device(&mut self) -> String {
        let names = [
            "lo", "eth0", "eth1", "wwan0", "ppp0", "tun0", "braid0", "braid1",
        ];
        names[usize::from(self.byte()) % names.len()].to_owned()
    }

    fn link(&mut self) -> Link {
        Link {
            index: 0,
            name: self.device(),
            layer: [None, Some(Layer::L2), Some(Layer::L3)][usize::from(self.byte() % 3)],
            state: match self.byte() % 4 {
                0 => LinkState::Up,
                1 => LinkState::AdminDown,
                2 => LinkState::NoCarrier,
                _ => LinkState::Dormant,
            },
            mtu: u32::from(self.byte()) * 100,
        }
    }

    /// Indices from 0 to 7: some of devices, some of none.
    fn index(&mut self) -> u32 {
        u32::from(self.byte() % 8)
    }

    fn v4(&mut self) -> Ipv4Addr {
        let networks = [[192, 0, 2], [198, 51, 100], [10, 0, 0], [169, 254, 1]];
        let [a, b, c] = networks[usize::from(self.byte() % 4)];
        Ipv4Addr::new(a, b, c, self.byte())
    }

    fn v6(&mut self) -> Ipv6Addr {
        let prefixes = [0x2001_0db8, 0xfd00_0000, 0xfe80_0000, 0];
        let prefix: u32 = prefixes[usize::from(self.byte() % 4)];
        Ipv6Addr::from_bits(u128::from(prefix) << 96 | u128::from(self.byte()))
    }

    fn ip(&mut self) -> IpAddr {
        if self.flag() {
            self.v6().into()
        } else {
            self.v4().into()
        }
    }

    fn address(&mut self) -> Address {
        let (link, address, prefix, flags) = (self.index(), self.ip(), self.byte(), self.byte());
        Address {
            link,
            address,
            prefix,
            global: flags & 1 == 1,
            usable: flags & 2 == 2,
            temporary: flags & 4 == 4,
        }
    }

    fn route(&mut self) -> Route {
        Route {
            v6: self.flag(),
            metric: u32::from(self.byte()),
            advertised: self.flag(),
            source: self.perhaps(Self::ip),
            mtu: self.perhaps(|dice| u32::from(dice.byte()) * 100),
            hops: self.several(3, |dice| RouteHop {
                link: dice.index(),
                gateway: dice.perhaps(Self::ip),
            }),
        }
    }

    fn network(&mut self) -> Network {
        Network {
            link: self.index(),
            address: self.ip(),
            prefix: self.byte(),
        }
    }

    fn wanted(&mut self) -> UplinkSpec {
        let device = self.device();
        UplinkSpec {
            name: format!("{device}-{}", self.byte() % 2),
            device,
            v4: Override {
                address: self.perhaps(Self::v4),
                gateway: self.perhaps(Self::v4),
            },
            v6: Override {
                address: self.perhaps(Self::v6),
                gateway: self.perhaps(Self::v6),
            },
        }
    }
}
