//! Packets of inner QUIC flows.

use braid_multipath::quic_flows::{MIN_FULL_BYTES, QuicPacket};
use braid_packet::Ip;

const UDP_HEADER: usize = 8;

/// The bit of the first byte that a long header has (RFC 9000 §17.2).
const LONG_HEADER: u8 = 0x80;

/// Versions 1 (RFC 9000) and 2 (RFC 9369).
const VERSIONS: [[u8; 4]; 2] = [[0, 0, 0, 1], [0x6b, 0x33, 0x43, 0xcf]];

/// Parses a UDP packet to or from a port of QUIC. `max_whole` returns the length of the largest packet that a datagram of each link holds.
pub(super) fn parse(packet: &[u8], max_whole: impl FnOnce() -> usize) -> Option<QuicPacket> {
    let ip = Ip::parse(packet).ok()?;
    let payload = packet.get(ip.header + UDP_HEADER..)?;
    let (first, rest) = payload.split_first()?;
    let has_long_header = first & LONG_HEADER != 0;
    let version = rest.first_chunk::<4>();
    // Routers may fragment it.
    let is_free = ip.source.is_ipv4() && packet[6] & 0x40 == 0;
    Some(QuicPacket {
        bytes: packet.len(),
        fits: is_free || packet.len() < MIN_FULL_BYTES || packet.len() <= max_whole(),
        has_long_header,
        is_handshake: has_long_header && version.is_some_and(|version| VERSIONS.contains(version)),
    })
}

#[cfg(test)]
mod tests {
    use braid_packet::build;

    use super::*;

    fn packet(payload: &[u8]) -> Vec<u8> {
        let [from, to] = ["192.0.2.1", "10.0.0.1"].map(|at| at.parse().expect("an address"));
        build::udp((from, 443), (to, 50_000), payload)
    }

    fn read(payload: &[u8]) -> [bool; 2] {
        let read = parse(&packet(payload), || 1_400).expect("it is whole");
        [read.has_long_header, read.is_handshake]
    }

    #[test]
    fn handshakes_are_known_by_their_version() {
        assert_eq!(read(&[0xc0, 0, 0, 0, 1, 8]), [true, true]);
        // A greased bit (RFC 9287), and version 2.
        assert_eq!(read(&[0x90, 0x6b, 0x33, 0x43, 0xcf]), [true, true]);
        assert_eq!(read(&[0x40, 0, 0, 0, 1]), [false, false]);
        // RTP, and a packet that ends early.
        assert_eq!(read(&[0x80, 0x60, 0x12, 0x34, 0]), [true, false]);
        assert_eq!(read(&[0xc0, 0, 0]), [true, false]);
        assert_eq!(parse(&packet(&[]), || 1_400), None);
        assert_eq!(parse(&[], || 1_400), None);
    }

    #[test]
    fn a_packet_that_routers_may_fragment_fits_in_any_case() {
        let mut large = packet(&[0x40; 1_452]);
        large[6] &= !0x40;
        let read = |packet: &[u8]| parse(packet, || 1_400).map(|read| read.fits);
        assert_eq!(read(&large), Some(true));
        large[6] |= 0x40;
        assert_eq!(read(&large), Some(false));
        assert_eq!(read(&packet(&[0x40; 1_372])), Some(true));
    }
}
