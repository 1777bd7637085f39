//! What can go wrong at an edge.

use std::io;
use std::path::PathBuf;

use crate::l3_paths::L3PathsError;

/// Something that an edge cannot do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device is not there.
    #[error("device {device}: {source} (see ip link)")]
    Device {
        /// Its name.
        device: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another edge sits there.
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
    /// The kernel refused something for want of permission.
    #[error("{action}: operation not permitted (needs CAP_BPF and CAP_NET_ADMIN, or root)")]
    Permission {
        /// What was tried.
        action: String,
    },
    /// The kernel refused a program or a map.
    #[error("{what}: {reason}")]
    Load {
        /// Which.
        what: String,
        /// Its last words.
        reason: String,
    },
    /// The controller's place is not written as it should be.
    #[error("{0:?} is no controller: write unix:/run/braid/fabric.sock or http://ADDRESS:PORT")]
    Endpoint(String),
    /// A key for a controller that asks for none.
    #[error("a key file is for a controller at http://ADDRESS:PORT; on a socket leave it out")]
    KeyForSocket,
    /// Anybody may answer at an address.
    #[error(
        "a controller at http://ADDRESS:PORT is followed with its key alone (give --key-file FILE, \
         the key_file of this edge in the controller's configuration)"
    )]
    NoKey,
    /// Tags go to one switch's port.
    #[error("device {0}: a controller's paths begin at one port (give one --outside, or --paths)")]
    SeveralOutside(String),
    /// Numbers that nobody looks at.
    #[error("--shim has others number packets for --reordering adaptive: give that, or neither")]
    ShimUnused,
    /// The file of layer-3 paths cannot be followed.
    #[error(transparent)]
    L3Paths(#[from] L3PathsError),
    /// A system call.
    #[error("{action}: {source}")]
    System {
        /// What was tried.
        action: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No edge answers.
    #[error("no edge at {}: {source} (braid edge run starts one)", path.display())]
    NoEdge {
        /// Its socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// An edge of another version, or something else, answered.
    #[error("the answer of the edge at {} is not understood: {source}", path.display())]
    BadStatus {
        /// Its socket.
        path: PathBuf,
        /// What is wrong with it.
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
