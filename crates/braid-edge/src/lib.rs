//! The fabric's edge: one TCP flow over several paths of a network of switches, in order.
//!
//! In: the controller's table for this edge (slots towards other edges, paths from them). Out:
//! packets under the tags of their paths, and what came under tags, in order and without them. A
//! bump in the wire between an inside device (hosts) and an outside one (a switch's port): eBPF
//! programs on both (`bpf/split.h`, `bpf/join.h`) do all that needs no waiting; what may have to wait
//! goes through the `hold` device to the `driver`, whose decisions are
//! [`braid_core::resequence`]'s.
//!
//! Where the network in between is not ours, paths are pairs of addresses, read from a file
//! ([`ways`]), and the edge is a router (`bpf/route_out.h`, `bpf/route_in.h`): `keep` probes them and
//! makes the tables that a controller would make.
//!
//! This crate must never choose paths or shares: it walks what the controller, or the file, says. Nothing of it
//! is pinned: when its process ends, the programs go, or let everything pass soon after where the kernel has no links
//! that go with their process, and the wire is whatever the machine made of the two devices before, such as a bridge.

pub mod cli;
pub mod controller;
mod datapath;
mod driver;
mod epoch;
mod error;
pub mod frame;
mod key;
pub mod l3_paths;
mod l3_planner;
mod path_monitor;
mod path_prober;
pub mod probe;
mod reorder_tap;
mod reorderer;
mod run;
mod shared;
pub mod status;
pub mod table;

pub use datapath::rehearse;
pub use error::Error;
pub use key::Key;
pub use reorderer::Reordering;
pub use shared::{REASONS, Reason, ReasonKind};
