//! Results of discovery: uplinks, LAN devices and rejected candidates.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use braid_core::Prefix;
use serde::{Deserialize, Serialize};

use crate::Error;

/// Frame format of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Ethernet-like: packets carry a MAC header and next hops have neighbour entries.
    L2,
    /// Bare IP packets (tun, PPP, WWAN in raw-IP mode): no neighbours, a gateway is optional.
    L3,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layer::L2 => "l2",
            Layer::L3 => "l3",
        })
    }
}

/// One address family's egress: the source address and the next hop of its default route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextHop<A> {
    /// The address that outgoing flows are translated to.
    pub address: A,
    /// The next hop; `None` when every destination is on the link itself.
    pub gateway: Option<A>,
    /// Further global addresses of the device. Braid never translates to them, but local servers may answer
    /// from them, so they need a route back out of the same device.
    pub others: Vec<A>,
    /// Metric of the default route. Zero is the most preferred.
    pub metric: u32,
    /// The default route came from a router advertisement that the kernel itself processed or that
    /// a network manager marked so (`proto ra`).
    pub advertised: bool,
    /// Length in bits of the on-link prefix of `address`; `None` if no neighbour is reachable without a
    /// gateway.
    #[serde(default)]
    pub on_link: Option<u8>,
}

/// A usable path to the internet: one device with an address and a next hop in at least one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// The user's name for it, or the device's.
    pub name: String,
    /// Name of the network device.
    pub device: String,
    /// The kernel's index of the device; never zero.
    pub ifindex: u32,
    /// Frame format of the device.
    pub layer: Layer,
    /// Largest IP packet in bytes: the device's MTU, or that of its default route if smaller.
    pub mtu: u32,
    /// The IPv4 next hop, if any.
    pub v4: Option<NextHop<Ipv4Addr>>,
    /// The IPv6 next hop, if any.
    pub v6: Option<NextHop<Ipv6Addr>>,
    /// The reason that it was taken: `default route metric 100`.
    pub why: String,
}

impl Uplink {
    /// Returns the on-link networks of the uplink, such as that of a modem.
    #[must_use]
    pub fn segments(&self) -> Vec<Prefix> {
        fn segment<A: Copy + Into<IpAddr>>(next_hop: Option<&NextHop<A>>) -> Option<Prefix> {
            let next_hop = next_hop?;
            let segment = Prefix::new(next_hop.address.into(), next_hop.on_link?)?;
            // A host prefix has no neighbours.
            (segment != Prefix::from(next_hop.address.into())).then_some(segment)
        }
        [segment(self.v4.as_ref()), segment(self.v6.as_ref())]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// A device on the LAN side: up, with an address, neither an uplink nor one of Braid's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lan {
    /// Name of the network device.
    pub device: String,
    /// The kernel's index of the device.
    pub ifindex: u32,
    /// Frame format of the device.
    pub layer: Layer,
    /// Largest IP packet in bytes.
    pub mtu: u32,
}

/// A device that was considered as an uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The user's name for it, or the device's.
    pub name: String,
    /// Name of the network device, as far as known.
    pub device: String,
}

/// A candidate that was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// The candidate.
    pub candidate: Candidate,
    /// The reason.
    pub reason: RejectReason,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Candidate { name, device } = &self.candidate;
        if name == device {
            write!(f, "{device}: {}", self.reason)
        } else {
            write!(f, "uplink {name:?} ({device}): {}", self.reason)
        }
    }
}

/// The reason that a candidate is not an uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectReason {
    /// No device has this name.
    Missing,
    /// The device is switched off (`ip link set … up`).
    AdminDown,
    /// The device is on, but has no carrier: nothing answers at the far end of the cable, radio or tunnel.
    NoCarrier,
    /// The device waits for a higher layer, such as 802.1X.
    Dormant,
    /// Loopback, or a link layer that carries no IP to other hosts.
    NotAnUplink,
    /// The device has no global address in the family or families of its default routes.
    NoAddress,
    /// No default route leaves through the device and the configuration names no gateway (on a
    /// device without a link layer: neither gateway nor address).
    NoRoute,
    /// The default route leads to a gateway of the other family (RFC 8950), which the datapath
    /// cannot address.
    ForeignGateway(IpAddr),
    /// The address that the configuration asks for is not on the device.
    NotItsAddress(IpAddr),
    /// A second gateway on a device that is already an uplink.
    SecondGateway(IpAddr),
    /// The owner of the device reports that it carries nothing for the moment; the text says why.
    Waiting(String),
    /// The same for so long that its flows are lost.
    Lost(String),
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RejectReason::Missing => f.write_str("no such device"),
            RejectReason::AdminDown => f.write_str("device is down"),
            RejectReason::NoCarrier => f.write_str("no carrier"),
            RejectReason::Dormant => f.write_str("dormant: the link waits for authentication"),
            RejectReason::NotAnUplink => f.write_str("its link layer does not lead to other hosts"),
            RejectReason::NoAddress => f.write_str("no global address"),
            RejectReason::NoRoute => f.write_str("no default route"),
            RejectReason::ForeignGateway(a) => {
                write!(
                    f,
                    "IPv4 default route via the IPv6 gateway {a} is not supported"
                )
            }
            RejectReason::NotItsAddress(a) => write!(f, "{a} is not an address of the device"),
            RejectReason::SecondGateway(a) => write!(f, "second gateway {a} on one device"),
            RejectReason::Waiting(why) | RejectReason::Lost(why) => f.write_str(why),
        }
    }
}

/// The outcome of one reading of the kernel's state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovery {
    /// Usable uplinks: in the order of the configuration, or by preference of their default routes without one.
    pub uplinks: Vec<Uplink>,
    /// Rejected candidates, in the same order.
    pub rejected: Vec<Rejected>,
}

impl Discovery {
    /// # Errors
    /// [`Error::NoUplink`], with every rejected candidate, when there is nothing to use.
    pub fn require_any(&self) -> Result<(), Error> {
        if self.uplinks.is_empty() {
            return Err(Error::NoUplink {
                rejected: self.rejected.clone(),
            });
        }
        Ok(())
    }
}
