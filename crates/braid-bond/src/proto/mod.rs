//! The bond's protocol: bytes, times and randomness in, bytes and events out.
//!
//! From the outside in:
//! - [`packet`]: the cleartext header of eight bytes. [`replay_guard`], with [`seal`] and
//!   [`replay_window`]: drops forged and repeated packets; [`reject`] counts them. [`gre`]: the
//!   unencrypted encapsulation, if both ends want it.
//! - [`handshake`]: key exchange. [`session`]: use and change of keys. [`path`]: address validation
//!   of a link.
//! - [`frame`]: contents of a packet. [`reassembly`]: fragmentation. [`repair_symbol`]: forward
//!   error correction. [`header_compression`]: header compression. [`mtu`]: path MTU discovery.
//!   [`flow`], [`policy`]: classification of inner packets. [`pool`]: packet buffers.
//! - [`tunnel`]: one end of a bond, made of all these. [`server`]: many such ends at one address.
//!
//! Rules that hold everywhere: an unauthenticated peer costs at most a hash; an address that has
//! not been validated is sent at most three times the bytes that came from it; every refusal has a
//! counted reason; memory is bounded whatever arrives.

mod ecn;
pub mod entropy;
mod erase;
pub mod flow;
pub mod frame;
pub mod gre;
pub mod handshake;
pub mod header_compression;
pub mod mtu;
pub mod packet;
pub mod path;
pub mod policy;
pub mod pool;
pub mod reader;
pub mod reassembly;
pub mod reject;
pub mod repair_symbol;
pub mod replay_guard;
pub mod replay_window;
mod run_queue;
pub mod seal;
pub mod server;
pub mod session;
pub mod tunnel;
pub mod varint;
