//! Running before what is not in a hurry.
#![allow(unsafe_code)]

use std::io;

/// Runs the calling thread before every ordinary one, if that is permitted: packets that wait for it
/// wait in front of every flow. The lowest real-time priority leaves room above.
pub fn real_time() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread; `parameters` lives through the call.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
