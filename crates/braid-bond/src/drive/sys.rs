//! System calls of the driver alone that have no safe wrapper; the others are in `braid_device`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// An `ioctl` whose argument is a plain number.
pub(super) fn number_ioctl(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    argument: libc::c_ulong,
) -> io::Result<()> {
    // SAFETY: every request that is given here takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) })?;
    Ok(())
}

/// An `ioctl` whose argument points to an int.
pub(super) fn int_ioctl(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    mut argument: c_int,
) -> io::Result<()> {
    // SAFETY: every request that is given here takes a pointer to an int, which lives through the
    // call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut argument) })?;
    Ok(())
}

/// Sets a socket option that is an int.
pub(super) fn set_int(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    let size = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads an int, which lives through the call.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(&value).cast(),
            size,
        )
    })?;
    Ok(())
}

/// Wakes a thread that waits for its descriptors.
#[derive(Debug)]
pub(super) struct Wake(File);

impl Wake {
    pub fn new() -> io::Result<Wake> {
        // SAFETY: it takes plain integers only.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: the descriptor is new, so nobody else owns it.
        Ok(Wake(unsafe { OwnedFd::from_raw_fd(fd) }.into()))
    }

    pub fn wake(&self) {
        // It fails only if it has been woken 2^64 times and never looked.
        let _ = (&self.0).write_all(&1u64.to_ne_bytes());
    }

    /// Forgets that it was woken.
    pub fn rest(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
