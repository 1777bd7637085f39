//! Packets over layer-3 paths.

use super::*;
use crate::datapath::test_run::routing::{OUTER, ROUTES, routed};

/// Returns true if packets are equal, apart from the two notations of a zero checksum.
fn alike(one: &[u8], other: &[u8]) -> bool {
    let whole = |bytes: &[u8]| Packet::parse(bytes).is_ok_and(|packet| packet.checksums_hold());
    let differ = one.iter().zip(other).filter(|(one, other)| one != other);
    one.len() == other.len()
        && (one == other || (differ.count() <= 2 && whole(one) && whole(other)))
}

#[test]
fn addresses_go_out_and_come_back_as_the_twin_says() {
    let random = (
        0..2_usize,
        any::<[u64; 2]>(),
        any::<u8>(),
        proptest::collection::vec(any::<u8>(), 0..200),
    );
    let ends = || [false, true].map(|turned| routed(turned, TagAction::Forward));
    let test = |ends: &[Trial; 2], seen: &Seen, packets: (usize, [u64; 2], u8, Vec<u8>)| {
        let [local, remote] = ends;
        let (family, hosts, kind, payload) = packets;
        let sent = packet(INNER[family], hosts, kind, &payload);
        let out = local.run("braid_route_out", &framed(&sent));
        prop_assert_eq!(out.verdict, Verdict::Sent);
        seen.borrow_mut().insert(out.reason);
        let twin = packet(OUTER[family], hosts, kind, &payload);
        prop_assert!(
            alike(&out.frame[ETHERNET..], &twin),
            "{:x?}\n{:x?}",
            &out.frame[ETHERNET..],
            twin
        );
        let back = remote.run("braid_route_in", &framed(&out.frame[ETHERNET..]));
        prop_assert_eq!((back.verdict, back.reason), (Verdict::Sent, "forwarded"));
        prop_assert!(alike(&back.frame[ETHERNET..], &sent));
        Ok(())
    };
    try_frames(ROUTES, &random, &["split", "sticky"], ends, test);
}

/// An IPv4 or IPv6 packet between the prefixes of hosts or of paths, or a router's error about one, with some bytes changed
/// and some missing.
fn mutilated() -> impl Strategy<Value = Vec<u8>> {
    let packets = (0..2_usize, any::<bool>(), any::<u8>(), 0..3_u8);
    let changes = proptest::collection::vec((0..90_usize, any::<u8>()), 0..4);
    let cut = prop_oneof![Just(0), 0..120_usize];
    (packets, changes, cut).prop_map(|((family, is_outer, kind, form), changes, cut)| {
        let prefixes = if is_outer { OUTER } else { INNER };
        let packet = packet(prefixes[family], [7, 9], kind, &[0; 40]);
        let [host, router] = [prefixes[family][0], ["172.16.0.2", "fd99::2"][family]].map(ip);
        let mut frame = framed(&match form {
            0 => build::port_unreachable(router, host, &packet),
            _ => packet,
        });
        mutilate(&mut frame, changes, cut);
        frame
    })
}

/// Returns if the checksums of a packet hold; none if it is not one that can be read.
fn is_whole(frame: &[u8]) -> Option<bool> {
    let packet = Packet::parse(&frame[ETHERNET..]).ok()?;
    Some(packet.checksums_hold())
}

/// Spans of the addresses of a frame, each with the length of the prefixes that paths replace, and its family.
fn addresses(frame: &[u8]) -> ([usize; 2], usize, usize) {
    match protocol_of(frame) {
        IPV6 => ([22, 38], 8, 1),
        _ => ([26, 30], 3, 0),
    }
}

/// The frame with the prefixes of `to` in the place of those of `from`.
fn translated(frame: &[u8], from: [[&str; 2]; 2], to: [[&str; 2]; 2]) -> Vec<u8> {
    let (places, length, family) = addresses(frame);
    let prefix = |text: &str| match ip(text) {
        IpAddr::V4(v4) => v4.octets()[..length].to_vec(),
        IpAddr::V6(v6) => v6.octets()[..length].to_vec(),
    };
    let mut twin = frame.to_vec();
    for at in places {
        let old = &frame[at..at + length];
        if let Some(which) = (0..2).find(|which| prefix(from[family][*which]) == old) {
            twin[at..at + length].copy_from_slice(&prefix(to[family][which]));
        }
    }
    twin
}

/// Sets checksums to zero: that of IPv4, and the one that covers the addresses.
fn without_checksums(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let packet = &frame[ETHERNET..];
    let (header, protocol, is_later) = match protocol_of(&frame) {
        IPV6 => (40, packet[6], false),
        _ => {
            let is_later = number(packet, 6) & 0x1fff != 0;
            (4 * usize::from(packet[0] & 15), packet[9], is_later)
        }
    };
    let place = match protocol {
        6 => Some(16),
        17 => Some(6),
        58 if header == 40 => Some(2),
        _ => None,
    };
    if protocol_of(&frame) == IPV4 {
        frame[ETHERNET + 10..ETHERNET + 12].fill(0);
    }
    if let Some(place) = place.filter(|_| !is_later)
        && let Some(sum) = frame.get_mut(ETHERNET + header + place..ETHERNET + header + place + 2)
    {
        sum.fill(0);
    }
    frame
}

#[test]
fn mutilated_packets_keep_all_but_their_prefixes() {
    let ends = || [false, true].map(|turned| routed(turned, TagAction::Resequence));
    let test = |ends: &[Trial; 2], seen: &Seen, frame: Vec<u8>| {
        for (program, from, to) in [
            ("braid_route_out", INNER, OUTER),
            ("braid_route_in", OUTER, INNER),
            ("braid_route_ord", INNER, INNER),
        ] {
            for trial in ends {
                let out = trial.run(program, &frame);
                seen.borrow_mut().insert(out.reason);
                prop_assert_eq!(out.frame.len(), frame.len(), "{} {}", program, out.reason);
                let is_as_it_came = out.reason == "no_l3_path"
                    || program != "braid_route_in" && out.verdict != Verdict::Sent;
                if is_as_it_came {
                    prop_assert_eq!(&out.frame, &frame, "{} {}", program, out.reason);
                    continue;
                }
                // A probe is returned, in an error there is a packet, and a packet that is dropped may be half rewritten.
                if !["probe", "error", "rewrite_failed"].contains(&out.reason) {
                    let twin = translated(&frame, from, to);
                    prop_assert_eq!(without_checksums(&out.frame), without_checksums(&twin));
                }
                // Neither is a right checksum made wrong, nor a wrong one right.
                if out.reason != "rewrite_failed" {
                    prop_assert_eq!(is_whole(&out.frame), is_whole(&frame), "{}", out.reason);
                }
            }
        }
        Ok(())
    };
    let exits = [
        "split",
        "sticky",
        "forwarded",
        "to_resequencer",
        "error",
        "no_l3_path",
        "rewrite_failed",
        "resequenced",
    ];
    try_frames(ROUTES, &mutilated(), &exits, ends, test);
}
