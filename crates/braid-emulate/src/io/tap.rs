//! TAP devices without virtio-net header. Frames have at most the MTU and complete checksums,
//! because the kernel must segment and compute checksums before it hands them over.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, RawFd};

use braid_device::{AttachError, DeviceKind, Interface, InterfaceError};
use nix::errno::Errno;
use serde::Serialize;

use super::port::{Endpoint, Mac};
use super::{EmulatorError, netns};

/// Frames that the kernel queues until they are read. Its default of 500 would drop frames silently
/// when a burst arrives while the emulator writes; only the emulator's own queue should drop. An
/// entry costs 8 bytes.
const KERNEL_QUEUE: i32 = 8192;

/// One end of the link. The device vanishes on drop, also after `kill -9`.
#[derive(Debug)]
pub(super) struct Tap {
    endpoint: Endpoint,
    device: File,
    /// `/proc/net/dev` of the device's namespace.
    counters: File,
    index: u32,
    mac: Mac,
}

/// A device in the ready line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its namespace; null for the caller's.
    pub netns: Option<String>,
    /// Its name.
    pub device: String,
    /// Its interface index there.
    pub index: u32,
    /// Its MAC address.
    pub mac: String,
}

impl Tap {
    /// Creates, names and enables the device.
    pub fn create(endpoint: &Endpoint, mac: Option<Mac>) -> Result<Tap, EmulatorError> {
        netns::within(endpoint.netns.as_deref(), || {
            Tap::create_here(endpoint, mac)
        })
    }

    fn create_here(endpoint: &Endpoint, mac: Option<Mac>) -> Result<Tap, EmulatorError> {
        let device = attach(endpoint)?;
        let failed_at = |InterfaceError { step, source }| failed(endpoint, step, source);
        let interface = Interface::open(&endpoint.device).map_err(failed_at)?;
        if let Some(Mac(mac)) = mac {
            interface.set_mac(mac).map_err(failed_at)?;
        }
        interface
            .set_tx_queue_len(KERNEL_QUEUE)
            .map_err(failed_at)?;
        interface.set_up().map_err(failed_at)?;
        Ok(Tap {
            endpoint: endpoint.clone(),
            device,
            counters: File::open("/proc/thread-self/net/dev")
                .map_err(|source| failed(endpoint, "open its counters", source))?,
            index: interface.index().map_err(failed_at)?,
            mac: Mac(interface.mac().map_err(failed_at)?),
        })
    }

    /// Returns the device's description for the ready line.
    pub fn describe(&self) -> Device {
        Device {
            netns: self.endpoint.netns.clone(),
            device: self.endpoint.device.clone(),
            index: self.index,
            mac: self.mac.to_string(),
        }
    }

    pub fn fd(&self) -> RawFd {
        self.device.as_raw_fd()
    }

    /// Returns the next frame that the kernel sends through the device; `None` if there is none
    /// now.
    pub fn read<'b>(&self, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>, EmulatorError> {
        match (&self.device).read(buffer) {
            Ok(len) => Ok(Some(&buffer[..len])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => Err(self.gone()),
            Err(source) => Err(self.failed("read", source)),
        }
    }

    /// Gives the kernel a frame, as if it had arrived. Returns false if the kernel refused it: the
    /// device is down, or memory is short.
    pub fn write(&self, frame: &[u8]) -> Result<bool, EmulatorError> {
        match nix::unistd::write(&self.device, frame) {
            // A TAP device takes a frame whole or not at all.
            Ok(_) => Ok(true),
            Err(Errno::EBADFD) => Err(self.gone()),
            Err(_) => Ok(false),
        }
    }

    /// Returns how many frames the kernel dropped at this device, because its queue was full or
    /// nothing read them. Reported so that no loss is silent.
    pub fn kernel_drops(&mut self) -> Result<u64, EmulatorError> {
        let mut text = String::new();
        let read = self.counters.seek(SeekFrom::Start(0));
        read.and_then(|_| self.counters.read_to_string(&mut text))
            .map_err(|source| self.failed("read its counters", source))?;
        Ok(transmit_drops(&text, &self.endpoint.device).unwrap_or(0))
    }

    /// The kernel returns EBADFD once a descriptor has lost its device.
    fn gone(&self) -> EmulatorError {
        let device = self.endpoint.device.clone();
        EmulatorError::DeviceGone {
            device,
            place: self.endpoint.place(),
        }
    }

    fn failed(&self, step: &'static str, source: io::Error) -> EmulatorError {
        failed(&self.endpoint, step, source)
    }
}

fn failed(endpoint: &Endpoint, step: &'static str, source: io::Error) -> EmulatorError {
    let device = endpoint.device.clone();
    EmulatorError::Device {
        device,
        place: endpoint.place(),
        step,
        source,
    }
}

/// Creates a TAP device and returns the descriptor for its frames.
fn attach(endpoint: &Endpoint) -> Result<File, EmulatorError> {
    braid_device::attach(&endpoint.device, DeviceKind::Tap).map_err(|error| match error {
        AttachError::NoTun(source) => EmulatorError::NoTun { source },
        AttachError::Taken(_) => EmulatorError::DeviceTaken {
            device: endpoint.device.clone(),
            place: endpoint.place(),
        },
        AttachError::Failed(source) => failed(endpoint, "make a TAP device", source),
    })
}

/// Parses `/proc/net/dev`: eight receive counters, then packets, bytes …; the fourth of the second
/// eight is drops.
fn transmit_drops(text: &str, device: &str) -> Option<u64> {
    let row = text.lines().find_map(|line| {
        let (name, row) = line.split_once(':')?;
        (name.trim() == device).then_some(row)
    })?;
    row.split_whitespace().nth(8 + 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::transmit_drops;

    #[test]
    fn drops_are_found_in_the_kernels_table() {
        let table = "Inter-|   Receive |  Transmit\n face |bytes packets …\n    \
                     lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  \
                     dsl: 0 0 0 0 0 0 0 0 100 2 0 77 0 0 0 0\n";
        assert_eq!(transmit_drops(table, "dsl"), Some(77));
        assert_eq!(transmit_drops(table, "ds"), None);
    }
}
