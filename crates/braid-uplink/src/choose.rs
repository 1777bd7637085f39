//! Choice of uplinks. Pure: takes a snapshot and a selection, returns uplinks and reasons.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::snapshot::{Address, Link, LinkState, Route, RouteHop};
use crate::{
    Candidate, Discovery, Lan, Layer, NextHop, OWN_DEVICES, Override, RejectReason, Rejected,
    Selection, Snapshot, Uplink, UplinkSpec,
};

/// Decides which devices are uplinks.
#[must_use]
pub fn choose(snapshot: &Snapshot, selection: &Selection) -> Discovery {
    match selection {
        Selection::Automatic => automatic(snapshot),
        Selection::Named(wanted) => named(snapshot, wanted),
    }
}

/// Returns the devices on the LAN side: switched on, with a global address, and neither loopback nor an uplink
/// nor Braid's. On a machine that forwards, the clients on these devices are served. A device that lost its
/// carrier stays in the list, so that a flap changes nothing.
#[must_use]
pub fn lans(snapshot: &Snapshot, uplinks: &[Uplink]) -> Vec<Lan> {
    let has_address = |link: &Link| {
        let mut own = snapshot.addresses.iter().filter(|a| a.link == link.index);
        own.any(|a| a.global)
    };
    snapshot
        .links
        .iter()
        .filter(|l| l.state != LinkState::AdminDown && !is_own(l) && has_address(l))
        .filter(|l| uplinks.iter().all(|u| u.ifindex != l.index))
        .filter_map(|l| {
            Some(Lan {
                device: l.name.clone(),
                ifindex: l.index,
                layer: l.layer?,
                mtu: l.mtu,
            })
        })
        .collect()
}

fn is_own(link: &Link) -> bool {
    OWN_DEVICES.contains(&link.name.as_str())
}

fn automatic(snapshot: &Snapshot) -> Discovery {
    let mut candidates: Vec<(Preference, &Link)> = snapshot
        .links
        .iter()
        .filter(|l| !is_own(l))
        .filter_map(|l| Some((preference(snapshot, l)?, l)))
        .collect();
    candidates.sort_by_key(|(preference, _)| *preference);

    let mut found = Discovery::default();
    for (_, link) in candidates {
        let wanted = UplinkSpec {
            name: link.name.clone(),
            device: link.name.clone(),
            v4: Override::default(),
            v6: Override::default(),
        };
        consider(snapshot, link, &wanted, &mut found);
    }
    found
}

fn named(snapshot: &Snapshot, wanted: &[UplinkSpec]) -> Discovery {
    let mut found = Discovery::default();
    for wanted in wanted {
        match snapshot.link_named(&wanted.device) {
            Some(link) => consider(snapshot, link, wanted, &mut found),
            None => found.reject(wanted, RejectReason::Missing),
        }
    }
    found
}

/// IPv4 metric, IPv6 metric, index: smallest first. Metrics of the two families are not comparable
/// (the kernel gives IPv6 routes 1024 where IPv4 has 0), so IPv4, where present, decides alone.
type Preference = (u32, u32, u32);

/// Returns `None` if no default route leaves through the device.
fn preference(snapshot: &Snapshot, link: &Link) -> Option<Preference> {
    let best = |v6| next_hops(snapshot, link, v6).first().map(|(r, _)| r.metric);
    let (v4, v6) = (best(false), best(true));
    v4.or(v6)?;
    Some((v4.unwrap_or(u32::MAX), v6.unwrap_or(u32::MAX), link.index))
}

/// Returns the default routes of one family through a device with their next hops there, best first.
fn next_hops<'a>(snapshot: &'a Snapshot, link: &Link, v6: bool) -> Vec<(&'a Route, &'a RouteHop)> {
    let routes = snapshot.routes.iter().filter(|r| r.v6 == v6);
    let mut ways: Vec<_> = routes
        .flat_map(|r| r.hops.iter().map(move |h| (r, h)))
        .filter(|(_, h)| h.link == link.index)
        .collect();
    ways.sort_by_key(|(r, _)| r.metric);
    ways
}

