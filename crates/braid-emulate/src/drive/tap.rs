//! TAP devices without virtio-net header: what comes out are real frames of at most the MTU with
//! real checksums, because the kernel has to segment and sum up before it hands them over.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use serde::Serialize;

use super::port::{Endpoint, Mac};
use super::{DriveError, netns, sys};

/// Frames that the kernel holds for us until they are read. Its own 500 would drop silently when
/// a burst arrives while the emulator writes; the emulator's queue is to be the one that drops. An
/// entry costs 8 bytes.
const KERNEL_QUEUE: i32 = 8192;

/// One end of the link. The device vanishes when this is dropped, also by `kill -9`.
#[derive(Debug)]
pub(super) struct Tap {
    endpoint: Endpoint,
    device: File,
    /// `/proc/net/dev` of the device's namespace.
    counters: File,
    index: u32,
    mac: Mac,
}

/// A device as the ready line names it.
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
    /// Makes the device, names it and sets it up.
    pub fn create(endpoint: &Endpoint, mac: Option<Mac>) -> Result<Tap, DriveError> {
        netns::within(endpoint.netns.as_deref(), || {
            Tap::create_here(endpoint, mac)
        })
    }

    fn create_here(endpoint: &Endpoint, mac: Option<Mac>) -> Result<Tap, DriveError> {
        let device = attach(endpoint)?;
        let interface = Interface::open(endpoint)?;
        if let Some(mac) = mac {
            interface.set_mac(mac)?;
        }
        interface.set_queue(KERNEL_QUEUE)?;
        interface.set_up()?;
        Ok(Tap {
            endpoint: endpoint.clone(),
            device,
            counters: File::open("/proc/thread-self/net/dev")
                .map_err(|source| failed(endpoint, "open its counters", source))?,
            index: interface.index()?,
            mac: interface.mac()?,
        })
    }

    /// The device as it is named to the outside.
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

    /// The next frame that the kernel sends through the device; none for now.
    pub fn read<'b>(&self, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>, DriveError> {
        match (&self.device).read(buffer) {
            Ok(len) => Ok(Some(&buffer[..len])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => Err(self.gone()),
            Err(source) => Err(self.failed("read", source)),
        }
    }

    /// Gives the kernel a frame, as if it had arrived. False if it did not take it: the device is
    /// down, or there is no memory.
    pub fn write(&self, frame: &[u8]) -> Result<bool, DriveError> {
        match nix::unistd::write(&self.device, frame) {
            // A TAP device takes a frame as a whole or not at all.
            Ok(_) => Ok(true),
            Err(Errno::EBADFD) => Err(self.gone()),
            Err(_) => Ok(false),
        }
    }

    /// Frames that the kernel dropped at this device, for want of room in its own queue or because
    /// nobody took them: to be seen, so that it is no silent loss.
    pub fn kernel_drops(&mut self) -> Result<u64, DriveError> {
        let mut text = String::new();
        let read = self.counters.seek(SeekFrom::Start(0));
        read.and_then(|_| self.counters.read_to_string(&mut text))
            .map_err(|source| self.failed("read its counters", source))?;
        Ok(transmit_drops(&text, &self.endpoint.device).unwrap_or(0))
    }

    /// The kernel answers EBADFD once a descriptor has lost its device.
    fn gone(&self) -> DriveError {
        let device = self.endpoint.device.clone();
        DriveError::DeviceGone {
            device,
            place: self.endpoint.place(),
        }
    }

    fn failed(&self, step: &'static str, source: io::Error) -> DriveError {
        failed(&self.endpoint, step, source)
    }
}

fn failed(endpoint: &Endpoint, step: &'static str, source: io::Error) -> DriveError {
    let device = endpoint.device.clone();
    DriveError::Device {
        device,
        place: endpoint.place(),
        step,
        source,
    }
}

/// A new TAP device and the descriptor through which its frames go.
fn attach(endpoint: &Endpoint) -> Result<File, DriveError> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .map_err(|source| DriveError::NoTun { source })?;
    let mut request = sys::interface_request(&endpoint.device);
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_TUN_EXCL;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    match sys::interface_ioctl(device.as_fd(), libc::TUNSETIFF, &mut request) {
        Ok(()) => Ok(device),
        Err(error) => Err(match error.raw_os_error() {
            // EBUSY: a TAP of that name; EINVAL: a device of another kind.
            Some(libc::EBUSY | libc::EEXIST | libc::EINVAL) => DriveError::DeviceTaken {
                device: endpoint.device.clone(),
                place: endpoint.place(),
            },
            _ => failed(endpoint, "make a TAP device", error),
        }),
    }
}

/// The device as the rest of the kernel sees it, by its name.
struct Interface<'a> {
    endpoint: &'a Endpoint,
    socket: OwnedFd,
}

impl<'a> Interface<'a> {
    fn open(endpoint: &'a Endpoint) -> Result<Interface<'a>, DriveError> {
        let socket = socket(
            AddressFamily::Inet,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .map_err(|errno| failed(endpoint, "open a socket", errno.into()))?;
        Ok(Interface { endpoint, socket })
    }

    /// Calls the kernel with a request that `fill` has filled in, and returns what it became.
    fn call(
        &self,
        call: libc::Ioctl,
        step: &'static str,
        fill: impl FnOnce(&mut libc::ifreq),
    ) -> Result<libc::ifreq, DriveError> {
        let mut request = sys::interface_request(&self.endpoint.device);
        fill(&mut request);
        sys::interface_ioctl(self.socket.as_fd(), call, &mut request)
            .map_err(|source| failed(self.endpoint, step, source))?;
        Ok(request)
    }

    fn set_mac(&self, Mac(bytes): Mac) -> Result<(), DriveError> {
        let mut address = libc::sockaddr {
            sa_family: libc::ARPHRD_ETHER,
            sa_data: [0; 14],
        };
        for (to, from) in address.sa_data.iter_mut().zip(bytes) {
            *to = from as libc::c_char;
        }
        self.call(libc::SIOCSIFHWADDR, "set the MAC address", |request| {
            request.ifr_ifru.ifru_hwaddr = address;
        })?;
        Ok(())
    }

    fn set_queue(&self, frames: i32) -> Result<(), DriveError> {
        self.call(
            libc::SIOCSIFTXQLEN,
            "set the length of the kernel's queue",
            |request| {
                // The kernel calls this field ifr_qlen; it is a plain int at the same place.
                request.ifr_ifru.ifru_metric = frames;
            },
        )?;
        Ok(())
    }

    fn set_up(&self) -> Result<(), DriveError> {
        let request = self.call(libc::SIOCGIFFLAGS, "read its flags", |_| ())?;
        // SAFETY: SIOCGIFFLAGS has just filled this field of the union.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        self.call(libc::SIOCSIFFLAGS, "set it up", |request| {
            request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
        })?;
        Ok(())
    }

    fn index(&self) -> Result<u32, DriveError> {
        let request = self.call(libc::SIOCGIFINDEX, "read its index", |_| ())?;
        // SAFETY: SIOCGIFINDEX has just filled this field of the union.
        Ok(unsafe { request.ifr_ifru.ifru_ifindex }.unsigned_abs())
    }

    fn mac(&self) -> Result<Mac, DriveError> {
        let request = self.call(libc::SIOCGIFHWADDR, "read its MAC address", |_| ())?;
        // SAFETY: SIOCGIFHWADDR has just filled this field of the union.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
        Ok(Mac(std::array::from_fn(|i| address[i] as u8)))
    }
}

/// From `/proc/net/dev`: eight receive counters, then packets, bytes … of which the fourth of the
/// second eight are drops.
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
