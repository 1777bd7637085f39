//! Rules in words, and the same in the program's terms: both must say the same of every flow.

use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::table::value;
use super::*;
use crate::generated::{FAMILY_V4, FAMILY_V6, KNOWS_MAC, KNOWS_PORTS, KNOWS_UID};
use crate::maps::layout::from_ip;
use crate::maps::layout::select::{FactsValue, RuleValue};

/// Evaluates a rule as the program does: satisfies() in `bpf/select/rules.h`.
fn compare(rule: &RuleValue, flow: &FlowFacts) -> bool {
    let ported = matches!(flow.protocol, TCP | UDP);
    let known = [
        (ported, KNOWS_PORTS),
        (flow.uid.is_some(), KNOWS_UID),
        (flow.mac.is_some(), KNOWS_MAC),
    ];
    let facts = FactsValue {
        source: from_ip(flow.source),
        dest: from_ip(flow.dest),
        protocol: flow.protocol,
        family: match family_of(flow.source) {
            Family::V4 => FAMILY_V4,
            Family::V6 => FAMILY_V6,
        } as u8,
        dscp: flow.dscp,
        known: known
            .iter()
            .filter(|(known, _)| *known)
            .fold(0, |bits, (_, bit)| bits | *bit as u8),
        mac: flow.mac.unwrap_or_default(),
        unused: [0; 2],
    };
    let ports = if ported { flow.ports } else { (0, 0) };
    let same = |fact: &[u8], mask: &[u8], value: &[u8]| {
        let bytes = fact.iter().zip(mask).zip(value);
        bytes
            .into_iter()
            .all(|((fact, mask), value)| fact & mask == *value)
    };
    let (mask, wanted) = (&rule.mask, &rule.value);
    same(&facts.source, &mask.source, &wanted.source)
        && same(&facts.dest, &mask.dest, &wanted.dest)
        && same(&facts.mac, &mask.mac, &wanted.mac)
        && same(
            &[facts.protocol, facts.family, facts.dscp, facts.known],
            &[mask.protocol, mask.family, mask.dscp, mask.known],
            &[wanted.protocol, wanted.family, wanted.dscp, wanted.known],
        )
        && ports.0.wrapping_sub(rule.source_low) <= rule.source_span
        && ports.1.wrapping_sub(rule.dest_low) <= rule.dest_span
        && flow.uid.unwrap_or_default().wrapping_sub(rule.uid_low) <= rule.uid_span
        && (rule.names == 0 || rule.names & flow.names != 0)
        && (rule.cgroup == 0 || flow.cgroups.contains(&rule.cgroup))
}

fn address() -> impl Strategy<Value = IpAddr> {
    // Few bits differ, so that prefixes are hit as often as missed.
    prop_oneof![
        (0_u32..16)
            .prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | bits << 18 | bits))),
        (0_u128..16).prop_map(|bits| IpAddr::V6((0x2001_0db8 << 96 | bits << 70 | bits).into())),
    ]
}

fn prefix() -> impl Strategy<Value = (IpAddr, u8)> {
    (address(), any::<u8>()).prop_map(|(address, length)| {
        let bits = if address.is_ipv4() { 33 } else { 129 };
        (address, length % bits)
    })
}

fn range<T: PartialOrd + Copy>((a, b): (T, T)) -> RangeInclusive<T> {
    if a < b { a..=b } else { b..=a }
}

