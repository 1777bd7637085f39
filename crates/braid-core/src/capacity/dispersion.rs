//! Estimate of a line's capacity from the dispersion of packet trains.
//!
//! Packets that are sent at once leave a line one after the other, and arrive as far apart as the line needs for each
//! (Dovrolis, Ramanathan and Moore, *Packet-Dispersion Techniques and a Capacity-Estimation Methodology*, 2004).
//!
//! Rules and their reasons:
//! - A train is a number of bursts of [`BURST_PACKETS`] packets, each of another sender, as a server's initial windows
//!   on several connections. Trains of two lengths must show the same rate. If the longer one shows more, the senders
//!   space their packets and the line may carry more: a lower bound.
//! - A train's rate is the median of the slopes of its arrivals over half of its length, so that a packet that is
//!   late, or held back, weighs little.
//! - A packet that is missing has used the line, or has not. So arrivals are compared only within *runs* without a gap.
//! - Interrupts, merging of packets and aggregation deliver packets in batches. Arrivals closer to the one before than
//!   a quarter of the line's time for a packet belong to its batch, and the end of a batch is what counts. Of a run in
//!   batches, the last one may have been cut short and does not count.
//! - On a line with other traffic, packets of others stand between those of a train, and all its slopes are too low. But
//!   pairs with none between are as far apart as on an idle line: a mode of the gaps. If gaps are long enough to be
//!   told apart, a mode with a third of them all that is faster than the trains is the capacity. On a line with
//!   a token bucket, fast gaps are at the beginning of the trains alone; there, the second halves count.
//! - Trains are lengthened until they take [`MIN_SPAN`]: delivery to programs and kernels is punctual to a fraction of a
//!   millisecond. A line too fast for the longest one has a lower bound.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::ActiveEstimate;
use super::crucial::{Crucial, Sample, crucial};
use crate::{Bytes, Rate, Time};

/// Packets of a burst: fewer than an initial window has (RFC 6928).
pub const BURST_PACKETS: usize = 8;
/// Most bursts of a train.
pub const MAX_BURSTS: usize = 8;
/// Least time that the packets of a train are apart in.
const MIN_SPAN: Duration = Duration::from_millis(6);
/// Trains of the longest length, and of half of it, without which nothing is certain.
const MIN_LONGEST: usize = 3;
const MIN_HALF: usize = 2;
/// Most trains.
const MAX_TRAINS: usize = 14;
/// Trains without any arrival after which none will come.
const MAX_SILENT: usize = 3;
/// Expected error with which the trains may end.
const GOOD_ERROR: f64 = 0.05;
/// Expected error from which the rate is no more than a lower bound.
const MAX_ERROR: f64 = 0.25;
/// Least error of an estimate, as a fraction.
const MIN_ERROR: f64 = 0.01;
/// Punctuality of arrivals.
const RESOLUTION: Duration = Duration::from_micros(300);
/// Least gap that is told from twice and half of it.
const MIN_GAP: Duration = Duration::from_micros(1_200);
/// Factor from which two rates differ.
const DIFFERENT: f64 = 1.15;
/// Part of a packet's time on the line up to which two arrivals are of one batch.
const BATCH: f64 = 0.25;
/// Part of the arrivals in a batch from which a train comes in batches.
const COALESCED: f64 = 0.125;
/// Part of all gaps that a mode has.
const MODE_SHARE: f64 = 0.33;
/// Part of a mode's gaps in the first halves of their runs from which it is a token bucket's.
const BUCKET_SHARE: f64 = 0.8;
/// Points of a run without which its halves are not compared.
const MIN_HALVES: usize = 6;

/// A packet of a train that has arrived, or several that were merged on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainPacket {
    /// Its sender within the train.
    pub flow: u16,
    /// Its place among all that this sender sends, in packets or in bytes, from 0.
    pub range: Range<u32>,
    /// Its size, IP headers included.
    pub size: Bytes,
    /// Time of its arrival.
    pub received: Time,
}

