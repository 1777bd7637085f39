//! Views over packet bytes: IP, TCP, UDP, ICMP, and checksums.
//!
//! In: bytes as they came from a wire or a file. Out: the fields of their headers, or an [`Error`]
//! that names the header and its fault. Parsing never allocates, never panics, and checks every
//! length against the bytes present.
//!
//! ```
//! use braid_packet::{Packet, Transport};
//!
//! let bytes = braid_packet::build::udp(
//!     ("192.0.2.1".parse().unwrap(), 1000),
//!     ("192.0.2.2".parse().unwrap(), 53),
//!     b"question",
//! );
//! let packet = Packet::parse(&bytes)?;
//! assert!(matches!(packet.transport, Transport::Udp { dest: 53, .. }));
//! assert!(packet.checksums_hold());
//! # Ok::<(), braid_packet::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod build;
pub mod checksum;
mod error;
mod ip;
mod packet;
mod tcp_options;

pub use error::Error;
pub use ip::{Fragment, Ip};
pub use packet::{Packet, Transport, protocol};
pub use tcp_options::{option_kind, tcp_options};
