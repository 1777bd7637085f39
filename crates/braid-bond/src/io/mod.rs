//! Input and output of a tunnel: a TUN device on one side, UDP sockets on the other.
//!
//! Each end is one thread. It waits for its descriptors and for the tunnel's next timer, passes
//! input to the [`Tunnel`](crate::proto::tunnel::Tunnel) or the
//! [`Server`](crate::proto::server::Server), and delivers their output. It decides nothing about
//! packets. It saves per-packet costs: super-packets of up to 64 KB cross the system boundary
//! instead of single packets, in both directions and on both sides.
//!
//! - [`Tun`]: the inner device; `offload` segments packets from it and coalesces packets to it.
//! - `udp`: sockets, bound to the device of their link.
//! - [`client`], [`hub`]: the two kinds of ends.
//!
//! The caller assigns addresses and routes to the device.

pub mod client;
mod client_addresses;
mod error;
pub mod hub;
mod inner_device;
mod link_sockets;
mod listeners;
mod mss_clamp;
mod offload;
mod peers;
mod snapshot;
mod status;
mod suspend;
mod sys;
mod thread;
mod tun;
mod udp;

pub use crate::proto::flow::FlowInfo;
pub use crate::proto::policy::{MAX_TIMEOUT, Policy, Rule, Scheduling};
pub use crate::proto::tunnel::FlowLinks;
pub use braid_core::Prefix;
pub use client::{ClientConfig, ClientEvent, ClientHandle, LinkSpec};
pub use error::{BondError, LinkError, Stopped};
pub use hub::{Enrol, HubConfig, HubEvent, HubHandle, Peer};
pub use status::{
    ClientStatus, FlowStatus, HubStatus, LinkStatus, PeerStatus, RttStatus, SessionStatus, Traffic,
    TunStatus,
};
pub use tun::Tun;