/// Estimates the capacity of one direction of a line from packet trains.
#[derive(Clone, Debug, Default)]
pub struct DispersionCapacity {
    trains: Vec<Train>,
}

impl DispersionCapacity {
    /// Takes the packets of a train that have arrived, in order of arrival.
    pub fn note(&mut self, bursts: usize, packets: &[TrainPacket]) {
        self.trains.push(Train::new(bursts, packets));
    }

    /// Returns the bursts of the next train; `None` if the line is known as well as it will be.
    #[must_use]
    pub fn next_bursts(&self) -> Option<usize> {
        let longest = self.longest();
        let silent = self.trains.iter().filter(|train| train.points == 0);
        if self.trains.len() >= MAX_TRAINS || silent.count() >= MAX_SILENT {
            return None;
        }
        match longest {
            0 => return Some(1),
            1 => return Some(2),
            _ => {}
        }
        let is_short = median(self.of(longest).map(|train| train.span)) < MIN_SPAN.as_secs_f64();
        if longest < MAX_BURSTS && (is_short || self.grows()) {
            return Some(longest * 2);
        }
        let [number, half] = [longest, longest / 2].map(|bursts| self.of(bursts).count());
        let is_known = self
            .estimate()
            .is_some_and(|found| found.error <= GOOD_ERROR);
        match number {
            ..MIN_LONGEST => Some(longest),
            _ if half < MIN_HALF => Some(longest / 2),
            _ if is_known => None,
            _ => Some(longest),
        }
    }

    /// Returns the estimate so far; `None` if no train shows a rate.
    #[must_use]
    pub fn estimate(&self) -> Option<ActiveEstimate> {
        let counted: Vec<&Train> = self.counted().collect();
        let rates: Vec<Sample> = counted.iter().filter_map(|train| train.rate).collect();
        let found = crucial(&rates)?;
        let known = token_bucket_rate(&counted).or_else(|| gap_rate(&counted, &found));
        let (rate, spread) = known.unwrap_or_else(|| (found.mean, spread(&rates)));
        let unpunctual = |seconds: f64| RESOLUTION.as_secs_f64() / seconds.max(1e-9);
        let span = counted.iter().map(|train| train.span).sum::<f64>();
        let error = spread.max(unpunctual(span)).clamp(MIN_ERROR, 1.0);
        // Many short runs have the same fault, which their number does not make smaller.
        let run = median(counted.iter().map(|train| train.longest_run));
        let saturated = error.max(unpunctual(run)) <= MAX_ERROR
            && counted.len() >= MIN_LONGEST
            && !self.grows();
        Some(ActiveEstimate {
            rate: Rate::from_bits_per_sec(rate as u64),
            error,
            saturated,
        })
    }

    /// Returns the most bursts of a train.
    fn longest(&self) -> usize {
        self.trains
            .iter()
            .map(|train| train.bursts)
            .max()
            .unwrap_or(0)
    }

    fn of(&self, bursts: usize) -> impl Iterator<Item = &Train> {
        self.trains
            .iter()
            .filter(move |train| train.bursts == bursts && train.points > 1)
    }

    /// Returns the trains that count: the longest, and those of half of their length.
    fn counted(&self) -> impl Iterator<Item = &Train> {
        let longest = self.longest();
        self.trains
            .iter()
            .filter(move |train| train.bursts * 2 >= longest && train.rate.is_some())
    }

    /// Returns true if longer trains are faster: their senders space them.
    fn grows(&self) -> bool {
        let longest = self.longest();
        let [rate, half] = [longest, longest / 2]
            .map(|bursts| median(self.of(bursts).filter_map(Train::bits_per_sec)));
        half > 0.0 && rate > half * DIFFERENT
    }
}

