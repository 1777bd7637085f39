//! Link emulator: the effect of a DSL line, a radio link or a satellite on packets, between two TAP
//! devices.
//!
//! Two halves:
//!
//! - The pure core ([`Link`] and its parts): one direction of a link. In: packets and the time.
//!   Out: each packet, exactly once, with its fate and its due time. It never reads a clock, opens
//!   a file descriptor or waits, and with the same seed and input it decides the same, however
//!   often it is polled.
//!
//! - The I/O ([`io`]): two TAP devices, possibly in two network namespaces, two links between them,
//!   timers, the control socket and the decision log.
//!
//! Path of a packet through a link: limit of the queue → queue → (CoDel) → wire (rate) → loss →
//! delay and jitter → (black hole) → out. Lost packets have used the wire, as on radio.

pub mod cli;
pub mod codel;
pub mod config;
pub mod delay;
pub mod io;
pub mod link;
pub mod loss;
pub mod queue;
pub mod rate;
mod rng;
pub mod stats;
pub mod trace;
pub mod walk;

pub use braid_core::Time;
pub use config::{Config, ConfigError, Settings};
pub use link::{Fate, Link, Output};
