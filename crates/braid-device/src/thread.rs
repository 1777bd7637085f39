//! Scheduling of the calling thread.

use std::ffi::c_int;
use std::io;

use super::check;

/// Nice value of packet threads. A packet that waits for a processor is delayed like one in a
/// queue, by as long as a compiler's time slice, unless its thread runs first.
const PACKET_THREAD_NICE: i32 = -10;

/// Time slice of packet threads, in nanoseconds: the least that Linux grants, and of effect from
/// 6.12 on. A thread that wakes up takes the processor at once if its slice would end first; with
/// the same slice as the others it waits for the end of theirs, 4 ms, one time in a hundred.
const PACKET_THREAD_SLICE: u64 = 100_000;

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

/// Lets the calling thread run soon after it wakes up, beside ordinary ones: by a larger share of
/// processor time, where that is permitted, and by short time slices.
///
/// # Errors
/// The larger share is not permitted.
pub fn raise_priority() -> io::Result<()> {
    let raised = set_schedule(PACKET_THREAD_NICE);
    if raised.is_err() {
        // Short slices need no permission. Without them, too, packets are only later.
        // SAFETY: it takes plain integers only; 0 is the calling thread.
        let _ = set_schedule(unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) });
    }
    raised
}

/// Makes the calling thread an ordinary one with this nice value and short slices.
fn set_schedule(nice: i32) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: u32::try_from(size_of::<libc::sched_attr>()).expect("a few dozen bytes"),
        sched_policy: libc::SCHED_OTHER.unsigned_abs(),
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: PACKET_THREAD_SLICE,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: 0 is the calling thread; the kernel reads `attributes`, which lives through the call,
    // as far as its size says.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
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

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_of_raised_priority_has_a_larger_share_and_short_slices() {
        let (raised, result) = in_thread(|| {
            let result = raise_priority();
            (schedule(), result)
        });
        result.expect("tests run as root");
        assert_eq!(raised.sched_nice, PACKET_THREAD_NICE);
        assert_eq!(raised.sched_runtime, told(PACKET_THREAD_SLICE));
    }

    #[test]
    fn slices_are_short_without_the_right_to_a_larger_share_as_well() {
        let (raised, result) = in_thread(|| {
            // The tests may run with a larger share, and it would not be asked for then.
            // SAFETY: it takes plain integers only; 0 is the calling thread.
            check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) }).expect("less is allowed");
            give_up_root();
            let result = raise_priority();
            (schedule(), result)
        });
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(raised.sched_nice, 0);
        assert_eq!(raised.sched_runtime, told(PACKET_THREAD_SLICE));
    }

    /// Returns what the kernel tells of a time slice: nothing before Linux 6.12.
    fn told(slice: u64) -> u64 {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("proc");
        let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>());
        let mut number = || numbers.next().expect("a number").expect("a number");
        if (number(), number()) >= (6, 12) {
            slice
        } else {
            0
        }
    }

    fn in_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(body).join().expect("it does not panic"))
    }

    /// Takes another user id, and by that all capabilities, from the calling thread alone.
    fn give_up_root() {
        let nobody: libc::uid_t = 65534;
        // SAFETY: it takes plain integers only. Called without the C library, which would change
        // the whole process.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) };
        assert_eq!(result, 0);
    }

    fn schedule() -> libc::sched_attr {
        // SAFETY: plain integers, for which zero is a value.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::sched_attr>();
        // SAFETY: 0 is the calling thread; the kernel writes `size` bytes of `attributes` at most.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
        assert_eq!(result, 0);
        attributes
    }
}
