//! When the calling thread runs.

use std::ffi::c_int;
use std::io;

use super::check;

/// A packet that waits for a processor waits like one in a queue: as long as a compiler's turn lasts,
/// unless its thread goes first.
const PACKET_THREAD_NICE: c_int = -10;

/// Runs the calling thread before every ordinary one, if that is permitted.
///
/// The lowest real-time priority is enough to run before everything that is not real-time, and
/// leaves room above for whatever the machine's owner holds more urgent. Children do not inherit.
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

/// Gives the calling thread a longer share than ordinary ones, if that is permitted.
///
/// # Errors
/// It is not permitted.
pub fn raise_priority() -> io::Result<()> {
    // SAFETY: it takes plain integers only; 0 is the calling thread.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, PACKET_THREAD_NICE) })?;
    Ok(())
}

/// Asks for timers that fire when they are due. Without real-time priority the kernel may
/// otherwise fire them 50 µs later to save wake-ups.
///
/// # Errors
/// The kernel's own.
pub fn no_timer_slack() -> io::Result<()> {
    // SAFETY: this option takes plain integers only.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) })?;
    Ok(())
}
