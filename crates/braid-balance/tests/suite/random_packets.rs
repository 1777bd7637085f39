//! The programs on packets that nobody would send: random ones against the twin, and mutilated
//! ones of every kind, which must have exactly one known exit and leave no trace.

use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use braid_balance::KernelTime;
use braid_packet::{Packet, Transport, build, protocol};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::support::probe::{Outcome, Probe, Verdict};
use crate::support::twin::{Side, alike, translate};
use crate::support::world::{OUTSIDE, SERVER_V4, SERVER_V6};

const INNER: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 8)),
    IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 1, 0x6272, 0, 0, 0, 8)),
];
const SERVERS: [IpAddr; 2] = [SERVER_V4, SERVER_V6];
const SYN: u8 = 2;
const ACK: u8 = 16;

/// Number of random packets, and of mutations of known ones.
const RANDOM: u32 = 600;
const MUTATIONS: u32 = 1500;

/// Tries this many cases with new programs and maps, and again for as many seconds as
/// `BPF_FUZZ_SECONDS` says (`make fuzz`).
fn try_cases<S: Strategy>(
    cases: u32,
    strategy: &S,
    test: impl Fn(&Probe, S::Value) -> Result<(), TestCaseError>,
) {
    let seconds = env::var("BPF_FUZZ_SECONDS").map_or(0, |text| text.parse().expect("seconds"));
    let (began, mut tried) = (Instant::now(), 0);
    while tried == 0 || began.elapsed() < Duration::from_secs(seconds) {
        let probe = Probe::new();
        let mut runner = TestRunner::new(Config {
            cases,
            failure_persistence: None,
            ..Config::default()
        });
        runner
            .run(strategy, |value| test(&probe, value))
            .unwrap_or_else(|error| panic!("{error}"));
        assert_whole(&probe);
        tried += u64::from(cases);
    }
    if seconds > 0 {
        eprintln!("stat::number_of_executed_units: {tried}");
    }
}

/// An outbound packet that can be translated.
fn outbound() -> impl Strategy<Value = Vec<u8>> {
    let remote = prop_oneof![
        // Global unicast only: 1.0.0.0–126.255.255.255 and 2000::/3.
        (0x0100_0000_u32..0x7f00_0000).prop_map(|a| (0, IpAddr::V4(a.into()))),
        any::<u128>().prop_map(|a| (1, IpAddr::V6(((a >> 3) | (1 << 125)).into()))),
    ];
    let payload = proptest::collection::vec(any::<u8>(), 0..200);
    (remote, 1_u16.., 1_u16.., payload, 0..4).prop_map(
        |((family, remote), from, to, payload, kind)| {
            let inner = INNER[family];
            match kind {
                0 => build::tcp((inner, from), (remote, to), SYN, &payload),
                1 => build::udp((inner, from), (remote, to), &payload),
                2 => {
                    let mut packet = build::udp((inner, from), (remote, to), &payload);
                    if family == 0 {
                        packet[26..28].fill(0);
                    }
                    packet
                }
                _ => {
                    let echo = if family == 0 { 8 } else { 128 };
                    build::icmp(inner, remote, echo, 0, from, &payload)
                }
            }
        },
    )
}

fn ends(packet: &[u8]) -> (Packet<'_>, u16, u16) {
    let packet = Packet::parse(packet).expect("readable");
    let (source, dest) = match packet.transport {
        Transport::Tcp { source, dest, .. } | Transport::Udp { source, dest } => (source, dest),
        Transport::Icmp { id, .. } => (id, id),
        Transport::Other => panic!("nothing to translate"),
    };
    (packet, source, dest)
}

/// Returns the answer of the remote end.
fn reply(sent: &[u8]) -> Vec<u8> {
    let (packet, source, dest) = ends(sent);
    let (local, peer) = (packet.ip.source, packet.ip.dest);
    match packet.transport {
        Transport::Tcp { .. } => build::tcp((peer, dest), (local, source), SYN | ACK, b"hello"),
        Transport::Udp { .. } => build::udp((peer, dest), (local, source), b"hello"),
        _ => build::icmp(
            peer,
            local,
            if local.is_ipv4() { 0 } else { 129 },
            0,
            source,
            b"hello",
        ),
    }
}

#[test]
fn random_packets_leave_and_return_as_the_twin_says() {
    let test = |probe: &Probe, packet: Vec<u8>| {
        let (before, port, _) = ends(&packet);
        let sent = probe.out(&packet);
        prop_assert_eq!(sent.verdict, Verdict::Sent);
        let (after, outer_port, _) = ends(&sent.packet);
        let twin = translate(&packet, Side::Source, (after.ip.source, outer_port), false);
        prop_assert!(alike(&sent.packet, &twin), "{:x?}\n{twin:x?}", sent.packet);

        let uplink = OUTSIDE
            .iter()
            .position(|ends| ends.contains(&after.ip.source));
        let back = reply(&sent.packet);
        let delivered = probe.back(uplink.expect("an outer address"), &back);
        prop_assert_eq!(delivered.reason, "in_stack");
        let twin = translate(&back, Side::Dest, (before.ip.source, port), false);
        prop_assert!(
            alike(&delivered.packet, &twin),
            "{:x?}\n{twin:x?}",
            delivered.packet
        );
        Ok(())
    };
    try_cases(RANDOM, &outbound(), test);
}

