//! The bonding tunnel: packets of one flow over all uplinks, through a far end of your own.
//!
//! [`proto`] is the protocol, pure: bytes, times and randomness go in as arguments, bytes and facts
//! come out. It must never open a socket, read a clock or draw a random number, so that the same
//! code runs on real packets, in a simulation in virtual time, under property tests and under the
//! fuzzer. `docs/protocol.md` specifies what is on the wire.
//! [`token`] is what a hub hands out once, for somebody to join it.
//!
//! [`io`] puts it between a TUN device and UDP sockets: it owns descriptors, threads, the clock and
//! the system's randomness, and decides nothing about packets.
#![deny(unsafe_code)]

pub mod io;
pub mod proto;
pub mod token;
