//! What the kernel should look like, as plain data.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use braid_core::UplinkId;
use braid_uplink::Uplink;


/// Whether the rules that divert traffic into `braid0` are to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divert {
    /// Leave them as found. A start uses this before the datapath is attached: on a fresh machine
    /// nothing is diverted into a device that nobody serves yet, and a restart does not interrupt
    /// what runs.
    AsFound,
    /// Traffic of every family that has an uplink goes into `braid0`.
    On,
    /// Traffic leaves as it would without Braid.
    Off,
}

/// What the kernel should look like. Apply it as often as you like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// Address of the host on `braid0` for IPv4, or the default.
    pub inner_v4: Ipv4Addr,
    /// Address of the host on `braid0` for IPv6, or the default.
    pub inner_v6: Ipv6Addr,
    /// The uplinks that can be used now, with their stable indices.
    pub uplinks: Vec<(UplinkId, Uplink)>,
    /// Ports that address translation hands out; kept out of the reach of local sockets.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Make the machine a gateway (`[lan]` in the configuration). `false` leaves forwarding alone,
    /// on or off.
    pub forward: bool,
    /// Whether traffic is diverted into `braid0`.
    pub divert: Divert,
}
