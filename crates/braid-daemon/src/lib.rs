//! Braid's daemon.
//!
//! The daemon takes a configuration and the kernel's state. It runs a datapath that carries the machine's flows
//! over its uplinks, sets the kernel up around it, and serves a local API. Every change of the kernel is
//! recorded before it is made, so that it can be undone by another process and however the daemon ended.
//!
//! It never touches a packet; that is the datapath's part. It derives the uplinks' weights from policies and
//! loads (`classes`), but leaves the layout of slots to `braid-core`.
//!
//! Some features have a file of the same name in several modules, one per layer. Of `explain`, for example:
//! - `explain/`: decides, purely, from a copy of the daemon's state.
//! - `status/explain.rs`: reads that state from the engine and the datapath.
//! - `report/explain.rs`: the types of the answer, which the JSON schema describes.
//! - `api/explain.rs`: the HTTP request.
//!
//! The bond likewise has `bond/`, `engine/bond.rs`, `health_problems/bond.rs`, `metrics/bond.rs`, `config/bond.rs`,
//! `report/bond.rs` and `api/bond.rs`; races have `classes/race_candidates.rs`, `engine/race.rs`,
//! `explain/race.rs` and `config/race.rs`.
#![forbid(unsafe_code)]

mod alarms;
mod api;
pub mod bond;
pub mod classes;
pub mod config;
mod connlimit;
mod datapath;
pub mod dns_snoop;
pub mod doctor;
mod engine;
pub mod events;
pub mod explain;
mod health_problems;
mod history;
pub mod launch;
pub mod metrics;
mod name_lookup;
mod no_migration;
pub mod path_cache_store;
mod pauses;
pub mod plumbing;
pub mod report;
pub mod rules;
pub mod runs;
pub mod serve;
mod status;
pub mod teardown;
#[cfg(test)]
mod test_fixtures;
pub mod uplinks;
mod user_errors;