fn sometimes<T: std::fmt::Debug>(
    strategy: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<T>> {
    proptest::option::weighted(0.25, strategy)
}

fn rule() -> impl Strategy<Value = RuleEntry> {
    let ports = || sometimes((0_u16..8, 0_u16..8).prop_map(range));
    let ends = (sometimes(prefix()), sometimes(prefix()), ports(), ports());
    let header = (sometimes(0_u8..18), sometimes(0_u8..4));
    let sender = (
        sometimes(any::<bool>().prop_map(|one| [2, 0, 0, 0, 0, one.into()])),
        sometimes((0_u32..4, 0_u32..4).prop_map(range)),
        sometimes(1_u64..4),
    );
    let rest = (
        sometimes((0_u8..4).prop_map(|bit| NameBit::new(bit).expect("a mark"))),
        sometimes(prop_oneof![Just(Family::V4), Just(Family::V6)]),
    );
    (ends, header, sender, rest).prop_map(|(ends, header, sender, rest)| RuleEntry {
        source: ends.0,
        dest: ends.1,
        source_ports: ends.2,
        dest_ports: ends.3,
        protocol: header.0,
        dscp: header.1,
        mac: sender.0,
        uid: sender.1,
        cgroup: sender.2,
        name: rest.0,
        family: rest.1,
        class: ClassId(1),
    })
}

fn flow() -> impl Strategy<Value = FlowFacts> {
    let ends = (address(), address()).prop_filter("one family", |(source, dest)| {
        source.is_ipv4() == dest.is_ipv4()
    });
    let protocol = prop_oneof![Just(TCP), Just(UDP), Just(1), Just(58)];
    let sender = (
        proptest::option::of(any::<bool>().prop_map(|one| [2, 0, 0, 0, 0, one.into()])),
        proptest::option::of(0_u32..4),
        proptest::collection::vec(1_u64..4, 0..3),
    );
    (
        ends,
        protocol,
        (0_u16..8, 0_u16..8),
        0_u8..4,
        sender,
        0_u64..16,
    )
        .prop_map(|(ends, protocol, ports, dscp, sender, names)| FlowFacts {
            source: ends.0,
            dest: ends.1,
            protocol,
            ports,
            dscp,
            mac: sender.0,
            uid: sender.1,
            cgroups: sender.2,
            names,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn words_and_masks_say_the_same(rule in rule(), flow in flow()) {
        match value(0, &rule) {
            Ok(masks) => prop_assert_eq!(rule.matches(&flow), compare(&masks, &flow)),
            // Both families at once: nothing can match, so it is refused.
            Err(_) => prop_assert!(!rule.matches(&flow)),
        }
    }
}

fn example() -> FlowFacts {
    FlowFacts {
        source: [10, 1, 0, 2].into(),
        dest: [192, 0, 2, 80].into(),
        protocol: TCP,
        ports: (40_000, 443),
        dscp: 46,
        mac: Some([2, 0, 0, 0, 0, 1]),
        uid: None,
        cgroups: Vec::new(),
        names: 0b10,
    }
}

#[test]
fn a_rule_that_names_nothing_matches_everything() {
    assert!(RuleEntry::default().matches(&example()));
}

#[test]
fn each_condition_decides_alone() {
    let flow = example();
    let v4 = |a, b, c, d, length| Some((IpAddr::from([a, b, c, d]), length));
    let any = RuleEntry::default;
    for (rule, expected) in [
        (
            RuleEntry {
                source: v4(10, 1, 0, 0, 24),
                ..any()
            },
            true,
        ),
        (
            RuleEntry {
                source: v4(10, 1, 1, 0, 24),
                ..any()
            },
            false,
        ),
        (
            RuleEntry {
                dest: v4(0, 0, 0, 0, 0),
                ..any()
            },
            true,
        ),
        (
            RuleEntry {
                dest: v4(192, 0, 2, 80, 32),
                ..any()
            },
            true,
        ),
        (
            RuleEntry {
                dest: Some(("::".parse().expect("an address"), 0)),
                ..any()
            },
            false,
        ),
        (
            RuleEntry {
                protocol: Some(UDP),
                ..any()
            },
            false,
        ),
        (
            RuleEntry {
                dest_ports: Some(443..=443),
                ..any()
            },
            true,
        ),
        (
            RuleEntry {
                dest_ports: Some(80..=442),
                ..any()
            },
            false,
        ),
        (
            RuleEntry {
                source_ports: Some(32_768..=60_999),
                ..any()
            },
            true,
        ),
        (
            RuleEntry {
                dscp: Some(46),
                ..any()
            },
            true,
        ),
        (
            RuleEntry {
                mac: Some([2, 0, 0, 0, 0, 1]),
                ..any()
            },
            true,
        ),
        (
            RuleEntry {
                uid: Some(0..=u32::MAX),
                ..any()
            },
            false,
        ),
        (
            RuleEntry {
                cgroup: Some(7),
                ..any()
            },
            false,
        ),
        (
            RuleEntry {
                name: NameBit::new(1),
                ..any()
            },
            true,
        ),
        (
            RuleEntry {
                name: NameBit::new(0),
                ..any()
            },
            false,
        ),
        (
            RuleEntry {
                family: Some(Family::V6),
                ..any()
            },
            false,
        ),
    ] {
        assert_eq!(rule.matches(&flow), expected, "{rule:?}");
    }
}

#[test]
fn ports_of_protocols_without_ports_match_no_rule() {
    let echo = FlowFacts {
        protocol: 1,
        ports: (0, 0),
        ..example()
    };
    let rule = RuleEntry {
        dest_ports: Some(0..=u16::MAX),
        ..RuleEntry::default()
    };
    assert!(!rule.matches(&echo));
}

#[test]
fn nonsense_is_refused() {
    let any = RuleEntry::default;
    for rule in [
        RuleEntry {
            source: Some(([10, 0, 0, 0].into(), 33)),
            ..any()
        },
        #[allow(clippy::reversed_empty_ranges)]
        RuleEntry {
            dest_ports: Some(2..=1),
            ..any()
        },
        RuleEntry {
            class: ClassId(64),
            ..any()
        },
        RuleEntry {
            dest: Some(([10, 0, 0, 0].into(), 8)),
            family: Some(Family::V6),
            ..any()
        },
    ] {
        assert!(value(0, &rule).is_err(), "{rule:?}");
    }
}
