//! Capacity by transfer on generated traces: slow start, noise, and connections that fill the line or do not.

use std::time::Duration;

use braid_core::capacity::{
    ActiveEstimate, FIRST_CONNECTIONS, MAX_CONNECTIONS, TransferCapacity, TransferSample,
    TransferStep,
};
use braid_core::{Bytes, Time};
use proptest::prelude::*;

use crate::support::Noise;

const POLL: Duration = Duration::from_millis(25);
const PACKET: f64 = 1500.0 * 8.0;
const MBIT: f64 = 1e6;

/// A line, and connections through it that start slowly.
#[derive(Debug)]
struct Line {
    rate: f64,
    round_trip: f64,
    /// Rate at which random loss holds each connection.
    each: f64,
    /// Deviation of a sample's rate, as a fraction.
    noise: f64,
    /// Samples with a fifth less, as a fraction: senders that leave the line idle after a loss.
    dips: f64,
    /// Longest queue that round trips show, in seconds.
    queue: f64,
}

/// A finished transfer: the estimate, seconds, bits, and most connections.
struct Finished {
    found: ActiveEstimate,
    seconds: f64,
    bits: f64,
    connections: usize,
}

fn transfer(line: &Line, seed: u64) -> Finished {
    let mut noise = Noise(seed);
    let round_trip = Duration::from_secs_f64(line.round_trip);
    let mut capacity = TransferCapacity::new(Time::ZERO, &[round_trip]);
    let mut ages = vec![0.0];
    let (mut now, mut bits, mut owed) = (Time::ZERO, 0.0, 0.0);
    let mut queue: f64 = 0.0;
    loop {
        // Ten packets close together, doubled each round trip, after one for the request.
        let wanted = |age: &f64| {
            let rounds = age / line.round_trip - 1.0;
            let window = match rounds {
                ..0.0 => 0.0,
                0.0..0.5 => 20.0 * PACKET,
                0.5..1.0 => 0.0,
                _ => 10.0 * PACKET * rounds.min(20.0).exp2(),
            };
            (window / line.round_trip).min(line.each)
        };
        let offered: f64 = ages.iter().map(wanted).sum();
        let waiting = queue * line.rate + offered * POLL.as_secs_f64();
        let mut rate = (waiting / POLL.as_secs_f64()).min(line.rate);
        queue = (waiting / line.rate - POLL.as_secs_f64()).clamp(0.0, line.queue);
        if rate >= line.rate {
            rate *= 1.0 + line.noise * noise.normal();
        }
        if noise.next() < line.dips / 2.0 {
            rate *= 0.8;
        }
        // Packets arrive whole.
        owed += rate.max(0.0).min(line.rate * (1.0 + line.noise)) * POLL.as_secs_f64();
        let whole = (owed / PACKET).floor() * PACKET;
        owed -= whole;
        bits += whole;
        now = now + POLL;
        ages.iter_mut().for_each(|age| *age += POLL.as_secs_f64());
        let sample = TransferSample {
            end: now,
            span: POLL,
            carried: Bytes::new((whole / 8.0) as u64),
            // One packet's time is part of each.
            round_trip: (whole > 0.0)
                .then(|| Duration::from_secs_f64(line.round_trip + queue + PACKET / line.rate)),
        };
        match capacity.note(&sample) {
            TransferStep::Continue => {}
            TransferStep::Connections(most) => ages.resize(most, 0.0),
            TransferStep::Done => break,
        }
    }
    Finished {
        found: capacity.estimate().expect("something was carried"),
        seconds: now.since(Time::ZERO).as_secs_f64(),
        bits,
        connections: ages.len(),
    }
}

fn ratio(finished: &Finished, truth: f64) -> f64 {
    finished.found.rate.bits_per_sec() as f64 / truth
}

/// Asserts that a transfer finds the line full, and its rate within five percent, in this time and with as many bytes
/// as the line carries in it.
fn assert_known(line: &Line, seed: u64, most_seconds: f64) -> Finished {
    let end = transfer(line, seed);
    let ratio = ratio(&end, line.rate);
    let what = format!("{line:?}, seed {seed}: {ratio}, {} s", end.seconds);
    assert!((0.95..1.05).contains(&ratio), "{what}");
    assert!(end.seconds <= most_seconds, "{what}");
    assert!(end.bits <= most_seconds * line.rate, "{what}");
    assert!(end.found.saturated, "{what}");
    end
}

