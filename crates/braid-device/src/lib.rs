//! TUN and TAP devices, and what a thread that carries packets asks of the kernel.
//!
//! System calls without a safe wrapper, once for the bond, the edge and the emulator. This crate
//! must never decide anything about packets.
#![allow(unsafe_code)]

mod interface;
mod thread;
mod tuntap;
mod wait;

use std::ffi::c_int;
use std::io;

pub use interface::{Failure, Interface};
pub use thread::{no_timer_slack, prompt, real_time};
pub use tuntap::{AttachError, Kind, attach, attach_lasting, set_lasting};
pub use wait::{wait, watch};

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
