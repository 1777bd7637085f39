//! System calls of this module that have no safe wrapper; others are in `braid_device`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

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

/// Bytes of uevents that may wait: 256 fill the ordinary buffer.
const UEVENT_BUFFER: c_int = 4 << 20;

/// A non-blocking socket for the kernel's uevents.
pub(super) fn uevents() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: it takes plain integers only.
    let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_KOBJECT_UEVENT) })?;
    // SAFETY: the descriptor is new, so nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: zeros are a valid address.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    // A device with many queues makes hundreds of them at once, and one that is lost counts as a copy of the machine.
    let _ = set_int(
        socket.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_RCVBUFFORCE,
        UEVENT_BUFFER,
    );
    // The kernel's own group; udev repeats the events in another.
    address.nl_groups = 1;
    let size = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is of that size and lives through the call.
    check(unsafe { libc::bind(fd, std::ptr::from_ref(&address).cast(), size) })?;
    Ok(socket)
}

/// Receives a datagram.
pub(super) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (at, size) = (buffer.as_mut_ptr().cast(), buffer.len());
    // SAFETY: the kernel writes at most `size` bytes there.
    let length = unsafe { libc::recv(socket.as_raw_fd(), at, size, 0) };
    usize::try_from(length).map_err(|_| io::Error::last_os_error())
}

/// A clock of the system.
pub(super) fn clock(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes a timespec, which lives through the call. It fails only for clocks that it
    // does not have, and the time is zero then.
    let _ = unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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
        // It fails only after 2^64 wake-ups that nobody has read.
        let _ = (&self.0).write_all(&1u64.to_ne_bytes());
    }

    /// Clears pending wake-ups.
    pub fn clear(&self) {
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
