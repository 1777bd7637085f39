//! Braid's daemon.
//!
//! The daemon takes a configuration and the kernel's state. It runs a datapath that carries the machine's flows
//! over its uplinks, sets the kernel up around it, and serves a local API. Every change of the kernel is
//! recorded before it is made, so that it can be undone by another process and however the daemon ended.
//!
//! It never touches a packet; that is the datapath's part. It derives the uplinks' weights from policies and
//! loads (`classes`), but leaves the layout of slots to `braid-core`.
#![forbid(unsafe_code)]

mod api;
pub mod bond;
pub mod classes;
pub mod config;
pub mod dns_snoop;
pub mod doctor;
mod engine;
pub mod events;
pub mod explain;
mod failure;
#[cfg(test)]
mod fixtures;
pub mod flows;
mod health_problems;
pub mod launch;
pub mod metrics;
pub mod plumbing;
pub mod report;
pub mod rules;
pub mod runs;
pub mod serve;
pub mod state_dir;
mod status;
pub mod teardown;
pub mod uplinks;
