//! Finds uplinks and monitors their health.
//!
//! Discovery takes the kernel's links, addresses and routes ([`Snapshot`], read over netlink) and the user's
//! selection ([`Selection`]). It returns the uplinks to use and the reason for every candidate that was not
//! taken ([`Discovery`]). Health monitoring takes the datapath's counters and the results of probes, and
//! returns verdicts with their evidence ([`liveness`]).
//!
//! The decisions ([`choose`], [`liveness::HealthMonitor`]) are pure functions over plain data and
//! passed-in time; [`netlink`], [`NetworkMonitor`], [`probe`], [`transfer`] and [`dispersion`] are the only parts that touch
//! a socket.
//! This crate never changes anything in the kernel.
//!
//! Everything is read in the network namespace of the calling thread.

#![forbid(unsafe_code)]

mod carrier;
mod choose;
pub mod dispersion;
mod error;
pub mod liveness;
pub mod netlink;
mod network_monitor;
pub mod probe;
mod selection;
mod snapshot;
pub mod transfer;
mod uplink;

pub use choose::{choose, lans};
pub use error::Error;
pub use network_monitor::{NetworkMonitor, subscribe};
pub use selection::{Override, Selection, UplinkSpec};
pub use snapshot::{Address, Link, LinkState, Network, Route, RouteHop, Snapshot};
pub use uplink::{Candidate, Discovery, Lan, Layer, NextHop, RejectReason, Rejected, Uplink};

/// Routing protocol number of every route and rule that Braid makes (`RTPROT_*`, `FRA_PROTOCOL`).
/// 98 is unassigned in `/etc/iproute2/rt_protos`.
pub const ROUTE_PROTOCOL: u8 = 98;

/// Devices that Braid makes: the two ends of its veth pair, and the bond. Discovery never takes them for
/// uplinks or LANs.
pub const OWN_DEVICES: [&str; 3] = ["braid0", "braid1", BOND_DEVICE];

/// The device of the bond. The daemon adds it to the uplinks itself.
pub const BOND_DEVICE: &str = "braid-bond";

/// Reads the kernel's state and chooses the uplinks.
///
/// # Errors
/// [`Error::Netlink`] if the kernel cannot be read. An empty result is not an error: see
/// [`Discovery::require_any`].
pub async fn discover(selection: &Selection) -> Result<Discovery, Error> {
    Ok(choose(&netlink::read().await?, selection))
}
