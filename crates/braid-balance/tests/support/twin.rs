//! The programs' twin: the same translation in plain Rust, with checksums computed afresh instead
//! of mended, so that a mistake in one is not repeated in the other.

use std::net::IpAddr;

use braid_packet::{Fragment, Packet, Transport, checksum};

/// The end of a packet that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Source,
    Dest,
}

/// `packet` with one end replaced by `to`, and its hop limit one less if it is `forwarded`.
pub fn translate(packet: &[u8], side: Side, to: (IpAddr, u16), forwarded: bool) -> Vec<u8> {
    let before = Packet::parse(packet).expect("a readable packet");
    let none = udp_without_checksum(&before, packet);
    let mut bytes = packet.to_vec();
    let (hops, address, size) = match (to.0, side) {
        (IpAddr::V4(_), Side::Source) => (8, 12, 4),
        (IpAddr::V4(_), Side::Dest) => (8, 16, 4),
        (IpAddr::V6(_), Side::Source) => (7, 8, 16),
        (IpAddr::V6(_), Side::Dest) => (7, 24, 16),
    };
    match to.0 {
        IpAddr::V4(to) => bytes[address..address + size].copy_from_slice(&to.octets()),
        IpAddr::V6(to) => bytes[address..address + size].copy_from_slice(&to.octets()),
    }
    bytes[hops] -= u8::from(forwarded);
    let port = match (before.transport, side) {
        (Transport::Icmp { .. }, _) => Some(4),
        (Transport::Other, _) => None,
        (_, Side::Source) => Some(0),
        (_, Side::Dest) => Some(2),
    };
    if let Some(offset) = port {
        let at = before.ip.header + offset;
        bytes[at..at + 2].copy_from_slice(&to.1.to_be_bytes());
    }
    if to.0.is_ipv4() {
        bytes[10..12].fill(0);
        let sum = checksum::of(&bytes[..before.ip.header]);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let after = Packet::parse(&bytes).expect("still readable");
    if let (Some(at), Some(mut sum), false) =
        (after.checksum_offset(), after.transport_checksum(), none)
    {
        if sum == 0 && matches!(after.transport, Transport::Udp { .. }) {
            sum = 0xffff;
        }
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

/// Returns true if two packets are equal, apart from the two representations of a zero checksum.
pub fn alike(a: &[u8], b: &[u8]) -> bool {
    let Ok(packet) = Packet::parse(a) else {
        return a == b;
    };
    let mut fields = Vec::from_iter(packet.checksum_offset());
    if packet.ip.source.is_ipv4() {
        fields.push(10);
    }
    if packet.ip.fragment != Fragment::Whole || a.len() != b.len() {
        return a == b;
    }
    let (mut a, mut b) = (a.to_vec(), b.to_vec());
    for at in fields {
        let word = |bytes: &[u8]| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        if checksum::same(word(&a), word(&b)) {
            a[at..at + 2].fill(0);
            b[at..at + 2].fill(0);
        }
    }
    a == b
}

fn udp_without_checksum(packet: &Packet<'_>, bytes: &[u8]) -> bool {
    let field = packet
        .checksum_offset()
        .map(|at| [bytes[at], bytes[at + 1]]);
    matches!(packet.transport, Transport::Udp { .. }) && field == Some([0, 0])
}
