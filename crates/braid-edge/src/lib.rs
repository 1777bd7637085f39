//! The fabric's edge: one TCP flow over several paths of a network of switches, in order.
//!
//! In: the controller's table for this edge (slots towards other edges, paths from them). Out:
//! packets under the tags of their paths, and what came under tags, in order and without them. A
//! bump in the wire between an inside device (hosts) and an outside one (a switch's port): eBPF
//! programs on both (`bpf/split.h`, `bpf/join.h`) do all that needs no waiting; what may have to wait
//! goes through the `hold` device to the `driver`, whose decisions are
//! [`braid_core::resequence`]'s.
//!
//! This crate must never choose paths or shares: it walks what the controller wrote. Nothing of it
//! is pinned: when its process ends, the programs go, and the wire is whatever the machine made of
//! the two devices before, such as a bridge.

pub mod cli;
pub mod controller;
mod datapath;
mod driver;
mod error;
mod frame;
mod hold;
mod key;
mod order;
mod run;
mod shared;
pub mod status;
pub mod table;

pub use error::Error;
pub use key::Key;
pub use order::Ordering;
pub use shared::{REASONS, Reason, ReasonKind};
