//! Braid's decisions, pure.
//!
//! In: weights, rates, sizes and times as typed values. Out: tables and typed values.
//!
//! This crate must never open a socket, read a clock, draw a random number or iterate over an
//! unordered collection: what it decides follows from its arguments alone, so that the same code
//! runs on real packets, in simulations, under property tests and under a fuzzer.
#![forbid(unsafe_code)]

pub mod slots;
pub mod units;
mod uplink;

pub use units::{Bytes, Rate, Share};
pub use uplink::{MAX_UPLINKS, UplinkId};
