//! The little of rtnetlink that this crate speaks.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of `struct nlmsghdr`.
pub(crate) const NLMSG_HEADER: usize = 16;
/// Bytes of `struct ifinfomsg`.
const LINK_HEADER: usize = 16;

const IFLA_ADDRESS: u16 = 1;
const IFLA_LINK: u16 = 5;

/// Facts about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Link-layer address.
    pub address: [u8; 6],
    /// Interface index of a veth's other end.
    pub peer: u32,
}

/// Asks for an Ethernet device that has a peer.
pub(crate) fn link(ifindex: u32) -> io::Result<Link> {
    let socket = open()?;
    let mut request = Vec::with_capacity(NLMSG_HEADER + LINK_HEADER);
    let length = u32::try_from(NLMSG_HEADER + LINK_HEADER).expect("a small number");
    let flags = u16::try_from(libc::NLM_F_REQUEST).expect("16-bit flags");
    request.extend(length.to_ne_bytes());
    request.extend(libc::RTM_GETLINK.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend([0; 8]); // sequence, port
    request.extend([0; 4]); // family, type
    request.extend(ifindex.to_ne_bytes());
    request.extend([0; 8]); // flags, change mask
    send(&socket, &request)?;
    let mut buffer = vec![0; 16 * 1024];
    let answer = receive(&socket, &mut buffer)?;
    if i32::from(half(answer, 4)) == libc::NLMSG_ERROR {
        let error = word(answer, NLMSG_HEADER).cast_signed();
        return Err(io::Error::from_raw_os_error(-error));
    }
    let (mut address, mut peer) = (None, None);
    for (kind, value) in attributes(answer.get(NLMSG_HEADER + LINK_HEADER..).unwrap_or_default()) {
        match kind {
            IFLA_ADDRESS => address = value.try_into().ok(),
            IFLA_LINK => peer = Some(word(value, 0)),
            _ => {}
        }
    }
    match (address, peer) {
        (Some(address), Some(peer)) => Ok(Link { address, peer }),
        _ => Err(io::Error::other("not one end of a veth pair")),
    }
}

pub(crate) fn open() -> io::Result<OwnedFd> {
    // SAFETY: plain system call; the result is checked.
    let fd = unsafe {
        libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::NETLINK_ROUTE,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel has just given us and nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn send(socket: &OwnedFd, message: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads `message.len()` bytes of `message`.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            message.as_ptr().cast(),
            message.len(),
            0,
        )
    };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

pub(crate) fn receive<'a>(socket: &OwnedFd, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`.
    let length = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            0,
        )
    };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    Ok(&buffer[..length])
}

/// The attributes (type, value) in `bytes`; stops at the first that does not fit.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        if bytes.len() < 4 {
            return None;
        }
        let length = usize::from(half(bytes, 0));
        // The upper bits say "nested" and "network order".
        let kind = half(bytes, 2) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
        Some((kind, value))
    })
}

pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

pub(crate) fn half(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..at + 2)
        .map_or(0, |b| u16::from_ne_bytes([b[0], b[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_attribute_ends_the_list() {
        let whole = [8, 0, 1, 0, b'b', b'p', b'f', 0];
        assert_eq!(attributes(&whole).collect::<Vec<_>>(), [(1, &b"bpf\0"[..])]);
        for length in 0..whole.len() {
            assert_eq!(attributes(&whole[..length]).count(), 0, "{length} bytes");
        }
    }

    #[test]
    fn loopback_has_no_peer() {
        let loopback = nix::net::if_::if_nametoindex("lo").expect("every namespace has lo");
        assert!(link(loopback).is_err());
    }
}
