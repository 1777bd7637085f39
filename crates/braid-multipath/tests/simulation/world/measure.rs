//! Measurements.

use std::time::Duration;

use super::World;
use super::packet::{FULL, OVERHEAD};

impl World {
    /// Mean goodput in Mbit/s between two times after the start, in seconds.
    pub fn goodput(&self, from: f64, to: f64) -> f64 {
        let (from, to) = ((from * 10.0) as usize, (to * 10.0) as usize);
        let slots = self.delivered.iter().take(to).skip(from);
        slots.sum::<u64>() as f64 * 8.0 / 1e6 / ((to - from) as f64 / 10.0)
    }

    /// Seconds from the start to the end of the first half-second that has 90 % of the ceiling.
    pub fn t90(&self) -> Option<f64> {
        let tenths = 5..=self.delivered.len();
        let full = |end: &usize| {
            let end = *end as f64 / 10.0;
            self.goodput(end - 0.5, end) >= 0.9 * self.ceiling()
        };
        let mut tenths = tenths;
        tenths.find(full).map(|end| end as f64 / 10.0)
    }

    /// Returns the sum of the links' rates without headers, in Mbit/s.
    pub fn ceiling(&self) -> f64 {
        let sum: f64 = self.lines.iter().map(|line| line.mbit).sum();
        sum * f64::from(FULL) / f64::from(FULL + OVERHEAD)
    }
}

/// The given quantile, 0 to 1, in ms.
pub fn quantile(delays: &[Duration], q: f64) -> f64 {
    let mut sorted: Vec<_> = delays.to_vec();
    sorted.sort_unstable();
    let index = ((sorted.len() as f64 - 1.0) * q).round() as usize;
    sorted.get(index).map_or(0.0, |d| d.as_secs_f64() * 1e3)
}
