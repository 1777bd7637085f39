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
pub mod bond;
pub mod cgroup;
pub mod classes;
mod clients;
pub mod config;
pub mod doctor;
mod engine;
pub mod events;
pub mod explain;
pub mod failure;
mod health;
pub mod launch;
pub mod local;
pub mod metrics;
pub mod names;
mod outlooks;
pub mod peer;
mod picture;
pub mod plumbing;
pub mod preflight;
pub mod quota;
mod reload;
pub mod report;
mod roster;
mod route;
pub mod rules;
pub mod run_dir;
pub mod runs;
pub mod serve;
pub mod settings;
pub mod state;
pub mod state_dir;
pub mod supervisor;
mod tables;
pub mod teardown;
mod unmovable;
mod view;
mod watch_rules;
pub mod ways;
