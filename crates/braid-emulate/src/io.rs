//! The emulator's I/O: two TAP devices, two links between them, and the clock.
//!
//! One thread runs one loop: it waits until a device is readable or a packet is due, reads all
//! available packets, and writes all packets that are due. The thread asks for real-time priority,
//! because a late wake-up delays every packet of the link; the statistics include this lateness.

mod buffers;
pub mod control;
mod error;
mod log;
mod netns;
mod port;
mod run;
mod tap;

pub use error::EmulatorError;
pub use port::{Direction, Endpoint, EndpointError, Mac, MacError};
pub use run::{Emulator, Options, Ready};