/// "transfer at most 0.05 in 1.5 s and a tenth of a ten-second test's bytes", from 5 Mbit/s on with a
/// seventh of the bytes: a tenth of ten seconds is one, of which slow start takes a part.
#[test]
fn a_full_line_is_known_within_five_percent_in_a_second_and_a_half() {
    for rate in [5.0, 20.0, 50.0, 100.0] {
        for (noise, dips) in [(0.0, 0.0), (0.03, 0.0), (0.03, 0.15)] {
            for seed in 1..20 {
                let line = Line {
                    rate: rate * MBIT,
                    round_trip: 0.04,
                    each: 1e12,
                    noise,
                    dips,
                    queue: 0.02,
                };
                let end = assert_known(&line, seed, 1.5);
                assert!(end.found.error <= 0.1, "seed {seed}: {:?}", end.found);
            }
        }
    }
}

/// A policer has no queue. The rate is the line's if it is the same with twice the connections, both at rest.
#[test]
fn a_full_line_without_a_queue_is_known_at_rest() {
    for (rate, noise) in [5.0, 20.0, 50.0, 100.0]
        .map(|rate| [(rate, 0.0), (rate, 0.03)])
        .concat()
    {
        for (round_trip, most_seconds) in [(0.04, 1.5), (0.1, 3.5)] {
            for seed in 1..20 {
                let line = Line {
                    rate: rate * MBIT,
                    round_trip,
                    each: 1e12,
                    noise,
                    dips: 0.0,
                    queue: 0.0,
                };
                assert_known(&line, seed, most_seconds);
            }
        }
    }
}

/// At 1 Mbit/s a poll has two packets, and one more or less is a half.
#[test]
fn a_slow_line_takes_longer_and_is_known_as_well() {
    for seed in 1..20 {
        let line = Line {
            rate: MBIT,
            round_trip: 0.06,
            each: 1e12,
            noise: 0.0,
            dips: 0.0,
            queue: 0.0,
        };
        let end = transfer(&line, seed);
        let ratio = ratio(&end, line.rate);
        assert!((0.95..1.05).contains(&ratio), "{ratio}");
        assert!(end.seconds <= 3.0, "{}", end.seconds);
        assert_eq!(end.connections, 5, "more would only fill its queue");
    }
}

/// A queue shows that the line is full: no further connection has to.
#[test]
fn a_queue_ends_a_transfer_in_time() {
    for (rate, queue) in [
        (1.0, 0.3),
        (1.0, 0.1),
        (5.0, 0.3),
        (20.0, 0.1),
        (100.0, 0.3),
    ] {
        for seed in 1..20 {
            let line = Line {
                rate: rate * MBIT,
                round_trip: 0.06,
                each: 1e12,
                noise: 0.03,
                dips: 0.0,
                queue,
            };
            let end = assert_known(&line, seed, 1.3);
            assert!(rate > 1.0 || end.connections == 1, "{queue} s, seed {seed}");
        }
    }
}

/// Two packets behind one another, or a queue that may be empty at times, show nothing.
#[test]
fn what_is_no_queue_of_the_transfer_does_not_end_it() {
    let line = |rate: f64, queue| Line {
        rate: rate * MBIT,
        round_trip: 0.06,
        each: 0.2 * MBIT,
        noise: 0.0,
        dips: 0.0,
        queue,
    };
    // Never full: each connection gets little.
    assert!(transfer(&line(50.0, 0.3), 1).connections > FIRST_CONNECTIONS);
    // A queue that holds a packet on a slow line, and a short one on a fast line.
    for (rate, queue) in [(1.0, 0.012), (20.0, 0.02)] {
        let end = transfer(
            &Line {
                each: 1e12,
                ..line(rate, queue)
            },
            1,
        );
        assert!(end.connections > FIRST_CONNECTIONS, "{rate}: {queue}");
    }
}

/// A server that gives each connection little is no slow line.
#[test]
fn a_slow_server_is_asked_by_ever_more_connections() {
    let line = Line {
        rate: 50.0 * MBIT,
        round_trip: 0.04,
        each: 0.5 * MBIT,
        noise: 0.0,
        dips: 0.0,
        queue: 0.0,
    };
    let end = transfer(&line, 1);
    assert_eq!(end.connections, MAX_CONNECTIONS);
    assert!(!end.found.saturated, "{:?}", end.found);
}

/// Random loss holds each connection at 4 Mbit/s: four of them do not fill 50 Mbit/s, 16 do.
#[test]
fn connections_are_added_until_the_line_is_full() {
    for seed in 1..20 {
        let line = Line {
            rate: 50.0 * MBIT,
            round_trip: 0.04,
            each: 4.0 * MBIT,
            noise: 0.03,
            dips: 0.0,
            queue: 0.0,
        };
        let end = transfer(&line, seed);
        assert_eq!(end.connections, 32, "16 fill it, and 32 show that they did");
        assert!((0.95..1.05).contains(&ratio(&end, line.rate)));
        assert!(end.found.saturated);
    }
}

