//! Devices whose packets go through a descriptor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
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
    request.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI | libc::IFF_TUN_EXCL) as libc::c_short;
    match ioctl(file.as_fd(), libc::TUNSETIFF, &mut request) {
        Ok(()) => Ok(file),
        Err(error) => Err(match error.raw_os_error() {
            // EBUSY: a device of that name and kind; EINVAL: one of another kind.
            Some(libc::EBUSY | libc::EEXIST | libc::EINVAL) => AttachError::Taken(error),
            _ => AttachError::Failed(error),
        }),
    }
}