/// Returns the rate and its error behind a token bucket, if the trains slow down.
fn token_bucket_rate(counted: &[&Train]) -> Option<(f64, f64)> {
    let halves: Vec<(f64, f64)> = counted.iter().filter_map(|train| train.halves).collect();
    let slow = halves
        .iter()
        .filter(|(first, second)| *first > *second * DIFFERENT);
    let seconds: Vec<Sample> = slow.map(|(_, second)| Sample::of(1.0, *second)).collect();
    (!halves.is_empty() && seconds.len() * 4 >= halves.len() * 3).then(|| {
        (
            median(seconds.iter().map(Sample::rate)),
            spread(&seconds).max(DIFFERENT - 1.0),
        )
    })
}

/// Returns the rate and its error by the gaps without other traffic, if the trains had some in between.
fn gap_rate(counted: &[&Train], by_trains: &Crucial) -> Option<(f64, f64)> {
    if counted.iter().any(|train| train.is_coalesced) {
        return None;
    }
    let gaps: Vec<Gap> = counted
        .iter()
        .flat_map(|train| train.gaps.clone())
        .collect();
    let samples: Vec<Sample> = gaps.iter().map(|gap| gap.sample).collect();
    let mode = crucial(&samples)?;
    let inside = |gap: &&Gap| (mode.lowest..=mode.highest).contains(&gap.sample.rate());
    let early = gaps
        .iter()
        .filter(inside)
        .filter(|gap| gap.is_early)
        .count();
    let is_wide = mode.highest > mode.lowest * DIFFERENT;
    let inside_seconds = median(gaps.iter().filter(inside).map(|gap| gap.sample.seconds));
    let is_mode = mode.inside as f64 >= MODE_SHARE * gaps.len() as f64
        && !is_wide
        && inside_seconds >= MIN_GAP.as_secs_f64();
    let is_bucket = early as f64 >= BUCKET_SHARE * mode.inside as f64;
    let is_faster = mode.mean > by_trains.mean * 1.05;
    let width = (mode.highest - mode.lowest) / mode.mean;
    (is_mode && is_faster && !is_bucket).then_some((mode.mean, width))
}

/// A train as it arrived.
#[derive(Clone, Debug)]
struct Train {
    bursts: usize,
    /// Arrivals, those of a batch as one.
    points: usize,
    /// Seconds from the first arrival to the last one, of the runs together.
    span: f64,
    /// Seconds of the longest run.
    longest_run: f64,
    /// The rate, weighted by its span.
    rate: Option<Sample>,
    /// Rates of the first and the second half, in bits per second, of the longest run.
    halves: Option<(f64, f64)>,
    /// Gaps between arrivals.
    gaps: Vec<Gap>,
    is_coalesced: bool,
}

/// Time between two arrivals, and the size of the later one.
#[derive(Clone, Copy, Debug)]
struct Gap {
    sample: Sample,
    /// True if it is in the first half of its run.
    is_early: bool,
}

/// Bits that have arrived until a time in seconds.
#[derive(Clone, Copy, Debug)]
struct Point {
    seconds: f64,
    bits: f64,
}

impl Train {
    fn new(bursts: usize, packets: &[TrainPacket]) -> Train {
        let mut runs = runs(packets);
        let arrivals: usize = runs.iter().map(Vec::len).sum();
        // Rates of single arrivals are right in the middle, and tell batches.
        let first = median_slope(&runs);
        if let Some(rate) = first {
            runs.iter_mut().for_each(|run| merge_batches(run, rate));
        }
        let points: usize = runs.iter().map(Vec::len).sum();
        let is_coalesced = (arrivals - points) as f64 > COALESCED * arrivals as f64;
        if is_coalesced {
            let long = runs.iter_mut().filter(|run| run.len() > 3);
            long.for_each(|run| run.truncate(run.len() - 1));
        }
        let span = runs.iter().map(|run| seconds(run)).sum();
        let longest = runs.iter().max_by_key(|run| run.len());
        Train {
            bursts,
            points,
            span,
            longest_run: longest.map_or(0.0, |run| seconds(run)),
            rate: median_slope(&runs).map(|rate| Sample::of(1.0, rate)),
            halves: longest.and_then(|run| halves(run)),
            gaps: runs.iter().flat_map(|run| gaps(run)).collect(),
            is_coalesced,
        }
    }

