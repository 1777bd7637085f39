//! The base of both daemons: run directory and saved state, the local API's socket and access control,
//! configuration with diagnostics, the guard of a page for browsers, quotas, sysctls that are put back, privileges that are given up, secrets that are
//! sealed, and the service manager.
#![forbid(unsafe_code)]

pub mod api_socket;
pub mod api_table;
pub mod config;
pub mod file;
mod http_connection;
pub mod metrics;
pub mod nftables;
pub mod peer;
pub mod privileges;
pub mod program;
pub mod quota;
pub mod report;
pub mod run_dir;
pub mod seal;
mod seats;
pub mod secret_json;
pub mod service_notify;
pub mod state;
pub mod state_dir;
pub mod sysctl;
pub mod user_error;
pub mod web;
