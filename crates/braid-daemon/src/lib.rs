//! Braid's daemon.
//!
//! In go a configuration and the kernel's state; out come a datapath that carries the machine's
//! flows over its uplinks, the kernel settings around it, and a local API that says what goes on.
//! Everything the daemon changes in the kernel is written down before it is changed, so that it
//! can be undone whoever does it and however the daemon ended.
//!
//! It must never touch a packet (that is the datapath's) and never decide shares (the core's).
#![forbid(unsafe_code)]

mod api;
pub mod api_socket;
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
mod health;
pub mod launch;
mod link_forecasts;
mod liveness_rules;
pub mod metrics;
mod no_migration;
pub mod path_cache_store;
pub mod peer;
pub mod plumbing;
pub mod preflight;
pub mod quota;
mod reload;
pub mod report;
mod route;
pub mod rules;
pub mod run_dir;
pub mod runs;
pub mod serve;
pub mod service_notify;
pub mod settings;
pub mod state;
pub mod state_dir;
mod status;
mod tables;
pub mod teardown;
mod uplink_registry;
pub mod user_error;
