//! Delay and loss of flows of each class beside a download, over links that lose packets.

use std::time::Duration;

use braid_multipath::schedule::{Adaptive, Class};

use crate::world::{LinkSpec, START, Stream, World, line, quantile};

const EVERY: Duration = Duration::from_millis(20);

fn lossy(percent: u32) -> LinkSpec {
    LinkSpec {
        loss_percent: percent,
        ..line(50.0, 15)
    }
}

/// A call's packets, 200 bytes every 20 ms, for 10 s beside a download over two such links.
fn call(class: Class, percents: [u32; 2], seed: u64) -> World {
    let lines = percents.map(lossy);
    let mut world = World::new(&lines, seed, || Box::new(Adaptive::default()));
    world.add_tcp();
    world.add_stream(200, EVERY, class);
    world.run_until(START + Duration::from_secs(10));
    world
}

fn print(name: &str, stream: &Stream) {
    println!(
        "{name}: {} of {} came, p50 {:.1} ms, p99 {:.1} ms, {} out of order",
        stream.arrived,
        stream.sent,
        quantile(&stream.delays, 0.5),
        quantile(&stream.delays, 0.99),
        stream.misordered,
    );
}

/// Returns the packets sent and not here that are neither in flight nor late by a retransmission's
/// time.
fn missing(stream: &Stream) -> u64 {
    (stream.sent - stream.arrived).saturating_sub(4)
}

#[test]
fn unordered_packets_wait_for_nothing() {
    let world = call(Class::Unordered, [0, 2], 1);
    let stream = &world.streams[0];
    print("unordered, 2 % on one", stream);
    assert!(missing(stream) * 1000 <= stream.sent);
    assert!(quantile(&stream.delays, 0.5) <= 15.0 + 12.0);
    // One or two in a hundred are lost and arrive by retransmission.
    assert!(quantile(&stream.delays, 0.95) <= 15.0 + 25.0);
}

#[test]
fn redundant_packets_outlive_loss_on_both_links_without_delay() {
    // Both copies of one packet in four hundred are lost: it takes several calls to measure the
    // cost.
    let mut delays = Vec::new();
    for seed in 1..=4 {
        let world = call(Class::Redundant, [5, 5], seed);
        let stream = &world.streams[0];
        print("redundant, 5 % on both", stream);
        assert!(missing(stream) * 1000 <= stream.sent);
        assert_eq!(stream.misordered, 0);
        delays.extend_from_slice(&stream.delays);
    }
    assert!(
        quantile(&delays, 0.99) <= 15.0 + 40.0,
        "no copy was asked for"
    );
}

#[test]
fn pinned_packets_stay_on_a_link_and_in_order() {
    let world = call(Class::Pinned, [0, 2], 1);
    let stream = &world.streams[0];
    print("pinned, 2 % on one", stream);
    assert!(missing(stream) * 1000 <= stream.sent);
    assert_eq!(stream.misordered, 0);

    let mut world = World::new(&[line(50.0, 15), line(50.0, 15)], 1, || {
        Box::new(Adaptive::default())
    });
    let before = [0, 1].map(|link| world.packets_sent(0, link));
    world.add_stream(1000, Duration::from_millis(1), Class::Pinned);
    world.run_until(START + Duration::from_secs(4));
    let sent = [0, 1].map(|link| world.packets_sent(0, link) - before[link]);
    println!("8 Mbit/s pinned: {sent:?} packets on the links");
    assert!(sent[0].min(sent[1]) * 50 <= sent[0].max(sent[1]));
}
