//! Which client keeps to which uplink for which site.

use std::net::IpAddr;

use braid_core::UplinkId;

use crate::{ClassId, KernelTime};

/// Which remote addresses count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// All that bear this number, see [`Name::site`](crate::Name::site).
    Named(u32),
    /// A network of remotes without a known name: a /24 of IPv4, a /56 of IPv6.
    Network(IpAddr),
}

/// A client that keeps to its uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// Inner address.
    pub client: IpAddr,
    /// What it speaks to.
    pub site: Site,
    /// The class of that traffic.
    pub class: ClassId,
    /// The uplink.
    pub uplink: UplinkId,
    /// When it last opened a flow there.
    pub used: KernelTime,
}
