use std::net::IpAddr;
use std::time::Duration;

use braid_multipath::MAX_LINKS;
use braid_packet::build;
use proptest::prelude::*;

use super::wire::MAX_NUMBER;
use super::*;
use crate::proto::frame::{self, FrameError};
use crate::proto::reader::Reader;
use crate::proto::varint;

fn end(address: &str, port: u16) -> build::End {
    (address.parse().expect("an address"), port)
}

fn network(address: &str, length: u8) -> Option<Prefix> {
    Prefix::new(address.parse().expect("an address"), length)
}

fn written(policy: &Policy) -> Vec<u8> {
    let mut out = Vec::new();
    policy.append(&mut out);
    out
}

/// The class of a packet, as a tunnel determines it.
fn class_of(policy: &Policy, packet: &[u8], remote: RemoteSide) -> Class {
    policy.class(FlowInfo::of(packet).as_ref(), remote)
}

fn rules() -> Vec<Rule> {
    vec![
        Rule {
            protocol: Some(17),
            ports: Some(5000..=5010),
            class: Class::Redundant,
            ..Rule::default()
        },
        Rule {
            network: network("198.51.100.0", 24),
            class: Class::Pinned,
            ..Rule::default()
        },
        Rule {
            is_v4: Some(false),
            dscp: Some(10),
            class: Class::Unordered,
            ..Rule::default()
        },
    ]
}

#[test]
fn the_first_rule_that_matches_decides_at_both_ends() {
    let policy = Policy {
        rules: rules(),
        ..Policy::default()
    };
    let (here, there) = (end("10.73.0.2", 1000), |port| end("198.51.100.1", port));
    let both = |port, class| {
        let up = build::udp(here, there(port), &[0; 1000]);
        let down = build::udp(there(port), here, &[0; 1000]);
        assert_eq!(class_of(&policy, &up, RemoteSide::Destination), class);
        assert_eq!(class_of(&policy, &down, RemoteSide::Source), class);
    };
    both(5005, Class::Redundant);
    both(6000, Class::Pinned);
    let tcp = |dest| {
        class_of(
            &policy,
            &build::tcp(here, dest, 0x10, b""),
            RemoteSide::Destination,
        )
    };
    assert_eq!(tcp(there(5005)), Class::Pinned);
    assert_eq!(tcp(end("192.0.2.1", 5005)), Class::Ordered);
    // From the remote port 1000 to the local port 5005: the rule matches remote ports.
    let other = build::udp(end("192.0.2.1", 1000), end("10.73.0.2", 5005), &[0; 1000]);
    assert_eq!(
        class_of(&policy, &other, RemoteSide::Source),
        Class::Ordered
    );
    let mut marked = build::tcp(end("fd00::2", 1), end("2001:db8::1", 443), 0x10, b"");
    assert_eq!(
        class_of(&policy, &marked, RemoteSide::Destination),
        Class::Ordered
    );
    marked[0] = 0x60 | (10 << 2) >> 4;
    marked[1] = ((10 << 2) & 0x0f) << 4;
    assert_eq!(
        class_of(&policy, &marked, RemoteSide::Destination),
        Class::Unordered
    );
    assert_eq!(
        class_of(&policy, &[0x45], RemoteSide::Source),
        Class::Ordered
    );
}

#[test]
fn a_small_policy_takes_few_bytes() {
    let policy = Policy {
        scheduling: Scheduling::Overflow(Parameters::default(), vec![LinkId(0), LinkId(1)]),
        rules: rules(),
        ..Policy::default()
    };
    let bytes = written(&policy);
    let rules = [1 + 1 + 4, 1 + 2 + 3, 1 + 1].iter().sum::<usize>();
    assert_eq!(bytes.len(), 1 + 2 + 2 + 1 + 1 + 1 + 3 + 1 + rules);
    assert_eq!(Policy::parse(&bytes), Ok(policy));
}

#[test]
fn weights_too_large_to_be_said_keep_their_proportion() {
    let weights = |weights: [u32; 3]| {
        let links = (0..).map(LinkId).zip(weights);
        let policy = Policy {
            scheduling: Scheduling::Weighted(8, links.collect()),
            ..Policy::default()
        };
        let heard = Policy::parse(&written(&policy)).map(|policy| policy.scheduling);
        let Ok(Scheduling::Weighted(8, links)) = heard else {
            panic!("{heard:?}")
        };
        links
            .into_iter()
            .map(|(_, weight)| weight)
            .collect::<Vec<_>>()
    };
    assert_eq!(weights([MAX_NUMBER, 7, 0]), [MAX_NUMBER, 7, 0]);
    let large = weights([4_000_000_000, 1_000_000_000, 1]);
    assert_eq!(large, [MAX_NUMBER, MAX_NUMBER / 4, 1]);
    assert_eq!(weights([u32::MAX; 3]), [MAX_NUMBER; 3]);
}

#[test]
fn the_longest_policy_is_as_long_as_it_says() {
    let rule = Rule {
        network: network("2001:db8::1", 128),
        protocol: Some(6),
        ports: Some(1..=2),
        dscp: Some(63),
        is_v4: Some(false),
        class: Class::Pinned,
    };
    let links = (0..MAX_LINKS as u8).map(|link| (LinkId(link), MAX_NUMBER));
    let policy = Policy {
        scheduling: Scheduling::Weighted(MAX_NUMBER, links.collect()),
        ordering: Reordering::FixedTimeout(MAX_TIMEOUT),
        max_extra_delay: Some(MAX_TIMEOUT),
        rules: vec![rule; MAX_RULES],
    };
    // A weighted scheduler uses only one of the five numbers, the burst.
    assert_eq!(written(&policy).len(), MAX_POLICY_BYTES - 4 * 4);
}

