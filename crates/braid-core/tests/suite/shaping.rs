//! Rates that a line is shaped to, on a line that carries what the shaper lets through and builds a queue of the rest.

use std::time::Duration;

use braid_core::capacity::{CapacityBasis, CapacityEstimate};
use braid_core::shaping::{ShapedTraffic, UplinkShaper};
use braid_core::{Bytes, Rate, Time};
use proptest::prelude::*;

const INTERVAL: Duration = Duration::from_millis(200);
/// Longest queue of the line, in seconds.
const BUFFER: f64 = 0.3;

/// A line in whose one direction senders want all that there is.
struct Line {
    shaper: UplinkShaper,
    down: bool,
    now: Time,
    /// Bits in the queue.
    queued: f64,
    /// Time and rate of the last measurement.
    measured: Option<(Time, f64)>,
    saturated: u32,
}

impl Line {
    fn new(down: bool) -> Line {
        Line {
            shaper: UplinkShaper::default(),
            down,
            now: Time::ZERO,
            queued: 0.0,
            measured: None,
            saturated: 0,
        }
    }

    fn rate(&self) -> Option<f64> {
        let rate = match self.down {
            true => self.shaper.rx(),
            false => self.shaper.tx(),
        };
        rate.map(|rate| rate.bits_per_sec() as f64)
    }

    /// Runs for an interval at a rate of the line, with senders that want `wanted` at most, both in bits per second.
    /// Returns the bits that crossed the line.
    fn interval(&mut self, rate: f64, wanted: f64) -> f64 {
        let span = INTERVAL.as_secs_f64();
        self.now = self.now + INTERVAL;
        let shaped = self.rate();
        let limited = shaped.is_some_and(|shaped| wanted > shaped);
        let offered = wanted.min(shaped.map_or(rate * 1.5, |shaped| shaped));
        self.queued += offered * span;
        let carried = self.queued.min(rate * span);
        self.queued = (self.queued - carried).min(BUFFER * rate);
        let waits = self.queued / rate.max(1.0);
        // Three intervals of a queue in which enough is carried, as the passive estimate needs them.
        let saturated = waits > 0.004 && carried >= 120_000.0;
        self.saturated = if saturated { self.saturated + 1 } else { 0 };
        if self.saturated >= 3 {
            self.measured = Some((self.now, carried / span));
        }
        let capacity = self.measured.map(|(at, rate)| CapacityEstimate {
            rate: Rate::from_bits_per_sec(rate as u64),
            basis: CapacityBasis::Saturated,
            error: 0.02,
            age: self.now.since(at),
        });
        let queueing = (carried > 0.0).then(|| Duration::from_secs_f64(waits));
        let busy = ShapedTraffic {
            carried: Bytes::new((carried / 8.0) as u64),
            limited,
            queueing,
            capacity,
            drift: 0.02,
            queued: false,
        };
        let other = ShapedTraffic {
            carried: Bytes::new((carried / 320.0) as u64),
            limited: false,
            queueing,
            capacity: None,
            drift: 0.02,
            queued: false,
        };
        let (tx, rx) = if self.down {
            (other, busy)
        } else {
            (busy, other)
        };
        self.shaper.note(self.now, INTERVAL, &tx, &rx, None);
        carried
    }

    /// Runs for some seconds; returns the part of the line that was used.
    fn run(&mut self, seconds: u32, rate: f64, wanted: f64) -> f64 {
        let carried: f64 = (0..seconds * 5).map(|_| self.interval(rate, wanted)).sum();
        carried / (f64::from(seconds) * rate)
    }

    fn waits(&self, rate: f64) -> f64 {
        self.queued / rate
    }
}

const LOTS: f64 = 1e9;
const MBIT: f64 = 1e6;

#[test]
fn nothing_is_shaped_before_the_line_was_full() {
    for down in [true, false] {
        let mut line = Line::new(down);
        line.run(10, 20.0 * MBIT, 5.0 * MBIT);
        assert_eq!(line.rate(), None);
        line.run(3, 20.0 * MBIT, LOTS);
        let rate = line.rate().expect("measured");
        assert!((0.6..=1.05).contains(&(rate / (20.0 * MBIT))), "{rate}");
    }
}

