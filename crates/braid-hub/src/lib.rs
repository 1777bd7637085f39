//! The far end of bonds.
//!
//! In go a configuration and what clients say; out come who may come in, inner addresses, and the way
//! between those and the internet. `braid_bond::io` carries the packets; this crate never touches one.
//!
//! - [`config`]: what a user may set. [`pool`]: which addresses there are to give. [`client_registry`]: who may
//!   come in; [`store`]: where that is kept.
//! - [`serve`]: the loop; [`hub`]: what it owns; `host_setup` and `nftables`: what is changed in the kernel,
//!   and undone.
//! - `api`, [`report`], `metrics`: what it says of itself.
#![forbid(unsafe_code)]

mod api;
pub mod client;
pub mod client_registry;
pub mod config;
mod host_setup;
pub mod hub;
mod metrics;
mod nftables;
pub mod pool;
pub mod report;
pub mod serve;
mod status;
pub mod store;

pub use host_setup::boot;
