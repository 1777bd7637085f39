//! The far end of bonds.
//!
//! In go a configuration and what clients say; out come who may come in, inner addresses, and the way
//! between those and the internet. `braid_bond::drive` carries the packets; this crate never touches one.
//!
//! - [`config`]: what a user may set. [`pool`]: which addresses there are to give. [`book`]: who may
//!   come in; [`store`]: where that is kept.
//! - [`serve`]: the loop; [`hub`]: what it owns; `surroundings` and `nat`: what is changed in the kernel,
//!   and undone.
//! - `api`, [`report`], `metrics`: what it says of itself.
#![forbid(unsafe_code)]

mod api;
pub mod book;
pub mod client;
pub mod config;
pub mod hub;
mod metrics;
mod nat;
pub mod pool;
pub mod report;
pub mod serve;
mod shown;
pub mod store;
mod surroundings;

pub use surroundings::boot;
