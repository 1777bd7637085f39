//! Rates of radio links over time, to be played by a [`Link`](crate::Link): recordings, and random walks with similar
//! statistics.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use crate::trace::Trace;

/// Seconds and Mbit/s; a rate holds until the next one, the last as long as the one before it.
#[derive(Debug, Clone)]
pub struct Rates(Vec<(f64, f64)>);

/// A walk's step in seconds.
const STEP: f64 = 0.01;

/// Bits that one opportunity carries.
const OPPORTUNITY: f64 = 12_112.0;

impl Rates {
    /// Reads a recording: `seconds,Mbit/s`.
    ///
    /// # Panics
    /// If the file cannot be read, or has fewer than two rates.
    pub fn read(path: &Path) -> Rates {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let row = |row: &str| {
            let (at, mbit) = row.split_once(',')?;
            Some((at.parse().ok()?, mbit.parse().ok()?))
        };
        let rates: Vec<_> = text.lines().filter_map(row).collect();
        assert!(rates.len() > 1, "{path:?} has no rates");
        Rates(rates)
    }

    /// Builds rates from seconds, each with the rate from then on.
    pub fn steps(steps: &[(f64, f64)]) -> Rates {
        Rates(steps.to_vec())
    }

    /// Builds the rates of a line that does not change.
    pub fn fixed(mbit: f64) -> Rates {
        Rates(vec![(0.0, mbit), (1.0, mbit)])
    }

    /// An LTE link in a car: a rate that changes by a fifth per second in the median and doubles or
    /// halves now and then, single transmission opportunities, scheduler stalls of 10 to 150 ms,
    /// and a silence of up to a second about twice a minute.
    pub fn lte(mean: f64, seconds: f64, seed: u64) -> Rates {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut rates = Vec::new();
        let (mut level, mut stalled, mut owed, mut at) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
        while at < seconds {
            // Standard deviation 0.6, correlation 0.9 after a second.
            level += -0.1 * level * STEP + 0.6 * (0.2 * STEP).sqrt() * rng.normal();
            if rng.uniform() < 0.02 * STEP / 0.1 {
                level += 0.7 * rng.normal();
            }
            if stalled <= 0.0 {
                stalled = match rng.uniform() {
                    u if u < STEP / 30.0 => 0.3 + 0.7 * rng.uniform(),
                    u if u < STEP * 2.0 => 0.01 + 0.14 * rng.uniform() * rng.uniform(),
                    _ => 0.0,
                };
            }
            let mbit = mean * (level - 0.18).clamp(-2.5, 1.5).exp();
            let bits = mbit * 1e6 * STEP;
            if stalled > 0.0 {
                stalled -= STEP;
                // The scheduler makes up for part of the bits that it did not send.
                owed = (owed + bits * 0.5).min(mbit * 1e6 * 0.05);
                rates.push((at, 0.0));
            } else {
                let burst = owed.min(bits);
                owed -= burst;
                let count = rng.poisson((bits + burst) / OPPORTUNITY);
                rates.push((at, count * OPPORTUNITY / STEP / 1e6));
            }
            at += STEP;
        }
        Rates(rates)
    }

    /// A satellite link: steps of a second, with a handover every 15 s; never silent for long.
    pub fn satellite(mean: f64, seconds: f64, seed: u64) -> Rates {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut at = 0.0;
        let mut rates = Vec::new();
        while at < seconds {
            rates.push((at, mean * (1.0 + 0.35 * rng.normal()).clamp(0.1, 1.6)));
            at += 1.0;
        }
        Rates(rates)
    }

    /// Returns the length of the rates in seconds, after which they repeat.
    pub fn period(&self) -> f64 {
        match self.0.as_slice() {
            [.., before, last] => last.0 + (last.0 - before.0),
            _ => 1.0,
        }
    }

    /// Converts to the emulator's form, so that `from` seconds into the recording is `at` seconds
    /// on its clock.
    pub fn trace(&self, from: f64, at: f64) -> Arc<Trace> {
        let period = self.period();
        let shift = (from - at).rem_euclid(period);
        let mut text = String::new();
        let first = self.0.partition_point(|(t, _)| *t <= shift + 1e-6).max(1) - 1;
        let mut row = |at: f64, mbit: f64| writeln!(text, "{at:.6},{mbit}").expect("a string");
        row(0.0, self.0[first].1);
        for (t, mbit) in &self.0[first + 1..] {
            row(t - shift, *mbit);
        }
        for (t, mbit) in &self.0[..=first] {
            let at = t + period - shift;
            if at < period - 1e-6 {
                row(at, *mbit);
            }
        }
        row(period - 1e-6, self.0[first].1);
        Arc::new(Trace::parse(Path::new("walk"), &text).expect("rates"))
    }

    /// Returns the mean offered rate in Mbit/s over `span` seconds from `from` on, in steps of a
    /// tenth.
    pub fn mean(&self, from: f64, span: f64) -> f64 {
        let period = self.period();
        let (mut bits, mut at) = (0.0, from.rem_euclid(period));
        let mut left = span;
        while left > 1e-9 {
            let index = self.0.partition_point(|(t, _)| *t <= at + 1e-9).max(1) - 1;
            let end = self.0.get(index + 1).map_or(period, |(t, _)| *t);
            let part = (end - at).max(1e-6).min(left);
            bits += part * self.0[index].1;
            left -= part;
            at = if at + part >= period - 1e-9 {
                0.0
            } else {
                at + part
            };
        }
        bits / span
    }
}

/// Draws of a walk, by xorshift64*: the walks are the same everywhere.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// In (0, 1).
    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    fn poisson(&mut self, mean: f64) -> f64 {
        if mean > 30.0 {
            return (mean + mean.sqrt() * self.normal()).round().max(0.0);
        }
        let (limit, mut product, mut count) = ((-mean).exp(), self.uniform(), 0.0);
        while product > limit {
            product *= self.uniform();
            count += 1.0;
        }
        count
    }
}
