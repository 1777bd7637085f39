//! CoDel against RFC 8289.

use std::time::Duration;

use braid_core::Rate;
use braid_emulate::config::Aqm;
use braid_emulate::queue::Limit;
use braid_emulate::rate::Speed;
use braid_emulate::{Config, Fate, Link, Output, Time};

const FRAME: u32 = 1514;

fn codel_at(mbits: u64) -> Link<()> {
    Link::new(
        Config {
            speed: Speed::Fixed(Rate::from_bits_per_sec(mbits * 1_000_000)),
            queue: Limit::Packets(10_000),
            aqm: Aqm::Codel,
            ..Config::default()
        },
        1,
    )
}

/// Sends one frame every `gap` until `end`; returns all that left by then.
fn load(link: &mut Link<()>, gap: Duration, end: Duration) -> Vec<Output<()>> {
    let (mut now, mut outputs) = (Time::ZERO, Vec::new());
    while now < Time::ZERO + end {
        link.handle_packet(now, FRAME, ());
        outputs.extend(std::iter::from_fn(|| link.poll_output(now)));
        now = now + gap;
    }
    outputs
}

fn drops(outputs: &[Output<()>]) -> Vec<f64> {
    let drops = outputs.iter().filter(|o| o.fate == Fate::Codel);
    drops
        .map(|o| o.due.since(Time::ZERO).as_secs_f64())
        .collect()
}

/// RFC 8289 §3: a queue whose delay stays below TARGET (5 ms) loses nothing, however long it lasts.
#[test]
fn a_short_standing_queue_is_left_alone() {
    let mut link = codel_at(10);
    // 1.2112 ms per frame; a queue of three frames is under 5 ms and stays.
    (0..3).for_each(|_| link.handle_packet(Time::ZERO, FRAME, ()));
    let outputs = load(
        &mut link,
        Duration::from_nanos(1_211_200),
        Duration::from_secs(3),
    );
    assert_eq!(drops(&outputs), Vec::<f64>::new());
}

/// RFC 8289 §5.4: `count` grows with each drop and the next one is due `INTERVAL / sqrt(count)`
/// after the last; the first comes one INTERVAL after the delay first exceeded TARGET.
#[test]
fn drops_follow_the_inverse_square_root() {
    let mut link = codel_at(10);
    // At twice the rate the queue grows at once and persists.
    let outputs = load(
        &mut link,
        Duration::from_nanos(605_600),
        Duration::from_secs(2),
    );
    let drops = drops(&outputs);
    assert!(drops.len() > 20, "{drops:?}");
    // 5 ms of waiting is reached about 10 ms after the start.
    assert!((0.105..0.125).contains(&drops[0]), "{}", drops[0]);
    // Drops happen when a frame is dequeued, so each interval has a granularity of 1.2 ms.
    let mut expected = drops[0];
    for (count, drop) in (1..).zip(&drops[1..12]) {
        expected += 0.1 / f64::from(count).sqrt();
        assert!(
            (drop - expected).abs() < 0.0025,
            "drop {count}: {drop} instead of {expected}"
        );
    }
}

/// RFC 8289 §5.6: the last frame of a queue is never dropped, however long it has waited.
#[test]
fn a_queue_of_one_frame_is_never_dropped() {
    // 120 ms per frame: every wait is above TARGET.
    let mut link = Link::new(
        Config {
            speed: Speed::Fixed(Rate::from_bits_per_sec(100_000)),
            aqm: Aqm::Codel,
            queue: Limit::Packets(1),
            ..Config::default()
        },
        1,
    );
    let outputs = load(
        &mut link,
        Duration::from_millis(60),
        Duration::from_secs(10),
    );
    assert_eq!(drops(&outputs), Vec::<f64>::new());
    assert!(outputs.iter().any(|output| output.fate == Fate::QueueFull));
}

/// RFC 8289 §3: an elastic load is brought back to about TARGET. The sender here halves its rate on
/// a loss and otherwise speeds up slowly, as TCP does.
#[test]
fn an_elastic_load_settles_near_the_target() {
    let mut link = codel_at(10);
    let (mut now, mut gap, mut waits) = (Time::ZERO, Duration::from_micros(600), Vec::new());
    while now < Time::ZERO + Duration::from_secs(30) {
        link.handle_packet(now, FRAME, ());
        while let Some(output) = link.poll_output(now) {
            match output.fate {
                Fate::Codel => gap = gap * 13 / 10,
                _ => gap = gap * 9_998 / 10_000,
            }
            if now > Time::ZERO + Duration::from_secs(10) {
                waits.push(output.started.since(output.arrived));
            }
        }
        now = now + gap;
    }
    waits.sort();
    let median = waits[waits.len() / 2];
    assert!(median < Duration::from_millis(20), "{median:?}");
}