/// "a saturated slow uplink taken for a fast one" must not happen, nor the reverse.
#[test]
fn a_line_that_is_never_full_has_a_lower_bound() {
    let line = Line {
        rate: 1000.0 * MBIT,
        round_trip: 0.1,
        each: 2.0 * MBIT,
        noise: 0.0,
        dips: 0.0,
        queue: 0.0,
    };
    let end = transfer(&line, 1);
    assert_eq!(end.connections, MAX_CONNECTIONS);
    assert!(!end.found.saturated, "{:?}", end.found);
    let ratio = ratio(&end, 2.0 * MBIT * MAX_CONNECTIONS as f64);
    assert!((0.95..1.05).contains(&ratio), "{ratio}");
}

/// Rates that jump about have no dense part: the transfer ends anyway and says how unsure it is.
#[test]
fn a_restless_line_ends_in_time_with_a_large_error() {
    let steady = Line {
        rate: 20.0 * MBIT,
        round_trip: 0.04,
        each: 1e12,
        noise: 0.0,
        dips: 0.0,
        queue: 0.0,
    };
    let restless = Line {
        noise: 0.5,
        ..steady
    };
    for seed in 1..20 {
        let end = transfer(&restless, seed);
        assert!(end.seconds <= 6.1);
        assert!(end.found.error > 0.03, "{:?}", end.found);
    }
}

/// The estimate stays until new connections have carried something, and at the end is not missing.
#[test]
fn an_estimate_outlives_connections_that_carry_nothing() {
    let mut capacity = TransferCapacity::new(Time::ZERO, &[Duration::from_millis(40)]);
    let (mut now, mut connections, mut estimated) = (Time::ZERO, 1, false);
    loop {
        now = now + POLL;
        let mbit = match now.since(Time::ZERO).as_millis() {
            _ if connections > FIRST_CONNECTIONS => 0,
            ..400 => 50,
            _ => 20,
        };
        let sample = TransferSample {
            end: now,
            span: POLL,
            carried: Bytes::new(mbit * 3_125),
            round_trip: Some(Duration::from_millis(40)),
        };
        let step = capacity.note(&sample);
        estimated |= capacity.estimate().is_some();
        assert_eq!(capacity.estimate().is_some(), estimated, "{now:?}");
        match step {
            TransferStep::Connections(most) => connections = most,
            TransferStep::Continue => {}
            TransferStep::Done => break,
        }
    }
    assert!(connections > 2 * FIRST_CONNECTIONS, "losses held the first");
    assert!(estimated);
}

#[test]
fn nothing_carried_is_nothing_known() {
    let mut capacity = TransferCapacity::new(Time::ZERO, &[Duration::from_millis(20)]);
    let mut now = Time::ZERO;
    let ended = (0..300).any(|_| {
        now = now + POLL;
        let sample = TransferSample {
            end: now,
            span: POLL,
            carried: Bytes::new(0),
            round_trip: None,
        };
        capacity.note(&sample) == TransferStep::Done
    });
    assert!(ended);
    assert_eq!(capacity.estimate(), None);
}

proptest! {
    /// Whatever arrives: the transfer ends within its time, and the estimate is a rate that was seen.
    #[test]
    fn an_estimate_is_among_the_rates_seen(
        carried in prop::collection::vec(0_u64..2_000_000, 160),
        span in 20_u64..80,
        round_trip in 1_u64..800,
        shown in prop::option::of(0_u64..2_000),
    ) {
        let round_trip = Duration::from_millis(round_trip);
        let shown = shown.map(Duration::from_millis);
        let mut capacity = TransferCapacity::new(Time::ZERO, &[round_trip]);
        let span = Duration::from_millis(span);
        let mut now = Time::ZERO;
        let most = carried.iter().copied().max().unwrap_or_default();
        for bytes in &carried {
            now = now + span;
            let carried = Bytes::new(*bytes);
            let sample = TransferSample { end: now, span, carried, round_trip: shown };
            let step = capacity.note(&sample);
            if let TransferStep::Connections(number) = step {
                prop_assert!(number <= MAX_CONNECTIONS);
            }
            if step == TransferStep::Done {
                break;
            }
        }
        if let Some(found) = capacity.estimate() {
            let most = most as f64 * 8.0 / span.as_secs_f64();
            prop_assert!(found.rate.bits_per_sec() as f64 <= most * 1.001 + 1.0);
            prop_assert!((0.0..=1.0).contains(&found.error));
        }
        prop_assert!(now.since(Time::ZERO) <= Duration::from_secs(7) || span * 160 < Duration::from_secs(6));
    }
}
