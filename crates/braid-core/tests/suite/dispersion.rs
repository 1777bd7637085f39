//! Capacity by packet trains on generated traces: other traffic, batches, losses, jitter, token buckets, spaced senders.

use std::time::Duration;

use braid_core::capacity::{
    ActiveEstimate, BURST_PACKETS, DispersionCapacity, MAX_BURSTS, TrainPacket,
};
use braid_core::{Bytes, Time};
use proptest::prelude::*;

use crate::support::Noise;

const PACKET: f64 = 1500.0 * 8.0;
const MBIT: f64 = 1e6;

/// A line, and its packets' ways to it and from it.
#[derive(Clone, Debug)]
struct Line {
    rate: f64,
    /// Other traffic, as a part of the rate.
    cross: f64,
    /// Seconds from one packet of a sender to its next.
    spacing: f64,
    /// Longest queue in packets.
    queue: usize,
    loss: f64,
    /// Mean delay that each packet has beyond the line, in seconds; the order stays.
    jitter: f64,
    /// Arrivals are at multiples of this, in seconds.
    tick: f64,
    /// Bits that a token bucket lets through at ten times the rate.
    bucket: f64,
}

impl Line {
    fn of(mbit: f64) -> Line {
        Line {
            rate: mbit * MBIT,
            cross: 0.0,
            spacing: 10e-6,
            queue: 1000,
            loss: 0.0,
            jitter: 0.0,
            tick: 0.0,
            bucket: 0.0,
        }
    }

    /// Sends a train and returns the packets that arrive.
    fn train(&self, bursts: usize, noise: &mut Noise) -> Vec<TrainPacket> {
        // All senders begin at once; their first packets arrive in turns.
        let own = (0..BURST_PACKETS)
            .flat_map(|place| (0..bursts).map(move |flow| (place, Some((flow, place)))))
            .map(|(place, which)| (0.05 + place as f64 * self.spacing, which));
        let mut arriving: Vec<(f64, Option<(usize, usize)>)> = own.collect();
        let mut at = 0.0;
        if self.cross > 0.0 {
            loop {
                at += -(noise.next().max(1e-9).ln()) * PACKET / (self.rate * self.cross);
                // Those behind the train change nothing.
                if at > 0.2 {
                    break;
                }
                arriving.push((at, None));
            }
        }
        arriving.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (mut free, mut last) = (0.0_f64, 0.0_f64);
        let (mut bucket, mut leaving, mut packets) = (self.bucket, Vec::new(), Vec::new());
        for (at, which) in arriving {
            leaving.retain(|left: &f64| *left > at);
            if leaving.len() > self.queue {
                continue;
            }
            let speed = if bucket > 0.0 { 10.0 } else { 1.0 };
            bucket -= PACKET;
            free = free.max(at) + PACKET / (self.rate * speed);
            leaving.push(free);
            let Some((flow, place)) = which else { continue };
            if noise.next() < self.loss {
                continue;
            }
            let late = -self.jitter * noise.next().max(1e-9).ln();
            last = last.max(free + 0.01 + late);
            let seen = if self.tick > 0.0 {
                (last / self.tick).ceil() * self.tick
            } else {
                last
            };
            let place = place as u32;
            packets.push(TrainPacket {
                flow: flow as u16,
                range: place..place + 1,
                size: Bytes::new(1500),
                received: Time::ZERO + Duration::from_secs_f64(seen),
            });
        }
        packets
    }

    /// Measures, and returns the estimate and the packets sent.
    fn measure(&self, seed: u64) -> (Option<ActiveEstimate>, usize) {
        let mut noise = Noise(seed);
        let (mut capacity, mut sent) = (DispersionCapacity::default(), 0);
        while let Some(bursts) = capacity.next_bursts() {
            sent += bursts * BURST_PACKETS;
            capacity.note(bursts, &self.train(bursts, &mut noise));
        }
        (capacity.estimate(), sent)
    }

    fn ratio(&self, found: &ActiveEstimate) -> f64 {
        found.rate.bits_per_sec() as f64 / self.rate
    }

    /// Asserts that most of twenty measurements are that near, and all but three call it a capacity.
    fn assert_known(&self, most: f64) {
        let found = (1..=20).map(|seed| self.measure(seed).0.expect("trains arrive"));
        let mut found: Vec<(f64, bool)> = found
            .map(|found| ((self.ratio(&found) - 1.0).abs(), found.saturated))
            .collect();
        found.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(found[18].0 <= most, "{self:?}: {found:?}");
        let sure = found.iter().filter(|(_, saturated)| *saturated).count();
        assert!(sure >= 17, "{self:?}: {found:?}");
    }
}

/// "dispersion at most 0.10 / 0.20 without cross traffic", here on lines without a machine's own noise.
#[test]
fn an_idle_line_is_known_from_a_few_trains() {
    for mbit in [1.0, 5.0, 20.0, 50.0, 100.0] {
        let line = Line::of(mbit);
        line.assert_known(0.01);
        let (_, sent) = line.measure(1);
        assert!(
            sent <= if mbit <= 10.0 { 64 } else { 360 },
            "{mbit}: {sent} packets"
        );
    }
}

/// A queue of 20 ms on a line of 1 Mbit/s holds two packets, and the rest of each train is lost.
#[test]
fn pairs_are_enough_where_a_queue_holds_no_more() {
    Line {
        queue: 1,
        ..Line::of(1.0)
    }
    .assert_known(0.02);
}

