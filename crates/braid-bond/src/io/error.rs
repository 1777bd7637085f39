//! Errors of running a tunnel.

use std::io;
use std::net::SocketAddr;

use thiserror::Error;

/// Error that keeps an end from starting or running.
#[derive(Debug, Error)]
pub enum BondError {
    /// The kernel has no TUN devices.
    #[error("/dev/net/tun: {source}{}", tun_hint(.source))]
    NoTun {
        /// Cause.
        source: io::Error,
    },
    /// A device of that name exists, is of another kind or in use.
    #[error(
        "device {device:?} already exists or is in use: choose another name or remove it (\"ip link del {device}\")"
    )]
    Taken {
        /// Its name.
        device: String,
    },
    /// The name is not valid for a device.
    #[error("device {device:?}: a name has 1 to 15 bytes, without spaces and slashes")]
    Name {
        /// The name.
        device: String,
    },
    /// A step of making the TUN device failed.
    #[error("device {device:?}: {step}: {source}{}", privilege_hint(.source))]
    Tun {
        /// Its name.
        device: String,
        /// The step.
        step: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// The TUN device was removed.
    #[error("device {device:?} was removed from outside")]
    TunGone {
        /// Its name.
        device: String,
    },
    /// Listening on an address failed.
    #[error("{address}: {step}: {source}{}", listen_hint(.source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The step.
        step: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// A basic system call failed.
    #[error("{step}: {source}")]
    System {
        /// The step.
        step: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// The packet thread panicked, which is a bug.
    #[error("the packet thread stopped on an error of its own; its message is in the log")]
    Panicked,
}

/// Error of a link's socket.
#[derive(Debug, Error)]
#[error("{step}: {source}{}", privilege_hint(.source))]
pub struct LinkError {
    /// The step that failed.
    pub step: &'static str,
    /// Cause.
    pub source: io::Error,
}

/// The packet thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the bond has been stopped")]
pub struct Stopped;

fn tun_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => " (needs CAP_NET_ADMIN)",
        _ => " (is the module loaded? \"modprobe tun\")",
    }
}

fn privilege_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => " (needs CAP_NET_ADMIN and CAP_NET_RAW)",
        _ => "",
    }
}

fn listen_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another program listens there; \"ss -ulpn\" shows which)",
        io::ErrorKind::AddrNotAvailable => " (no device of this machine has that address)",
        io::ErrorKind::PermissionDenied => " (ports below 1024 need CAP_NET_BIND_SERVICE)",
        _ => "",
    }
}
