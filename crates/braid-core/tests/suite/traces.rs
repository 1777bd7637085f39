//! Capacity estimates over lines whose rate is played from traces: recordings of radio links, and one made up.
//!
//! `BRAID_TRACES=DIR cargo test --release -p braid-core --test suite -- traces --nocapture` plays every `.csv` of a
//! directory (`seconds,Mbit/s`; a rate holds until the next line) and prints the errors. Without it the made-up trace
//! is played alone.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use braid_core::capacity::{CapacityBasis, UplinkCapacity, UplinkInterval};
use braid_core::{Bytes, Time};
use braid_emulate::trace::Trace;

use crate::support::Noise;
use crate::support::network::{Event, LineSpec, Network};
use crate::transfer_lines::{Case, Transfer};

/// The lines count Ethernet frames, estimates IP packets.
const IP_SHARE: f64 = 1500.0 / 1514.0;
const INTERVAL: Duration = Duration::from_millis(200);
const INTERVALS_PER_SECOND: u64 = 5;
const FLOWS: usize = 4;
/// Seconds of a recording that are played to the passive estimate, and those in which the line fills.
const PASSIVE_SECONDS: u64 = 60;
const FILLING_SECONDS: u64 = 3;
/// Seconds with a saturated estimate from which its error is judged.
const MIN_KNOWN_SECONDS: usize = 20;
const OBJECT: u64 = 1_000_000_000;
const RADIO: LineSpec = LineSpec {
    delay_ms: 20,
    queue_ms: 300,
};

/// A rate in Mbit/s from each time in seconds on.
struct Recording {
    name: String,
    rates: Vec<(f64, f64)>,
}

impl Recording {
    fn parse(name: &str, text: &str) -> Recording {
        let row = |row: &str| {
            let (at, mbit) = row.split_once(',')?;
            Some((at.parse().ok()?, mbit.parse().ok()?))
        };
        let rates: Vec<_> = text.lines().filter_map(row).collect();
        assert!(rates.len() > 1, "{name} has no rates");
        Recording {
            name: name.to_owned(),
            rates,
        }
    }

    /// A moving phone: opportunities of 10 ms, of a rate that changes by a fifth a second in the median, with pauses of
    /// 150 ms.
    fn made_up(seed: u64) -> Recording {
        let mut noise = Noise(seed);
        let (mut text, mut level) = ("seconds,Mbit/s\n".to_owned(), 12.0_f64);
        for slot in 0..7_000 {
            if slot % 100 == 0 {
                level = (level * (0.28 * noise.normal()).exp()).clamp(3.0, 40.0);
            }
            let pauses = slot % 400 >= 385;
            let mbit = level * (0.5 + noise.next()) * f64::from(u8::from(!pauses));
            writeln!(text, "{:.2},{mbit:.2}", f64::from(slot) / 100.0).expect("a text");
        }
        Recording::parse("made up", &text)
    }

    /// The last rate holds as long as the one before it.
    fn seconds(&self) -> f64 {
        let [before, last] = [2, 1].map(|back| self.rates[self.rates.len() - back].0);
        2.0 * last - before
    }

    /// Returns it as the emulator plays it, beginning at a time of it.
    fn from(&self, seconds: f64) -> Arc<Trace> {
        let (before, after): (Vec<_>, Vec<_>) =
            self.rates.iter().partition(|(at, _)| *at <= seconds);
        let mut text = "seconds,Mbit/s\n".to_owned();
        let now = before.last().map_or(0.0, |(_, mbit)| *mbit);
        let rest = after.iter().map(|(at, mbit)| (at - seconds, *mbit));
        let again = before
            .iter()
            .map(|(at, mbit)| (at + self.seconds() - seconds, *mbit));
        for (at, mbit) in [(0.0, now)].into_iter().chain(rest).chain(again) {
            // The last row is where it began.
            if at < self.seconds() {
                writeln!(text, "{at:.6},{mbit}").expect("a text");
            }
        }
        let name = Path::new(&self.name);
        Arc::new(Trace::parse(name, &text).unwrap_or_else(|error| panic!("{error}")))
    }

    /// Returns the mean rate in a span, in bits of IP packets per second.
    fn mean(&self, from: f64, to: f64) -> f64 {
        let whole = self.seconds();
        let until = |time: f64| {
            let (rounds, rest) = ((time / whole).floor(), time.rem_euclid(whole));
            let ends = self.rates.iter().skip(1).map(|(at, _)| *at).chain([whole]);
            let within = |end: f64| -> f64 {
                let held = self.rates.iter().zip(ends.clone());
                held.map(|((at, mbit), next)| mbit * (next.min(end) - at).max(0.0))
                    .sum()
            };
            rounds * within(whole) + within(rest)
        };
        (until(to) - until(from)) / (to - from) * 1e6 * IP_SHARE
    }
}

