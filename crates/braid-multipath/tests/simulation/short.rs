//! Short fetches: from the request to the last byte, through the bond and over the better link alone.

use std::time::Duration;

use braid_core::Time;
use braid_multipath::schedule::Adaptive;

use crate::alone;
use crate::tcp::{Sign, TcpSender};
use crate::world::{FULL, LinkSpec, START, World, line};

const SIZES: [(&str, u64); 4] = [
    ("20 kB", 20_000),
    ("100 kB", 100_000),
    ("1 MB", 1_000_000),
    ("10 MB", 10_000_000),
];

/// Longest time of a fetch.
const LIMIT: Duration = Duration::from_secs(30);

/// Pause before a fetch.
const PAUSE: Duration = Duration::from_millis(1_500);

fn sender(bytes: u64) -> TcpSender {
    TcpSender::new()
        .undo()
        .grows_at_first()
        .total(bytes.div_ceil(u64::from(FULL)))
}

/// Returns the time until the last segment has arrived, with that of the handshake and the request before it.
fn alone(line: &LinkSpec, bytes: u64) -> Duration {
    let alone = alone::run(line, sender(bytes), 1, (Time::ZERO, LIMIT), false);
    alone.finished.expect("it ends").since(Time::ZERO) + line.delay * 3
}

fn through(world: &mut World, bytes: u64) -> Duration {
    world.run_until(world.now + PAUSE);
    let start = world.now;
    world.add_flow(sender(bytes));
    let flow = world.flows.len() - 1;
    let total = world.flows[flow].sender.total_segments();
    while world.flows[flow].receiver.next < total {
        world.run_until(world.now + Duration::from_micros(100));
        assert!(world.now.since(start) < LIMIT, "it ends");
    }
    world.now.since(start)
}

/// A fetch through the bond.
#[derive(Debug)]
struct Fetch {
    /// Its time, as a multiple of that over the better link.
    ratio: f64,
    /// The sign by which its slow start ended, and the window then.
    full: Option<(Sign, f64)>,
}

/// Fetches of each size, one after the other.
fn fetches(name: &str, lines: &[LinkSpec]) -> [Fetch; 4] {
    let mut world = World::new(lines, 1, || Box::new(Adaptive::default()));
    world.sparing = true;
    world.run_until(START);
    through(&mut world, 10_000_000);
    let fastest = lines.iter().map(|line| line.delay).min();
    let before = fastest.expect("there is a line") * 3;
    SIZES.map(|(size, bytes)| {
        let best = lines.iter().map(|line| alone(line, bytes)).min();
        let best = best.expect("there is a line").as_secs_f64() * 1e3;
        let bond = (through(&mut world, bytes) + before).as_secs_f64() * 1e3;
        let sent = [0, 1].map(|link| world.packets_sent(0, link));
        let tcp = &world.flows.last().expect("a flow").sender;
        println!(
            "{name}, {size}: {bond:.1} ms, best alone {best:.1}, {:.3}; {sent:?} cwnd {} cuts {}, slow start ended by {:?}",
            bond / best,
            tcp.window(),
            tcp.cuts,
            tcp.full,
        );
        Fetch {
            ratio: bond / best,
            full: tcp.full,
        }
    })
}

#[test]
fn short_fetches_take_no_longer_than_over_the_better_link() {
    for (name, lines) in [
        ("equal", [line(50.0, 15), line(50.0, 15)]),
        ("20 + 120 ms", [line(50.0, 10), line(50.0, 60)]),
        ("100 + 10", [line(100.0, 15), line(10.0, 15)]),
    ] {
        let ratios = fetches(name, &lines).map(|fetch| fetch.ratio);
        assert!(ratios[..3].iter().all(|ratio| *ratio <= 1.02), "{ratios:?}");
        assert!(name != "equal" || ratios[3] <= 0.6, "{ratios:?}");
    }
}

/// Acknowledgements that pass by fifths of a round trip are a train over 50 + 50 Mbit/s of 6 and 10 ms: slow start ends at 34 and 58 packets.
#[test]
fn acknowledgements_that_pass_over_near_links_are_no_train() {
    for (mbit, delay_ms) in [
        (50.0, 3),
        (50.0, 5),
        (100.0, 5),
        (100.0, 9),
        (200.0, 5),
        (200.0, 9),
    ] {
        let name = format!("twice {mbit} Mbit/s, {} ms", 2 * delay_ms);
        let lines = [line(mbit, delay_ms), line(mbit, delay_ms)];
        let [_, small, _, large] = fetches(&name, &lines);
        assert_ne!(large.full.map(|(sign, _)| sign), Some(Sign::Train));
        // 1.08 and more, 1.20 in the last case, if nothing passes before its quarter of a round trip.
        assert!(small.ratio <= 1.07, "{small:?}");
    }
}
