//! Detection of suspends and of copies of the machine.
//!
//! A suspended machine has its memory on a disk, or within reach of whoever opens the case. A
//! virtual machine that was restored from a snapshot or copied seals packets under nonces that its
//! copy uses as well. In both cases the tunnel forgets its keys. The kernel clears WireGuard's at
//! the same events.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::sys;

/// Shorter suspends are ignored: the two clocks are not read at the same instant.
const MIN_SLEEP: Duration = Duration::from_secs(1);

/// Longest uevent (UEVENT_BUFFER_SIZE is 2,048, and a header).
const MAX_UEVENT_BYTES: usize = 4096;

/// Detects suspends and copies.
#[derive(Debug)]
pub(super) struct SuspendMonitor {
    /// Total time that the machine was suspended.
    asleep: Duration,
    /// The kernel's uevents; none in a namespace that does not receive them.
    uevents: Option<OwnedFd>,
}

impl SuspendMonitor {
    pub fn new() -> SuspendMonitor {
        let uevents = sys::uevents();
        let uevents = uevents.inspect_err(|error| {
            tracing::debug!(%error, "cannot receive uevents: copies of this virtual machine are not detected");
        });
        SuspendMonitor {
            asleep: (0..3).map(|_| asleep()).max().unwrap_or_default(),
            uevents: uevents.ok(),
        }
    }

    /// Descriptor to wait for. No descriptor announces a suspend: it is noticed at the next
    /// wake-up.
    pub fn fd(&self) -> Option<RawFd> {
        self.uevents.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Returns true if the machine was suspended or copied since the last call. `ready`:
    /// [`SuspendMonitor::fd`] is readable.
    pub fn poll(&mut self, ready: bool) -> bool {
        let slept = self.has_slept(asleep());
        slept | (ready && self.was_copied())
    }

    fn has_slept(&mut self, asleep: Duration) -> bool {
        let slept = asleep > self.asleep + MIN_SLEEP;
        self.asleep = self.asleep.max(asleep);
        slept
    }

    fn was_copied(&self) -> bool {
        let Some(uevents) = &self.uevents else {
            return false;
        };
        let mut buffer = [0; MAX_UEVENT_BYTES];
        let mut copied = false;
        loop {
            match sys::receive(uevents, &mut buffer) {
                Ok(length) => copied |= is_new_generation(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return copied,
                // Some announcements were dropped: one of a copy may have been among them.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => copied = true,
                Err(_) => return copied,
            }
        }
    }
}

/// Returns true if a uevent announces a new generation id of the virtual machine
/// (`drivers/virt/vmgenid.c` in Linux).
fn is_new_generation(uevent: &[u8]) -> bool {
    let mut words = uevent.split(|byte| *byte == 0);
    words.any(|word| word == b"NEW_VMGENID=1")
}

/// Total time that the machine was suspended. The clock that stops during a suspend is read last,
/// so a pause between the two readings makes the result too small, never too large.
fn asleep() -> Duration {
    let all = sys::clock(libc::CLOCK_BOOTTIME);
    all.saturating_sub(sys::clock(libc::CLOCK_MONOTONIC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_noticed_once() {
        let mut suspend = SuspendMonitor {
            asleep: Duration::from_secs(100),
            uevents: None,
        };
        let seconds = Duration::from_secs;
        assert!(!suspend.has_slept(seconds(100)));
        assert!(!suspend.has_slept(seconds(99)), "a pause in between");
        assert!(suspend.has_slept(seconds(103)));
        assert!(!suspend.has_slept(seconds(103)));
    }

    #[test]
    fn no_suspend_is_reported_while_awake() {
        let mut suspend = SuspendMonitor::new();
        assert!((0..1000).all(|_| !suspend.poll(false)));
    }

    #[test]
    fn a_new_generation_is_told_from_other_announcements() {
        let copied =
            b"change@/devices/platform/QEMUVGID:00\0ACTION=change\0NEW_VMGENID=1\0SEQNUM=7\0";
        assert!(is_new_generation(copied));
        let other =
            b"add@/devices/virtual/net/tun0\0ACTION=add\0INTERFACE=NEW_VMGENID=1\0SEQNUM=8\0";
        assert!(!is_new_generation(other));
        assert!(!is_new_generation(b""));
    }
}
