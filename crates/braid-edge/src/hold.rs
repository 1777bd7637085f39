//! The device through which packets go to the resequencer and come back: a TAP without vnet header,
//! so that the kernel segments and sums up before it hands a frame over, whatever the outside device
//! had merged.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::Error;

/// Frames that wait in the kernel while the driver is busy; an entry costs 8 bytes.
const QUEUE: i32 = 8192;

/// The device. It goes when this is dropped, also by `kill -9`.
#[derive(Debug)]
pub struct Hold {
    file: File,
    name: String,
}

impl Hold {
    /// Makes the device `name` in the caller's namespace and sets it up.
    pub fn create(name: &str) -> Result<Hold, Error> {
        let failed = |source| Error::system(format!("making device {name}"), source);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .map_err(|source| Error::system("opening /dev/net/tun", source))?;
        let mut request = named(name).ok_or_else(|| {
            failed(io::Error::other(
                "a name of a device has 1 to 15 characters",
            ))
        })?;
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_TUN_EXCL;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        ioctl(file.as_fd(), libc::TUNSETIFF, &mut request).map_err(failed)?;
        let control: OwnedFd = socket(
            AddressFamily::Inet,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .map_err(|errno| failed(errno.into()))?;
        // The kernel calls this field ifr_qlen; it is a plain int at the same place.
        request.ifr_ifru.ifru_metric = QUEUE;
        ioctl(control.as_fd(), libc::SIOCSIFTXQLEN, &mut request).map_err(failed)?;
        request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
        ioctl(control.as_fd(), libc::SIOCSIFFLAGS, &mut request).map_err(failed)?;
        let name = name.to_owned();
        Ok(Hold { file, name })
    }

    /// To be waited for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The length of the next frame, read into `buffer`; none for now.
    pub fn read(&self, buffer: &mut [u8]) -> Result<Option<usize>, Error> {
        match (&self.file).read(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(Error::system(
                    format!("reading device {}", self.name),
                    error,
                )),
            },
        }
    }

    /// Hands a frame on. False if the kernel did not take it.
    pub fn write(&self, frame: &[u8]) -> bool {
        // A TAP device takes a frame as a whole or not at all.
        (&self.file).write(frame).is_ok()
    }
}

fn named(name: &str) -> Option<libc::ifreq> {
    // SAFETY: an interface request is plain integers and bytes, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Some(request)
}

fn ioctl(fd: BorrowedFd<'_>, call: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: every call given here takes a pointer to an `ifreq` and stays within its size.
    match unsafe { libc::ioctl(fd.as_raw_fd(), call, std::ptr::from_mut(request)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