fn consider(snapshot: &Snapshot, link: &Link, wanted: &UplinkSpec, found: &mut Discovery) {
    match uplink(snapshot, link, wanted) {
        Ok((uplink, surplus)) => {
            found.uplinks.push(uplink);
            for reason in surplus {
                found.reject(wanted, reason);
            }
        }
        Err(reason) => found.reject(wanted, reason),
    }
}

impl Discovery {
    fn reject(&mut self, wanted: &UplinkSpec, reason: RejectReason) {
        let candidate = Candidate {
            name: wanted.name.clone(),
            device: wanted.device.clone(),
        };
        self.rejected.push(Rejected { candidate, reason });
    }
}

/// Returns the uplink and the reasons for its unused next hops.
fn uplink(
    snapshot: &Snapshot,
    link: &Link,
    wanted: &UplinkSpec,
) -> Result<(Uplink, Vec<RejectReason>), RejectReason> {
    let layer = link.layer.ok_or(RejectReason::NotAnUplink)?;
    match link.state {
        LinkState::AdminDown => return Err(RejectReason::AdminDown),
        LinkState::NoCarrier => return Err(RejectReason::NoCarrier),
        LinkState::Dormant => return Err(RejectReason::Dormant),
        LinkState::Up => {}
    }
    let v4 = next_hop::<Ipv4Addr>(snapshot, link, layer, &wanted.v4);
    let v6 = next_hop::<Ipv6Addr>(snapshot, link, layer, &wanted.v6);
    let why = why(&v4, &v6);
    let (v4, v6) = match (v4, v6) {
        (Err(RejectReason::NoRoute), Err(reason)) | (Err(reason), Err(_)) => return Err(reason),
        (v4, v6) => (v4.ok(), v6.ok()),
    };

    let mtus = [
        v4.as_ref().and_then(|w| w.mtu),
        v6.as_ref().and_then(|w| w.mtu),
    ];
    let mut surplus = Vec::new();
    surplus.extend(v4.as_ref().and_then(|w| w.second_gateway));
    surplus.extend(v6.as_ref().and_then(|w| w.second_gateway));
    let uplink = Uplink {
        name: wanted.name.clone(),
        device: link.name.clone(),
        ifindex: link.index,
        layer,
        mtu: mtus.into_iter().flatten().fold(link.mtu, u32::min),
        v4: v4.map(|w| w.next_hop),
        v6: v6.map(|w| w.next_hop),
        why,
    };
    Ok((
        uplink,
        surplus
            .into_iter()
            .map(RejectReason::SecondGateway)
            .collect(),
    ))
}

/// The egress of one family, and facts learned while choosing it.
struct FamilyEgress<A> {
    next_hop: NextHop<A>,
    mtu: Option<u32>,
    second_gateway: Option<IpAddr>,
    configured: bool,
}

fn next_hop<A: Ip>(
    snapshot: &Snapshot,
    link: &Link,
    layer: Layer,
    fixed: &Override<A>,
) -> Result<FamilyEgress<A>, RejectReason> {
    let ways = next_hops(snapshot, link, A::V6);
    let best = ways.first().copied();
    let gateway = match (fixed.gateway, best) {
        (Some(gateway), _) => Some(gateway),
        (None, Some((_, hop))) => match hop.gateway {
            Some(gateway) => {
                Some(A::from_ip(gateway).ok_or(RejectReason::ForeignGateway(gateway))?)
            }
            None => None,
        },
        // A point-to-point link needs no gateway: a configured address is enough.
        (None, None) if layer == Layer::L3 && fixed.address.is_some() => None,
        (None, None) => return Err(RejectReason::NoRoute),
    };

    let mut addresses: Vec<(&Address, A)> = snapshot
        .addresses
        .iter()
        .filter(|a| a.link == link.index)
        .filter_map(|a| Some((a, A::from_ip(a.address)?)))
        .filter(|(a, ip)| a.global && !ip.is_link_local())
        .collect();
    let hint = fixed
        .address
        .or(best.and_then(|(r, _)| r.source).and_then(A::from_ip));
    // Stable sort: the kernel lists primary addresses first.
    addresses.sort_by_key(|(a, ip)| {
        let beside_gateway = gateway.is_some_and(|g| ip.same_prefix(g, a.prefix));
        (
            Some(*ip) != hint,
            !a.usable,
            ip.is_local_use(),
            !beside_gateway,
            a.temporary,
        )
    });
    let address = match (addresses.first(), fixed.address) {
        (Some((_, ip)), Some(wanted)) if *ip == wanted => wanted,
        (_, Some(wanted)) => return Err(RejectReason::NotItsAddress(wanted.into())),
        (Some((a, ip)), None) if a.usable => *ip,
        (_, None) => return Err(RejectReason::NoAddress),
    };

    let (route, configured) = (best.map(|(r, _)| r), fixed.gateway.is_some());
    let mut gateways = ways.iter().filter_map(|(_, h)| h.gateway);
    Ok(FamilyEgress {
        next_hop: NextHop {
            address,
            gateway,
            others: addresses
                .iter()
                .map(|(_, ip)| *ip)
                .filter(|ip| *ip != address)
                .collect(),
            metric: route.map_or(0, |r| r.metric),
            advertised: route.is_some_and(|r| r.advertised),
            on_link: on_link(snapshot, link, address),
        },
        mtu: route.and_then(|r| r.mtu),
        second_gateway: gateways.find(|g| !configured && Some(*g) != gateway.map(Into::into)),
        configured: configured || best.is_none(),
    })
}

