//! TUN and TAP devices.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::Duration;

use super::interface::{ioctl, request};

/// Attempts after the first one to attach to a device in use, 250 ms apart in all. A child process that was forked while
/// its descriptor was open holds a copy of that descriptor until it runs its program, so a device that was closed a
/// moment ago may still be in use. They are counted: on a busy machine the kernel may take that long for one of them.
const RELEASE_ATTEMPTS: u32 = 50;
/// Interval between attempts.
const RELEASE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// IP packets and super-packets, each behind a virtio-net header.
    Tun,
    /// Frames of at most the MTU: without a virtio-net header the kernel segments them and computes
    /// checksums before it hands them over.
    Tap,
}

/// Error of attaching to a device.
#[derive(Debug)]
pub enum AttachError {
    /// The kernel's /dev/net/tun cannot be opened.
    NoTun(io::Error),
    /// A device of this name exists.
    Taken(io::Error),
    /// Another error.
    Failed(io::Error),
}

/// Makes a device in the caller's network namespace, which vanishes with the returned descriptor.
/// The descriptor never blocks. Tries for 250 ms while a device of this name is not released.
///
/// # Errors
/// See [`AttachError`].
pub fn attach(name: &str, kind: DeviceKind) -> Result<File, AttachError> {
    attach_by(name, kind, libc::IFF_TUN_EXCL, release_pause)
}

/// Attaches to a persistent device, and makes it if it is missing. While no process is attached the
/// device silently drops packets that are routed to it.
///
/// # Errors
/// See [`AttachError`]; [`AttachError::Taken`] while another process is attached.
pub fn attach_persistent(name: &str, kind: DeviceKind) -> Result<File, AttachError> {
    let file = attach_by(name, kind, 0, release_pause)?;
    set_persistent(&file, true).map_err(AttachError::Failed)?;
    Ok(file)
}

/// Makes an attached device persistent, or not.
///
/// # Errors
/// The kernel refuses the request.
pub fn set_persistent(file: &File, persistent: bool) -> io::Result<()> {
    // SAFETY: TUNSETPERSIST reads a number and no memory.
    let done = unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::TUNSETPERSIST,
            libc::c_ulong::from(persistent),
        )
    };
    crate::check(done).map(drop)
}

fn release_pause() {
    thread::sleep(RELEASE_POLL_INTERVAL);
}

/// Attaches to a device, and pauses after each attempt but the last while another process is attached.
fn attach_by(
    name: &str,
    kind: DeviceKind,
    exclusive: libc::c_int,
    mut pause: impl FnMut(),
) -> Result<File, AttachError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .map_err(AttachError::NoTun)?;
    let mut request = request(name);
    let kind = match kind {
        DeviceKind::Tun => libc::IFF_TUN | libc::IFF_VNET_HDR,
        DeviceKind::Tap => libc::IFF_TAP,
    };
    request.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI | exclusive) as libc::c_short;
    let mut further = RELEASE_ATTEMPTS;
    loop {
        let Err(error) = ioctl(file.as_fd(), libc::TUNSETIFF, &mut request) else {
            return Ok(file);
        };
        match error.raw_os_error() {
            Some(libc::EBUSY) if further > 0 => {
                further -= 1;
                pause();
            }
            // EBUSY: a device of that name and kind; EINVAL: one of another kind.
            Some(libc::EBUSY | libc::EEXIST | libc::EINVAL) => {
                return Err(AttachError::Taken(error));
            }
            _ => return Err(AttachError::Failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_being_released_is_waited_for() {
        let inside = thread::spawn(|| {
            // SAFETY: the call takes no memory; it moves this thread alone to a new network namespace.
            let moved = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            crate::check(moved).expect("a new network namespace (needs root)");
            let first = attach("tun0", DeviceKind::Tun).expect("a new device");
            let mut pauses = 0;
            let exclusive = libc::IFF_TUN_EXCL;
            let second = attach_by("tun0", DeviceKind::Tun, exclusive, || pauses += 1);
            assert!(matches!(second, Err(AttachError::Taken(_))));
            assert_eq!(pauses, RELEASE_ATTEMPTS);
            let mut copy = Some(first.try_clone().expect("a copy of the descriptor"));
            drop(first);
            attach_by("tun0", DeviceKind::Tun, exclusive, || drop(copy.take()))
                .expect("the device is free after the first pause");
            assert!(copy.is_none(), "it was held until then");
        });
        inside.join().expect("a device that was released");
    }
}
