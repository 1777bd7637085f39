//! Capacity estimates over lines whose rate is played from traces: recordings of radio links, and walks like them.
//!
//! `BRAID_TRACES=DIR cargo test --release -p braid-core --test suite -- traces --nocapture` plays every `.csv` of a
//! directory (`seconds,Mbit/s`; a rate holds until the next line) and prints the errors. Without it the walks are played
//! alone.

use std::path::PathBuf;
use std::time::Duration;

use braid_core::capacity::{CapacityBasis, UplinkCapacity, UplinkInterval};
use braid_core::{Bytes, Time};
use braid_emulate::walk::Rates;

use crate::support::network::{Event, LineSpec, Network, RoundTrips};
use crate::transfer_lines::{Case, Transfer};

/// The lines count Ethernet frames, estimates IP packets.
const IP_SHARE: f64 = 1500.0 / 1514.0;
const INTERVAL: Duration = Duration::from_millis(200);
const INTERVALS_PER_SECOND: u64 = 5;
const FLOWS: usize = 4;
/// Length of a walk.
const WALK_SECONDS: f64 = 90.0;
/// Seconds of a recording that are played to the passive estimate, and those in which the line fills.
const PASSIVE_SECONDS: u64 = 60;
const FILLING_SECONDS: u64 = 3;
const OBJECT: u64 = 1_000_000_000;
const RADIO: LineSpec = LineSpec {
    delay_ms: 20,
    queue_ms: 300,
};

/// A recording or a walk.
struct Recording {
    name: String,
    rates: Rates,
}

impl Recording {
    /// Returns the mean rate in a span, in bits of IP packets per second.
    fn mean(&self, from: f64, to: f64) -> f64 {
        self.rates.mean(from, to - from) * 1e6 * IP_SHARE
    }
}

/// Moving phones at some mean rates, a satellite, and the recordings of a directory.
fn recordings() -> Vec<Recording> {
    let mut found: Vec<_> = [(2.0, 1), (5.0, 2), (12.0, 3), (40.0, 4)]
        .map(|(mean, seed)| Recording {
            name: format!("LTE of {mean} Mbit/s"),
            rates: Rates::lte(mean, WALK_SECONDS, seed),
        })
        .into();
    found.push(Recording {
        name: "satellite".to_owned(),
        rates: Rates::satellite(100.0, WALK_SECONDS, 5),
    });
    let Some(folder) = std::env::var_os("BRAID_TRACES") else {
        return found;
    };
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<PathBuf> = files.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "csv"));
    paths.sort();
    assert!(!paths.is_empty(), "{folder:?} has no recordings");
    found.extend(paths.iter().map(|path| {
        Recording {
            name: path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into(),
            rates: Rates::read(path),
        }
    }));
    found
}

fn percentile(values: &mut [f64], of: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * of) as usize]
}

/// Downloads of objects of this size, one after the other by each of four connections, while a recording is played. Returns
/// the estimates at the ends of seconds: the second, the rate, and true if it is saturated.
fn passive(recording: &Recording, line: LineSpec, object: u64) -> Vec<(u64, f64, bool)> {
    let mut network = Network::new(&[line]);
    network.play(0, &recording.rates.trace(0.0, 0.0));
    (0..FLOWS).for_each(|_| {
        network.connect(Duration::ZERO);
    });
    network.set_timer(Time::ZERO + INTERVAL);
    let mut capacity = UplinkCapacity::default();
    let (mut estimates, mut ended) = (Vec::new(), 0);
    let (mut tx, mut rx, mut repeated) = (0, 0, 0);
    let mut round_trips = RoundTrips::default();
    let seconds = PASSIVE_SECONDS.min(recording.rates.period() as u64 - 1);
    while ended < seconds * INTERVALS_PER_SECOND {
        match network.next() {
            Event::SynDue { flow, .. } => network.send_syn(flow, &[0], None),
            Event::SynAnswered {
                flow, opens: true, ..
            }
            | Event::Done { flow, .. } => network.request(flow, object),
            Event::Sent {
                bytes,
                repeated: again,
                ..
            } => {
                tx += u64::from(bytes);
                repeated += u64::from(bytes) * u64::from(again);
            }
            Event::Received {
                bytes, round_trip, ..
            } => {
                rx += u64::from(bytes);
                if let Some(round_trip) = round_trip {
                    round_trips.note(network.now, round_trip);
                }
            }
            Event::Timer => {
                ended += 1;
                let trips = round_trips.take();
                capacity.note(&UplinkInterval {
                    end: network.now,
                    span: INTERVAL,
                    tx: Bytes::new(std::mem::take(&mut tx)),
                    rx: Bytes::new(std::mem::take(&mut rx)),
                    repeated: Bytes::new(std::mem::take(&mut repeated)),
                    queueing: trips.growth(),
                    queued: trips.queued,
                    unseen: trips.unseen(network.now),
                });
                network.set_timer(network.now + INTERVAL);
                let second = ended / INTERVALS_PER_SECOND;
                let known = capacity.rx(network.now);
                if ended % INTERVALS_PER_SECOND == 0 && second >= FILLING_SECONDS {
                    estimates.extend(known.map(|found| {
                        let saturated = found.basis == CapacityBasis::Saturated;
                        (second, found.rate.bits_per_sec() as f64, saturated)
                    }));
                }
            }
            _ => {}
        }
    }
    estimates
}

