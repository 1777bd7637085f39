//! Errors between this crate and the kernel.

use std::io;
use std::path::PathBuf;

use braid_core::UplinkId;

/// An operation on the datapath that did not happen. Nothing is left half done by [`Datapath::open`]
/// and [`remove`] may be repeated.
///
/// [`Datapath::open`]: crate::Datapath::open
/// [`remove`]: crate::remove
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// [`Options::pin_dir`](crate::Options::pin_dir) is not inside a bpffs.
    #[error("{}: not inside a bpf file system (mount one: mount -t bpf bpf {})", path.display(), path.display())]
    NotBpffs {
        /// The directory.
        path: PathBuf,
    },
    /// The process lacks a capability.
    #[error("{action}: operation not permitted (needs CAP_BPF and CAP_NET_ADMIN, or root)")]
    Permission {
        /// The operation.
        action: String,
    },
    /// The kernel cannot run the programs.
    #[error("{action}: not supported by this kernel ({release}; 5.10 or newer is needed)")]
    Kernel {
        /// The operation.
        action: String,
        /// The kernel's release, as `uname -r` prints it.
        release: String,
    },
    /// The verifier or the loader refused the object.
    #[error("program {program}: {reason}")]
    Load {
        /// Name of the program or map.
        program: String,
        /// The verifier's last words.
        reason: String,
    },
    /// The pinned maps are laid out differently from what this version needs, so flows cannot be
    /// taken over.
    #[error(
        "{}: pinned by version {found} with map layout {found_layout}, this version needs layout \
         {needed_layout} (end the old one first, its flows are lost: braid down)",
        path.display()
    )]
    Layout {
        /// The folder of the pins.
        path: PathBuf,
        /// The version that pinned them.
        found: String,
        /// Its map layout's number.
        found_layout: u32,
        /// Ours.
        needed_layout: u32,
    },
    /// Somebody else's program sits on a hook that we need.
    #[error(
        "{device} {direction}: program {program:?} (id {id}) of somebody else is attached (detach \
         it, or set coexist to run in front of it)"
    )]
    ForeignProgram {
        /// Device name.
        device: String,
        /// `ingress` or `egress`.
        direction: &'static str,
        /// The program's name.
        program: String,
        /// The kernel's id of the program; zero where it is not known.
        id: u32,
    },
    /// No device has this index in the current network namespace.
    #[error("device with index {ifindex}: {source}")]
    Device {
        /// Interface index.
        ifindex: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A slot names an uplink that [`Datapath::set_uplinks`](crate::Datapath::set_uplinks) does
    /// not know.
    #[error("slot {slot}: uplink {} is not configured", uplink.0)]
    UnknownUplink {
        /// Position in the table.
        slot: usize,
        /// The uplink it names.
        uplink: UplinkId,
    },
    /// An argument is outside its range.
    #[error("{what}: {problem}")]
    Invalid {
        /// The argument's name.
        what: &'static str,
        /// The fault.
        problem: String,
    },
    /// A system call on a map, program, link or directory.
    #[error("{action}: {source}")]
    System {
        /// The operation and its object.
        action: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Error {
    /// The kernel's `source` in answer to `action`; a lack of permission gets its own variant.
    pub(crate) fn system(action: impl Into<String>, source: io::Error) -> Self {
        let action = action.into();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission { action },
            _ => Self::System { action, source },
        }
    }
}
