//! The system calls that have no safe wrapper.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// A packet that waits for a processor waits like one in a queue: as long as a compiler's turn lasts,
/// unless its thread goes first.
const NICE: c_int = -10;

/// An `ioctl` whose argument is an interface request.
pub(super) fn interface_ioctl(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    argument: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: every request that is given here takes a pointer to an `ifreq`, which the kernel
    // reads and writes within its size.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) })?;
    Ok(())
}

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

/// An interface request about `device`, everything else zero.
pub(super) fn interface_request(device: &str) -> libc::ifreq {
    // SAFETY: an `ifreq` is plain data, for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// The number that a request came back with: flags, MTU, index.
pub(super) fn request_flags(request: &libc::ifreq) -> libc::c_short {
    // SAFETY: every member of the union is plain data, of which all bits are initialised.
    unsafe { request.ifr_ifru.ifru_flags }
}

/// See [`request_flags`].
pub(super) fn request_number(request: &libc::ifreq) -> c_int {
    // SAFETY: see above.
    unsafe { request.ifr_ifru.ifru_mtu }
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

/// What [`wait`] looks at.
pub(super) fn watch(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Waits until one of `fds` is readable or the time is over; none waits for ever. An interrupting
/// signal ends it too.
pub(super) fn wait(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|span| libc::timespec {
        tv_sec: libc::time_t::try_from(span.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: span.subsec_nanos().into(),
    });
    let timeout = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the slice is valid for its length, `timeout` is null or lives through the call, and a
    // null signal mask leaves signals alone.
    let ready = check(unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            timeout,
            std::ptr::null(),
        )
    });
    match ready {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        Err(_) => {
            fds.iter_mut().for_each(|fd| fd.revents = 0);
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

/// Asks for timers that fire when they are due, not up to 50 µs later.
pub(super) fn no_timer_slack() -> io::Result<()> {
    // SAFETY: this option takes plain integers only.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) })?;
    Ok(())
}

/// Runs the calling thread before ordinary ones, if that is permitted.
pub(super) fn be_prompt() -> io::Result<()> {
    // SAFETY: it takes plain integers only; 0 is the calling thread.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) })?;
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

/// An `AF_INET` socket to ask about devices.
pub(super) fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: it takes plain integers only.
    let fd =
        check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The MTU of a device.
pub(super) fn device_mtu(device: &str) -> io::Result<u32> {
    let socket = control_socket()?;
    let mut request = interface_request(device);
    interface_ioctl(socket.as_fd(), libc::SIOCGIFMTU, &mut request)?;
    Ok(request_number(&request).unsigned_abs())
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
