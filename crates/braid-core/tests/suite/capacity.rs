//! Capacity estimates on generated traces: a queue behind which senders probe for the line's rate,
//! or want less.

use std::time::Duration;

use braid_core::capacity::{
    ActiveEstimate, CapacityBasis, CapacityEstimate, UplinkCapacity, UplinkInterval,
};
use braid_core::{Bytes, Rate, Time};
use proptest::prelude::*;

use crate::support::Noise;

const STEP: Duration = Duration::from_millis(5);
const INTERVAL: Duration = Duration::from_millis(200);
const SEGMENT: f64 = 1500.0 * 8.0;

/// A drop-tail queue with senders behind it that share a window, as AIMD ones do.
struct Line {
    /// Base round trip, in seconds.
    base: f64,
    /// Longest queue, in seconds.
    buffer: f64,
    senders: f64,
    /// Random loss, as a fraction of packets.
    loss: f64,
    /// Mean jitter of a round trip, in seconds.
    jitter: f64,
    window: f64,
    queued: f64,
    /// Bits dropped in this interval and in the one before, which are sent again in this one.
    dropped: [f64; 2],
    reduced: f64,
    /// Time of this interval in which a queue stood.
    stood: Duration,
    now: Time,
    noise: Noise,
}

impl Line {
    fn new(base_ms: f64, buffer_ms: f64, seed: u64) -> Line {
        Line {
            base: base_ms / 1e3,
            buffer: buffer_ms / 1e3,
            senders: 4.0,
            loss: 0.0,
            jitter: 0.0005,
            window: 40.0 * SEGMENT,
            queued: 0.0,
            dropped: [0.0; 2],
            reduced: 0.0,
            stood: Duration::ZERO,
            now: Time::ZERO,
            noise: Noise(seed),
        }
    }

    /// Runs for an interval at a rate of the line, with senders that want `wanted` at most, both in
    /// bits per second. Returns the bytes that left the queue, those that were sent, those of them
    /// that were sent again, and the mean growth of round trips.
    fn interval(&mut self, rate: f64, wanted: f64) -> (u64, u64, u64, Duration) {
        self.dropped = [0.0, self.dropped[0]];
        let (mut left, mut sent, mut growth) = (0.0, 0.0, 0.0);
        self.stood = Duration::ZERO;
        let steps = INTERVAL.as_millis() / STEP.as_millis();
        let step = STEP.as_secs_f64();
        for _ in 0..steps {
            let rtt = self.base + self.queued / rate.max(1.0);
            let offered = (self.window / rtt).min(wanted) * step;
            sent += offered;
            self.queued += offered;
            let drained = self.queued.min(rate * step);
            self.queued -= drained;
            left += drained;
            self.reduced -= step;
            // Segments lost at random, and those that find the queue full.
            let unlucky = self.noise.next() < offered / SEGMENT * self.loss;
            let full = self.queued > self.buffer * rate;
            self.dropped[0] += (self.queued - self.buffer * rate).max(0.0);
            self.queued = self.queued.min(self.buffer * rate);
            if (full || unlucky) && self.reduced <= 0.0 {
                self.window *= 1.0 - 0.3 / if full { 1.5 } else { self.senders };
                self.reduced = rtt;
            }
            // A window that is not used does not grow (RFC 9293 and RFC 7661).
            if self.window / rtt <= wanted {
                self.window += self.senders * SEGMENT * step / rtt;
            }
            self.window = self.window.max(2.0 * SEGMENT);
            if self.queued > 0.0 {
                self.stood += STEP;
            }
            growth += self.queued / rate.max(1.0) + self.jitter * 2.0 * self.noise.next();
        }
        self.now = self.now + INTERVAL;
        let growth = Duration::from_secs_f64(growth / steps as f64);
        let bytes = |bits: f64| (bits / 8.0) as u64;
        (
            bytes(left),
            bytes(sent),
            bytes(self.dropped[1].min(sent)),
            growth,
        )
    }

    /// Downloads for an interval and tells the estimator.
    fn download(&mut self, to: &mut UplinkCapacity, rate: f64, wanted: f64) {
        let (received, _, _, growth) = self.interval(rate, wanted);
        to.note(&self.seen(received / 40, received, 0, growth));
    }

