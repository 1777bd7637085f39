//! Why the emulator cannot start or go on.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::ConfigError;
use crate::config::Settings;

/// Why the emulator cannot start or go on.
#[derive(Debug, Error)]
pub enum EmulatorError {
    /// No such namespace.
    #[error(
        "network namespace {name:?}: not found in /run/netns (\"ip netns list\" shows those that exist)"
    )]
    NoNamespace {
        /// Its name.
        name: String,
    },
    /// The namespace is there but cannot be entered.
    #[error("network namespace {name:?}: {source}{}", privilege_hint(.source))]
    Namespace {
        /// Its name.
        name: String,
        /// Why not.
        source: io::Error,
    },
    /// A device of that name is there already.
    #[error(
        "device {device:?} already exists in {place}: choose another name or remove it (\"ip link del {device}\")"
    )]
    DeviceTaken {
        /// Its name.
        device: String,
        /// Its namespace, in words.
        place: String,
    },
    /// The kernel has no TAP devices.
    #[error("/dev/net/tun: {source} (is the module loaded? \"modprobe tun\")")]
    NoTun {
        /// Why not.
        source: io::Error,
    },
    /// A step of making a device did not work.
    #[error("device {device:?} in {place}: {step}: {source}{}", privilege_hint(.source))]
    Device {
        /// Its name.
        device: String,
        /// Its namespace, in words.
        place: String,
        /// What was being done.
        step: &'static str,
        /// Why it did not work.
        source: io::Error,
    },
    /// Somebody removed a device while it was in use.
    #[error("device {device:?} in {place}: it was removed, and the link is cut")]
    DeviceGone {
        /// Its name.
        device: String,
        /// Its namespace, in words.
        place: String,
    },
    /// Another emulator answers on the control socket.
    #[error("control socket {}: another process listens on it", path.display())]
    SocketTaken {
        /// The socket.
        path: PathBuf,
    },
    /// Nobody answers on the control socket.
    #[error("control socket {}: no emulator listens on it ({source})", path.display())]
    NoEmulator {
        /// The socket.
        path: PathBuf,
        /// What the connection said.
        source: io::Error,
    },
    /// The control socket, or the connection to it.
    #[error("control socket {}: {source}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The emulator refused a command.
    #[error("{0}")]
    Refused(String),
    /// The decision log.
    #[error("log {}: {source}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Something that every Linux provides did not work.
    #[error("{step}: {source}")]
    System {
        /// What was being done.
        step: &'static str,
        /// Why it did not work.
        source: io::Error,
    },
    /// The settings do not fit together, or a trace is unusable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A command without anything to change.
    #[error("nothing to set: give at least one of {}", Settings::NAMES.join(", "))]
    NothingToSet,
}

impl EmulatorError {
    pub(crate) fn system(step: &'static str) -> impl Fn(io::Error) -> EmulatorError {
        move |source| EmulatorError::System { step, source }
    }
}

fn privilege_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => " (needs CAP_NET_ADMIN and CAP_SYS_ADMIN: run as root)",
        _ => "",
    }
}
