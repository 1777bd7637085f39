//! Echo requests (RFC 792, RFC 4443 §4).

use std::net::{IpAddr, SocketAddr};

use braid_packet::checksum;
use socket2::{Protocol, Type};

use super::{Egress, ProbeError, socket};

/// Type of an echo reply and of a request, for IPv4 and IPv6.
const REPLY: [u8; 2] = [0, 129];
const REQUEST: [u8; 2] = [8, 128];
/// Type, code, checksum, identifier, sequence number.
const HEADER: usize = 8;
/// Header and an 8-byte payload that only hosts that saw the request know.
const LENGTH: usize = 16;

/// One echo request: identifier, sequence number and an unpredictable payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// IPv6, or else IPv4.
    pub v6: bool,
    /// The unpredictable value that distinguishes this request from all others.
    pub secret: u64,
}

impl Request {
    /// The ICMP message. For IPv6 the kernel fills in the checksum.
    #[must_use]
    pub fn message(&self) -> [u8; LENGTH] {
        let mut message = self.body(REQUEST);
        if !self.v6 {
            let sum = checksum::of(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        message
    }

    /// A message of this type, without a checksum.
    fn body(&self, types: [u8; 2]) -> [u8; LENGTH] {
        let mut message = [0; LENGTH];
        message[0] = types[usize::from(self.v6)];
        // The identifier and sequence number are derived from the secret, so that two probes from one machine
        // to one target differ in the fields that NATs inspect.
        let mixed = (self.secret ^ (self.secret >> 32)) as u32;
        message[4..8].copy_from_slice(&mixed.to_be_bytes());
        message[HEADER..].copy_from_slice(&self.secret.to_be_bytes());
        message
    }
}

/// Returns true if a message from a raw socket is the reply to this request. IPv4 messages come with their IP
/// header, IPv6 messages without. The kernel has verified the ICMPv6 checksum; the ICMPv4 checksum is verified
/// here.
#[must_use]
pub fn is_reply(request: &Request, received: &[u8]) -> bool {
    let message = if request.v6 {
        received
    } else {
        let header = received.first().map_or(0, |b| usize::from(b & 0xf) * 4);
        received.get(header..).unwrap_or_default()
    };
    let expected = request.body(REPLY);
    message.len() == LENGTH
        && (request.v6 || checksum::same(checksum::sum(message), 0xffff))
        && message[..2] == expected[..2]
        && message[4..] == expected[4..]
}

/// Returns true if an ICMP error is about this request; `quoted` is the quoted ICMP message. A router quotes at
/// least its first eight bytes (RFC 792). Type, code, identifier and sequence number are compared, so a host
/// that has not seen the request has to guess 32 bits.
#[must_use]
pub fn is_quoted(request: &Request, quoted: &[u8]) -> bool {
    let message = request.body(REQUEST);
    quoted
        .get(..HEADER)
        .is_some_and(|quoted| quoted[..2] == message[..2] && quoted[4..] == message[4..HEADER])
}

pub(super) async fn ask(egress: &Egress, dest: IpAddr, secret: u64) -> Result<(), ProbeError> {
    let request = Request {
        v6: dest.is_ipv6(),
        secret,
    };
    let protocol = if request.v6 {
        Protocol::ICMPV6
    } else {
        Protocol::ICMPV4
    };
    let raw = socket::open(egress, SocketAddr::new(dest, 0), Type::RAW, Some(protocol))?;
    socket::queue_errors(&raw, request.v6).map_err(ProbeError::NotSent)?;
    let message = request.message();
    let is_reply = |bytes: &[u8]| is_reply(&request, bytes).then_some(());
    let is_quoted = |bytes: &[u8]| is_quoted(&request, bytes);
    socket::converse_raw(raw, &message, is_reply, is_quoted).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reply of a target to a request.
    fn reply(request: &Request) -> Vec<u8> {
        let mut message = request.body(REPLY).to_vec();
        if request.v6 {
            return message;
        }
        let sum = checksum::of(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        [&[0x45; 20][..], &message].concat()
    }

    #[test]
    fn only_the_reply_to_this_very_request_is_one() {
        for v6 in [false, true] {
            let request = Request {
                v6,
                secret: 0x0123_4567_89ab_cdef,
            };
            let good = reply(&request);
            assert!(is_reply(&request, &good));
            // A raw socket also receives the requests of other programs.
            assert!(!is_reply(&request, &request.message()));
            for at in if v6 { 0..good.len() } else { 20..good.len() } {
                let mut bad = good.clone();
                bad[at] ^= 1;
                // IPv6's checksum has been checked by the kernel.
                assert_eq!(is_reply(&request, &bad), v6 && (2..4).contains(&at), "{at}");
            }
            for end in 0..good.len() {
                assert!(!is_reply(&request, &good[..end]));
            }
            assert!(!is_reply(&request, &[good, vec![0]].concat()));
        }
    }

    #[test]
    fn only_an_error_that_quotes_this_very_request_is_about_it() {
        for v6 in [false, true] {
            let request = Request {
                v6,
                secret: 0x0123_4567_89ab_cdef,
            };
            let quoted = request.message();
            assert!(is_quoted(&request, &quoted));
            assert!(is_quoted(&request, &quoted[..HEADER]));
            assert!(!is_quoted(&request, &quoted[..HEADER - 1]));
            for at in [0, 1, 4, 5, 6, 7] {
                let mut other = quoted;
                other[at] ^= 1;
                assert!(!is_quoted(&request, &other), "{at}");
            }
        }
    }
}