    /// Uploads.
    fn upload(&mut self, to: &mut UplinkCapacity, rate: f64, wanted: f64) {
        let (_, sent, repeated, growth) = self.interval(rate, wanted);
        to.note(&self.seen(sent, sent / 40, repeated, growth));
    }

    fn seen(&self, tx: u64, rx: u64, repeated: u64, growth: Duration) -> UplinkInterval {
        UplinkInterval {
            end: self.now,
            span: INTERVAL,
            tx: Bytes::new(tx),
            rx: Bytes::new(rx),
            repeated: Bytes::new(repeated),
            queueing: (tx + rx > 2_000).then_some(growth),
            queued: self.stood,
            unseen: Duration::ZERO,
        }
    }
}

const MBIT: f64 = 1e6;
const NO_LIMIT: f64 = 1e12;

fn bits(found: &CapacityEstimate) -> f64 {
    found.rate.bits_per_sec() as f64
}

fn percentile(errors: &mut [f64], of: f64) -> f64 {
    errors.sort_by(f64::total_cmp);
    errors[((errors.len() - 1) as f64 * of) as usize]
}

/// "passive, once saturated for 2 s, at most 0.03 / 0.10": rates of 1 to 100 Mbit/s, queues of 20
/// and 300 ms, with and without random loss, in both directions.
#[test]
fn a_saturated_line_is_known_within_three_percent() {
    for up in [false, true] {
        for (rate, buffer, loss) in [1.0, 5.0, 20.0, 50.0, 100.0]
            .into_iter()
            .flat_map(|rate| [(rate, 20.0, 0.0), (rate, 300.0, 0.0), (rate, 300.0, 0.001)])
        {
            let mut line = Line::new(30.0, f64::max(buffer, 12.0 * 4.0 / rate), 7);
            line.loss = loss;
            // Slow start is over.
            line.window = rate * MBIT * line.base;
            let mut found = UplinkCapacity::default();
            let mut errors = Vec::new();
            for turn in 0..60 {
                let rate = rate * MBIT;
                match up {
                    true => line.upload(&mut found, rate, NO_LIMIT),
                    false => line.download(&mut found, rate, NO_LIMIT),
                }
                let now = match up {
                    true => found.tx(line.now),
                    false => found.rx(line.now),
                };
                let Some(now) = now.filter(|now| now.basis == CapacityBasis::Saturated) else {
                    continue;
                };
                if turn >= 10 {
                    errors.push((bits(&now) / rate - 1.0).abs());
                }
            }
            assert!(
                errors.len() >= 40,
                "{rate} Mbit/s, {buffer} ms: {}",
                errors.len()
            );
            let (p50, p95) = (percentile(&mut errors, 0.5), percentile(&mut errors, 0.95));
            assert!(
                p50 <= 0.03 && p95 <= 0.10,
                "{rate} {buffer} {loss} {up}: {p50} {p95}"
            );
        }
    }
}

/// Behind a queue of 300 ms few flows have a round trip in each interval of 200 ms.
#[test]
fn intervals_without_a_round_trip_are_bridged() {
    let (mut line, mut found) = (Line::new(40.0, 300.0, 5), UplinkCapacity::default());
    for turn in 0..40 {
        let (received, _, _, growth) = line.interval(5.0 * MBIT, NO_LIMIT);
        let mut seen = line.seen(received / 40, received, 0, growth);
        seen.queueing = seen.queueing.filter(|_| turn % 3 == 0);
        found.note(&seen);
    }
    let now = found.rx(line.now).unwrap();
    assert_eq!(now.basis, CapacityBasis::Saturated);
    assert!((bits(&now) / (5.0 * MBIT) - 1.0).abs() < 0.03, "{now:?}");
    assert!(now.age <= Duration::from_millis(400), "{now:?}");
}

/// "never by mere peak": the highest rate that programs wanted is only a lower bound.
#[test]
fn what_programs_wanted_is_a_lower_bound() {
    let (mut line, mut found) = (Line::new(30.0, 300.0, 1), UplinkCapacity::default());
    for _ in 0..100 {
        line.download(&mut found, 50.0 * MBIT, 8.0 * MBIT);
    }
    let found = found.rx(line.now).unwrap();
    assert_eq!(found.basis, CapacityBasis::AtLeast);
    assert!(
        (bits(&found) / (8.0 * MBIT) - 1.0).abs() < 0.05,
        "{found:?}"
    );
}

