//! The few system calls that have no safe wrapper.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// Runs the calling thread before every ordinary one, if that is permitted.
///
/// The lowest real-time priority is enough to run before everything that is not real-time, and
/// leaves room above for whatever the machine's owner holds more urgent. Children do not inherit.
pub(super) fn real_time() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread; `parameters` lives through the call.
    check(unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) })?;
    Ok(())
}

/// Asks for timers that fire when they are due. Without real-time priority the kernel may
/// otherwise fire them 50 µs later to save wake-ups.
pub(super) fn no_timer_slack() -> io::Result<()> {
    // SAFETY: this option takes plain integers only.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) })?;
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

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
