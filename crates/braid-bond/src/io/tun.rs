//! The TUN device: inner packets, single or as super-packets that the kernel has not segmented yet.
//!
//! With IFF_VNET_HDR every read and write carries a header that describes the segmentation and the
//! pending checksum of a super-packet, so that 64 KB cross the system boundary at the cost of one
//! packet. The device belongs to this process and vanishes with it.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use braid_device::{AttachError, DeviceKind, Interface, InterfaceError};

use super::offload::{VNET_HEADER, VnetHeader};
use super::{BondError, sys};

/// Packets that the kernel queues until they are read. This queue is ahead of the tunnel's own, so
/// it only covers the time that a thread may be kept from running.
const KERNEL_QUEUE: i32 = 1000;

/// Kinds of super-packets that the device supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OffloadSupport {
    pub tcp: bool,
    pub udp: bool,
}

/// A TUN device. It is removed on drop, also by `kill -9`, unless it was opened as persistent.
#[derive(Debug)]
pub struct Tun {
    name: String,
    index: u32,
    mtu: u16,
    file: File,
    offload_support: OffloadSupport,
}

impl Tun {
    /// Makes the device in the caller's network namespace and sets it up, with the offloads that
    /// the kernel supports.
    ///
    /// # Errors
    /// See [`BondError`].
    pub fn open(name: &str, mtu: u16) -> Result<Tun, BondError> {
        Tun::open_with(name, mtu, true)
    }

    /// Same as [`open`](Tun::open), with or without offloads.
    ///
    /// # Errors
    /// See [`BondError`].
    pub fn open_with(name: &str, mtu: u16, offloads: bool) -> Result<Tun, BondError> {
        check_name(name)?;
        Tun::set_up(name, mtu, offloads, attach(name)?)
    }

    /// Opens a device that outlives the process and may exist already. Without a process, packets
    /// routed to it are dropped silently; if the device were gone, the kernel would reject them.
    ///
    /// # Errors
    /// See [`BondError`].
    pub fn open_persistent(name: &str, mtu: u16) -> Result<Tun, BondError> {
        check_name(name)?;
        let attached = braid_device::attach_persistent(name, DeviceKind::Tun);
        let file = attached.map_err(|error| refused(name, error))?;
        Tun::set_up(name, mtu, true, file)
    }

    /// Removes a persistent device. Returns `false` if there was none.
    ///
    /// # Errors
    /// See [`BondError`].
    pub fn remove(name: &str) -> Result<bool, BondError> {
        check_name(name)?;
        let failed_at = |InterfaceError { step, source }| failed(name, step, source);
        let index = Interface::open(name).map_err(failed_at)?.index();
        if index.is_err_and(|failure| failure.source.raw_os_error() == Some(libc::ENODEV)) {
            return Ok(false);
        }
        let attached = braid_device::attach_persistent(name, DeviceKind::Tun);
        let file = attached.map_err(|error| refused(name, error))?;
        braid_device::set_persistent(&file, false)
            .map_err(|error| failed(name, "let go of the device", error))?;
        Ok(true)
    }

    fn set_up(name: &str, mtu: u16, offloads: bool, file: File) -> Result<Tun, BondError> {
        let offload_support = if offloads {
            negotiate(name, &file)?
        } else {
            let (tcp, udp) = (false, false);
            OffloadSupport { tcp, udp }
        };
        let failed_at = |InterfaceError { step, source }| failed(name, step, source);
        let interface = Interface::open(name).map_err(failed_at)?;
        interface.set_mtu(mtu).map_err(failed_at)?;
        interface
            .set_tx_queue_len(KERNEL_QUEUE)
            .map_err(failed_at)?;
        interface.set_up().map_err(failed_at)?;
        let index = interface.index().map_err(failed_at)?;
        Ok(Tun {
            name: name.to_owned(),
            index,
            mtu,
            file,
            offload_support,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its index in its namespace.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its MTU.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    pub(super) fn offload_support(&self) -> OffloadSupport {
        self.offload_support
    }

    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// The next packet or super-packet from the kernel; none if there is none for now.
    pub(super) fn read<'b>(
        &self,
        buffer: &'b mut [u8],
    ) -> Result<Option<(VnetHeader, &'b mut [u8])>, BondError> {
        let len = match (&self.file).read(buffer) {
            Ok(len) => len,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                    _ => Err(self.failed("read", error)),
                };
            }
        };
        let (header, packet) = buffer[..len].split_at_mut(VNET_HEADER.min(len));
        match header.first_chunk() {
            Some(header) => Ok(Some((VnetHeader::parse(header), packet))),
            None => Err(self.failed("read", io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Writes a packet, or a super-packet that this device [supports](Self::offload_support), to
    /// the kernel. Returns false if the kernel refuses it: it is malformed, the device is down, or
    /// memory is short.
    pub(super) fn write(&self, parts: &[IoSlice<'_>]) -> Result<bool, BondError> {
        match (&self.file).write_vectored(parts) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => {
                Err(self.failed("write", error))
            }
            Err(_) => Ok(false),
        }
    }

    fn failed(&self, step: &'static str, source: io::Error) -> BondError {
        // The kernel's error for a descriptor whose device is gone.
        if source.raw_os_error() == Some(libc::EBADFD) {
            let device = self.name.clone();
            return BondError::TunGone { device };
        }
        failed(&self.name, step, source)
    }
}

fn failed(device: &str, step: &'static str, source: io::Error) -> BondError {
    let device = device.to_owned();
    BondError::Tun {
        device,
        step,
        source,
    }
}

/// Makes a device, and the descriptor of its packets.
fn attach(name: &str) -> Result<File, BondError> {
    braid_device::attach(name, DeviceKind::Tun).map_err(|error| refused(name, error))
}

fn check_name(name: &str) -> Result<(), BondError> {
    let legal = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || !name.bytes().all(legal) {
        let device = name.to_owned();
        return Err(BondError::Name { device });
    }
    Ok(())
}

fn refused(name: &str, error: AttachError) -> BondError {
    match error {
        AttachError::NoTun(source) => BondError::NoTun { source },
        AttachError::Taken(_) => {
            let device = name.to_owned();
            BondError::Taken { device }
        }
        AttachError::Failed(source) => failed(name, "make a TUN device", source),
    }
}

/// Enables the offloads that the kernel supports: TCP in all versions, UDP from 6.2 on.
fn negotiate(name: &str, file: &File) -> Result<OffloadSupport, BondError> {
    let size = VNET_HEADER as libc::c_int;
    sys::int_ioctl(file.as_fd(), libc::TUNSETVNETHDRSZ, size)
        .map_err(|source| failed(name, "set the size of its offload header", source))?;
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
    let set = |flags: libc::c_uint| {
        sys::number_ioctl(file.as_fd(), libc::TUNSETOFFLOAD, flags.into()).is_ok()
    };
    let (udp, tcp) = match set(tcp | udp) {
        true => (true, true),
        false => (false, set(tcp)),
    };
    Ok(OffloadSupport { tcp, udp })
}
