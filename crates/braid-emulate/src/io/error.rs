//! Errors of the emulator.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::ConfigError;
use crate::config::Settings;

/// Reason why the emulator cannot start or go on.
#[derive(Debug, Error)]
pub enum EmulatorError {
    /// The namespace does not exist.
    #[error(
        "network namespace {name:?}: not found in /run/netns (\"ip netns list\" shows those that exist)"
    )]
    NoNamespace {
        /// Its name.
        name: String,
    },
    /// The namespace exists but cannot be entered.
    #[error("network namespace {name:?}: {source}{}", privilege_hint(.source))]
    Namespace {
        /// Its name.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// A device of that name already exists.
    #[error(
        "device {device:?} already exists in {place}: choose another name or remove it (\"ip link del {device}\")"
    )]
    DeviceTaken {
        /// Its name.
        device: String,
        /// Its namespace, as text.
        place: String,
    },
    /// The kernel has no TAP devices.
    #[error("/dev/net/tun: {source} (is the module loaded? \"modprobe tun\")")]
    NoTun {
        /// The cause.
        source: io::Error,
    },
    /// A step of creating a device failed.
    #[error("device {device:?} in {place}: {step}: {source}{}", privilege_hint(.source))]
    Device {
        /// Its name.
        device: String,
        /// Its namespace, as text.
        place: String,
        /// The step.
        step: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A device was removed while it was in use.
    #[error("device {device:?} in {place}: it was removed, and the link is cut")]
    DeviceGone {
        /// Its name.
        device: String,
        /// Its namespace, as text.
        place: String,
    },
    /// Another emulator answers on the control socket.
    #[error("control socket {}: another process listens on it", path.display())]
    SocketTaken {
        /// The socket.
        path: PathBuf,
    },
    /// No emulator listens on the control socket.
    #[error("control socket {}: no emulator listens on it ({source})", path.display())]
    NoEmulator {
        /// The socket.
        path: PathBuf,
        /// Error of the connection.
        source: io::Error,
    },
    /// The control socket or the connection to it failed.
    #[error("control socket {}: {source}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The emulator refused a command.
    #[error("{0}")]
    Refused(String),
    /// The decision log cannot be written.
    #[error("log {}: {source}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A system call that exists on every Linux failed.
    #[error("{step}: {source}")]
    System {
        /// The step.
        step: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The settings conflict, or a trace is unusable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A command without any setting.
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
