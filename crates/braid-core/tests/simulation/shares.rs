//! How much of the links' sum one TCP flow gets, and what a small flow beside it feels.

use std::time::Duration;

use braid_core::schedule::{Adaptive, Class};

use crate::world::{Line, START, World, line, quantile};

/// One CUBIC flow for 8 s beside a packet of 100 bytes every 20 ms.
struct Bulk {
    /// Goodput from the third second on, of what headers leave of the links' sum.
    share: f64,
    /// One-way delay of the small flow, ms.
    p50: f64,
    p99: f64,
}

fn bulk(name: &str, lines: &[Line]) -> Bulk {
    let mut world = World::new(lines, 1, || Box::new(Adaptive::default()));
    world.add_tcp();
    world.add_stream(100, Duration::from_millis(20), Class::Ordered);
    world.run_until(START + Duration::from_secs(8));
    let delays = &world.streams[0].delays;
    let outcome = Bulk {
        share: world.goodput(3.0, 8.0) / world.ceiling(),
        p50: quantile(delays, 0.5),
        p99: quantile(delays, 0.99),
    };
    let tcp = &world.flows[0].sender;
    println!(
        "{name}: share {:.3}, {:.3} in the first 2 s, delay {:.1} ms, p99 {:.1} ms; {} cuts, {} timeouts, {} repaired, {} sums, {} rebuilt, {} given up",
        outcome.share,
        world.goodput(0.0, 2.0) / world.ceiling(),
        outcome.p50,
        outcome.p99,
        tcp.cuts,
        tcp.timeouts,
        world.sender(0).repaired(),
        world.sender(0).sums(),
        world.receiver(1).rebuilt(),
        world.receiver(1).counters().given_up(),
    );
    outcome
}

fn lossy(percent: u32) -> Line {
    Line {
        loss_percent: percent,
        ..line(50.0, 15)
    }
}

#[test]
fn equal_links_add_up() {
    let outcome = bulk("50+50", &[line(50.0, 15), line(50.0, 15)]);
    assert!(outcome.share >= 0.97);
    assert!(outcome.p99 <= 15.0 + 40.0);
}

#[test]
fn unequal_rates_add_up() {
    assert!(bulk("80+20", &[line(80.0, 15), line(20.0, 15)]).share >= 0.97);
}

#[test]
fn unequal_rates_and_delays_add_up() {
    let outcome = bulk("100+10", &[line(100.0, 10), line(10.0, 30)]);
    assert!(outcome.share >= 0.95);
    assert!(outcome.p50 <= 30.0);
}

#[test]
fn three_links_add_up() {
    let lines = [line(50.0, 10), line(20.0, 20), line(10.0, 30)];
    assert!(bulk("50+20+10", &lines).share >= 0.93);
}

#[test]
fn a_link_whose_delay_varies_adds_up() {
    let varying = Line {
        jitter_us: 4_500,
        ..line(60.0, 17)
    };
    assert!(bulk("64+60 varying", &[line(64.0, 7), varying]).share >= 0.85);
}

#[test]
fn long_queues_are_not_filled() {
    let bloated = Line {
        queue_ms: 300,
        ..line(50.0, 15)
    };
    let outcome = bulk("50+50, 300 ms queues", &[bloated.clone(), bloated]);
    assert!(outcome.share >= 0.97);
    assert!(outcome.p99 <= 15.0 + 40.0);
}

#[test]
fn a_link_too_slow_for_the_reorder_budget_is_no_harm() {
    let outcome = bulk("40+20, 35/160 ms", &[line(40.0, 35), line(20.0, 160)]);
    let single = 40.0 / 60.0;
    assert!(outcome.share >= 0.9 * single, "of the better link alone");
}

#[test]
fn radio_loss_on_one_link_is_repaired() {
    assert!(bulk("50+50, 2 % on one", &[line(50.0, 15), lossy(2)]).share >= 0.75);
    assert!(bulk("50+50, 5 % on one", &[line(50.0, 15), lossy(5)]).share >= 0.55);
}

#[test]
fn a_steady_stream_over_two_links_arrives_in_order() {
    let lines = [line(50.0, 10), line(50.0, 25)];
    let mut world = World::new(&lines, 1, || Box::new(Adaptive::default()));
    // 72 Mbit/s of inner packets: more than either link.
    world.add_stream(1440, Duration::from_micros(160), Class::Ordered);
    world.run_until(START + Duration::from_secs(5));
    let stream = &world.streams[0];
    let missing = stream.sent - stream.arrived;
    println!(
        "sent {}, {} not (yet) here, {} out of order",
        stream.sent, missing, stream.misordered
    );
    assert_eq!(stream.misordered, 0);
    assert!(missing * 160 <= 60_000, "no more than 60 ms are under way");
    assert!(world.packets_sent(0, 1) > 5_000);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut world = World::new(&[line(20.0, 15), lossy(5)], seed, || {
            Box::new(Adaptive::default())
        });
        world.add_tcp();
        world.run_until(START + Duration::from_secs(2));
        (
            world.delivered.clone(),
            world.packets_sent(0, 0),
            world.packets_sent(0, 1),
        )
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}
