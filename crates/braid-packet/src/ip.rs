//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Error;
use crate::error::split;

/// IPv6 extension headers followed before giving up, as the flow datapath does.
const MAX_EXTENSIONS: usize = 6;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// Part of a packet that these bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The whole packet.
    Whole,
    /// The beginning; more follows.
    First {
        /// Common to all fragments of a packet.
        id: u32,
    },
    /// A later part: no transport header.
    Later {
        /// Common to all fragments of a packet.
        id: u32,
    },
}

/// Fields of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub dest: IpAddr,
    /// Transport protocol (after IPv6 extension headers), IANA number.
    pub protocol: u8,
    /// TTL or hop limit.
    pub hops: u8,
    /// Fragment.
    pub fragment: Fragment,
    /// Bytes from the start of the packet to the transport header.
    pub header: usize,
    /// Bytes of the packet by its own header; the rest is padding.
    pub length: usize,
}

impl Ip {
    /// Parses the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (first, _) = split("ip", bytes, 1)?;
        match first[0] >> 4 {
            4 => parse_v4(bytes),
            6 => parse_v6(bytes),
            version => Err(Error::Version(version)),
        }
    }
}

fn parse_v4(bytes: &[u8]) -> Result<Ip, Error> {
    let (ip, _) = split("ipv4", bytes, 20)?;
    let header = usize::from(ip[0] & 0xf) * 4;
    if header < 20 {
        return Err(Error::Length {
            header: "ipv4",
            says: header,
        });
    }
    let length = usize::from(half(ip, 2));
    if length < header || length > bytes.len() {
        return Err(Error::Length {
            header: "ipv4",
            says: length,
        });
    }
    let (place, id) = (half(ip, 6), u32::from(half(ip, 4)));
    let fragment = match (place & 0x1fff, place & 0x2000) {
        (0, 0) => Fragment::Whole,
        (0, _) => Fragment::First { id },
        _ => Fragment::Later { id },
    };
    let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]).into();
    Ok(Ip {
        source: address(12),
        dest: address(16),
        protocol: ip[9],
        hops: ip[8],
        fragment,
        header,
        length,
    })
}

fn parse_v6(bytes: &[u8]) -> Result<Ip, Error> {
    let (ip, payload) = split("ipv6", bytes, 40)?;
    let says = usize::from(half(ip, 4));
    let payload = payload.get(..says).ok_or(Error::Length {
        header: "ipv6",
        says,
    })?;
    let mut fragment = Fragment::Whole;
    let mut protocol = ip[6];
    let mut rest = payload;
    for _ in 0..MAX_EXTENSIONS {
        let extension = matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION);
        if !extension || matches!(fragment, Fragment::Later { .. }) {
            break;
        }
        let (head, _) = split("ipv6 extension", rest, 8)?;
        let mut size = 8;
        if protocol == FRAGMENT {
            let id = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
            match (half(head, 2) & !7, half(head, 2) & 1) {
                (0, 0) => {}
                (0, _) => fragment = Fragment::First { id },
                _ => fragment = Fragment::Later { id },
            }
        } else {
            size += usize::from(head[1]) * 8;
        }
        protocol = head[0];
        rest = split("ipv6 extension", rest, size)?.1;
    }
    Ok(Ip {
        source: Ipv6Addr::from(sixteen(ip, 8)).into(),
        dest: Ipv6Addr::from(sixteen(ip, 24)).into(),
        protocol,
        hops: ip[7],
        fragment,
        header: 40 + payload.len() - rest.len(),
        length: 40 + payload.len(),
    })
}

/// Returns the 16-bit field at `at`, which the caller has checked.
pub(crate) fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn sixteen(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut address = [0; 16];
    address.copy_from_slice(&bytes[at..at + 16]);
    address
}
