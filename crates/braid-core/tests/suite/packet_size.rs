//! Capacity by round trips of packets of several sizes, on generated ones.

use std::time::Duration;

use braid_core::Bytes;
use braid_core::capacity::{ActiveEstimate, PacketSizeCapacity};

use crate::support::Noise;

const SIZES: [u64; 5] = [100, 450, 800, 1150, 1500];

/// A hundred round trips over a line: bits per second there and back, and the mean wait in a queue in seconds.
fn estimate(up: f64, down: f64, wait: f64, seed: u64) -> Option<ActiveEstimate> {
    let mut noise = Noise(seed);
    let mut capacity = PacketSizeCapacity::default();
    for _ in 0..20 {
        for size in SIZES {
            let bits = size as f64 * 8.0;
            let waited = -wait * noise.next().max(1e-9).ln();
            let round_trip = 0.02 + bits / up + bits / down + waited;
            capacity.note(Bytes::new(size), Duration::from_secs_f64(round_trip));
        }
    }
    capacity.estimate()
}

/// "takes the capacity from the slope of minimum RTT by size"
#[test]
fn the_slope_of_the_shortest_round_trips_is_the_capacity() {
    for mbit in [1.0, 5.0, 20.0] {
        let found = estimate(mbit * 1e6, mbit * 1e6, 0.0, 1).unwrap();
        let ratio = found.rate.bits_per_sec() as f64 / (mbit * 1e6);
        assert!((0.999..1.001).contains(&ratio), "{mbit}: {found:?}");
        assert!(found.error < 0.001, "{mbit}: {found:?}");
    }
}

/// Twice the standard error holds nine times in ten: of shortest round trips the errors are not normal.
#[test]
fn queues_make_an_error_that_is_told() {
    let outside = (1..=100).filter(|seed| {
        let found = estimate(5e6, 5e6, 0.001, *seed).unwrap();
        (found.rate.bits_per_sec() as f64 / 5e6 - 1.0).abs() > found.error
    });
    assert!(outside.count() <= 20);
}

/// Of a line that is slower up, it is the harmonic mean of both directions.
#[test]
fn directions_are_not_told_apart() {
    let found = estimate(2e6, 8e6, 0.0, 1).unwrap();
    assert!((3.19e6..3.21e6).contains(&(found.rate.bits_per_sec() as f64)));
}

#[test]
fn too_little_shows_nothing() {
    let mut capacity = PacketSizeCapacity::default();
    for size in [100, 1500] {
        for _ in 0..3 {
            capacity.note(Bytes::new(size), Duration::from_micros(20_000 + size));
        }
    }
    assert_eq!(capacity.estimate(), None, "two sizes");
    for _ in 0..3 {
        assert_eq!(capacity.estimate(), None, "few round trips");
        capacity.note(Bytes::new(800), Duration::from_micros(20_800));
    }
    assert!(capacity.estimate().is_some());
    // Larger packets are not slower: the slope is nothing to go by.
    capacity.note(Bytes::new(1500), Duration::from_millis(10));
    assert_eq!(capacity.estimate(), None);
}
