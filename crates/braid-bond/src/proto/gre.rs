//! The cleartext encapsulation, for trusted networks: unencrypted frames in GRE (RFC 2784) with key
//! and sequence number (RFC 2890).
//!
//! ```text
//! 0      0011 0000 0000 0000      key and sequence are present, version 0
//! 2..3   88 b5                    "local experimental" (IEEE 802): frames have no EtherType
//! 4..7   key                      010 lllll · receiver's session index 24
//! 8..11  sequence                 link packet number, lowest 32 bits
//! 12..   stamp 24 (4 µs) · frames
//! ```
//! Key and sequence are the first eight bytes of a sealed packet, so a link has one space of packet
//! numbers for both encapsulations.

use super::packet::{HEADER, Header, STAMP};

/// GRE's IP protocol number.
pub const PROTOCOL: u8 = 47;

/// Flags, version and protocol type.
const FIXED: [u8; 4] = [0x30, 0x00, 0x88, 0xb5];

/// Bytes before the stamp.
pub const GRE_HEADER: usize = FIXED.len() + HEADER;

/// Bytes of a UDP header, which a GRE packet lacks.
pub const UDP_HEADER: usize = 8;

/// Writes the GRE header of a packet.
pub fn begin(header: Header, out: &mut Vec<u8>) {
    out.extend_from_slice(&FIXED);
    out.extend_from_slice(&header.to_bytes());
}

/// Returns true if bytes that this code has written are a GRE packet; a datagram never has the same
/// first byte.
#[must_use]
pub fn is_gre(packet: &[u8]) -> bool {
    packet.starts_with(&FIXED)
}

/// Parses a packet into its header, the bits of its stamp, and its frames. None if it is not a
/// tunnel's packet, or has no frame.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<(Header, u32, &[u8])> {
    let rest = packet.strip_prefix(&FIXED)?;
    let (header, rest) = rest.split_first_chunk::<HEADER>()?;
    let ([a, b, c], frames) = rest.split_first_chunk::<STAMP>()?;
    let header = Header::parse(header).filter(|_| !frames.is_empty())?;
    Some((header, u32::from_be_bytes([0, *a, *b, *c]), frames))
}

#[cfg(test)]
mod tests {
    use super::super::packet::SessionIndex;
    use super::*;
    use braid_multipath::LinkId;

    #[test]
    fn a_packet_is_what_rfc_2890_says_and_comes_back() {
        let receiver = SessionIndex::new([1, 2, 3]).expect("not zero");
        let (link, number) = (LinkId(5), 0x0a0b_0c0d);
        let header = Header {
            link,
            receiver,
            number,
        };
        let mut packet = Vec::new();
        begin(header, &mut packet);
        let key_and_sequence = [0x45, 1, 2, 3, 0x0a, 0x0b, 0x0c, 0x0d];
        assert_eq!(packet[..4], [0x30, 0x00, 0x88, 0xb5]);
        assert_eq!(packet[4..], key_and_sequence);
        packet.extend_from_slice(&[0, 0, 9]);
        assert_eq!(parse(&packet), None, "no frame");
        packet.push(1);
        assert_eq!(parse(&packet), Some((header, 9, &[1][..])));
        assert!(is_gre(&packet));
        for cut in 0..packet.len() {
            assert_eq!(parse(&packet[..cut]), None, "{cut} bytes");
        }
        // A checksum flag, routing, another version, another protocol, no data packet's first byte.
        for (at, bit) in [(0, 0x80), (0, 0x40), (1, 1), (3, 1), (4, 0x20)] {
            let mut other = packet.clone();
            other[at] ^= bit;
            assert_eq!(parse(&other), None, "byte {at}");
        }
    }
}