/// "never: an estimate that only grows".
#[test]
fn an_estimate_falls_with_the_line_within_two_seconds_and_rises_again() {
    let (mut line, mut found) = (Line::new(40.0, 200.0, 3), UplinkCapacity::default());
    for rate in [50.0, 5.0, 20.0] {
        for _ in 0..50 {
            line.download(&mut found, rate * MBIT, NO_LIMIT);
            if rate < 50.0 && line.now.since(Time::ZERO).as_secs() % 10 >= 2 {
                let now = bits(&found.rx(line.now).unwrap()) / (rate * MBIT);
                assert!((0.85..1.15).contains(&now), "{rate} Mbit/s: {now}");
            }
        }
    }
}

/// An interval of a download behind a queue: bytes, growth, and time of a queue that it shows, in ms.
fn behind_a_queue(step: u32, bytes: u64, growth: Option<u64>, queued: u64) -> UplinkInterval {
    UplinkInterval {
        end: Time::ZERO + INTERVAL * step,
        span: INTERVAL,
        tx: Bytes::new(bytes / 40),
        rx: Bytes::new(bytes),
        repeated: Bytes::new(0),
        queueing: growth.map(Duration::from_millis),
        queued: Duration::from_millis(queued),
        unseen: Duration::ZERO,
    }
}

/// Intervals of a radio link that was full differ by any factor.
#[test]
fn a_second_that_waiting_packets_cover_shows_its_mean() {
    let mut found = UplinkCapacity::default();
    let (bytes, mean) = ([100_000, 30_000, 250_000, 60_000, 160_000], 4_800_000);
    for (step, bytes) in (1..).zip(bytes) {
        found.note(&behind_a_queue(step, bytes, Some(150), 200));
    }
    let now = Time::ZERO + INTERVAL * 5;
    let shown = found.rx(now).expect("an estimate");
    assert_eq!(shown.basis, CapacityBasis::Saturated, "{shown:?}");
    assert_eq!(shown.rate.bits_per_sec(), mean);
    assert!((0.1..0.5).contains(&shown.error), "{shown:?}");
    // It carries nothing for a while, and then a packet that has waited all that time.
    for step in 6..=9 {
        found.note(&behind_a_queue(step, 0, None, 0));
    }
    let now = Time::ZERO + INTERVAL * 9;
    assert_eq!(
        found.rx(now).unwrap().rate.bits_per_sec(),
        mean,
        "not known"
    );
    found.note(&behind_a_queue(10, 50_000, Some(900), 1_000));
    let now = Time::ZERO + INTERVAL * 10;
    assert_eq!(found.rx(now).unwrap().rate.bits_per_sec(), 400_000);
}

/// Packets sent are counted before the queue. Of those of a second the last one waits longer than the first by as much as the
/// queue has grown, so they leave within as much more than a second, however it went up and down meanwhile.
#[test]
fn what_is_sent_in_a_second_counts_by_the_time_in_which_it_leaves() {
    let mut found = UplinkCapacity::default();
    // Bytes, growth of round trips, and time that is covered. Packets that are sent again are known an interval later.
    let intervals = [
        (90_000, 300, 0),
        (100_000, 500, 200),
        (30_000, 250, 200),
        (250_000, 600, 200),
        (60_000, 300, 200),
        (160_000, 500, 200),
        (0, 500, 200),
    ];
    for (step, (bytes, growth, covered)) in (1..).zip(intervals) {
        found.note(&UplinkInterval {
            tx: Bytes::new(bytes),
            rx: Bytes::new(bytes / 40),
            ..behind_a_queue(step, 0, Some(growth), covered)
        });
    }
    let shown = found.tx(Time::ZERO + INTERVAL * 7).expect("an estimate");
    assert_eq!(shown.basis, CapacityBasis::Saturated, "{shown:?}");
    // 600 kB in 1.2 s.
    assert_eq!(shown.rate.bits_per_sec(), 4_000_000);
}