#[test]
fn losses_do_not_slow_the_estimate() {
    for mbit in [1.0, 20.0, 100.0] {
        for loss in [0.01, 0.05] {
            Line {
                loss,
                ..Line::of(mbit)
            }
            .assert_known(0.03);
        }
    }
}

/// Interrupts, a busy machine, aggregation: arrivals in batches of up to fourteen packets.
#[test]
fn batches_do_not_pass_for_a_fast_line() {
    for (mbit, tick) in [
        (20.0, 0.0002),
        (50.0, 0.0002),
        (100.0, 0.0002),
        (20.0, 0.001),
        (60.0, 0.001),
    ] {
        Line {
            tick,
            ..Line::of(mbit)
        }
        .assert_known(0.1);
    }
}

#[test]
fn jitter_costs_some_precision() {
    for mbit in [5.0, 20.0, 100.0] {
        Line {
            jitter: 0.0001,
            ..Line::of(mbit)
        }
        .assert_known(0.1);
    }
    Line {
        jitter: 0.001,
        ..Line::of(5.0)
    }
    .assert_known(0.15);
}

/// Packets of others stand between those of a train that comes spread out, with half of the line's rate.
#[test]
fn the_mode_of_the_gaps_shows_a_shared_lines_capacity() {
    for mbit in [1.0, 5.0] {
        // The train comes a little faster than the line's rate, so that others get in between.
        let spacing = 0.9 * PACKET / (mbit * MBIT);
        let line = Line {
            cross: 0.5,
            spacing,
            ..Line::of(mbit)
        };
        let found = (1..=20).map(|seed| line.measure(seed).0.unwrap());
        let near = found.filter(|found| (0.9..1.1).contains(&line.ratio(found)));
        assert!(near.count() >= 16);
    }
}

/// A train that is sent at once leaves others no room.
#[test]
fn other_traffic_does_not_split_a_train_that_is_sent_at_once() {
    for mbit in [1.0, 20.0, 100.0] {
        Line {
            cross: 0.5,
            ..Line::of(mbit)
        }
        .assert_known(0.05);
    }
}

/// The bucket lets the first ten packets of each train through at ten times the rate.
#[test]
fn a_token_bucket_is_not_taken_for_the_rate() {
    for mbit in [1.0, 5.0, 20.0] {
        let line = Line {
            bucket: 10.0 * PACKET,
            ..Line::of(mbit)
        };
        for seed in 1..20 {
            let found = line.measure(seed).0.unwrap();
            assert!(
                (0.8..1.25).contains(&line.ratio(&found)),
                "{mbit}: {found:?}"
            );
        }
    }
}

/// Senders with BBR space their packets: more of them show more, which is no capacity.
#[test]
fn spaced_senders_show_a_lower_bound() {
    let line = Line {
        spacing: 0.004,
        ..Line::of(500.0)
    };
    let (found, sent) = line.measure(1);
    let found = found.unwrap();
    assert!(!found.saturated, "{found:?}");
    assert!(found.rate.bits_per_sec() as f64 <= line.rate);
    assert!(sent > MAX_BURSTS * BURST_PACKETS);
}

#[test]
fn a_line_too_fast_for_trains_has_a_lower_bound() {
    let line = Line {
        tick: 0.0005,
        ..Line::of(10_000.0)
    };
    let found = line.measure(1).0;
    assert!(found.is_none_or(|found| !found.saturated), "{found:?}");
}

#[test]
fn silence_ends_it() {
    let mut capacity = DispersionCapacity::default();
    let mut trains = 0;
    while let Some(bursts) = capacity.next_bursts() {
        capacity.note(bursts, &[]);
        trains += 1;
    }
    assert_eq!((trains, capacity.estimate()), (3, None));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// Whatever the line does, it ends, and what is called a capacity is one: never twice or half of it.
    #[test]
    fn a_capacity_is_never_far_off(
        mbit in 1.0..100.0_f64,
        cross in 0.0..0.6_f64,
        loss in 0.0..0.05_f64,
        jitter in 0.0..0.0002_f64,
        tick in 0.0..0.0003_f64,
        queue in 2_usize..100,
        seed: u64,
    ) {
        let line = Line { cross, loss, jitter, tick, queue, ..Line::of(mbit) };
        let (found, sent) = line.measure(seed);
        prop_assert!(sent <= 14 * MAX_BURSTS * BURST_PACKETS);
        if let Some(found) = found.filter(|found| found.saturated) {
            let ratio = line.ratio(&found);
            prop_assert!((0.5..2.0).contains(&ratio), "{ratio} {found:?}");
        }
    }

    /// Any arrivals whatever are taken.
    #[test]
    fn any_arrivals_are_taken(
        trains in prop::collection::vec(
            (1_usize..20, prop::collection::vec((0_u16..3, 0_u32..9, 0_u32..3, 0_u64..3000, 0_u64..1_000_000_000), 0..40)),
            0..20,
        ),
    ) {
        let mut capacity = DispersionCapacity::default();
        for (bursts, packets) in trains {
            let mut packets: Vec<TrainPacket> = packets
                .into_iter()
                .map(|(flow, start, length, size, nanos)| TrainPacket {
                    flow,
                    range: start..start + length,
                    size: Bytes::new(size),
                    received: Time::from_nanos(nanos),
                })
                .collect();
            packets.sort_by_key(|packet| packet.received);
            capacity.note(bursts, &packets);
            let _ = capacity.next_bursts();
            if let Some(found) = capacity.estimate() {
                prop_assert!((0.0..=1.0).contains(&found.error), "{found:?}");
            }
        }
    }
}
