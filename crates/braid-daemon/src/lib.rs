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
mod cached_snapshot;
pub mod cgroup;
pub mod classes;
pub mod config;
mod connlimit;
pub mod dns_snoop;
pub mod doctor;
mod engine;
pub mod events;
pub mod explain;
mod failure;
mod health;
pub mod launch;
mod link_forecasts;
mod liveness_rules;
pub mod metrics;
mod no_migration;
pub mod path_cache_store;
pub mod plumbing;
pub mod preflight;
pub mod quota;
mod reload;
pub mod report;
mod route;
pub mod rules;
pub mod runs;
pub mod serve;
pub mod settings;
pub mod state_dir;
mod status;
mod tables;
pub mod teardown;
mod uplink_registry;
