//! Devices whose packets go through a descriptor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;

use super::interface::{ioctl, request};

/// What a device carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// IP packets and super-packets, each behind a virtio-net header.
    Tun,
    /// Frames of at most the MTU: without a virtio-net header the kernel segments and sums up before it
    /// hands them over.
    Tap,
}

/// Why there is no device.
#[derive(Debug)]
pub enum AttachError {
    /// The kernel's /dev/net/tun cannot be opened.
    NoTun(io::Error),
    /// There is a device of this name.
    Taken(io::Error),
    /// Another reason.
    Failed(io::Error),
}

/// A new device in the caller's network namespace, which vanishes with its descriptor, and that
/// descriptor, which never blocks.
///
/// # Errors
/// See [`AttachError`].
pub fn attach(name: &str, kind: Kind) -> Result<File, AttachError> {
    attach_by(name, kind, libc::IFF_TUN_EXCL)
}

/// The same of a device that stays when its descriptor is gone, and may be there already. Until somebody is attached
/// to it again it drops what is routed to it, silently.
///
/// # Errors
/// See [`AttachError`]; it is [`AttachError::Taken`] while somebody else is attached.
pub fn attach_lasting(name: &str, kind: Kind) -> Result<File, AttachError> {
    let file = attach_by(name, kind, 0)?;
    set_lasting(&file, true).map_err(AttachError::Failed)?;
    Ok(file)
}

/// Makes an attached device outlive its descriptor, or not.
///
/// # Errors
/// The kernel refuses the request.
pub fn set_lasting(file: &File, lasting: bool) -> io::Result<()> {
    // SAFETY: TUNSETPERSIST reads a number and no memory.
    let done = unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::TUNSETPERSIST,
            libc::c_ulong::from(lasting),
        )
    };
    crate::check(done).map(drop)
}

fn attach_by(name: &str, kind: Kind, exclusive: libc::c_int) -> Result<File, AttachError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .map_err(AttachError::NoTun)?;
    let mut request = request(name);
    let kind = match kind {
        Kind::Tun => libc::IFF_TUN | libc::IFF_VNET_HDR,
        Kind::Tap => libc::IFF_TAP,
    };
    request.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI | exclusive) as libc::c_short;
    match ioctl(file.as_fd(), libc::TUNSETIFF, &mut request) {
        Ok(()) => Ok(file),
        Err(error) => Err(match error.raw_os_error() {
            // EBUSY: a device of that name and kind; EINVAL: one of another kind.
            Some(libc::EBUSY | libc::EEXIST | libc::EINVAL) => AttachError::Taken(error),
            _ => AttachError::Failed(error),
        }),
    }
}