#[test]
fn a_full_line_keeps_its_goodput_and_has_no_queue() {
    for down in [true, false] {
        let mut line = Line::new(down);
        line.run(5, 20.0 * MBIT, LOTS);
        let mut worst: f64 = 0.0;
        let mut used = 0.0;
        for _ in 0..30 {
            used += line.run(1, 20.0 * MBIT, LOTS) / 30.0;
            worst = worst.max(line.waits(20.0 * MBIT));
        }
        assert!(used > 0.93, "{used}");
        assert!(worst < 0.03, "{worst} s");
    }
}

#[test]
fn a_line_that_changes_is_followed_down_within_a_second_and_up_within_ten() {
    for down in [true, false] {
        let mut line = Line::new(down);
        line.run(10, 40.0 * MBIT, LOTS);
        line.run(2, 10.0 * MBIT, LOTS);
        assert!(line.rate().expect("known") < 11.5 * MBIT);
        assert!(line.waits(10.0 * MBIT) < 0.1, "{}", line.waits(10.0 * MBIT));
        line.run(10, 10.0 * MBIT, LOTS);
        line.run(10, 20.0 * MBIT, LOTS);
        assert!(line.run(2, 20.0 * MBIT, LOTS) > 0.9);
    }
}

#[test]
fn an_idle_line_keeps_its_rate() {
    for down in [true, false] {
        let mut line = Line::new(down);
        line.run(10, 20.0 * MBIT, LOTS);
        line.run(2, 20.0 * MBIT, 1.0 * MBIT);
        let before = line.rate();
        line.run(600, 20.0 * MBIT, 0.1 * MBIT);
        assert_eq!(line.rate(), before);
    }
}

#[test]
fn a_stall_is_forgotten_within_seconds() {
    for (down, stalled) in [(true, 0.05), (false, 0.05), (true, 1.0), (false, 1.0)] {
        let mut line = Line::new(down);
        line.run(10, 20.0 * MBIT, LOTS);
        line.run(4, stalled * MBIT, LOTS);
        line.run(5, 20.0 * MBIT, LOTS);
        assert!(line.run(2, 20.0 * MBIT, LOTS) > 0.9, "{:?}", line.rate());
    }
}

#[test]
fn a_configured_capacity_is_a_ceiling_and_known_at_once() {
    let mut shaper = UplinkShaper::default();
    let ceiling = Rate::from_bits_per_sec(10_000_000);
    let quiet = ShapedTraffic {
        carried: Bytes::new(0),
        limited: false,
        queueing: None,
        capacity: None,
        drift: 0.02,
        queued: false,
    };
    let at = Time::ZERO + INTERVAL;
    shaper.note(at, INTERVAL, &quiet, &quiet, Some(ceiling));
    assert_eq!(shaper.tx(), Some(Rate::from_bits_per_sec(9_700_000)));
    let fast = ShapedTraffic {
        capacity: Some(CapacityEstimate {
            rate: Rate::from_bits_per_sec(30_000_000),
            basis: CapacityBasis::Transfer,
            error: 0.02,
            age: Duration::ZERO,
        }),
        ..quiet
    };
    shaper.note(at + INTERVAL, INTERVAL, &fast, &fast, Some(ceiling));
    assert_eq!(shaper.tx(), Some(Rate::from_bits_per_sec(9_700_000)));
    shaper.note(at + INTERVAL * 2, INTERVAL, &fast, &fast, None);
    assert!(shaper.rx() > Some(ceiling));
}

