//! Packets from a wire.

use std::net::IpAddr;

use braid_packet::{Fragment, Packet, Transport, checksum, protocol};

/// All parsed parts lie inside the bytes. A packet with correct checksums keeps them, bit for bit,
/// after its source was translated and translated back.
pub fn packet(data: &[u8]) {
    let Ok(packet) = Packet::parse(data) else {
        return;
    };
    let ip = packet.ip;
    assert!(ip.header <= ip.length && ip.length <= data.len(), "{ip:?}");
    assert_eq!(packet.segment(), &data[ip.header..ip.length]);
    let unpadded = Packet::parse(&data[..ip.length]);
    assert_eq!(unpadded, Ok(packet), "padding means nothing");
    if let Transport::Tcp { header, .. } = packet.transport {
        assert!(header <= packet.segment().len());
    }
    if let Some(offset) = packet.checksum_offset() {
        assert!(offset + 2 <= ip.length, "{packet:?}");
    }
    translate(&data[..ip.length]);
}

fn translate(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    mend(&mut bytes);
    let packet = Packet::parse(&bytes).expect("checksums change no length");
    assert!(packet.checksums_hold(), "{packet:?}");
    let (at, length) = match packet.ip.source {
        IpAddr::V4(_) => (12, 4),
        IpAddr::V6(_) => (8, 16),
    };
    let own = bytes[at..at + length].to_vec();
    let other: Vec<u8> = own.iter().map(|byte| byte.wrapping_mul(3) ^ 0x5a).collect();

    let mut translated = bytes.clone();
    readdress(&mut translated, at, &other);
    let seen = Packet::parse(&translated).expect("an address changes no length");
    assert!(seen.checksums_hold(), "{seen:?} was {packet:?}");
    readdress(&mut translated, at, &own);
    let back = Packet::parse(&translated).expect("an address changes no length");
    assert!(back.checksums_hold(), "{back:?}");
    // One's complement has two zeros, so only what checksums cover must be the same.
    blank(&mut translated);
    blank(&mut bytes);
    assert_eq!(translated, bytes);
}

/// Writes correct checksums.
fn mend(bytes: &mut [u8]) {
    let packet = Packet::parse(bytes).expect("it was read before");
    let (ip, field) = (packet.ip, packet.checksum_offset());
    if let (Some(at), Some(right)) = (field, packet.transport_checksum()) {
        // RFC 768: a computed zero is sent as all ones.
        let right = match right {
            0 if ip.protocol == protocol::UDP => 0xffff,
            right => right,
        };
        put(bytes, at, right);
    }
    if ip.source.is_ipv4() {
        put(bytes, 10, 0);
        let right = checksum::of(&bytes[..ip.header]);
        put(bytes, 10, right);
    }
}

/// Changes the address at `at`, and the checksums that cover it word by word.
fn readdress(bytes: &mut [u8], at: usize, address: &[u8]) {
    let packet = Packet::parse(bytes).expect("it was read before");
    let ip = packet.ip;
    let covered = ip.protocol != protocol::ICMP && ip.fragment == Fragment::Whole;
    let transport = packet.checksum_offset().filter(|_| covered);
    let header = ip.source.is_ipv4().then_some(10);
    for (offset, new) in (at..).step_by(2).zip(address.chunks_exact(2)) {
        let (old, new) = (half(bytes, offset), u16::from_be_bytes([new[0], new[1]]));
        for field in header.into_iter().chain(transport) {
            let changed = checksum::replace(half(bytes, field), old, new);
            put(bytes, field, changed);
        }
        put(bytes, offset, new);
    }
    if let Some(field) = transport.filter(|_| ip.protocol == protocol::UDP)
        && half(bytes, field) == 0
    {
        put(bytes, field, 0xffff);
    }
}

/// Zeroes the checksums.
fn blank(bytes: &mut [u8]) {
    let packet = Packet::parse(bytes).expect("it was read before");
    let header = packet.ip.source.is_ipv4().then_some(10);
    let fields = header.into_iter().chain(packet.checksum_offset());
    fields
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|at| put(bytes, at, 0));
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
