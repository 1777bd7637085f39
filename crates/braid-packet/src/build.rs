//! Builds whole packets with correct lengths and checksums, for replies and tests.

use std::net::IpAddr;

use crate::{checksum, protocol};

/// An address and a port (or echo id).
pub type End = (IpAddr, u16);

/// Hop limit of these packets: the customary 64.
const HOPS: u8 = 64;

/// Flags of a TCP segment, as in its header.
pub mod flags {
    /// No more data from this side.
    pub const FIN: u8 = 0x01;
    /// Opens a connection.
    pub const SYN: u8 = 0x02;
    /// There is no such connection (any more).
    pub const RST: u8 = 0x04;
    /// Data waits for nothing that follows.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 0x10;
    /// Congestion was met on the way, or ECN is offered (RFC 3168).
    pub const ECE: u8 = 0x40;
}

/// A TCP segment without options; window 65,535, sequence numbers zero.
///
/// # Panics
/// If the ends are of different families, or the packet would exceed 65,535 bytes.
pub fn tcp(source: End, dest: End, flags: u8, payload: &[u8]) -> Vec<u8> {
    segment(source, dest, [0, 0], flags, payload)
}

/// A TCP segment with these sequence and acknowledgement numbers.
///
/// # Panics
/// As [`tcp`].
pub fn segment(source: End, dest: End, numbers: [u32; 2], flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut segment = ports(source, dest);
    segment.extend(numbers.map(u32::to_be_bytes).concat());
    segment.extend([5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(payload);
    packet(source.0, dest.0, protocol::TCP, segment, Some(16))
}

/// A UDP datagram.
///
/// # Panics
/// As [`tcp`].
pub fn udp(source: End, dest: End, payload: &[u8]) -> Vec<u8> {
    let mut segment = ports(source, dest);
    let length = u16::try_from(8 + payload.len()).expect("a datagram fits 65,535 bytes");
    segment.extend(length.to_be_bytes());
    segment.extend([0, 0]);
    segment.extend(payload);
    packet(source.0, dest.0, protocol::UDP, segment, Some(6))
}

/// An ICMP message of the addresses' family; `id` is the first half of the second word.
///
/// # Panics
/// As [`tcp`].
pub fn icmp(source: IpAddr, dest: IpAddr, kind: u8, code: u8, id: u16, payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![kind, code, 0, 0];
    segment.extend(id.to_be_bytes());
    segment.extend([0, 1]);
    segment.extend(payload);
    let protocol = if source.is_ipv4() {
        protocol::ICMP
    } else {
        protocol::ICMPV6
    };
    packet(source, dest, protocol, segment, Some(2))
}

/// The error "port unreachable" about the packet `quote`, from the port's own host to its sender.
///
/// # Panics
/// As [`tcp`].
pub fn port_unreachable(source: IpAddr, dest: IpAddr, quote: &[u8]) -> Vec<u8> {
    let code = if source.is_ipv4() { 3 } else { 4 };
    unreachable(code, source, dest, quote)
}

/// The error "host unreachable", or "no route to destination" in IPv6, about the packet `quote`, to its sender.
///
/// # Panics
/// As [`tcp`].
pub fn host_unreachable(source: IpAddr, dest: IpAddr, quote: &[u8]) -> Vec<u8> {
    let code = if source.is_ipv4() { 1 } else { 0 };
    unreachable(code, source, dest, quote)
}

/// The error "communication administratively prohibited" about the packet `quote`, to its sender.
///
/// # Panics
/// As [`tcp`].
pub fn prohibited(source: IpAddr, dest: IpAddr, quote: &[u8]) -> Vec<u8> {
    let code = if source.is_ipv4() { 13 } else { 1 };
    unreachable(code, source, dest, quote)
}

/// The error "destination unreachable" of the addresses' family.
fn unreachable(code: u8, source: IpAddr, dest: IpAddr, quote: &[u8]) -> Vec<u8> {
    let (kind, protocol) = match source {
        IpAddr::V4(_) => (3, protocol::ICMP),
        IpAddr::V6(_) => (1, protocol::ICMPV6),
    };
    let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0];
    message.extend(quote);
    packet(source, dest, protocol, message, Some(2))
}

/// An IP packet around a segment; `checksum` is the offset of its checksum field.
///
/// # Panics
/// As [`tcp`].
pub fn packet(
    source: IpAddr,
    dest: IpAddr,
    protocol: u8,
    mut segment: Vec<u8>,
    checksum: Option<usize>,
) -> Vec<u8> {
    if let Some(offset) = checksum {
        let mut sum = match protocol {
            protocol::ICMP => checksum::of(&segment),
            _ => checksum::of_transport(source, dest, protocol, &segment),
        };
        if protocol == protocol::UDP && sum == 0 {
            sum = 0xffff;
        }
        segment[offset..offset + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let mut bytes = header(source, dest, protocol, segment.len());
    bytes.extend(segment);
    bytes
}

fn ports(source: End, dest: End) -> Vec<u8> {
    [source.1.to_be_bytes(), dest.1.to_be_bytes()].concat()
}

fn header(source: IpAddr, dest: IpAddr, protocol: u8, payload: usize) -> Vec<u8> {
    match (source, dest) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            let length = u16::try_from(20 + payload).expect("a packet fits 65,535 bytes");
            let [high, low] = length.to_be_bytes();
            let mut header = vec![0x45, 0, high, low, 0, 1, 0x40, 0, HOPS, protocol, 0, 0];
            header.extend(source.octets());
            header.extend(dest.octets());
            let sum = checksum::of(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header
        }
        (IpAddr::V6(source), IpAddr::V6(dest)) => {
            let length = u16::try_from(payload).expect("a payload fits 65,535 bytes");
            let [high, low] = length.to_be_bytes();
            let mut header = vec![0x60, 0, 0, 0, high, low, protocol, HOPS];
            header.extend(source.octets());
            header.extend(dest.octets());
            header
        }
        _ => panic!("{source} and {dest} are of different families"),
    }
}
