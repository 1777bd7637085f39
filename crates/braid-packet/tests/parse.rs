//! The parsers on arbitrary bytes: they never panic, never read beyond the end, and agree with the
//! builders.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use braid_packet::{Packet, Transport, build, checksum};
use proptest::prelude::*;

fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(a, b)| (Ipv4Addr::from(a).into(), Ipv4Addr::from(b).into())),
        any::<(u128, u128)>()
            .prop_map(|(a, b)| (Ipv6Addr::from(a).into(), Ipv6Addr::from(b).into())),
    ]
}

fn packets() -> impl Strategy<Value = Vec<u8>> {
    let payload = proptest::collection::vec(any::<u8>(), 0..64);
    (addresses(), any::<(u16, u16, u8)>(), payload, 0..3).prop_map(
        |((source, dest), (from, to, flags), payload, kind)| match kind {
            0 => build::tcp((source, from), (dest, to), flags, &payload),
            1 => build::udp((source, from), (dest, to), &payload),
            _ => build::icmp(source, dest, flags, 0, from, &payload),
        },
    )
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        let _ = Packet::parse(&bytes).map(|packet| packet.checksums_hold());
    }

    /// Random bytes rarely get past the first byte; these look like IP.
    #[test]
    fn random_headers_never_panic(
        version in prop_oneof![Just(0x45_u8), Just(0x4f), Just(0x60)],
        mut bytes in proptest::collection::vec(any::<u8>(), 1..256),
        next in prop_oneof![Just(0_u8), Just(6), Just(17), Just(43), Just(44), Just(58), Just(60)],
    ) {
        bytes[0] = version;
        let length = bytes.len();
        for (at, byte) in [(6, next), (9, next), (40, next), (2, 0), (4, 0)] {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        // A plausible length, so that the following bytes are parsed too.
        for (at, value) in [(3, length), (5, length.saturating_sub(40))] {
            if let Some(place) = bytes.get_mut(at) {
                *place = value as u8;
            }
        }
        let _ = Packet::parse(&bytes).map(|packet| packet.checksums_hold());
    }

    #[test]
    fn what_is_built_is_read_back_and_sums_up(bytes in packets()) {
        let packet = Packet::parse(&bytes).expect("a built packet");
        prop_assert_eq!(packet.ip.length, bytes.len());
        prop_assert!(packet.checksums_hold());
        prop_assert!(packet.transport != Transport::Other);
    }

    #[test]
    fn every_truncation_is_an_error(bytes in packets()) {
        for length in 0..bytes.len() {
            prop_assert!(Packet::parse(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
        }
    }

    #[test]
    fn one_changed_byte_never_panics(bytes in packets(), at in any::<usize>(), to in any::<u8>()) {
        let mut bytes = bytes;
        let at = at % bytes.len();
        bytes[at] = to;
        let _ = Packet::parse(&bytes).map(|packet| packet.checksums_hold());
    }

    #[test]
    fn padding_behind_a_packet_is_ignored(bytes in packets(), padding in 0_usize..32) {
        let mut padded = bytes.clone();
        padded.extend(vec![0xa5; padding]);
        prop_assert_eq!(Packet::parse(&padded).expect("padded"), Packet::parse(&bytes).expect("bare"));
    }

    /// RFC 1624: the update equals a new computation.
    #[test]
    fn replacing_equals_summing_again(
        mut bytes in proptest::collection::vec(any::<u8>(), 2..128),
        at in any::<usize>(),
        new in any::<u16>(),
    ) {
        let at = at % (bytes.len() / 2) * 2;
        let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let before = checksum::of(&bytes);
        bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
        prop_assert!(checksum::same(checksum::replace(before, old, new), checksum::of(&bytes)));
    }
}
