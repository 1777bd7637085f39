//! TUN and TAP devices, and kernel settings of threads that carry packets.
//!
//! System calls without a safe wrapper, written once for the bond, the edge and the emulator. This
//! crate must never decide anything about packets.
#![allow(unsafe_code)]

mod interface;
mod thread;
mod tuntap;
mod wait;

use std::ffi::c_int;
use std::io;

pub use interface::{Interface, InterfaceError};
pub use thread::{no_timer_slack, raise_priority, set_real_time};
pub use tuntap::{AttachError, DeviceKind, attach, attach_persistent, set_persistent};
pub use wait::{wait, watch};

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
