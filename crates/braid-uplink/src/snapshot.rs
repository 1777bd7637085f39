//! The parts of the kernel's state that the choice of uplinks needs, as plain data.

use std::net::IpAddr;

use crate::Layer;

/// Links, addresses and default routes at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Every network device.
    pub links: Vec<Link>,
    /// Every address.
    pub addresses: Vec<Address>,
    /// Unicast default routes of the main table, without Braid's own.
    pub routes: Vec<Route>,
    /// Networks that the main table reaches on a device without a gateway.
    pub networks: Vec<Network>,
}

/// An on-link network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Index of the device.
    pub link: u32,
    /// The network's first address.
    pub address: IpAddr,
    /// Length of its prefix in bits; never zero.
    pub prefix: u8,
}

/// One network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The kernel's index; never zero.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Frame format; `None` for loopback and for link layers that carry no IP to other hosts.
    pub layer: Option<Layer>,
    /// State of the device.
    pub state: LinkState,
    /// MTU in bytes.
    pub mtu: u32,
}

/// State of a device: can packets pass? (RFC 2863, `IFF_*`)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Administratively down.
    AdminDown,
    /// Up, without carrier.
    NoCarrier,
    /// Up with carrier, but not yet allowed to pass packets.
    Dormant,
    /// Ready.
    Up,
}

/// One address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Index of its device.
    pub link: u32,
    /// The address itself (of a point-to-point device: the local one).
    pub address: IpAddr,
    /// Length of the on-link prefix.
    pub prefix: u8,
    /// Global scope, as the kernel sees it.
    pub global: bool,
    /// Ready for new connections: neither tentative nor a duplicate nor deprecated.
    pub usable: bool,
    /// A privacy address (RFC 8981), which will be replaced within hours.
    pub temporary: bool,
}

/// A default route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// True for IPv6, false for IPv4.
    pub v6: bool,
    /// Its metric; the smallest is preferred.
    pub metric: u32,
    /// True if it comes from a router advertisement.
    pub advertised: bool,
    /// The source address that the route suggests.
    pub source: Option<IpAddr>,
    /// The MTU that the route imposes, in bytes.
    pub mtu: Option<u32>,
    /// One next hop, or several for a multipath route.
    pub hops: Vec<RouteHop>,
}

/// One next hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteHop {
    /// Index of the outgoing device.
    pub link: u32,
    /// The gateway; `None` when destinations are on the link. An IPv4 route may lead to an IPv6
    /// gateway (RFC 8950).
    pub gateway: Option<IpAddr>,
}

impl Snapshot {
    /// Returns the device of this name.
    #[must_use]
    pub fn link_named(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|l| l.name == name)
    }

    /// Returns the device of this index.
    #[must_use]
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|l| l.index == index)
    }
}
