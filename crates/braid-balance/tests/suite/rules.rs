//! Rules: packet tables, the program against its Rust twin, and real sockets.

use std::cell::Cell;
use std::net::IpAddr;
use std::time::Duration;

use Verdict::{Dropped, Passed, Sent};
use braid_balance::{Choice, ClassId, Family, FlowFacts, KernelTime, Name, NameBit, RuleEntry};
use braid_packet::{build, checksum, protocol};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::choose::{class, flow_of, ip, open, set_classes, set_rules, uplink};
use crate::support::probe::{Probe, Verdict};
use crate::support::talk::{CLIENT, INNER, INNER6, SERVER, SYN};
use crate::support::world::{SERVER_V4, SERVER_V6};

const DEFAULT: ClassId = ClassId(0);
/// Randomly chosen rules and packets that the program and the twin must agree on.
const CASES: u32 = 400;

#[test]
fn a_rule_sends_its_class_by_its_own_slots() {
    let probe = Probe::new();
    set_classes(&probe, &[class(0, &[0]), class(5, &[1])]);
    set_rules(
        &probe,
        &[
            RuleEntry {
                protocol: Some(protocol::UDP),
                class: ClassId(7),
                ..RuleEntry::default()
            },
            RuleEntry {
                dest_ports: Some(443..=443),
                class: ClassId(5),
                ..RuleEntry::default()
            },
        ],
    );
    assert_eq!(open(&probe, 4000, SERVER_V4), 1);
    let flow = flow_of(&probe, INNER, 4000);
    assert_eq!((flow.class, flow.rule), (ClassId(5), Some(1)));
    assert_eq!(flow.choice, Choice::Only);
    let other = probe.out(&build::tcp((INNER, 4001), (SERVER_V4, 80), SYN, b""));
    assert_eq!(uplink(&other.is(Sent, "out_new")), 0);
    let flow = flow_of(&probe, INNER, 4001);
    assert_eq!((flow.class, flow.rule), (DEFAULT, None));
    assert_eq!(flow.choice, Choice::NextSlot);
    probe
        .out(&build::udp((INNER, 4002), (SERVER_V4, 443), b""))
        .is(Dropped, "class_blocked");
}

#[test]
fn the_last_of_all_rules_still_counts() {
    let probe = Probe::new();
    set_classes(&probe, &[class(0, &[0]), class(63, &[1])]);
    let nobody = RuleEntry {
        source: Some((ip("198.18.0.0"), 15)),
        class: ClassId(1),
        ..RuleEntry::default()
    };
    let mut rules = vec![nobody; 254];
    rules.push(RuleEntry {
        class: ClassId(63),
        ..RuleEntry::default()
    });
    set_rules(&probe, &rules);
    assert_eq!(open(&probe, 4300, SERVER_V4), 1);
    assert_eq!(flow_of(&probe, INNER, 4300).rule, Some(254));
}

#[test]
fn link_layer_addresses_are_learned_when_a_rule_asks() {
    let probe = Probe::new();
    set_classes(&probe, &[class(0, &[0]), class(1, &[1])]);
    let syn = |port| build::tcp((CLIENT, port), SERVER, SYN, b"");
    let by_mac = |last| RuleEntry {
        mac: Some([2, 0, 0, 0, 0, last]),
        class: ClassId(1),
        ..RuleEntry::default()
    };
    let through = |port| {
        probe.lan(&syn(port)).is(Passed, "lan_not_fast");
        uplink(&probe.forwarded(&syn(port)).is(Sent, "out_new"))
    };
    assert_eq!(through(6200), 0);
    set_rules(&probe, &[by_mac(1)]);
    assert_eq!(through(6201), 1);
    set_rules(&probe, &[by_mac(9)]);
    assert_eq!(through(6202), 0);
}

// --- the program against the twin -------------------------------------------------------------

const REMOTES: [&str; 4] = ["192.0.2.80", "192.0.2.81", "192.0.3.80", "100.64.0.1"];
const REMOTES6: [&str; 3] = ["2001:db8:80::80", "2001:db8:80::81", "2001:db8:99::1"];

fn address() -> impl Strategy<Value = IpAddr> {
    let ours = [INNER, INNER6, CLIENT].map(|address| address.to_string());
    let all = ours.into_iter();
    let all: Vec<_> = all
        .chain(REMOTES.into_iter().chain(REMOTES6).map(str::to_owned))
        .collect();
    prop::sample::select(all).prop_map(|text| ip(&text))
}

fn prefix() -> impl Strategy<Value = (IpAddr, u8)> {
    (address(), prop::sample::select(vec![0, 1, 4, 8])).prop_map(|(address, eighths)| {
        let length = if address.is_ipv4() { 4 } else { 16 };
        (address, length * eighths)
    })
}

