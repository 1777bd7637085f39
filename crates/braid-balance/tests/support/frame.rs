//! Sending a whole Ethernet frame, for what no protocol stack would send.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::net::Namespace;

/// Sends `frame` out of a device.
pub fn send(namespace: &Namespace, device: &str, frame: &[u8]) {
    let ifindex = namespace.ifindex(device);
    namespace.enter(|| {
        // SAFETY: no pointers.
        let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
        assert!(socket >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: a descriptor that nobody else has.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: all zero is a valid sockaddr_ll.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = u16::try_from(libc::AF_PACKET).expect("a small number");
        to.sll_ifindex = ifindex.cast_signed();
        let size = u32::try_from(size_of_val(&to)).expect("a small structure");
        // SAFETY: both buffers live longer than the call, with these lengths.
        let sent = unsafe {
            libc::sendto(
                socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size,
            )
        };
        let error = std::io::Error::last_os_error();
        // A program on the device may drop it.
        assert!(
            sent >= 0 || error.raw_os_error() == Some(libc::ENOBUFS),
            "{error}"
        );
    });
}
