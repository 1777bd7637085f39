//! Link emulator: what a DSL line, a radio link or a satellite does to packets, between two TAP
//! devices.
//!
//! Two halves:
//!
//! - The pure core ([`Link`] and what it is made of): one direction of a link. In: packets and the
//!   time. Out: each packet again, exactly once, with its fate and the time that is due. It never
//!   reads a clock, opens a file descriptor or waits, and with the same seed and the same input it
//!   decides the same, however often it is polled.
//! - The driver ([`drive`]): two TAP devices, possibly in two network namespaces, two links between
//!   them, timers, the control socket and the decision log.
//!
//! A packet's way through a link: limit of the queue → queue → (CoDel) → wire (rate) → loss →
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

pub use braid_core::Time;
pub use config::{Config, ConfigError, Settings};
pub use link::{Fate, Link, Output};
