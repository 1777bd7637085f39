//! Why the driver cannot start, or a link cannot be used.

use std::io;
use std::net::SocketAddr;

use thiserror::Error;

/// Why the driver cannot start or go on.
#[derive(Debug, Error)]
pub enum BondError {
    /// The kernel has no TUN devices.
    #[error("/dev/net/tun: {source}{}", tun_hint(.source))]
    NoTun {
        /// Why not.
        source: io::Error,
    },
    /// A device of that name is there already, and of another kind or in use.
    #[error(
        "device {device:?} already exists or is in use: choose another name or remove it (\"ip link del {device}\")"
    )]
    Taken {
        /// Its name.
        device: String,
    },
    /// A device's name is not one.
    #[error("device {device:?}: a name has 1 to 15 bytes, without spaces and slashes")]
    Name {
        /// What was given.
        device: String,
    },
    /// A step of making the TUN device did not work.
    #[error("device {device:?}: {step}: {source}{}", privilege_hint(.source))]
    Tun {
        /// Its name.
        device: String,
        /// What was being done.
        step: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The TUN device was removed.
    #[error("device {device:?} was removed from outside")]
    TunGone {
        /// Its name.
        device: String,
    },
    /// An address cannot be listened on.
    #[error("{address}: {step}: {source}{}", listen_hint(.source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What was being done.
        step: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// Something that every program has was refused.
    #[error("{step}: {source}")]
    System {
        /// What was being done.
        step: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The thread that carries packets panicked: a mistake of ours.
    #[error("the packet thread stopped on an error of its own; its message is in the log")]
    Panicked,
}

/// Why a link has no socket, or its socket does not send.
#[derive(Debug, Error)]
#[error("{step}: {source}{}", privilege_hint(.source))]
pub struct LinkError {
    /// What was being done.
    pub step: &'static str,
    /// Why it did not work.
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
