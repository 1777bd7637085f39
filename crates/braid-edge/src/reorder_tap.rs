//! The TAP device through which packets reach the resequencer and return. It has no vnet header, so the
//! kernel segments merged packets and completes checksums before it delivers a frame.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};

use braid_device::{AttachError, DeviceKind, Interface, InterfaceError};

use crate::Error;

/// Frames that may wait in the kernel while the driver is busy; an entry costs 8 bytes.
const TX_QUEUE_FRAMES: i32 = 8192;

/// The device. The kernel removes it when this is dropped, also by `kill -9`.
#[derive(Debug)]
pub struct ReorderTap {
    file: File,
    name: String,
}

impl ReorderTap {
    /// Creates the device `name` in the caller's network namespace and sets it up.
    pub fn create(name: &str) -> Result<ReorderTap, Error> {
        let failed = |source| Error::system(format!("making device {name}"), source);
        if name.is_empty() || name.len() >= libc::IFNAMSIZ {
            return Err(failed(io::Error::other(
                "a name of a device has 1 to 15 characters",
            )));
        }
        let file = braid_device::attach(name, DeviceKind::Tap).map_err(|error| match error {
            AttachError::NoTun(source) => Error::system("opening /dev/net/tun", source),
            AttachError::Taken(_) => Error::HoldTaken(name.to_owned()),
            AttachError::Failed(source) => failed(source),
        })?;
        let failed_at = |failure: InterfaceError| failed(failure.source);
        let interface = Interface::open(name).map_err(failed_at)?;
        interface
            .set_tx_queue_len(TX_QUEUE_FRAMES)
            .map_err(failed_at)?;
        interface.set_up().map_err(failed_at)?;
        let name = name.to_owned();
        Ok(ReorderTap { file, name })
    }

    /// Returns the file descriptor to poll.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Reads the next frame into `buffer` and returns its length; none if no frame waits.
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

    /// Sends a frame on; returns false if the kernel did not take it.
    pub fn write(&self, frame: &[u8]) -> bool {
        // A TAP device takes a whole frame or nothing.
        (&self.file).write(frame).is_ok()
    }
}
