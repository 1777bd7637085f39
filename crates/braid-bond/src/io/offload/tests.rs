//! Segmentation and coalescing are inverses, and only suitable packets are coalesced.

use std::io::IoSlice;
use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::io::tun::OffloadSupport;
use braid_packet::{Packet, Transport, build};

const ALL: OffloadSupport = OffloadSupport {
    tcp: true,
    udp: true,
};

/// A packet of a flow; `at` is the offset of its payload in the flow.
fn packet(v6: bool, tcp: bool, flow: u16, at: usize, size: usize, flags: u8) -> Vec<u8> {
    let ends: [IpAddr; 2] = match v6 {
        true => ["2001:db8::1", "2001:db8::2"].map(|a| a.parse().expect("an address")),
        false => ["192.0.2.1", "192.0.2.2"].map(|a| a.parse().expect("an address")),
    };
    let payload: Vec<u8> = (at..at + size).map(|at| ((at * 31) >> 2) as u8).collect();
    let (from, to) = ((ends[0], flow), (ends[1], 443));
    let mut packet = match tcp {
        true => build::tcp(from, to, flags, &payload),
        false => build::udp(from, to, &payload),
    };
    let ip = if v6 { 40 } else { 20 };
    if !v6 {
        packet[6] |= 0x40;
        write16(&mut packet, 10, 0);
        let sum = braid_packet::checksum::of(&packet[..20]);
        write16(&mut packet, 10, sum);
    }
    if tcp {
        write32(&mut packet, ip + tcp::SEQ, at as u32);
        write16(&mut packet, ip + tcp::CHECKSUM, 0);
        let (source, dest) = (ends[0], ends[1]);
        let sum = braid_packet::checksum::of_transport(source, dest, 6, &packet[ip..]);
        write16(&mut packet, ip + tcp::CHECKSUM, sum);
    }
    packet
}

/// Writes of the coalescer, as the kernel would receive them.
fn join(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut written = Vec::new();
    let mut write = |parts: &[IoSlice<'_>]| {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        written.push(bytes);
    };
    let mut join = Coalescer::new(ALL);
    for packet in packets {
        join.push(packet.clone(), &mut write);
    }
    join.flush(&mut write);
    written
}

/// Segments of a super-packet.
fn apart(mut written: Vec<u8>) -> Vec<Vec<u8>> {
    let (header, packet) = written.split_at_mut(VNET_HEADER);
    let header = VnetHeader::parse(header.first_chunk().expect("a header"));
    let mut packets = Vec::new();
    segment(header, packet, |packet| packets.push(packet.to_vec())).expect("it fits");
    packets
}

fn flow(packet: &[u8]) -> u16 {
    match Packet::parse(packet).expect("whole").transport {
        Transport::Tcp { source, .. } | Transport::Udp { source, .. } => source,
        other => panic!("{other:?}"),
    }
}

/// The packet without the IPv4 id, which the kernel counts by itself.
fn without_id(mut packet: Vec<u8>) -> Vec<u8> {
    if packet[0] >> 4 == 4 {
        write16(&mut packet, 4, 0);
        write16(&mut packet, 10, 0);
    }
    packet
}

proptest! {
    #[test]
    fn segmentation_undoes_coalescing(
        v6: bool,
        tcp: bool,
        packets in proptest::collection::vec((0u16..20, 1usize..5, 0u8..20), 1..120),
    ) {
        let mut at = [0; 20];
        let packets: Vec<Vec<u8>> = packets
            .into_iter()
            .map(|(flow, size, kind)| {
                let flags = match kind {
                    0 => tcp::ACK | tcp::FIN,
                    1 => tcp::ACK | tcp::PSH,
                    _ => tcp::ACK,
                };
                let size = if size == 4 { 1000 } else { size * 300 };
                let packet = packet(v6, tcp, flow, at[usize::from(flow)], size, flags);
                at[usize::from(flow)] += size;
                packet
            })
            .collect();
        let written = join(&packets);
        prop_assert!(written.len() <= packets.len());
        let mut back: Vec<Vec<u8>> = written.into_iter().flat_map(apart).collect();
        for packet in &back {
            prop_assert!(Packet::parse(packet).expect("whole").checksums_hold());
        }
        // Each flow keeps its order.
        let mut packets = packets;
        packets.sort_by_key(|packet| flow(packet));
        back.sort_by_key(|packet| flow(packet));
        let plain = |packets: Vec<Vec<u8>>| -> Vec<_> { packets.into_iter().map(without_id).collect() };
        prop_assert_eq!(plain(packets), plain(back));
    }

    #[test]
    fn segmentation_survives_any_virtio_header(
        header in any::<[u8; VNET_HEADER]>(),
        kind in prop_oneof![Just(GSO_NONE), Just(GSO_TCPV4), Just(GSO_TCPV6), Just(GSO_UDP_L4)],
        size in 0usize..3000,
        first in prop_oneof![Just(0x45u8), Just(0x60u8), any::<u8>()],
    ) {
        let mut header = header;
        header[1] = kind;
        let mut packet = vec![first; size];
        let mut out = 0;
        if segment(VnetHeader::parse(&header), &mut packet, |packet| out += packet.len()).is_ok() {
            prop_assert!(out >= size);
        }
    }
}

#[test]
fn a_bulk_transfer_is_one_write_and_its_end_is_pushed() {
    for (v6, tcp) in [(false, true), (true, true), (false, false), (true, false)] {
        let packets: Vec<_> = (0..30)
            .map(|number| {
                let last = number == 29;
                let flags = if last { tcp::ACK | tcp::PSH } else { tcp::ACK };
                let size = if last { 77 } else { 1400 };
                packet(v6, tcp, 9, number * 1400, size, flags)
            })
            .collect();
        let written = join(&packets);
        assert_eq!(written.len(), 1, "v6 {v6} tcp {tcp}");
        let back = apart(written[0].clone());
        let pushed = |packet: &Vec<u8>| {
            let parsed = Packet::parse(packet).expect("whole");
            matches!(parsed.transport, Transport::Tcp { flags, .. } if flags & tcp::PSH != 0)
        };
        assert_eq!(
            back.iter().filter(|packet| pushed(packet)).count(),
            usize::from(tcp)
        );
        assert_eq!(back.len(), 30);
    }
}

#[test]
fn a_packet_with_a_wrong_checksum_stays_alone_and_wrong() {
    for broken in 0..3 {
        let mut packets: Vec<_> = (0..3)
            .map(|number| packet(false, true, 9, number * 1000, 1000, tcp::ACK))
            .collect();
        packets[broken][500] ^= 1;
        let back = join(&packets).into_iter().flat_map(apart).map(without_id);
        let packets = packets.into_iter().map(without_id);
        assert!(back.eq(packets), "packet {broken} is wrong");
    }
}

#[test]
fn a_larger_packet_and_a_gap_begin_anew() {
    let sizes = [(0, 500), (500, 900), (2000, 900), (2900, 900)];
    let packets: Vec<_> = sizes
        .into_iter()
        .map(|(at, size)| packet(false, true, 9, at, size, tcp::ACK))
        .collect();
    let written = join(&packets);
    assert_eq!(written.len(), 3, "the last two are together");
    assert_eq!(written.into_iter().flat_map(apart).count(), 4);
}

#[test]
fn headers_that_are_written_are_read() {
    let header = VnetHeader {
        flags: 1,
        gso_type: 5,
        hdr_len: 48,
        gso_size: 1400,
        csum_start: 40,
        csum_offset: 6,
    };
    assert_eq!(VnetHeader::parse(&header.to_bytes()), header);
}