/// Returns the length of the shortest prefix that a device's address shares with a network on its link.
fn on_link<A: Ip>(snapshot: &Snapshot, link: &Link, address: A) -> Option<u8> {
    let networks = snapshot.networks.iter().filter(|n| n.link == link.index);
    networks
        .filter(|n| A::from_ip(n.address).is_some_and(|ip| ip.same_prefix(address, n.prefix)))
        .map(|n| n.prefix)
        .min()
}

fn why(
    v4: &Result<FamilyEgress<Ipv4Addr>, RejectReason>,
    v6: &Result<FamilyEgress<Ipv6Addr>, RejectReason>,
) -> String {
    fn family<A>(way: &Result<FamilyEgress<A>, RejectReason>) -> Option<String> {
        match way {
            Ok(way) if way.configured => Some("configured".to_owned()),
            Ok(way) => Some(format!("default route metric {}", way.next_hop.metric)),
            Err(RejectReason::NoRoute) => None,
            Err(reason) => Some(format!("left out, {reason}")),
        }
    }
    match (family(v4), family(v6)) {
        (Some(v4), None) => v4,
        (v4, Some(v6)) => {
            let v4 = v4.map(|why| format!("{why}; ")).unwrap_or_default();
            format!("{v4}IPv6: {v6}")
        }
        (None, None) => String::new(),
    }
}

/// Properties of an address family that the choice needs.
trait Ip: Copy + Eq + Into<IpAddr> {
    const V6: bool;
    fn from_ip(ip: IpAddr) -> Option<Self>;
    /// True if the address never leaves the link, whatever scope the kernel gives it.
    fn is_link_local(self) -> bool;
    /// True if the address is global to the kernel, but useless towards most destinations.
    fn is_local_use(self) -> bool;
    fn same_prefix(self, other: Self, length: u8) -> bool;
}

impl Ip for Ipv4Addr {
    const V6: bool = false;

    fn from_ip(ip: IpAddr) -> Option<Self> {
        match ip {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        }
    }

    fn is_link_local(self) -> bool {
        Ipv4Addr::is_link_local(&self)
    }

    /// Behind a home router every address is private, so none is preferred for being public.
    fn is_local_use(self) -> bool {
        false
    }

    fn same_prefix(self, other: Self, length: u8) -> bool {
        let host_bits = 32_u32.saturating_sub(length.into());
        let differing = u64::from(self.to_bits() ^ other.to_bits());
        differing >> host_bits == 0
    }
}

impl Ip for Ipv6Addr {
    const V6: bool = true;

    fn from_ip(ip: IpAddr) -> Option<Self> {
        match ip {
            IpAddr::V4(_) => None,
            IpAddr::V6(ip) => Some(ip),
        }
    }

    fn is_link_local(self) -> bool {
        self.is_unicast_link_local()
    }

    fn is_local_use(self) -> bool {
        self.is_unique_local()
    }

    fn same_prefix(self, other: Self, length: u8) -> bool {
        let host_bits = 128_u32.saturating_sub(length.into());
        (self.to_bits() ^ other.to_bits())
            .checked_shr(host_bits)
            .unwrap_or(0)
            == 0
    }
}
