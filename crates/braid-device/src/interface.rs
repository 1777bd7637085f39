//! Network interfaces by name.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;

/// Error of a request about an interface.
#[derive(Debug)]
pub struct InterfaceError {
    /// The step, such as "set it up".
    pub step: &'static str,
    /// The kernel's error.
    pub source: io::Error,
}

/// A device of the caller's network namespace.
#[derive(Debug)]
pub struct Interface<'a> {
    name: &'a str,
    socket: OwnedFd,
}

impl<'a> Interface<'a> {
    /// Prepares requests about the interface of this name.
    ///
    /// # Errors
    /// See [`InterfaceError`], as everywhere here.
    pub fn open(name: &'a str) -> Result<Interface<'a>, InterfaceError> {
        // SAFETY: it takes plain integers only.
        let socket =
            unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        let step = "open a socket";
        let socket = check(socket).map_err(|source| InterfaceError { step, source })?;
        // SAFETY: the descriptor is new, so nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        Ok(Interface { name, socket })
    }

    /// Makes a request that `fill` completes, and returns the kernel's reply.
    fn call(
        &self,
        call: libc::c_ulong,
        step: &'static str,
        fill: impl FnOnce(&mut libc::ifreq),
    ) -> Result<libc::ifreq, InterfaceError> {
        let mut request = request(self.name);
        fill(&mut request);
        // The C library's type for a request is `Ioctl`, which is signed in musl.
        ioctl(self.socket.as_fd(), call as libc::Ioctl, &mut request)
            .map_err(|source| InterfaceError { step, source })?;
        Ok(request)
    }

    /// Its MTU, bytes.
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub fn mtu(&self) -> Result<u32, InterfaceError> {
        let request = self.call(libc::SIOCGIFMTU, "read its MTU", |_| ())?;
        // SAFETY: SIOCGIFMTU has just filled this field of the union.
        Ok(unsafe { request.ifr_ifru.ifru_mtu }.unsigned_abs())
    }

    /// Sets its MTU, bytes.
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub fn set_mtu(&self, mtu: u16) -> Result<(), InterfaceError> {
        self.call(libc::SIOCSIFMTU, "set its MTU", |request| {
            request.ifr_ifru.ifru_mtu = mtu.into();
        })?;
        Ok(())
    }

    /// Sets the length of the kernel's queue, packets.
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub fn set_tx_queue_len(&self, packets: i32) -> Result<(), InterfaceError> {
        let step = "set the length of the kernel's queue";
        self.call(libc::SIOCSIFTXQLEN, step, |request| {
            // The kernel calls this field ifr_qlen; it is a plain int at the same place.
            request.ifr_ifru.ifru_metric = packets;
        })?;
        Ok(())
    }

    /// Sets it up.
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub fn set_up(&self) -> Result<(), InterfaceError> {
        let request = self.call(libc::SIOCGIFFLAGS, "read its flags", |_| ())?;
        // SAFETY: SIOCGIFFLAGS has just filled this field of the union.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        self.call(libc::SIOCSIFFLAGS, "set it up", |request| {
            request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
        })?;
        Ok(())
    }

    /// Its index.
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub fn index(&self) -> Result<u32, InterfaceError> {
        let request = self.call(libc::SIOCGIFINDEX, "read its index", |_| ())?;
        // SAFETY: SIOCGIFINDEX has just filled this field of the union.
        Ok(unsafe { request.ifr_ifru.ifru_ifindex }.unsigned_abs())
    }

    /// Its MAC address.
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub fn mac(&self) -> Result<[u8; 6], InterfaceError> {
        let request = self.call(libc::SIOCGIFHWADDR, "read its MAC address", |_| ())?;
        // SAFETY: SIOCGIFHWADDR has just filled this field of the union.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
        // C characters have a sign on some processors.
        Ok(std::array::from_fn(|i| address[i].to_ne_bytes()[0]))
    }

    /// Sets its MAC address.
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub fn set_mac(&self, mac: [u8; 6]) -> Result<(), InterfaceError> {
        let mut address = libc::sockaddr {
            sa_family: libc::ARPHRD_ETHER,
            sa_data: [0; 14],
        };
        for (to, from) in address.sa_data.iter_mut().zip(mac) {
            *to = from as libc::c_char;
        }
        self.call(libc::SIOCSIFHWADDR, "set the MAC address", |request| {
            request.ifr_ifru.ifru_hwaddr = address;
        })?;
        Ok(())
    }

    /// Has the kernel complete checksums and split segments before it hands packets to the interface. For one whose
    /// packets are read from the other side by a program.
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub fn switch_off_send_offloads(&self) -> Result<(), InterfaceError> {
        let step = "switch its send offloads off";
        for command in [
            ethtool::SET_TX_CHECKSUMS,
            ethtool::SET_TCP_SEGMENTATION,
            ethtool::SET_GENERIC_SEGMENTATION,
        ] {
            self.ethtool(step, command, 0)?;
        }
        Ok(())
    }

    /// True if the kernel or the device merges received packets (GRO, LRO).
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub fn merges_received_packets(&self) -> Result<bool, InterfaceError> {
        let step = "read its receive offloads";
        let merges = self.ethtool(step, ethtool::GET_GENERIC_RECEIVE, 0)? != 0;
        Ok(merges || self.ethtool(step, ethtool::GET_FLAGS, 0)? & ethtool::FLAG_LRO != 0)
    }

    fn ethtool(&self, step: &'static str, command: u32, value: u32) -> Result<u32, InterfaceError> {
        // `struct ethtool_value`.
        let mut words = [command, value];
        self.call(libc::SIOCETHTOOL as libc::c_ulong, step, |request| {
            request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        })?;
        Ok(words[1])
    }
}

/// Commands of `SIOCETHTOOL` (`linux/ethtool.h`), each with one value.
mod ethtool {
    pub const SET_TX_CHECKSUMS: u32 = 0x17;
    pub const SET_TCP_SEGMENTATION: u32 = 0x1f;
    pub const SET_GENERIC_SEGMENTATION: u32 = 0x24;
    pub const GET_GENERIC_RECEIVE: u32 = 0x2b;
    pub const GET_FLAGS: u32 = 0x25;
    /// Large receive offload, among the flags.
    pub const FLAG_LRO: u32 = 1 << 15;
}

/// An interface request for `device`, otherwise zero.
pub(super) fn request(device: &str) -> libc::ifreq {
    // SAFETY: an `ifreq` is plain data, for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// An `ioctl` whose argument is an interface request.
pub(super) fn ioctl(
    fd: BorrowedFd<'_>,
    call: libc::Ioctl,
    argument: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: every request that is given here takes a pointer to an `ifreq`, which the kernel
    // reads and writes within its size.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), call, std::ptr::from_mut(argument)) })?;
    Ok(())
}
