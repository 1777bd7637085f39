//! Scheduling of the calling thread.

use std::ffi::c_int;
use std::io;

use super::check;

/// Nice value of packet threads. A packet that waits for a processor is delayed like one in a
/// queue, by as long as a compiler's time slice, unless its thread runs first.
const PACKET_THREAD_NICE: c_int = -10;

/// Runs the calling thread before every ordinary one.
///
/// The lowest real-time priority is enough for that, and leaves room above for more urgent work of
/// the machine's owner. Children do not inherit it.
///
/// # Errors
/// It is not permitted.
pub fn set_real_time() -> io::Result<()> {
    // The kernel's `struct sched_param` is this one field.
    let priority: c_int = 1;
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // Called without the C library: POSIX means a whole process by it, so musl refuses it.
    // SAFETY: 0 is the calling thread; the kernel reads `priority`, which lives through the call.
    let set =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives the calling thread a larger share of processor time than ordinary ones.
///
/// # Errors
/// It is not permitted.
pub fn raise_priority() -> io::Result<()> {
    // SAFETY: it takes plain integers only; 0 is the calling thread.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, PACKET_THREAD_NICE) })?;
    Ok(())
}

/// Requests timers that fire on time. Without real-time priority the kernel may otherwise fire them
/// 50 µs late to save wake-ups.
///
/// # Errors
/// The kernel's error.
pub fn no_timer_slack() -> io::Result<()> {
    // SAFETY: this option takes plain integers only.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) })?;
    Ok(())
}