#[test]
fn a_lower_bound_shapes_nothing() {
    let mut shaper = UplinkShaper::default();
    let bound = ShapedTraffic {
        carried: Bytes::new(1_000_000),
        limited: false,
        queueing: None,
        capacity: Some(CapacityEstimate {
            rate: Rate::from_bits_per_sec(30_000_000),
            basis: CapacityBasis::AtLeast,
            error: 1.0,
            age: Duration::ZERO,
        }),
        drift: 0.02,
        queued: false,
    };
    shaper.note(Time::ZERO + INTERVAL, INTERVAL, &bound, &bound, None);
    assert_eq!((shaper.tx(), shaper.rx()), (None, None));
}

/// Round trips do not say in which direction a queue stands, and no capacity is measured while both are full.
#[test]
fn a_line_that_is_full_both_ways_from_the_start_is_shaped() {
    let mut shaper = UplinkShaper::default();
    let rates = [5.0 * MBIT, 20.0 * MBIT];
    let mut queued = [0.0_f64; 2];
    let (mut now, mut used, mut waits) = (Time::ZERO, [0.0_f64; 2], 0.0_f64);
    let span = INTERVAL.as_secs_f64();
    for step in 0..150 {
        now = now + INTERVAL;
        let shaped = [shaper.tx(), shaper.rx()];
        let mut carried = [0.0; 2];
        for way in 0..2 {
            let rate = shaped[way].map_or(rates[way] * 1.5, |rate| rate.bits_per_sec() as f64);
            queued[way] += rate * span;
            carried[way] = queued[way].min(rates[way] * span);
            queued[way] = (queued[way] - carried[way]).min(BUFFER * rates[way]);
        }
        let waited = queued[0] / rates[0] + queued[1] / rates[1];
        let traffic = |way: usize| ShapedTraffic {
            carried: Bytes::new((carried[way] / 8.0) as u64),
            limited: shaped[way].is_some(),
            queueing: Some(Duration::from_secs_f64(waited)),
            capacity: None,
            drift: 0.02,
            queued: false,
        };
        shaper.note(now, INTERVAL, &traffic(0), &traffic(1), None);
        if step >= 25 {
            waits += waited / 125.0;
            for way in 0..2 {
                used[way] += carried[way] / span / rates[way] / 125.0;
            }
        }
    }
    assert!(waits < 0.03, "{waits} s");
    assert!(used.iter().all(|used| *used > 0.85), "{used:?}");
}

/// Senders fill a virtual queue up to what CoDel leaves them, and it stands in the line's own.
#[test]
fn the_virtual_queue_to_send_does_not_make_the_rate_fall() {
    let mut shaper = UplinkShaper::resumed(Some(Rate::from_bits_per_sec(4_850_000)), None);
    let mut at = Time::ZERO;
    for step in 0..100 {
        at = at + INTERVAL;
        // 8 ms, two packets, and bursts of four.
        let queueing = Duration::from_millis(if step % 2 == 0 { 24 } else { 22 });
        let traffic = |bytes| ShapedTraffic {
            carried: Bytes::new(bytes),
            limited: bytes > 10_000,
            queueing: Some(queueing),
            capacity: None,
            drift: 0.02,
            queued: false,
        };
        shaper.note(at, INTERVAL, &traffic(115_000), &traffic(3_000), None);
    }
    let rate = shaper.tx().expect("known").bits_per_sec();
    assert!(rate > 4_600_000, "{rate}");
}

proptest! {
    /// Whatever the line does, a steady one afterwards is used: an estimate never only falls.
    #[test]
    fn a_steady_line_is_used_after_any_other(
        rates in prop::collection::vec(0.05f64..80.0, 1..12),
        wants in prop::collection::vec(0.0f64..100.0, 12),
        down: bool,
    ) {
        let mut line = Line::new(down);
        for (rate, wanted) in rates.iter().zip(wants) {
            line.run(2, rate * MBIT, wanted * MBIT);
        }
        line.run(30, 20.0 * MBIT, LOTS);
        let used = line.run(5, 20.0 * MBIT, LOTS);
        prop_assert!(used > 0.9, "{} at {:?}", used, line.rate());
        prop_assert!(line.waits(20.0 * MBIT) < 0.05);
    }
}