fn recordings() -> Vec<Recording> {
    let mut found = vec![Recording::made_up(1)];
    let Some(folder) = std::env::var_os("BRAID_TRACES") else {
        return found;
    };
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<PathBuf> = files.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "csv"));
    paths.sort();
    assert!(!paths.is_empty(), "{folder:?} has no recordings");
    found.extend(paths.iter().map(|path| {
        let text = std::fs::read_to_string(path).expect("a recording");
        Recording::parse(
            &path.file_stem().unwrap_or_default().to_string_lossy(),
            &text,
        )
    }));
    found
}

fn percentile(values: &mut [f64], of: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * of) as usize]
}

/// Downloads by four connections while a recording is played. Returns the estimates at the ends of seconds: the second,
/// the rate, and true if it is saturated.
fn passive(recording: &Recording) -> Vec<(u64, f64, bool)> {
    let mut network = Network::new(&[RADIO]);
    network.play(0, &recording.from(0.0));
    (0..FLOWS).for_each(|_| {
        network.connect(Duration::ZERO);
    });
    network.set_timer(Time::ZERO + INTERVAL);
    let mut capacity = UplinkCapacity::default();
    let (mut estimates, mut ended) = (Vec::new(), 0);
    let (mut tx, mut rx, mut repeated) = (0, 0, 0);
    let mut growth: Vec<Duration> = Vec::new();
    let seconds = PASSIVE_SECONDS.min(recording.seconds() as u64 - 1);
    while ended < seconds * INTERVALS_PER_SECOND {
        match network.next() {
            Event::SynDue { flow, .. } => network.send_syn(flow, &[0], None),
            Event::SynAnswered {
                flow, opens: true, ..
            } => network.request(flow, OBJECT),
            Event::Sent {
                bytes,
                repeated: again,
                ..
            } => {
                tx += u64::from(bytes);
                repeated += u64::from(bytes) * u64::from(again);
            }
            Event::Received {
                bytes, queueing, ..
            } => {
                rx += u64::from(bytes);
                growth.extend(queueing);
            }
            Event::Timer => {
                ended += 1;
                let samples = growth.len() as u32;
                let sum: Duration = std::mem::take(&mut growth).into_iter().sum();
                capacity.note(&UplinkInterval {
                    end: network.now,
                    span: INTERVAL,
                    tx: Bytes::new(std::mem::take(&mut tx)),
                    rx: Bytes::new(std::mem::take(&mut rx)),
                    repeated: Bytes::new(std::mem::take(&mut repeated)),
                    queueing: sum.checked_div(samples),
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

/// "`error_vs_last_second` (at most 1.1)": the error of the passive estimate for the next second, as a multiple of that
/// of the last second's true rate, in the seconds in which a queue has shown the capacity. A line whose rate doubles and
/// halves within a second refutes most estimates at once; then there are few such seconds, and nothing is asserted of them.
#[test]
fn a_full_line_that_plays_a_trace_is_tracked() {
    for recording in recordings() {
        let estimates = passive(&recording);
        let error = |second: u64, rate: f64| {
            let next = recording.mean(second as f64, second as f64 + 1.0);
            (rate / next - 1.0).abs()
        };
        let of_last =
            |second: u64| error(second, recording.mean(second as f64 - 1.0, second as f64));
        let known: Vec<_> = estimates
            .iter()
            .filter(|(.., saturated)| *saturated)
            .collect();
        let median = |mut errors: Vec<f64>| percentile(&mut errors, 0.5);
        let all = median(
            estimates
                .iter()
                .map(|(second, rate, _)| error(*second, *rate))
                .collect(),
        );
        let all_last = median(
            estimates
                .iter()
                .map(|(second, ..)| of_last(*second))
                .collect(),
        );
        println!(
            "{}: {} s, {} of them saturated; error for the next second of all {all:.3}, of the last second's rate {all_last:.3}",
            recording.name,
            estimates.len(),
            known.len(),
        );
        if known.len() < MIN_KNOWN_SECONDS {
            continue;
        }
        let estimated = median(
            known
                .iter()
                .map(|(second, rate, _)| error(*second, *rate))
                .collect(),
        );
        let last = median(known.iter().map(|(second, ..)| of_last(*second)).collect());
        let ratio = estimated / last;
        println!(
            "    of saturated ones {estimated:.3}, of the last second's rate {last:.3}: {ratio:.2}"
        );
        assert!(ratio <= 1.25, "{}: {ratio}", recording.name);
    }
    // The made-up one is always judged.
    let made_up = passive(&Recording::made_up(1));
    let known = made_up.iter().filter(|(.., saturated)| *saturated);
    assert!(known.count() >= MIN_KNOWN_SECONDS);
}

/// A transfer measures the rate that the line has meanwhile. Of a line that changes it says nothing more.
#[test]
fn a_transfer_over_a_line_that_plays_a_trace_measures_what_it_carries() {
    for recording in recordings() {
        let (mut errors, mut full, mut took) = (Vec::new(), 0, Vec::new());
        let starts = (recording.seconds() / 8.0) as u32;
        for start in 0..starts {
            let from = f64::from(start) * 8.0;
            let mut network = Network::with_seed(&[RADIO], u64::from(start));
            network.play(0, &recording.from(from));
            let mbit = recording.mean(0.0, recording.seconds()) / IP_SHARE / 1e6;
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
