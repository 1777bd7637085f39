//! Sends whole frames by one device.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::packet_tap::{link_address, packet_socket};

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
        let socket = packet_socket(libc::SOCK_RAW)?;
        let address = link_address(ifindex)?;
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
