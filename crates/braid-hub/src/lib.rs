//! The hub: the far end of bonds.
//!
//! Inputs are a configuration and the clients' handshakes; outputs are admissions, inner addresses,
//! and the path between those and the internet. `braid_bond::io` carries the packets; this crate
//! never touches one.
//!
//! - [`config`]: settings. [`pool`]: inner addresses. [`client_registry`]: admission of clients;
//!   [`store`]: its storage.
//! - [`serve`]: the main loop; [`hub`]: its state; `key_rotation`: replacement of its key; `host_setup`, `forwarding` and
//!   `nftables`: changes to the kernel, and their removal.
//! - `api`, `request`, [`report`], `status`, `metrics`: reports about the hub.
#![forbid(unsafe_code)]

mod api;
pub mod client;
pub mod client_registry;
pub mod config;
mod forwarding;
mod host_setup;
pub mod hub;
mod key_rotation;
mod metrics;
mod nftables;
pub mod pool;
pub mod report;
mod request;
pub mod serve;
mod status;
pub mod store;

pub use host_setup::boot;
pub use request::CheckedInvite;
