//! In a steady state a link allocates nothing, whatever its settings.

use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_core::Rate;
use braid_emulate::config::Aqm;
use braid_emulate::delay::{Delay, Distribution};
use braid_emulate::rate::Speed;
use braid_emulate::{Config, Link, Time};

#[path = "support/counting.rs"]
mod counting;

use counting::ALLOCATIONS;

/// Overloads a link by half for a while; the packets are buffer numbers.
fn load(link: &mut Link<u32>, now: &mut Time, packets: u32) {
    for packet in 0..packets {
        *now = *now + Duration::from_micros(80);
        link.handle_packet(*now, 1514, packet);
        while link.poll_output(*now).is_some() {}
    }
}

#[test]
fn a_steady_state_allocates_nothing() {
    let config = Config {
        speed: Speed::Fixed(Rate::from_bits_per_sec(100_000_000)),
        delay: Delay {
            base: Duration::from_millis(20),
            jitter: Duration::from_millis(5),
            distribution: Distribution::Normal,
            reorder: true,
        },
        loss: "1 %".parse().expect("a share"),
        burst: "1 %, 20 %".parse().ok(),
        aqm: Aqm::Codel,
        ..Config::default()
    };
    let mut link = Link::new(config, 1);
    let mut now = Time::ZERO;
    load(&mut link, &mut now, 20_000);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    load(&mut link, &mut now, 100_000);
    // The test harness has a thread of its own, which makes a few where this one goes on before it.
    assert!(ALLOCATIONS.load(Ordering::Relaxed) - before < 10);
    assert!(link.stats().codel.packets + link.stats().queue_full.packets > 1000);
}