    fn bits_per_sec(&self) -> Option<f64> {
        self.rate.map(|rate| rate.rate())
    }
}

/// Returns the arrivals without a gap before them, as curves.
fn runs(packets: &[TrainPacket]) -> Vec<Vec<Point>> {
    let mut runs: Vec<Vec<Point>> = Vec::new();
    let mut expected: BTreeMap<u16, u32> = BTreeMap::new();
    let Some(start) = packets.first().map(|packet| packet.received) else {
        return runs;
    };
    for packet in packets {
        let next = expected.entry(packet.flow).or_insert(0);
        let follows = std::mem::replace(next, packet.range.end) == packet.range.start;
        let bits = packet.size.get() as f64 * 8.0;
        let seconds = packet.received.since(start).as_secs_f64();
        match runs.last_mut() {
            Some(run) if follows => {
                let before = run.last().map_or(0.0, |point| point.bits);
                run.push(Point {
                    seconds,
                    bits: before + bits,
                });
            }
            _ => runs.push(vec![Point { seconds, bits }]),
        }
    }
    runs
}

/// Keeps the end of each batch. A packet takes the line's time for its bits.
fn merge_batches(run: &mut Vec<Point>, rate: f64) {
    let mut ends: Vec<Point> = Vec::with_capacity(run.len());
    for point in run.iter() {
        match ends.last_mut() {
            Some(end) if point.seconds - end.seconds < BATCH * (point.bits - end.bits) / rate => {
                // The batch came when its last packet did.
                *end = *point;
            }
            _ => ends.push(*point),
        }
    }
    *run = ends;
}

/// Returns the median of the slopes over half of each run, in bits per second, each weighted by its packets.
fn median_slope(runs: &[Vec<Point>]) -> Option<f64> {
    let mut slopes: Vec<(f64, usize)> = Vec::new();
    for run in runs {
        let half = (run.len() / 2).max(1);
        let pairs = run.iter().zip(run.iter().skip(half));
        slopes.extend(pairs.map(|(one, other)| (slope(one, other), half)));
    }
    slopes.retain(|(rate, _)| rate.is_finite());
    slopes.sort_by(|one, other| one.0.total_cmp(&other.0));
    let all: usize = slopes.iter().map(|(_, weight)| weight).sum();
    let mut so_far = 0;
    slopes.into_iter().find_map(|(rate, weight)| {
        so_far += weight;
        (so_far * 2 >= all).then_some(rate)
    })
}

fn slope(one: &Point, other: &Point) -> f64 {
    (other.bits - one.bits) / (other.seconds - one.seconds)
}

fn seconds(run: &[Point]) -> f64 {
    match (run.first(), run.last()) {
        (Some(first), Some(last)) => last.seconds - first.seconds,
        _ => 0.0,
    }
}

fn halves(run: &[Point]) -> Option<(f64, f64)> {
    let (first, last) = (run.first()?, run.last()?);
    let middle = &run[run.len() / 2];
    (run.len() >= MIN_HALVES).then(|| (slope(first, middle), slope(middle, last)))
}

fn gaps(run: &[Point]) -> Vec<Gap> {
    let pairs = run.iter().zip(run.iter().skip(1)).enumerate();
    pairs
        .map(|(place, (one, other))| Gap {
            sample: Sample::of(other.seconds - one.seconds, other.bits - one.bits),
            is_early: place * 2 < run.len(),
        })
        .collect()
}

/// Returns twice the standard error of the rates, as a fraction of their mean; 1 if there are fewer than two.
fn spread(rates: &[Sample]) -> f64 {
    let n = rates.len() as f64;
    if rates.len() < 2 {
        return 1.0;
    }
    let mean = rates.iter().map(Sample::rate).sum::<f64>() / n;
    let square = |rate: &Sample| (rate.rate() - mean).powi(2);
    let variance = rates.iter().map(square).sum::<f64>() / (n - 1.0);
    2.0 * (variance / n).sqrt() / mean
}

/// Returns the value in the middle; 0 if there is none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
