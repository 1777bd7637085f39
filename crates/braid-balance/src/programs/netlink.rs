//! Blocking rtnetlink: one request, and its answer or dump.
//!
//! Attributes are not decoded further than the caller asks: a classifier that the library does not know must be
//! seen all the same.

use std::io;

use netlink_packet_core::{
    Emitable, ErrorBuffer, NLM_F_MULTIPART, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NlaBuffer,
    NlasIterator,
};
use netlink_packet_route::link::LinkHeader;
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

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

/// A message of an answer: its type, and what follows the netlink header.
pub(crate) struct Answer {
    pub kind: u16,
    pub body: Vec<u8>,
}

/// Asks for an Ethernet device that has a peer.
pub(crate) fn link(ifindex: u32) -> io::Result<Link> {
    let header = LinkHeader {
        index: ifindex,
        ..LinkHeader::default()
    };
    let answers = request(libc::RTM_GETLINK, 0, &header)?;
    let body = answers.first().map_or(&[][..], |answer| &answer.body);
    let (mut address, mut peer) = (None, None);
    for attribute in attributes(body.get(header.buffer_len()..).unwrap_or_default()) {
        match attribute.kind() {
            IFLA_ADDRESS => address = attribute.value().try_into().ok(),
            IFLA_LINK => peer = number(attribute.value()),
            _ => {}
        }
    }
    match (address, peer) {
        (Some(address), Some(peer)) => Ok(Link { address, peer }),
        _ => Err(io::Error::other("not one end of a veth pair")),
    }
}

/// Sends a request and returns its answer: one message, all of a dump, or none for an acknowledgement.
pub(crate) fn request(kind: u16, flags: u16, body: &impl Emitable) -> io::Result<Vec<Answer>> {
    let mut header = NetlinkHeader::default();
    let length = header.buffer_len() + body.buffer_len();
    header.length = u32::try_from(length).expect("two headers");
    header.message_type = kind;
    header.flags = NLM_F_REQUEST | flags;
    let mut message = vec![0; length];
    let (front, rest) = message.split_at_mut(header.buffer_len());
    header.emit(front);
    body.emit(rest);

    let socket = Socket::new(NETLINK_ROUTE)?;
    socket.send(&message, 0)?;
    let mut answers = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        if take(&datagram, &mut answers)? {
            return Ok(answers);
        }
    }
}

/// Takes the messages of a datagram. Returns true once the answer is complete.
fn take(mut datagram: &[u8], answers: &mut Vec<Answer>) -> io::Result<bool> {
    while !datagram.is_empty() {
        let message = NetlinkBuffer::new_checked(datagram).map_err(io::Error::other)?;
        match i32::from(message.message_type()) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let error =
                    ErrorBuffer::new_checked(message.payload()).map_err(io::Error::other)?;
                return match error.code() {
                    None => Ok(true),
                    Some(code) => Err(io::Error::from_raw_os_error(code.get().abs())),
                };
            }
            _ => answers.push(Answer {
                kind: message.message_type(),
                body: message.payload().to_vec(),
            }),
        }
        if message.flags() & NLM_F_MULTIPART == 0 {
            return Ok(true);
        }
        let length = (message.length() as usize).next_multiple_of(4);
        datagram = datagram.get(length..).unwrap_or_default();
    }
    Ok(false)
}

/// The attributes in `bytes`; stops at the first that does not fit.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    NlasIterator::new(bytes).map_while(Result::ok)
}

/// Reads a number of 32 bits.
pub(crate) fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_attribute_ends_the_list() {
        let whole = [8, 0, 1, 0, b'b', b'p', b'f', 0];
        let read: Vec<_> = attributes(&whole)
            .map(|a| (a.kind(), a.value().to_vec()))
            .collect();
        assert_eq!(read, [(1, b"bpf\0".to_vec())]);
        for length in 0..whole.len() {
            assert_eq!(attributes(&whole[..length]).count(), 0, "{length} bytes");
        }
    }

    #[test]
    fn a_dump_ends_with_its_last_message_and_a_cut_one_is_an_error() {
        let message = |kind: u16, flags: u16| {
            let mut bytes = vec![20, 0, 0, 0];
            bytes.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
            bytes.extend([0; 12]);
            bytes
        };
        let done = u16::try_from(libc::NLMSG_DONE).unwrap();
        let dump = [message(44, NLM_F_MULTIPART), message(44, NLM_F_MULTIPART)].concat();
        let mut answers = Vec::new();
        assert!(!take(&dump, &mut answers).unwrap());
        assert_eq!(answers.len(), 2);
        assert!(take(&message(done, NLM_F_MULTIPART), &mut answers).unwrap());
        assert!(take(&message(16, 0), &mut answers).unwrap());
        assert!(take(&dump[..30], &mut answers).is_err());
    }

    #[test]
    fn loopback_has_no_peer() {
        let loopback = nix::net::if_::if_nametoindex("lo").expect("every namespace has lo");
        assert!(link(loopback).is_err());
        let error = link(u32::MAX >> 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