/// After a transfer nothing waits: how little comes then says nothing of the line.
#[test]
fn the_end_of_a_transfer_is_no_slower_line() {
    let mut found = UplinkCapacity::default();
    for (step, bytes) in (1..).zip([100_000, 30_000, 250_000, 60_000, 160_000]) {
        found.note(&behind_a_queue(step, bytes, Some(150), 200));
    }
    let known = found.rx(Time::ZERO + INTERVAL * 5).unwrap().rate;
    // The last packet, which has waited for 150 ms, comes in the middle of an interval.
    found.note(&UplinkInterval {
        unseen: Duration::from_millis(100),
        ..behind_a_queue(6, 80_000, Some(120), 150)
    });
    for step in 7..20 {
        found.note(&behind_a_queue(step, 2_000, None, 0));
        let shown = found.rx(Time::ZERO + INTERVAL * step).unwrap();
        assert_eq!((shown.rate, shown.basis), (known, CapacityBasis::Saturated));
    }
}

/// The packets of many flows are late at any time, by the line's jitter: no queue, however long it lasts.
#[test]
fn jitter_that_covers_a_second_is_no_queue() {
    for (growth, seldom_seen_for) in [(3, 0), (15, 0), (35, 0), (60, 400)] {
        let mut found = UplinkCapacity::default();
        // Programs never want the same twice.
        for (step, bytes) in (1..=900).zip([900_000, 30_000, 100_000].into_iter().cycle()) {
            let covered = if step > seldom_seen_for { 200 } else { growth };
            found.note(&behind_a_queue(step, bytes, Some(growth), covered));
            let shown = found.rx(Time::ZERO + INTERVAL * step);
            let basis = shown.map(|shown| shown.basis);
            assert_ne!(basis, Some(CapacityBasis::Saturated), "{growth} ms, {step}");
        }
    }
}

/// "idle estimates age, they are not dropped".
#[test]
fn an_idle_lines_estimate_ages_and_stays() {
    let (mut line, mut found) = (Line::new(40.0, 200.0, 3), UplinkCapacity::default());
    for _ in 0..50 {
        line.download(&mut found, 20.0 * MBIT, NO_LIMIT);
    }
    let fresh = found.rx(line.now).unwrap();
    for _ in 0..1500 {
        line.download(&mut found, 20.0 * MBIT, 0.02 * MBIT);
    }
    let old = found.rx(line.now).unwrap();
    assert_eq!(
        (old.rate, old.basis),
        (fresh.rate, CapacityBasis::Saturated)
    );
    assert!(old.age >= Duration::from_secs(299), "{old:?}");
    assert!(old.error > 3.0 * fresh.error, "{fresh:?} {old:?}");
}

/// A download's acknowledgements share its growth of round trips and say nothing of the way up.
#[test]
fn acknowledgements_are_no_saturated_upload() {
    let (mut line, mut found) = (Line::new(40.0, 200.0, 3), UplinkCapacity::default());
    for _ in 0..50 {
        line.download(&mut found, 20.0 * MBIT, NO_LIMIT);
    }
    let up = found.tx(line.now).unwrap();
    assert_eq!(up.basis, CapacityBasis::AtLeast);
}

/// A rate that refutes an estimate is no capacity to show, and counts for a fifth more until a queue
/// shows the capacity. Of a line that was never full nothing is assumed.
#[test]
fn new_flows_are_shared_out_by_a_refuting_rate_until_a_queue_shows_the_capacity() {
    let (mut line, mut found) = (Line::new(40.0, 200.0, 3), UplinkCapacity::default());
    for _ in 0..25 {
        line.download(&mut found, 50.0 * MBIT, 4.0 * MBIT);
    }
    assert_eq!(found.rx(line.now).unwrap().basis, CapacityBasis::AtLeast);
    assert_eq!(found.assumed(line.now), None);
    for _ in 0..25 {
        line.download(&mut found, 5.0 * MBIT, NO_LIMIT);
    }
    let fresh = found.rx(line.now).unwrap();
    assert_eq!(found.assumed(line.now), Some(fresh.rate));
    for _ in 0..25 {
        line.download(&mut found, 50.0 * MBIT, 20.0 * MBIT);
    }
    let shown = found.rx(line.now).unwrap();
    let assumed = found.assumed(line.now).unwrap().bits_per_sec() as f64;
    assert_eq!(shown.basis, CapacityBasis::AtLeast);
    assert!(
        (assumed / bits(&shown) - 1.2).abs() < 1e-6,
        "{assumed} {shown:?}"
    );
    for _ in 0..25 {
        line.download(&mut found, 30.0 * MBIT, NO_LIMIT);
    }
    let full = found.rx(line.now).unwrap();
    assert_eq!(full.basis, CapacityBasis::Saturated);
    assert_eq!(found.assumed(line.now), Some(full.rate));
}

