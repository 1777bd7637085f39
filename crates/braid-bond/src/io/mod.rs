//! The tunnel on real packets: a TUN device on one side, UDP sockets on the other.
//!
//! An end is one thread that waits for its descriptors and for the tunnel's next time, gives what came
//! to the [`Tunnel`](crate::proto::tunnel::Tunnel) or the [`Server`](crate::proto::server::Server),
//! and takes what they return. It decides nothing about packets. What it adds is the cost per
//! packet that it saves: super-packets of up to 64 KB cross the system's border in place of packets,
//! in both directions and on both sides.
//!
//! - [`Tun`]: the inner device; `offload` splits what comes from it and joins what goes to it.
//! - `udp`: sockets, bound to a device where the link has one.
//! - [`client`], [`hub`]: the two kinds of ends.
//!
//! Whoever starts an end gives the device addresses and routes.

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

pub use crate::proto::policy::{Policy, Rule, Scheduling, TIME_OUT_MAX};
pub use braid_core::Prefix;
pub use client::{ClientConfig, ClientEvent, ClientHandle, LinkSpec};
pub use error::{BondError, LinkError, Stopped};
pub use hub::{Enrol, HubConfig, HubEvent, HubHandle, Peer};
pub use status::{
    ClientStatus, FlowStatus, HubStatus, LinkStatus, PeerStatus, RttStatus, SessionStatus, Traffic,
    TunStatus,
};
pub use tun::Tun;
