//! The internet checksum (RFC 1071) and its incremental update (RFC 1624).

use std::net::IpAddr;

use crate::ip::half;

/// Returns the one's complement sum of 16-bit words, folded. An odd last byte counts as if a zero
/// followed.
pub fn sum(bytes: &[u8]) -> u16 {
    // The sum is independent of the byte order (RFC 1071 §2 (B)), so words of any size in the
    // machine's own order will do: several sums side by side, which the compiler turns into
    // vectors.
    let mut sums = [0u64; 8];
    let mut blocks = bytes.chunks_exact(32);
    for block in &mut blocks {
        for (sum, word) in sums.iter_mut().zip(block.chunks_exact(4)) {
            *sum += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
    let mut sum: u64 = sums
        .iter()
        .map(|sum| (sum & 0xffff_ffff) + (sum >> 32))
        .sum();
    let mut words = blocks.remainder().chunks_exact(2);
    for word in &mut words {
        sum += u64::from(u16::from_ne_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        sum += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    u16::from_be(fold(sum))
}

/// Returns the checksum of a header whose checksum field is zero.
pub fn of(bytes: &[u8]) -> u16 {
    !sum(bytes)
}

/// Returns the transport checksum over pseudo-header (RFC 9293 §3.1, RFC 8200 §8.1) and segment,
/// whose checksum field is zero. Addresses of different families have no pseudo-header; both are
/// then taken in their IPv6 form.
pub fn of_transport(source: IpAddr, dest: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let ends = match (source, dest) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            u64::from(sum(&source.octets())) + u64::from(sum(&dest.octets()))
        }
        _ => u64::from(sum(&v6(source))) + u64::from(sum(&v6(dest))),
    };
    let length = segment.len() as u64;
    !fold(ends + u64::from(protocol) + (length >> 16) + (length & 0xffff) + u64::from(sum(segment)))
}

/// Returns the checksum after one of its 16-bit words changed: RFC 1624 eq. 3, `~(~C + ~m + m')`.
pub fn replace(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

/// Replaces the 16-bit word at an even offset of what a checksum covers, and updates that checksum.
///
/// # Panics
/// If one of the offsets, `at` and `checksum_at`, is out of bounds.
pub fn replace_word(packet: &mut [u8], at: usize, word: u16, checksum_at: usize) {
    let before = half(packet, at);
    packet[at..at + 2].copy_from_slice(&word.to_be_bytes());
    let checksum = replace(half(packet, checksum_at), before, word);
    packet[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// Returns true if two checksums are equal: one's complement has two zeros.
pub fn same(a: u16, b: u16) -> bool {
    let plain = |value| if value == 0xffff { 0 } else { value };
    plain(a) == plain(b)
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded to 16 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_1071_section_3_example() {
        // "0001 f203 f4f5 f6f7": the sum is ddf2 (after the carry is added).
        assert_eq!(
            sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
            0xddf2
        );
    }

    #[test]
    fn sums_of_any_size_are_those_of_words_one_by_one() {
        let bytes: Vec<u8> = (0..3000u32)
            .map(|i| ((i * 7919) >> 3) as u8 | 0x80)
            .collect();
        for size in (0..200).chain(2900..3000) {
            let words = bytes[..size].chunks(2);
            let word = |w: &[u8]| u64::from(w[0]) << 8 | w.get(1).map_or(0, |b| u64::from(*b));
            assert_eq!(sum(&bytes[..size]), fold(words.map(word).sum()), "{size}");
        }
    }

    #[test]
    fn a_header_as_it_is_on_the_wire() {
        // 115 bytes of UDP from 192.168.0.1 to 192.168.0.199.
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0x00, 0x00, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(of(&header), 0xb861);
    }

    /// Values computed by another program, from the pseudo-headers of RFC 768, RFC 9293 §3.1 and
    /// RFC 8200 §8.1.
    #[test]
    fn segments_as_they_are_on_the_wire() {
        let v4 = ["192.0.2.1", "198.51.100.2"].map(|text| text.parse::<IpAddr>().unwrap());
        let v6 = ["2001:db8::1", "2001:db8:ffff::9"].map(|text| text.parse::<IpAddr>().unwrap());
        let datagram = b"\x13\x88\x00\x35\x00\x0d\x00\x00query";
        assert_eq!(of_transport(v4[0], v4[1], 17, datagram), 0xaff7);
        let syn = [
            0x9c, 0x40, 0x01, 0xbb, 0x01, 0x02, 0x03, 0x04, 0x00, 0x00, 0x00, 0x00, 0x50, 0x02,
            0xfa, 0xf0, 0x00, 0x00, 0x00, 0x00,
        ];
        assert_eq!(of_transport(v6[0], v6[1], 6, &syn), 0xb774);
        assert_eq!(of_transport(v4[0], v4[1], 17, &[0xfe; 60_000]), 0xcefb);
        // The upper-layer length has 32 bits.
        assert_eq!(of_transport(v6[0], v6[1], 17, &[0xfe; 70_000]), 0xd442);
    }

    #[test]
    fn rfc_1624_section_4_example() {
        // "HC = 0xDD2F, m = 0x5555, m' = 0x3285 … HC' = 0x0000" by eq. 3.
        assert_eq!(replace(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn a_word_is_replaced_with_its_checksum() {
        let mut header = [0x12, 0x34, 0, 0, 0x56, 0x78];
        let sum = of(&header);
        header[2..4].copy_from_slice(&sum.to_be_bytes());
        replace_word(&mut header, 4, 0xfff1, 2);
        assert_eq!(header[4..], [0xff, 0xf1]);
        assert_eq!(super::sum(&header), 0xffff);
    }

    #[test]
    fn an_odd_byte_is_padded_behind() {
        assert_eq!(sum(&[0x12]), 0x1200);
    }
}
