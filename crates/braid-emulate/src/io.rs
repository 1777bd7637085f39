//! The driver: two TAP devices, two links between them, and the clock.
//!
//! One thread, one loop: wait until a device is readable or a packet is due; read every packet
//! there is; write every packet that is due. The thread asks for real-time priority, because a
//! thread that wakes late delays every packet of the link; how late it was is part of the
//! statistics.

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