/// A line that has become faster while programs wanted less than all: what it carries refutes the
/// old estimate.
#[test]
fn a_higher_rate_refutes_an_older_estimate() {
    let (mut line, mut found) = (Line::new(40.0, 200.0, 3), UplinkCapacity::default());
    for _ in 0..25 {
        line.download(&mut found, 5.0 * MBIT, NO_LIMIT);
    }
    for _ in 0..25 {
        line.download(&mut found, 50.0 * MBIT, 20.0 * MBIT);
    }
    let now = found.rx(line.now).unwrap();
    assert_eq!(now.basis, CapacityBasis::AtLeast);
    assert!((bits(&now) / (20.0 * MBIT) - 1.0).abs() < 0.05, "{now:?}");
}

/// A walk whose rate changes each second by 13 to 25 % in the median, as drive tests of cellular and
/// Starlink lines found: the estimate is no worse than the last second's truth.
#[test]
fn on_a_cellular_walk_it_is_as_good_as_the_last_seconds_truth() {
    for seed in 1..6 {
        let (mut line, mut found) = (Line::new(50.0, 300.0, seed), UplinkCapacity::default());
        let mut noise = Noise(seed * 77);
        let (mut before, mut rate) = (30.0 * MBIT, 30.0 * MBIT);
        let (mut estimated, mut last) = (Vec::new(), Vec::new());
        for second in 0..200 {
            if second > 3 {
                let now = found.rx(line.now).unwrap();
                estimated.push((bits(&now) / rate - 1.0).abs());
                last.push((before / rate - 1.0).abs());
            }
            for _ in 0..5 {
                line.download(&mut found, rate, NO_LIMIT);
            }
            before = rate;
            let step = 0.28 * noise.normal();
            rate = (rate * step.exp()).clamp(2.0 * MBIT, 90.0 * MBIT);
        }
        let (estimated, last) = (percentile(&mut estimated, 0.5), percentile(&mut last, 0.5));
        assert!((0.10..0.27).contains(&last), "the walk: {last}");
        assert!(
            estimated <= last * 1.1,
            "seed {seed}: {estimated} against {last}"
        );
    }
}

/// The seconds of a recording begin anywhere between the changes of a line. A line that falls is known late, and one that
/// rises at once: by the estimates at the ends of seconds this line would be up to 14 % faster.
#[test]
fn the_seconds_of_a_line_that_changes_have_its_mean() {
    let walk = [6.0, 3.0, 8.0, 4.0, 7.0];
    let mean = walk.iter().sum::<f64>() / 5.0;
    for offset in 0..5 {
        let (mut line, mut found) = (Line::new(20.0, 300.0, 7), UplinkCapacity::default());
        let (mut seconds, mut ends) = (Vec::new(), Vec::new());
        for step in 0..=550 {
            if step > 50 && step % 5 == 0 {
                seconds.push(bits(&found.rx_last_second(line.now).unwrap()) / MBIT);
                ends.push(bits(&found.rx(line.now).unwrap()) / MBIT);
            }
            let rate = walk[(step + offset) / 10 % walk.len()];
            line.download(&mut found, rate * MBIT, NO_LIMIT);
        }
        let mean_of = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        assert_eq!(seconds.len(), 100);
        let (known, at_ends) = (mean_of(&seconds), mean_of(&ends));
        println!("offset {offset}: mean {known:.2}, at the ends {at_ends:.2}");
        assert!(
            (known / mean - 1.0).abs() < 0.03,
            "{offset}: {known}, {seconds:?}"
        );
    }
}

fn transferred(mbit: u64, saturated: bool) -> ActiveEstimate {
    ActiveEstimate {
        rate: Rate::from_bits_per_sec(mbit * 1_000_000),
        error: 0.02,
        saturated,
    }
}

