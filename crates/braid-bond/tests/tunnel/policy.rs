//! A client's policy at its hub.

use std::time::Duration;

use braid_bond::proto::flow::FlowInfo;
use braid_bond::proto::handshake::Options;
use braid_bond::proto::policy::{Policy, Rule, Scheduling};
use braid_bond::proto::tunnel::{Event, PolicyStatus, Tunnel, TunnelSettings};
use braid_core::{Prefix, Time};
use braid_multipath::LinkId;
use braid_multipath::resequence::Reordering;
use braid_multipath::schedule::{BURST_PACKETS, Class};

use crate::line::Lines;
use crate::sim::{Pair, inner, number};

fn two() -> Vec<Lines> {
    vec![Lines::new(0, 20, 10), Lines::new(1, 20, 10)]
}

fn settings(scheduling: Scheduling, rules: Vec<Rule>) -> TunnelSettings {
    TunnelSettings {
        policy: Policy {
            scheduling,
            rules,
            ..Policy::default()
        },
        ..TunnelSettings::default()
    }
}

/// A policy that puts everything on one of the two links.
fn by(link: u8) -> Scheduling {
    let weight = |id| (LinkId(id), u32::from(id == link));
    Scheduling::Weighted(BURST_PACKETS, vec![weight(0), weight(1)])
}

/// Bytes that the hub sends on each link while it has data.
fn shares(pair: &mut Pair) -> [u64; 2] {
    let sent = |pair: &Pair| [0, 1].map(|line| pair.lines[line].down.bytes);
    let before = sent(pair);
    pair.tick(
        Duration::from_secs(1),
        Duration::from_millis(2),
        |pair, count| {
            pair.inner_at_hub(inner(5, count, 1200));
        },
    );
    let after = sent(pair);
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn the_hub_shares_out_as_its_client_wants_it_and_follows_every_change() {
    let mut pair = Pair::with(31, two(), settings(by(1), Vec::new()));
    pair.connect();
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.client.policy_status(), PolicyStatus::Applied);
    let [first, second] = shares(&mut pair);
    assert!(second > 10 * first, "{first} {second}");
    pair.client.set_settings(settings(by(0), Vec::new()));
    assert_eq!(pair.client.policy_status(), PolicyStatus::Pending);
    pair.run_for(Duration::from_secs(1));
    let [first, second] = shares(&mut pair);
    assert!(first > 10 * second, "{first} {second}");
    // Back to the default policy, which the hub is told as well.
    pair.client.set_settings(TunnelSettings::default());
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.client.policy_status(), PolicyStatus::Applied);
    assert!(
        pair.client_events
            .iter()
            .any(|(_, event)| *event == Event::PolicyStatus(PolicyStatus::Applied))
    );
}

#[test]
fn a_hub_that_lost_the_policy_receives_it_again() {
    let mut pair = Pair::with(32, two(), settings(by(1), Vec::new()));
    pair.connect();
    pair.run_for(Duration::from_secs(1));
    // As in `a_restarted_hub_is_detected_and_reconnected`.
    pair.server = crate::sim::restarted(pair.hub_now(), 77);
    pair.inner_at_client(inner(5, 0, 500));
    pair.run_for(Duration::from_secs(3));
    assert_eq!(pair.client.policy_status(), PolicyStatus::Applied);
    let [first, second] = shares(&mut pair);
    assert!(second > 10 * first, "{first} {second}");
}

#[test]
fn classes_hold_for_the_answers_too_and_many_rules_get_through_losses() {
    let mut lines = two();
    lines
        .iter_mut()
        .for_each(|line| line.both(|line| line.loss = 0.3));
    let address = |n: u8| std::net::IpAddr::from([203, 0, 113, n]);
    let others = (0..250).map(|n| Rule {
        network: Prefix::new(address(n), 32),
        ports: Some(1..=u16::from(n) + 1),
        class: Class::Pinned,
        ..Rule::default()
    });
    // Packets of `inner` from the remote end come from its port 5.
    let wanted = Rule {
        ports: Some(5..=5),
        class: Class::Redundant,
        ..Rule::default()
    };
    let rules: Vec<Rule> = others.chain([wanted]).collect();
    let mut pair = Pair::with(33, lines, settings(Scheduling::Adaptive, rules));
    pair.connect();
    pair.run_for(Duration::from_secs(20));
    assert_eq!(pair.client.policy_status(), PolicyStatus::Applied);
    pair.lines
        .iter_mut()
        .for_each(|line| line.both(|line| line.loss = 0.0));
    pair.run_for(Duration::from_secs(20));
    // A redundant packet goes out on both links.
    let sent = |pair: &Pair| [0, 1].map(|line| pair.lines[line].down.bytes);
    let before = sent(&pair);
    let count = 50;
    for number in 0..count {
        pair.inner_at_hub(inner(5, number, 1000));
        pair.run_for(Duration::from_millis(20));
    }
    for (after, before) in sent(&pair).into_iter().zip(before) {
        assert!(after - before > count * 1000, "{}", after - before);
    }
    let came = pair
        .at_client
        .iter()
        .filter(|(_, packet)| number(packet).0 == 5);
    assert_eq!(came.count() as u64, count);
}