fn sometimes<T: std::fmt::Debug>(
    strategy: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<T>> {
    proptest::option::weighted(0.2, strategy)
}

/// Ports come in blocks, so that rules are hit and flows do not meet.
const BLOCK: u16 = 2000;

fn blocks() -> impl Strategy<Value = std::ops::RangeInclusive<u16>> {
    (1_u16..4, 0_u16..2).prop_map(|(low, more)| low * BLOCK..=(low + more) * BLOCK + BLOCK - 1)
}

fn rule() -> impl Strategy<Value = RuleEntry> {
    let protocols = prop::sample::select(vec![6, 17, 1, 58]);
    let ends = (
        sometimes(prefix()),
        sometimes(prefix()),
        sometimes(blocks()),
        sometimes(blocks()),
    );
    let rest = (
        sometimes(protocols),
        sometimes(0_u8..4),
        sometimes(Just([2, 0, 0, 0, 0, 1])),
        sometimes(0_u32..2),
        sometimes(0_u8..3),
        sometimes(prop::sample::select(vec![Family::V4, Family::V6])),
    );
    (ends, rest).prop_map(|(ends, rest)| RuleEntry {
        source: ends.0,
        dest: ends.1,
        source_ports: ends.2,
        dest_ports: ends.3,
        protocol: rest.0,
        dscp: rest.1,
        mac: rest.2,
        uid: rest.3.map(|uid| uid..=uid),
        cgroup: None,
        name: rest.4.and_then(NameBit::new),
        family: rest.5,
        class: DEFAULT,
    })
}

#[derive(Clone, Debug)]
struct Shape {
    kind: u8,
    six: bool,
    lan: bool,
    remote: prop::sample::Index,
    blocks: (u16, u16),
    dscp: u8,
}

fn shape() -> impl Strategy<Value = Shape> {
    let remote = any::<prop::sample::Index>();
    (
        0_u8..3,
        any::<bool>(),
        any::<bool>(),
        remote,
        (1_u16..5, 1_u16..5),
        0_u8..4,
    )
        .prop_map(|(kind, six, lan, remote, blocks, dscp)| Shape {
            kind,
            six,
            lan: lan && !six,
            remote,
            blocks,
            dscp,
        })
}

/// Returns the facts that rules match, and a packet with these facts. `serial` keeps flows apart.
fn facts(shape: &Shape, serial: u16) -> (FlowFacts, Vec<u8>) {
    let (source, remote) = match (shape.six, shape.lan) {
        (true, _) => (INNER6, ip(shape.remote.get::<&str>(&REMOTES6))),
        (false, true) => (CLIENT, ip(shape.remote.get::<&str>(&REMOTES))),
        (false, false) => (INNER, ip(shape.remote.get::<&str>(&REMOTES))),
    };
    let ports = (
        shape.blocks.0 * BLOCK + serial % BLOCK,
        shape.blocks.1 * BLOCK,
    );
    let (local, peer) = ((source, ports.0), (remote, ports.1));
    let (kind, mut packet) = match shape.kind {
        0 => (protocol::TCP, build::tcp(local, peer, SYN, b"")),
        1 => (protocol::UDP, build::udp(local, peer, b"")),
        _ if shape.six => (58, build::icmp(source, remote, 128, 0, ports.0, b"")),
        _ => (1, build::icmp(source, remote, 8, 0, ports.0, b"")),
    };
    mark(&mut packet, shape.dscp);
    let facts = FlowFacts {
        source,
        dest: remote,
        protocol: kind,
        ports,
        dscp: shape.dscp,
        mac: shape.lan.then_some([2, 0, 0, 0, 0, 1]),
        // A test run's packets belong to a socket of root's.
        uid: (!shape.lan).then_some(0),
        cgroups: Vec::new(),
        names: u64::from(remote == SERVER_V4 || remote == SERVER_V6),
    };
    (facts, packet)
}

/// Gives a packet its code point.
fn mark(packet: &mut [u8], dscp: u8) {
    if packet[0] >> 4 == 4 {
        packet[1] = dscp << 2;
        packet[10..12].fill(0);
        let sum = checksum::of(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[0] = 0x60 | dscp >> 2;
        packet[1] = dscp << 6;
    }
}

#[test]
fn the_program_chooses_the_rule_that_the_twin_does() {
    let probe = Probe::new();
    set_classes(
        &probe,
        &(0..64).map(|id| class(id, &[0])).collect::<Vec<_>>(),
    );
    let later = KernelTime::now().after(Duration::from_secs(3600));
    let name = |rules, expires| Name {
        rules,
        site: 0,
        expires,
    };
    let names = [
        (SERVER_V4, name(0b1, later)),
        (SERVER_V6, name(0b1, later)),
        (ip(REMOTES[1]), name(0b111, KernelTime::from_nanos(1))),
    ];
    probe
        .datapath
        .borrow_mut()
        .learn_names(&names)
        .expect("names");
    let serial = Cell::new(0_u16);
    let test = |(mut rules, shapes): (Vec<RuleEntry>, Vec<Shape>)| {
        for (number, rule) in rules.iter_mut().enumerate() {
            rule.class = ClassId(number as u8 + 1);
        }
        // Both families in one rule are refused; the unit tests say so.
        rules.retain(|rule| {
            probe
                .datapath
                .borrow_mut()
                .set_rules(std::slice::from_ref(rule))
                .is_ok()
        });
        set_rules(&probe, &rules);
        for shape in shapes {
            let (facts, packet) = facts(&shape, serial.get());
            serial.set(serial.get() + 1);
            if shape.lan {
                let _ = probe.lan(&build::tcp((CLIENT, 1), SERVER, SYN, b""));
                probe.forwarded(&packet).is(Sent, "out_new");
            } else {
                probe.out(&packet).is(Sent, "out_new");
            }
            let expected = rules.iter().position(|rule| rule.matches(&facts));
            let class = expected.map_or(DEFAULT, |rule| rules[rule].class);
            let flows = probe.datapath.borrow().flows().expect("flows");
            let flow = flows
                .iter()
                .max_by_key(|flow| flow.created)
                .expect("a flow");
            prop_assert_eq!((flow.rule, flow.class), (expected, class), "{:?}", facts);
        }
        Ok(())
    };
    let cases = (
        proptest::collection::vec(rule(), 1..8),
        proptest::collection::vec(shape(), 4),
    );
    TestRunner::new(Config {
        cases: CASES,
        failure_persistence: None,
        ..Config::default()
    })
    .run(&cases, test)
    .unwrap_or_else(|error| panic!("{error}"));
}