#[test]
fn rules_that_are_too_many_count_at_neither_end() {
    let mut rules = vec![
        Rule {
            protocol: Some(1),
            ..Rule::default()
        };
        MAX_RULES
    ];
    rules.push(Rule {
        class: Class::Redundant,
        ..Rule::default()
    });
    let here = Policy {
        rules,
        ..Policy::default()
    };
    let there = Policy::parse(&written(&here)).expect("what is left makes sense");
    let ends = (end("10.73.0.2", 1000), end("198.51.100.1", 443));
    let packet = build::tcp(ends.0, ends.1, 0x10, b"");
    for policy in [here, there] {
        assert_eq!(
            class_of(&policy, &packet, RemoteSide::Destination),
            Class::Ordered
        );
    }
}

#[test]
fn policies_without_a_valid_scheduler_are_refused() {
    let refused = |scheduling| {
        let policy = Policy {
            scheduling,
            ..Policy::default()
        };
        assert_eq!(Policy::parse(&written(&policy)), Err(FrameError::Range));
    };
    let parameters = Parameters::default();
    refused(Scheduling::Overflow(parameters, vec![]));
    refused(Scheduling::Overflow(parameters, vec![LinkId(1); 2]));
    let t_dwd = Duration::from_millis(70);
    let odd = Parameters {
        t_dwd,
        ..parameters
    };
    refused(Scheduling::Overflow(odd, vec![LinkId(0)]));
    refused(Scheduling::Weighted(8, vec![(LinkId(40), 1)]));
    assert_eq!(Policy::parse(&[3, 0]), Err(FrameError::Range));
    assert_eq!(
        Policy::parse(&[0x80, 0, 0]),
        Err(FrameError::Range),
        "no time"
    );
    let long = varint::parse_u32(&mut Reader::new(&[0x67, 0x11])).expect("a number");
    assert_eq!(u128::from(long), MAX_TIMEOUT.as_millis() + 1);
    let too_long = [0x80, 0x67, 0x11, 0];
    assert_eq!(Policy::parse(&too_long), Err(FrameError::Range));
    assert_eq!(
        Policy::parse(&[0, 0, 0]),
        Err(FrameError::Range),
        "more behind"
    );
}

prop_compose! {
    fn rule()(
        network in prop::option::of((any::<bool>(), any::<[u8; 16]>(), 0u8..=128)),
        protocol: Option<u8>,
        ports in prop::option::of(any::<(u16, u16)>()),
        dscp in prop::option::of(0u8..64),
        is_v4: Option<bool>,
        class in 0usize..4,
    ) -> Rule {
        let network = network.and_then(|(is_v4, octets, length)| match is_v4 {
            true => Prefix::new(IpAddr::from([octets[0], octets[1], octets[2], octets[3]]), length % 33),
            false => Prefix::new(IpAddr::from(octets), length),
        });
        let ports = ports.map(|(a, b)| a.min(b)..=a.max(b));
        Rule { network, protocol, ports, dscp, is_v4, class: frame::Class::ALL[class].into() }
    }
}

fn scheduling() -> impl Strategy<Value = Scheduling> {
    let links = prop::collection::btree_map(0..MAX_LINKS as u8, 1..=MAX_NUMBER, 1..5);
    let numbers = (1u32..5000, 1u32..20, 1u32..1000, any::<[u16; 2]>());
    (0..3, links, numbers).prop_map(|(kind, links, (k, times, report, weights))| {
        let links = links
            .into_iter()
            .map(|(link, weight)| (LinkId(link), weight));
        match kind {
            0 => Scheduling::Adaptive,
            1 => {
                let parameters = Parameters {
                    k: f64::from(k) / 1000.0,
                    t_dwd: Duration::from_millis((times * report).into()),
                    t_report: Duration::from_millis(report.into()),
                    w_fixed: f64::from(weights[0]) + 1.0,
                    w_max: f64::from(weights[1]) + 1.0,
                };
                Scheduling::Overflow(parameters, links.map(|(link, _)| link).collect())
            }
            _ => Scheduling::Weighted(k, links.collect()),
        }
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        scheduling in scheduling(),
        time_out in prop::option::of(1u64..=10_000),
        extra in prop::option::of(0u64..=10_000),
        rules in prop::collection::vec(rule(), 0..20),
    ) {
        let time_out = time_out.map(Duration::from_millis);
        let ordering = time_out.map_or(Reordering::Adaptive, Reordering::FixedTimeout);
        let max_extra_delay = extra.map(Duration::from_millis);
        let policy = Policy { scheduling, ordering, max_extra_delay, rules };
        let bytes = written(&policy);
        prop_assert_eq!(Policy::parse(&bytes), Ok(policy));
        for cut in 0..bytes.len() {
            prop_assert!(Policy::parse(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn what_is_read_is_written(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        if let Ok(policy) = Policy::parse(&bytes) {
            prop_assert_eq!(written(&policy), bytes);
            let _ = policy.scheduler();
        }
    }
}
