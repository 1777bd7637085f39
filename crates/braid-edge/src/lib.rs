//! The fabric's edge: splits one TCP flow over several paths of a switched network, and restores its order.
//!
//! The controller gives the edge a table: slots towards other edges, and paths from them. The edge is a
//! bump in the wire between an inside device (hosts) and an outside device (a switch's port). eBPF
//! programs on both tag packets with their path (`bpf/split.h`) and take tags off (`bpf/join.h`).
//! Packets that may have to wait go through a TAP device (`reorder_tap`) to a thread (`driver`), which
//! puts them in order by [`braid_multipath::resequence`].
//!
//! Over a foreign layer-3 network, paths are pairs of prefixes read from a file ([`l3_paths`]), and the
//! edge is a router (`bpf/route_out.h`, `bpf/route_in.h`). `path_prober` probes the paths.
//!
//! With a controller this crate chooses neither paths nor shares. Only `l3_planner` does, for layer-3
//! paths: it makes the tables that a controller would make. Nothing is pinned: when the process ends,
//! the kernel removes the programs; before Linux 6.6 they let everything pass soon after. The wire is
//! then whatever the machine made of the two devices before, such as a bridge.

mod avoided_paths;
pub mod cli;
pub mod controller;
mod copies;
mod datapath;
mod driver;
mod epoch;
mod error;
pub mod frame;
mod key;
pub mod l3_paths;
mod l3_planner;
mod pair_monitor;
mod pair_prober;
mod pair_repair;
mod path_loss;
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
pub use driver::Repair;
pub use error::Error;
pub use key::Key;
pub use reorderer::Reordering;
pub use shared::{REASONS, Reason, ReasonKind};
