//! Waiting for descriptors, to the nanosecond.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use super::check;

/// A descriptor for [`wait`] to watch for input.
#[must_use]
pub fn watch(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Waits until one of `fds` is readable or the time is over; without a timeout it waits for ever. A
/// signal ends the wait too.
///
/// # Errors
/// The kernel's error.
pub fn wait(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|span| libc::timespec {
        // 68 years: the seconds' type differs between C libraries, and this fits all of them.
        tv_sec: span.as_secs().min(i32::MAX as u64) as _,
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
