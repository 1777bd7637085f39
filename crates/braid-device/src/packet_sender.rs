//! Sends whole frames by one device.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::check;

/// A socket that sends frames, with all their headers, by one device, and receives nothing.
#[derive(Debug)]
pub struct PacketSender {
    socket: OwnedFd,
    address: libc::sockaddr_ll,
}

impl PacketSender {
    /// Opens one for the device with this index.
    ///
    /// # Errors
    /// The kernel refuses the socket, or no device can have this index.
    pub fn open(ifindex: u32) -> io::Result<PacketSender> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: it takes plain integers only. Protocol 0 receives nothing.
        let socket = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the descriptor is new, so nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: all zero is a valid address of this kind.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = i32::try_from(ifindex).map_err(io::Error::other)?;
        Ok(PacketSender { socket, address })
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The device is down or gone, its queue is full, or it carries no frames of this length.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: frame and address are valid for their lengths, and the kernel only reads them.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const self.address).cast(),
                length,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}