#[test]
fn without_anything_to_ask_nothing_is_said() {
    let mut pair = Pair::new(34, two());
    pair.connect();
    pair.run(Time::ZERO + Duration::from_secs(5), |_| {});
    assert_eq!(pair.client.policy_status(), PolicyStatus::Unsent);
}

/// Simulates a hub without support for policies.
fn withhold_capabilities(pair: &mut Pair) {
    let mut full = Options::new();
    assert!(
        full.push(200, &[0; 126]),
        "no room is left for capabilities"
    );
    let peer = pair.peer;
    pair.server.set_options(peer, full);
}

#[test]
fn of_a_hub_that_cannot_be_told_nothing_is_awaited() {
    let mut pair = Pair::with(36, two(), settings(by(1), Vec::new()));
    withhold_capabilities(&mut pair);
    pair.connect();
    assert_eq!(pair.client.policy_status(), PolicyStatus::Unsupported);
    // Neither of two later policies reaches the hub.
    pair.client.set_settings(settings(by(0), Vec::new()));
    assert_eq!(pair.client.policy_status(), PolicyStatus::Unsupported);
    pair.run_for(Duration::from_secs(1));
    let events = pair.client_events.iter();
    let heard =
        events.filter(|(_, event)| *event == Event::PolicyStatus(PolicyStatus::Unsupported));
    assert_eq!(heard.count(), 2);
    // The hub's new version supports them.
    pair.server = crate::sim::restarted(pair.hub_now(), 78);
    pair.inner_at_client(inner(5, 0, 500));
    pair.run_for(Duration::from_secs(3));
    assert_eq!(pair.client.policy_status(), PolicyStatus::Applied);
}

/// Sends packets in both directions over two links whose delays differ by 60 ms; returns the
/// numbers of delivered and of late packets, at the client and at the hub.
fn both_ways(ordering: Reordering) -> [(usize, u64); 2] {
    let lines = vec![Lines::new(0, 20, 10), Lines::new(1, 20, 70)];
    let even = Scheduling::Weighted(1, vec![(LinkId(0), 1), (LinkId(1), 1)]);
    let mut wanted = settings(even, Vec::new());
    wanted.policy.ordering = ordering;
    let mut pair = Pair::with(35, lines, wanted);
    pair.connect();
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.client.policy_status(), PolicyStatus::Applied);
    pair.tick(
        Duration::from_secs(1),
        Duration::from_millis(5),
        |pair, count| {
            pair.inner_at_hub(inner(5, count, 1200));
            pair.inner_at_client(inner(6, count, 1200));
        },
    );
    pair.run_for(Duration::from_secs(1));
    let dropped = |tunnel: &Tunnel| tunnel.receiver().counters().too_old.iter().sum();
    let of = |packets: &[(Time, Vec<u8>)], flow| {
        let packets = packets.iter().map(|(_, packet)| number(packet));
        packets.filter(|(from, _)| *from == flow).count()
    };
    let at_client = of(&pair.at_client, 5);
    let at_hub = of(&pair.at_hub, 6);
    [
        (at_client, dropped(&pair.client)),
        (at_hub, dropped(pair.hub())),
    ]
}

/// \[l3b\] §4.3: packets later than the time-out are discarded, at both ends.
#[test]
fn the_order_of_the_paper_holds_in_both_directions() {
    let whole = both_ways(Reordering::Adaptive);
    assert_eq!(whole, [(200, 0); 2]);
    let time_out = |ms| Reordering::FixedTimeout(Duration::from_millis(ms));
    let longer = both_ways(time_out(90));
    assert_eq!(longer, [(200, 0); 2]);
    for (came, dropped) in both_ways(time_out(20)) {
        // Every other packet takes the slow link, and the fast link's packets do not wait for it.
        assert!((90..=110).contains(&came), "{came}");
        assert_eq!(came as u64 + dropped, 200);
    }
}

#[test]
fn pinned_packets_stay_on_a_link_beside_a_flow_that_fills_both() {
    let rule = Rule {
        ports: Some(5000..=5000),
        class: Class::Pinned,
        ..Rule::default()
    };
    let settings = settings(Scheduling::default(), vec![rule]);
    let lines = vec![Lines::new(0, 20, 10), Lines::new(1, 20, 12)];
    let mut pair = Pair::with(3, lines, settings);
    pair.connect();
    pair.run_for(Duration::from_secs(2));
    let pinned = || {
        let end = |last, port| (std::net::IpAddr::from([10, 9, 0, last]), port);
        braid_packet::build::udp(end(1, 77), end(2, 5000), &[0; 1000])
    };
    let hash = FlowInfo::of(&pinned()).expect("a flow").hash();
    let mut sent = None;
    pair.tick(
        Duration::from_secs(8),
        Duration::from_micros(200),
        |pair, n| {
            // Some packets always wait.
            if pair.client.sender().backlog().0 < 60 {
                pair.inner_at_client(inner(5, n, 1400));
            }
            if n % 25 == 0 {
                pair.inner_at_client(pinned());
            }
            sent = pair.client.flow_links(pair.now, [hash, 0]);
        },
    );
    let sent = sent.expect("shares").sent;
    assert_eq!(sent.len(), 1, "{sent:?}");
}
