//! TCP MSS clamping of inner connections.
//!
//! An inner packet of 1500 bytes does not fit into a datagram of 1500 and is fragmented: twice the
//! headers, twice the work. So the SYNs of inner connections are lowered to the segment size that
//! fits unfragmented. Other packets may be as large as the device permits.

use braid_packet::{Fragment, Ip, checksum, option_kind, protocol, tcp_options};

const SYN: u8 = 0x02;

/// Least segment size: a smaller one points to another problem (RFC 9293 §3.7.1).
const MIN_MSS: usize = 536;

/// Lowers the MSS of a SYN, so that packets of the connection are at most `whole` bytes long. Other
/// packets stay unchanged.
pub(super) fn clamp_mss(packet: &mut [u8], whole: impl FnOnce() -> usize) {
    if !may_be_syn(packet) {
        return;
    }
    let Ok(ip) = Ip::parse(packet) else {
        return;
    };
    if ip.protocol != protocol::TCP || ip.fragment != Fragment::Whole {
        return;
    }
    let start = ip.header;
    let Some(option) = find(packet, start) else {
        return;
    };
    let most = whole().saturating_sub(start + 20).max(MIN_MSS);
    let named = u16::from_be_bytes([packet[option], packet[option + 1]]);
    let Some(lower) = u16::try_from(most).ok().filter(|most| *most < named) else {
        return;
    };
    let sum = start + 16;
    let [high, low] = lower.to_be_bytes();
    // An option may begin at an odd offset; the checksum covers words at even offsets.
    if (option - start).is_multiple_of(2) {
        checksum::replace_word(packet, option, lower, sum);
    } else if let Some(after) = packet.get(option + 2).copied() {
        let first = u16::from_be_bytes([packet[option - 1], high]);
        checksum::replace_word(packet, option - 1, first, sum);
        let second = u16::from_be_bytes([low, after]);
        checksum::replace_word(packet, option + 1, second, sum);
    }
}

/// Fast check: returns false for most packets that are not SYNs, true if a closer look is needed.
fn may_be_syn(packet: &[u8]) -> bool {
    let flags = match packet.first() {
        Some(0x45) => (packet.get(9) == Some(&protocol::TCP)).then_some(20 + 13),
        Some(first) if first >> 4 == 4 => return true,
        Some(_) => match packet.get(6) {
            Some(&protocol::TCP) => Some(40 + 13),
            Some(&(protocol::UDP | protocol::ICMPV6)) => None,
            _ => return true,
        },
        None => None,
    };
    flags.is_some_and(|at| packet.get(at).is_some_and(|flags| flags & SYN != 0))
}

/// Offset of the MSS in the SYN whose TCP header begins at `start`.
fn find(packet: &[u8], start: usize) -> Option<usize> {
    let header = packet.get(start..)?;
    if *header.get(13)? & SYN == 0 {
        return None;
    }
    let size = usize::from(header[12] >> 4) * 4;
    let is_mss = |kind, value: &[u8]| kind == option_kind::MSS && value.len() == 2;
    tcp_options(&header[..size.min(header.len())])
        .find(|(kind, _, value)| is_mss(*kind, value))
        .map(|(_, at, _)| start + at)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use braid_packet::{Packet, build};

    const ACK: u8 = 0x10;

    /// A SYN with these options and a valid checksum.
    fn syn(v6: bool, flags: u8, options: &[u8]) -> Vec<u8> {
        let ends: [IpAddr; 2] = match v6 {
            true => ["2001:db8::1", "2001:db8::2"].map(|a| a.parse().expect("an address")),
            false => ["192.0.2.1", "192.0.2.2"].map(|a| a.parse().expect("an address")),
        };
        let mut packet = build::tcp((ends[0], 1000), (ends[1], 443), flags, options);
        let start = if v6 { 40 } else { 20 };
        packet[start + 12] = ((20 + options.len() / 4 * 4) as u8 / 4) << 4;
        packet[start + 16..start + 18].fill(0);
        let sum = checksum::of_transport(ends[0], ends[1], protocol::TCP, &packet[start..]);
        packet[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
        assert!(Packet::parse(&packet).expect("whole").checksums_hold());
        packet
    }

    fn named(packet: &[u8]) -> Option<u16> {
        let start = if packet[0] >> 4 == 6 { 40 } else { 20 };
        let at = find(packet, start)?;
        Some(u16::from_be_bytes([packet[at], packet[at + 1]]))
    }

    #[test]
    fn a_syn_names_what_goes_whole_and_its_checksum_holds() {
        let plain = [2, 4, 0x05, 0xb4, 1, 3, 3, 7];
        let odd = [1, 2, 4, 0x05, 0xb4, 3, 3, 7];
        for (v6, expected) in [(false, 1400), (true, 1380)] {
            for options in [plain, odd] {
                for flags in [SYN, SYN | ACK] {
                    let mut packet = syn(v6, flags, &options);
                    clamp_mss(&mut packet, || 1440);
                    assert_eq!(named(&packet), Some(expected));
                    assert!(Packet::parse(&packet).expect("whole").checksums_hold());
                }
            }
        }
    }

    #[test]
    fn small_segments_and_other_packets_stay_unchanged() {
        let small = [2, 4, 0x02, 0x18];
        let large = [2, 4, 0x05, 0xb4];
        for packet in [
            syn(false, SYN, &small),
            syn(false, ACK, &large),
            syn(false, SYN, &[1, 1, 1, 0]),
            syn(true, SYN, &[2, 3, 1, 1]),
            syn(true, SYN, &[8, 0, 8, 0]),
            build::udp(
                ("192.0.2.1".parse().expect("an address"), 2),
                ("192.0.2.2".parse().expect("an address"), 2),
                &[2; 40],
            ),
        ] {
            let mut clamped = packet.clone();
            clamp_mss(&mut clamped, || 1440);
            assert_eq!(clamped, packet);
        }
    }

    #[test]
    fn the_mss_is_never_clamped_below_its_minimum() {
        let mut packet = syn(false, SYN, &[2, 4, 0x05, 0xb4]);
        clamp_mss(&mut packet, || 100);
        assert_eq!(named(&packet), Some(536));
    }

    proptest::proptest! {
        #[test]
        fn no_packet_is_too_strange(mut packet in proptest::collection::vec(proptest::num::u8::ANY, 0..100), v4: bool) {
            if let Some(first) = packet.first_mut() {
                *first = if v4 { 0x45 } else { 0x60 };
            }
            let len = packet.len();
            clamp_mss(&mut packet, || 1440);
            assert_eq!(packet.len(), len);
        }
    }
}
