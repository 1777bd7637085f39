//! Errors of an edge.

use std::io;
use std::path::PathBuf;

use crate::controller::Endpoint;
use crate::l3_paths::L3PathsError;

/// An error of an edge.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device does not exist.
    #[error("device {device}: {source} (see ip link)")]
    Device {
        /// Its name.
        device: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another edge runs on the device.
    #[error(
        "device {device}: program {program} is attached already (another braid edge runs here; end \
         it first)"
    )]
    DeviceInUse {
        /// The device's name.
        device: String,
        /// The program's name.
        program: String,
    },
    /// A permission is missing.
    #[error("{action}: operation not permitted (needs CAP_BPF and CAP_NET_ADMIN, or root)")]
    Permission {
        /// The action that failed.
        action: String,
    },
    /// The kernel refused a program or a map.
    #[error("{what}: {reason}")]
    Load {
        /// Its name.
        what: String,
        /// The last line of the verifier's log, or the kernel's error.
        reason: String,
    },
    /// The controller's address is malformed.
    #[error(
        "{0:?} is not a controller's address: write unix:/run/braid/fabric.sock or http://ADDRESS:PORT"
    )]
    Endpoint(String),
    /// A key was given for a Unix socket, which needs none.
    #[error(
        "--key-file is only for a controller at http://ADDRESS:PORT; leave it out with a Unix socket"
    )]
    KeyForSocket,
    /// No key was given for a TCP address, where anybody may answer.
    #[error(
        "a controller at http://ADDRESS:PORT needs a key (give --key-file FILE, the key_file of this \
         edge in the controller's configuration)"
    )]
    NoKey,
    /// One controller was given twice: it would refuse the second request at a time as a replay of the first.
    #[error(
        "--controller {0} is given twice, but an edge asks each controller once (leave one of them out; of \
         several controllers give the address of each)"
    )]
    SameController(Endpoint),
    /// Several outside devices were given, but tagged paths begin at one switch port.
    #[error(
        "device {0}: a second --outside, but a controller's paths begin at one port (give one, or \
         --paths)"
    )]
    SeveralOutside(String),
    /// One device was given for both sides.
    #[error(
        "device {0} is both --inside and --outside (give the one towards the hosts and the one towards the \
         switch)"
    )]
    SameDevice(String),
    /// The device for packets that wait belongs to another program.
    #[error("device {0}: another program has it (another edge here? give this one --hold NAME)")]
    HoldTaken(String),
    /// The file of layer-3 paths is invalid.
    #[error(transparent)]
    L3Paths(#[from] L3PathsError),
    /// A system call failed.
    #[error("{action}: {source}")]
    System {
        /// The action that failed.
        action: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// No edge answers at the socket.
    #[error("no edge at {}: {source} (braid edge run starts one)", path.display())]
    NoEdge {
        /// Its socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The status is not understood: another version of the edge, or another program.
    #[error("cannot parse the status of the edge at {}: {source}", path.display())]
    BadStatus {
        /// Its socket.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
}

impl Error {
    pub(crate) fn system(action: impl Into<String>, source: io::Error) -> Error {
        let action = action.into();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Error::Permission { action },
            _ => Error::System { action, source },
        }
    }
}
