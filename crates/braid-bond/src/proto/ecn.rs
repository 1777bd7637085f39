//! Congestion marks in inner packets.
//!
//! The tunnel's own queue marks a packet instead of dropping it if the inner header says that its
//! ends support ECN (RFC 3168 §5). The mark is in the inner header, so it reaches the receiver
//! whatever happens to the outer one.

use super::header_compression;
use braid_packet::checksum;

const ECN: u8 = 0b11;
const NOT_ECT: u8 = 0b00;

/// Marks an inner packet with CE. Returns true if the packet can carry the mark.
pub fn mark(packet: &mut [u8]) -> bool {
    match packet.first().map(|first| first >> 4) {
        Some(4) if packet.len() >= 20 => mark_v4(packet),
        Some(6) if packet.len() >= 40 => mark_v6(packet),
        Some(_) if header_compression::is_compressed(packet) => header_compression::mark(packet),
        _ => false,
    }
}

fn mark_v4(packet: &mut [u8]) -> bool {
    if packet[1] & ECN == NOT_ECT {
        return false;
    }
    let marked = u16::from_be_bytes([packet[0], packet[1] | ECN]);
    checksum::replace_word(packet, 0, marked, 10);
    true
}

/// The traffic class is in the lower half of byte 0 and the upper half of byte 1; ECN is bits 4 and
/// 5 of byte 1.
fn mark_v6(packet: &mut [u8]) -> bool {
    if packet[1] >> 4 & ECN == NOT_ECT {
        return false;
    }
    packet[1] |= ECN << 4;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_packet::{Packet, build};

    fn packets(ecn: u8) -> [Vec<u8>; 2] {
        let end = |address: &str| (address.parse().expect("an address"), 9);
        let mut v4 = build::udp(end("192.0.2.1"), end("192.0.2.2"), b"payload");
        v4[1] = ecn;
        let sum = checksum::replace(
            u16::from_be_bytes([v4[10], v4[11]]),
            0x4500,
            0x4500 | u16::from(ecn),
        );
        v4[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut v6 = build::udp(end("2001:db8::1"), end("2001:db8::2"), b"payload");
        v6[1] = ecn << 4;
        [v4, v6]
    }

    #[test]
    fn ecn_capable_packets_are_marked_and_their_checksums_hold() {
        for ecn in 0..4 {
            for packet in packets(ecn) {
                let mut marked = packet.clone();
                assert_eq!(mark(&mut marked), ecn != 0, "{packet:02x?}");
                let parsed = Packet::parse(&marked).expect("well formed");
                assert!(parsed.checksums_hold(), "{ecn}");
                assert_eq!(marked == packet, ecn == 0 || ecn == 3);
            }
        }
        assert!(!mark(&mut []) && !mark(&mut [0x45, 3]) && !mark(&mut [0x70; 60]));
    }
}
