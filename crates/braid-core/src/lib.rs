//! Braid's pure decision logic.
//!
//! In: weights, rates, sizes, times and observations of packets, as typed values. Out: tables,
//! predictions and choices, as typed values. Packets themselves pass through unread.
//!
//! This crate must never open a socket, read a clock, draw a random number or iterate over an
//! unordered collection. Its decisions follow from its arguments alone, so that the same code runs
//! on real packets, in simulations, under property tests and under a fuzzer.
#![forbid(unsafe_code)]

pub mod app_limited;
pub mod aqm;
pub mod capacity;
pub mod forecast;
mod hash;
mod histogram;
pub mod pace;
mod prefix;
mod rtt;
pub mod shaping;
pub mod slots;
mod time;
pub mod units;
mod uplink;

pub use hash::ShortHash;
pub use histogram::Histogram;
pub use prefix::Prefix;
pub use rtt::SmoothedRtt;
pub use time::Time;
pub use units::{Bytes, Frequency, Rate, Share};
pub use uplink::{MAX_UPLINKS, UplinkId};
