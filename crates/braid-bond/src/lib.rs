//! The bonding tunnel: packets of one flow over all uplinks, through a far end of your own.
//!
//! - [`proto`]: the protocol, pure. Bytes, times and randomness go in as arguments; bytes and
//!   events come out. It must never open a socket, read a clock or draw a random number, so that
//!   the same code runs on real packets, in a simulation in virtual time, under property tests and
//!   under the fuzzer. `docs/protocol.md` specifies the wire format.
//! - [`token`]: the one-time token by which a machine joins a hub.
//! - [`io`]: runs the protocol between a TUN device and UDP sockets. It owns descriptors, threads,
//!   the clock and the system's randomness, and decides nothing about packets.
#![deny(unsafe_code)]

pub mod io;
pub mod proto;
pub mod token;
