//! TUN and TAP devices, copies of a device's packets, frames sent by one device, kernel settings of threads that carry packets, progress of TCP connections, and files that are made with their mode.
//!
//! System calls without a safe wrapper, written once for the daemons, the bond, the edge and the emulator. This
//! crate must never decide anything about packets.
#![allow(unsafe_code)]

mod file_mode;
mod interface;
mod packet_sender;
mod packet_tap;
mod tcp;
mod thread;
mod tuntap;
mod wait;

use std::ffi::c_int;
use std::io;

pub use file_mode::{bind_with_mode, with_umask};
pub use interface::{Interface, InterfaceError};
pub use packet_sender::PacketSender;
pub use packet_tap::{Direction, Instruction, PacketCounter, PacketTap};
pub use tcp::{TcpProgress, limit_window, tcp_progress};
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