/// Asserts that every mapping has both halves: a sweep finds nothing to expire or repair.
fn assert_whole(probe: &Probe) {
    let report = probe
        .datapath
        .borrow_mut()
        .sweep(KernelTime::from_nanos(0))
        .expect("a sweep");
    assert_eq!((report.expired, report.repaired), (0, 0));
}

/// One packet of every kind that the parsers know.
fn specimens() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (family, (inner, server)) in INNER.into_iter().zip(SERVERS).enumerate() {
        let outer = OUTSIDE[0][family];
        for (local, peer) in [(inner, server), (server, outer)] {
            all.push(build::tcp((local, 80), (peer, 1234), ACK, b"data"));
            all.push(build::udp((local, 443), (peer, 1234), b"data"));
            for kind in [0, 1, 3, 8, 11, 128, 129] {
                let quoted = build::udp((outer, 1234), (server, 53), b"quoted");
                all.push(build::icmp(local, peer, kind, 0, 7, &quoted));
            }
            all.push(build::packet(local, peer, 47, vec![0; 16], None));
            if family == 1 {
                all.extend(extended(local, peer));
            } else {
                for place in [0x20_u8, 0x00] {
                    let mut fragment = build::udp((local, 1), (peer, 2), b"fragment");
                    fragment[6] = place;
                    fragment[7] = u8::from(place == 0);
                    all.push(fragment);
                }
            }
        }
    }
    all
}

/// IPv6 with extension headers: one, several, and fragments.
fn extended(local: IpAddr, peer: IpAddr) -> Vec<Vec<u8>> {
    let udp = build::udp((local, 1), (peer, 2), b"inside")[40..].to_vec();
    let chain = |headers: &[[u8; 8]]| [headers.concat(), udp.clone()].concat();
    let options = |next| [next, 0, 1, 4, 0, 0, 0, 0];
    let fragment = |offset| [protocol::UDP, 0, 0, offset, 1, 2, 3, 4];
    [
        (0, chain(&[options(protocol::UDP)])),
        (
            0,
            chain(&[options(60), options(43), options(protocol::UDP)]),
        ),
        (44, chain(&[fragment(1)])),
        (44, chain(&[fragment(9)])),
        (0, chain(&[options(44), fragment(1)])),
    ]
    .map(|(first, segment)| build::packet(local, peer, first, segment, None))
    .into()
}

/// Every way in, for one packet.
fn everywhere(probe: &Probe, packet: &[u8]) -> [Outcome; 4] {
    [
        probe.out(packet),
        probe.forwarded(packet),
        probe.back(0, packet),
        probe.lan(packet),
    ]
}

#[test]
fn every_truncation_is_refused_and_leaves_no_flow() {
    let probe = Probe::new();
    for packet in specimens() {
        for length in (1..packet.len()).filter(|length| Probe::takes(&packet[..*length])) {
            for outcome in everywhere(&probe, &packet[..length]) {
                assert!(
                    outcome.reason.ends_with("_malformed"),
                    "{length} of {}: {}",
                    packet.len(),
                    outcome.reason
                );
            }
        }
    }
    assert_eq!(probe.datapath.borrow().flows().expect("flows").len(), 0);
}

#[test]
fn mutilated_packets_have_one_known_exit() {
    let specimens = specimens();
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let mutation = (
        any::<prop::sample::Index>(),
        proptest::collection::vec(change, 1..4),
        proptest::option::of(any::<prop::sample::Index>()),
    );
    // The test does not know the exit. The probe asserts for every packet that there is exactly one,
    // of the kind that its verdict says.
    let test = |probe: &Probe, (which, changes, cut): (prop::sample::Index, Vec<_>, Option<_>)| {
        let mut packet = which.get(&specimens).clone();
        for (at, to) in changes {
            let at: prop::sample::Index = at;
            // The first bytes hold the lengths, protocols and offsets that can lie.
            let reach = packet.len().min(64);
            packet[at.index(reach)] = to;
        }
        if let Some(cut) = cut {
            let cut: prop::sample::Index = cut;
            packet.truncate(1 + cut.index(packet.len() - 1));
        }
        if Probe::takes(&packet) {
            everywhere(probe, &packet);
        }
        Ok(())
    };
    try_cases(MUTATIONS, &mutation, test);
}
