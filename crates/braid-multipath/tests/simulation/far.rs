//! A near and a far link: bulk flows use both, and nothing else waits for the far one.

use std::time::Duration;

use braid_multipath::LinkId;
use braid_multipath::schedule::{Adaptive, Class};

use crate::tcp::TcpSender;
use crate::world::{LinkSpec, START, World, line, quantile};

fn cubic() -> TcpSender {
    TcpSender::new().undo().grows_at_first()
}

struct Outcome {
    world: World,
    /// Goodput over that of a bond of the near link alone, for each two seconds.
    stretches: Vec<f64>,
}

impl Outcome {
    fn share(&self, from: f64, to: f64) -> f64 {
        self.world.goodput(from, to) / self.world.ceiling()
    }

    fn worst(&self) -> f64 {
        self.stretches.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// One-way delay of the small flow, ms.
    fn delay(&self, q: f64) -> f64 {
        quantile(&self.world.streams[0].delays, q)
    }
}

/// Runs flows for a time, beside a packet of 100 bytes every 20 ms; `each` is called after every
/// tenth of a second.
fn run(
    lines: &[LinkSpec],
    flows: &[fn() -> TcpSender],
    seconds: u64,
    each: impl Fn(&mut World, u64),
) -> World {
    let mut world = World::new(lines, 1, || Box::new(Adaptive::default()));
    world.sparing = true;
    for flow in flows {
        world.add_flow(flow());
    }
    world.add_stream(100, Duration::from_millis(20), Class::Ordered);
    for tenth in 0..seconds * 10 {
        each(&mut world, tenth);
        world.run_until(START + Duration::from_millis((tenth + 1) * 100));
    }
    world.delivered.resize(seconds as usize * 10, 0);
    world
}

fn compare(
    name: &str,
    lines: &[LinkSpec],
    flows: &[fn() -> TcpSender],
    seconds: u64,
    each: impl Fn(&mut World, u64),
) -> Outcome {
    let log = std::env::var("BRAID_FAR_LOG").is_ok_and(|wanted| name.contains(&wanted));
    let near = run(&lines[..1], flows, seconds, |_, _| {});
    let world = run(lines, flows, seconds, |world, tenth| {
        if log && tenth % 5 == 0 {
            show(world, tenth);
        }
        each(world, tenth);
    });
    let stretches = (20..seconds as usize * 10 - 20).map(|from| {
        let (from, to) = (from as f64 / 10.0, from as f64 / 10.0 + 2.0);
        world.goodput(from, to) / near.goodput(from, to).max(0.1)
    });
    let outcome = Outcome {
        stretches: stretches.collect(),
        world,
    };
    let thirds = |n: u64| outcome.share((seconds * n / 4) as f64, (seconds * (n + 1) / 4) as f64);
    println!(
        "{name}: share by quarters {:.3} {:.3} {:.3} {:.3}, worst 2 s {:.2} of near, delay {:.1} ms, p99 {:.1} ms; {} cuts, {} undone, {} timeouts, {} again, {} given up, late {}, dropped {:?}",
        thirds(0),
        thirds(1),
        thirds(2),
        thirds(3),
        outcome.worst(),
        outcome.delay(0.5),
        outcome.delay(0.99),
        outcome
            .world
            .flows
            .iter()
            .map(|f| f.sender.cuts)
            .sum::<u32>(),
        outcome
            .world
            .flows
            .iter()
            .map(|f| f.sender.undone)
            .sum::<u32>(),
        outcome
            .world
            .flows
            .iter()
            .map(|f| f.sender.timeouts)
            .sum::<u32>(),
        outcome.world.sender(0).retransmitted(),
        outcome.world.receiver(1).counters().given_up(),
        outcome
            .world
            .receiver(1)
            .counters()
            .late
            .iter()
            .sum::<u64>(),
        outcome.world.sender(0).drops(),
    );
    outcome
}

fn show(world: &World, tenth: u64) {
    let at = tenth as f64 / 10.0;
    print!(
        "{at:5.1} {:6.1} ",
        if at >= 0.5 {
            world.goodput(at - 0.5, at)
        } else {
            0.0
        }
    );
    for index in 0..2 {
        let (estimator, liveness) = world.sender(0).link(LinkId(index)).expect("a link");
        print!(
            "| {:5.1} q {:3} fl {:4}/{:4} kB {:?} ",
            estimator.rate().bits_per_sec() as f64 / 1e6,
            estimator.queue().as_millis(),
            estimator.in_flight().get() / 1000,
            estimator.window().get() / 1000,
            liveness.verdict(),
        );
    }
    let far: Vec<_> = world.sender(0).far_flows(world.now).collect();
    println!(
        "| {} wait, cwnd {} srtt {} | {far:?}",
        world.sender(0).backlog().0,
        world.flows[0].sender.window(),
        world.flows[0].sender.srtt().as_millis(),
    );
}

fn far() -> [LinkSpec; 2] {
    [line(50.0, 10), line(50.0, 160)]
}

fn geo() -> [LinkSpec; 2] {
    let satellite = LinkSpec {
        queue_ms: 300,
        ..line(20.0, 300)
    };
    [line(40.0, 25), satellite]
}

#[test]
fn a_bulk_flow_fills_a_far_link_and_nothing_else_waits_for_it() {
    let outcome = compare("far", &far(), &[cubic], 40, |_, _| {});
    assert!(outcome.share(2.0, 15.0) >= 0.85);
    assert!(outcome.share(15.0, 40.0) >= 0.93);
    assert!(outcome.worst() >= 0.95);
    assert!(outcome.delay(0.5) <= 10.0 + 15.0);
    assert!(outcome.delay(0.99) <= 10.0 + 20.0);
}

#[test]
fn a_geostationary_satellite_adds_up() {
    let outcome = compare("geo", &geo(), &[cubic], 60, |_, _| {});
    assert!(outcome.share(2.0, 15.0) >= 0.80);
    assert!(outcome.share(15.0, 60.0) >= 0.9);
    assert!(outcome.worst() >= 0.95);
    assert!(outcome.delay(0.99) <= 25.0 + 25.0);
}

#[test]
fn several_flows_fill_a_far_link() {
    let outcome = compare(
        "far, 4 flows",
        &far(),
        &[cubic as fn() -> TcpSender; 4],
        40,
        |_, _| {},
    );
    assert!(outcome.share(10.0, 40.0) >= 0.93);
    assert!(outcome.worst() >= 0.95);
    assert!(outcome.delay(0.99) <= 10.0 + 20.0);
    let many = compare(
        "far, 12 flows",
        &far(),
        &[cubic as fn() -> TcpSender; 12],
        40,
        |_, _| {},
    );
    assert!(many.share(10.0, 40.0) >= 0.93);
    assert!(many.worst() >= 0.95);
}

/// 70 ms of the near link: a queue that long is never as long as the far link's extra delay.
#[test]
fn a_flow_of_a_small_window_is_released() {
    let bounded = || cubic().receive_window(400);
    let outcome = compare("far, window of 400", &far(), &[bounded], 40, |_, _| {});
    assert!(outcome.worst() >= 0.95);
    assert_eq!(
        outcome.world.sender(0).far_flows(outcome.world.now).count(),
        0
    );
    let used = outcome.world.packets_sent(0, 1);
    assert!(used < 500, "{used} packets over the far link");
    assert!(outcome.world.flows[0].sender.srtt() < Duration::from_millis(80));
}

#[test]
fn a_far_link_that_loses_packets_is_no_harm() {
    let lossy = LinkSpec {
        loss_percent: 1,
        ..line(50.0, 160)
    };
    let outcome = compare(
        "far, 1 % loss",
        &[line(50.0, 10), lossy],
        &[cubic],
        40,
        |_, _| {},
    );
    assert!(outcome.share(10.0, 40.0) >= 0.9);
    assert!(outcome.worst() >= 0.95);
}

#[test]
fn a_far_link_that_dies_or_stalls_is_no_harm() {
    for (name, from, to) in [
        ("dies", 120, 400),
        ("stalls for 0.3 s", 120, 123),
        ("stalls for 1 s", 120, 130),
        ("is out for 5 s", 120, 170),
    ] {
        let outcome = compare(
            &format!("far, {name}"),
            &far(),
            &[cubic],
            40,
            |world, tenth| {
                if tenth == from || tenth == to {
                    world.set_black_hole(1, tenth == from);
                }
            },
        );
        // When the link is gone the flow's window is too long, and in order each drop costs the time of its queue.
        assert!(outcome.worst() >= 0.65);
        let back = to < 400;
        assert!(!back || outcome.share(30.0, 40.0) >= 0.9);
    }
}

#[test]
fn a_near_link_that_dies_leaves_the_far_one() {
    // The window that the flow is left with varies by the moment.
    let goodput = [146, 150].map(|dies| {
        let outcome = compare("far, near dies", &far(), &[cubic], 40, |world, tenth| {
            if tenth == dies {
                world.set_black_hole(0, true);
            }
        });
        outcome.world.goodput(20.0, 40.0)
    });
    let mean = goodput.iter().sum::<f64>() / goodput.len() as f64;
    assert!(mean >= 0.85 * 48.0, "{goodput:?}");
    assert!(
        goodput.iter().all(|each| *each >= 0.78 * 48.0),
        "{goodput:?}"
    );
}

#[test]
fn two_near_links_and_a_far_one_add_up() {
    let lines = [line(50.0, 10), line(30.0, 25), line(40.0, 150)];
    let outcome = compare("50+30+40, 10/25/150", &lines, &[cubic], 60, |_, _| {});
    assert!(outcome.share(15.0, 60.0) >= 0.9);
}

/// A near link whose rate falls has a longer staged queue than it needs.
#[test]
fn a_near_link_that_changes_its_rate() {
    let world = run(&far(), &[cubic], 22, |world, tenth| {
        if tenth == 120 {
            let line = LinkSpec {
                mbit: 15.0,
                ..world.line(0)
            };
            world.set_line(0, line);
        }
    });
    let goodput = world.goodput(14.0, 22.0);
    println!("far, near 50 to 15: {goodput:.1} Mbit/s");
    assert!(goodput >= 50.0);
}

fn bbr() -> TcpSender {
    TcpSender::bbr().undo()
}

/// BBR's window is two lowest round trips of what it delivers, and a tenth of a second's at most for
/// acknowledgements that come together, which is less than a far link adds. It has no assertions: it
/// shows the remaining work.
#[test]
fn bbr_over_links_of_different_delay() {
    let reordering = LinkSpec {
        jitter_us: 20_000,
        reorder: true,
        ..line(50.0, 30)
    };
    let cases = [
        ("bbr, 20 + 120 ms", [line(50.0, 10), line(50.0, 60)]),
        ("bbr, reordering", [reordering.clone(), reordering]),
        ("bbr, far", far()),
    ];
    for (name, lines) in cases {
        compare(name, &lines, &[bbr], 40, |_, _| {});
    }
}

/// Runs a flow that begins at the handshake, while one link has joined and none is known; the others join after so many of their one-way
/// delays. Returns its share of the links in the first five seconds, and in the ten after.
fn run_first(name: &str, lines: &[LinkSpec], ways: u32, flow: fn() -> TcpSender) -> [f64; 2] {
    let mut world = World::at_handshake(lines, 1, || Box::new(Adaptive::default()));
    world.sparing = true;
    world.add_flow(flow());
    let begun = world.now;
    for (index, line) in lines.iter().enumerate().skip(1) {
        world.run_until(begun + ways * line.delay);
        world.add_link(index);
    }
    world.run_until(START + Duration::from_secs(15));
    let shares =
        [(0.0, 5.0), (5.0, 15.0)].map(|(from, to)| world.goodput(from, to) / world.ceiling());
    let flow = &world.flows[0].sender;
    println!(
        "{name}: {:.3} in the first five seconds, {:.3} in the ten after; {} cuts, {} timeouts",
        shares[0], shares[1], flow.cuts, flow.timeouts
    );
    shares
}

type NewSender = fn() -> TcpSender;

fn kinds() -> [(&'static str, NewSender); 2] {
    [("QUIC", TcpSender::quic), ("TCP", cubic)]
}

#[test]
fn the_first_flow_of_a_session_fills_a_far_link() {
    for (name, lines) in [("far", far()), ("geo", geo())] {
        for (kind, flow) in kinds() {
            // At once, and after a challenge and its answer.
            for ways in [0, 3] {
                let name = format!("{name} after {ways} ways, {kind}");
                let [first, after] = run_first(&name, &lines, ways, flow);
                assert!(first >= 0.75);
                assert!(after >= 0.9);
            }
        }
    }
}

/// The flow's first packets have no other way.
#[test]
fn a_far_link_that_joins_first_is_no_harm() {
    let [near, far] = far();
    for (kind, flow) in kinds() {
        let name = format!("far first, {kind}");
        let [_, after] = run_first(&name, &[far.clone(), near.clone()], 3, flow);
        assert!(after >= 0.9);
    }
}

/// Acknowledgements are filtered until it is clear that no other link joins.
#[test]
fn a_tcp_flow_fills_a_link_alone() {
    for delay_ms in [4, 10, 25] {
        let name = format!("alone, {delay_ms} ms");
        let [first, after] = run_first(&name, &[line(50.0, delay_ms)], 0, cubic);
        assert!(first >= 0.9);
        assert!(after >= 0.99);
    }
}