/// "`error_vs_last_second` (at most 1.1)": errors of the passive estimate for the next second, also where it is a lower
/// bound, beside those of the last second's true rate. "Never: a saturated slow uplink taken for a fast one": it is too
/// high not much more often than that rate is.
#[test]
fn a_full_line_that_plays_a_trace_is_tracked() {
    for recording in recordings() {
        let estimates = passive(&recording, RADIO, OBJECT);
        let second_from = |second: u64| recording.mean(second as f64, second as f64 + 1.0);
        // Of the next second's rate, that of the line and of the estimate.
        let of_next = |(second, rate, _): &(u64, f64, bool)| {
            let next = second_from(*second);
            [second_from(second - 1), *rate].map(|rate| rate / next)
        };
        // That of a second in which the line stalls is another matter (`stall.rs`).
        let least = recording.mean(0.0, recording.rates.period()) / 10.0;
        let stalls = |second: u64| second_from(second) < least;
        let kept = estimates.iter().filter(|(second, ..)| !stalls(*second));
        let found: Vec<_> = kept.map(of_next).collect();
        let [last, estimated] = [0, 1].map(|which| {
            let ratios = found.iter().map(|pair| pair[which]);
            let mut errors: Vec<f64> = ratios.clone().map(|ratio| (ratio - 1.0).abs()).collect();
            [
                percentile(&mut errors, 0.5),
                percentile(&mut ratios.collect::<Vec<_>>(), 0.9),
            ]
        });
        let saturated = estimates.iter().filter(|(.., saturated)| *saturated);
        println!(
            "{}: {} s, {} of them saturated; error for the next second {:.3}, of the last second's rate {:.3}; of the next one at the 90th percentile {:.2} and {:.2}",
            recording.name,
            estimates.len(),
            saturated.count(),
            estimated[0],
            last[0],
            estimated[1],
            last[1],
        );
        assert!(estimates.len() >= 50, "{}", recording.name);
        assert!(
            estimated[0] <= 1.25 * last[0],
            "{}: {estimated:?} {last:?}",
            recording.name
        );
        assert!(
            estimated[1] <= 1.4 * last[1],
            "{}: {estimated:?} {last:?}",
            recording.name
        );
    }
}

/// Slow start sends in bursts: over a far line these queue for a moment, and the line is idle for the rest of the round trip.
#[test]
fn bursts_over_a_far_line_are_no_capacity() {
    const FAR: LineSpec = LineSpec {
        delay_ms: 300,
        queue_ms: 300,
    };
    for mbit in [5.0, 20.0, 60.0] {
        let recording = Recording {
            name: format!("{mbit} Mbit/s"),
            rates: Rates::steps(&[(0.0, mbit), (WALK_SECONDS, mbit)]),
        };
        for object in [50_000, 200_000, 1_000_000] {
            let estimates = passive(&recording, FAR, object);
            assert!(estimates.len() >= 50);
            for (second, rate, saturated) in estimates {
                let truth = recording.mean(0.0, 1.0);
                assert!(
                    !saturated || rate > 0.85 * truth,
                    "{mbit} Mbit/s, {object} bytes, second {second}: {rate}"
                );
            }
        }
    }
}

/// A transfer measures the rate that the line has meanwhile. Of a line that changes it says nothing more.
#[test]
fn a_transfer_over_a_line_that_plays_a_trace_measures_what_it_carries() {
    for recording in recordings() {
        let (mut errors, mut full, mut took) = (Vec::new(), 0, Vec::new());
        let starts = (recording.rates.period() / 8.0) as u32;
        for start in 0..starts {
            let from = f64::from(start) * 8.0;
            let mut network = Network::with_seed(&[RADIO], u64::from(start));
            network.play(0, &recording.rates.trace(from, 0.0));
            let mbit = recording.mean(0.0, recording.rates.period()) / IP_SHARE / 1e6;
            let case = Case::new(mbit, RADIO.queue_ms, 0);
            let end = Transfer::over(network, case, 0);
            let began = from + end.began.since(Time::ZERO).as_secs_f64();
            let truth = recording.mean(began, began + end.seconds);
            errors.push((end.found.rate.bits_per_sec() as f64 / truth - 1.0).abs());
            took.push(end.seconds);
            full += usize::from(end.found.saturated);
        }
        let [error, worst] = [0.5, 0.95].map(|of| percentile(&mut errors, of));
        let took = percentile(&mut took, 0.5);
        println!(
            "{}: {starts} transfers, error {error:.3} / {worst:.3}, {took:.2} s, {full} said full",
            recording.name,
        );
        assert!(error <= 0.5, "{}: {error}", recording.name);
    }
}