/// A transfer's result ages and stays until the line's own traffic has shown another capacity; both are
/// shown.
#[test]
fn the_later_of_transfer_and_traffic_is_the_capacity() {
    let (mut line, mut found) = (Line::new(40.0, 200.0, 3), UplinkCapacity::default());
    for _ in 0..25 {
        line.download(&mut found, 20.0 * MBIT, NO_LIMIT);
    }
    found.note_rx_active(line.now, CapacityBasis::Transfer, &transferred(50, true));
    // Intervals that end now had the transfer beside them.
    for _ in 0..4 {
        line.download(&mut found, 20.0 * MBIT, NO_LIMIT);
    }
    let now = found.rx(line.now).unwrap();
    assert_eq!(
        (now.basis, bits(&now)),
        (CapacityBasis::Transfer, 50.0 * MBIT)
    );
    let other = found.other_rx(line.now).unwrap();
    assert_eq!(other.basis, CapacityBasis::Saturated);
    for _ in 0..3000 {
        line.download(&mut found, 50.0 * MBIT, 0.02 * MBIT);
    }
    let old = found.rx(line.now).unwrap();
    assert_eq!((old.rate, old.basis), (now.rate, CapacityBasis::Transfer));
    assert!(
        old.age >= Duration::from_secs(590) && old.error > 3.0 * now.error,
        "{old:?}"
    );
    for _ in 0..25 {
        line.download(&mut found, 30.0 * MBIT, NO_LIMIT);
    }
    let passive = found.rx(line.now).unwrap();
    assert_eq!(passive.basis, CapacityBasis::Saturated);
    assert!(
        (bits(&passive) / (30.0 * MBIT) - 1.0).abs() < 0.05,
        "{passive:?}"
    );
    let other = found.other_rx(line.now).unwrap();
    assert_eq!(
        (other.rate, other.basis),
        (now.rate, CapacityBasis::Transfer)
    );
    assert_eq!(found.other_tx(line.now), None);
}

/// A transfer of 5 Mbit/s, and later a program that carries 20 without a queue.
#[test]
fn a_higher_rate_refutes_an_older_transfer() {
    let (mut line, mut found) = (Line::new(40.0, 200.0, 3), UplinkCapacity::default());
    line.download(&mut found, 50.0 * MBIT, 1.0 * MBIT);
    found.note_rx_active(line.now, CapacityBasis::Transfer, &transferred(5, true));
    for _ in 0..25 {
        line.download(&mut found, 50.0 * MBIT, 20.0 * MBIT);
    }
    assert_eq!(found.rx(line.now).unwrap().basis, CapacityBasis::AtLeast);
}

/// A transfer that did not fill the line is a lower bound like any other.
#[test]
fn a_transfer_that_fills_no_line_is_a_lower_bound() {
    let mut found = UplinkCapacity::default();
    let now = Time::ZERO + Duration::from_secs(9);
    found.note_tx_active(now, CapacityBasis::Transfer, &transferred(70, false));
    let bound = found.tx(now).unwrap();
    assert_eq!(
        (bound.basis, bits(&bound)),
        (CapacityBasis::AtLeast, 70.0 * MBIT)
    );
    assert_eq!(found.rx(now), None);
}

proptest! {
    /// Whatever the line and the programs do: a rate that is called saturated is one that the line
    /// has had within the last two seconds and a half, and nothing is known to carry more than it has
    /// carried.
    #[test]
    fn no_slow_line_is_taken_for_a_fast_one(
        seconds in prop::collection::vec((1.0..100.0f64, 0.05..150.0f64), 3..30),
        (base, buffer) in (5.0..150.0f64, 10.0..500.0f64),
        seed in any::<u64>(),
        up in any::<bool>(),
    ) {
        let mut line = Line::new(base, buffer, seed);
        let mut found = UplinkCapacity::default();
        let mut recent: Vec<f64> = Vec::new();
        for (rate, wanted) in seconds {
            for _ in 0..5 {
                recent.push(rate);
                match up {
                    true => line.upload(&mut found, rate * MBIT, wanted * MBIT),
                    false => line.download(&mut found, rate * MBIT, wanted * MBIT),
                }
                let now = match up { true => found.tx(line.now), false => found.rx(line.now) };
                let Some(now) = now else { continue };
                prop_assert!((0.0..=1.0).contains(&now.error));
                if now.basis == CapacityBasis::Saturated && now.age.is_zero() {
                    let most = recent.iter().rev().take(12).copied().fold(0.0, f64::max);
                    prop_assert!(bits(&now) <= most * MBIT * 1.25, "{now:?}, the line has {most}");
                }
            }
        }
    }
}
