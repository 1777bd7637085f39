//! The bond's protocol: bytes, times and randomness in, bytes and facts out.
//!
//! From the outside in:
//! - [`packet`]: what is in the clear, eight bytes; [`replay_guard`], with [`seal`] and [`replay_window`]: nothing
//!   that is forged or was seen gets further; [`reject`] counts it. [`gre`]: the same without a seal, where
//!   both ends want that.
//! - [`handshake`]: how two ends get keys; [`session`]: how keys are used and changed; [`path`]: to
//!   which address a link leads.
//! - [`frame`]: what a packet carries; [`reassembly`]: packets in several; [`sum`]: several in one;
//!   [`headers`]: what is not said again; [`mtu`]: how large they may be; [`flow`], [`policy`]: how inner packets are treated; [`pool`]: what
//!   holds them.
//! - [`tunnel`]: all of it together, at one end of a bond; [`server`]: many such ends at one address.
//!
//! The rules that hold everywhere: nothing is computed for a stranger that costs more than a hash;
//! nothing is sent to an address that has not proved itself, beyond three times what it sent; every
//! refusal has a counted reason; memory is bounded whatever arrives.

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
