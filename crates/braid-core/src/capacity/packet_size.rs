//! Estimate of a line's capacity from round trips of packets of several sizes.
//!
//! The method of Al-Najjar, Pakzad, Layeghy and Portmann, *Link Capacity Estimation in SDN-based End-hosts* (2016),
//! which is pathchar's for the first hop: the shortest round trip of each size met no queue, so it grows with the size
//! by the time that the line needs for a byte, there and back. Half of that is taken for each direction, which is true
//! of lines that are as fast up as down.

use std::collections::BTreeMap;
use std::time::Duration;

use super::ActiveEstimate;
use crate::{Bytes, Rate};

/// Sizes without which the slope has no error.
const MIN_SIZES: usize = 3;
/// Round trips of each size without which the shortest may have met a queue.
const MIN_ROUND_TRIPS: usize = 3;

/// Estimates the capacity of a line that is as fast up as down.
#[derive(Clone, Debug, Default)]
pub struct PacketSizeCapacity {
    /// Shortest round trip and their number, by size.
    shortest: BTreeMap<u64, (Duration, usize)>,
}

impl PacketSizeCapacity {
    /// Takes the round trip of a packet whose answer has the same size, IP header included.
    pub fn note(&mut self, size: Bytes, round_trip: Duration) {
        let known = self.shortest.entry(size.get()).or_insert((round_trip, 0));
        *known = (known.0.min(round_trip), known.1 + 1);
    }

    /// Returns the estimate; `None` if too few round trips are known, or they do not grow with the size.
    #[must_use]
    pub fn estimate(&self) -> Option<ActiveEstimate> {
        let known = self
            .shortest
            .iter()
            .filter(|(_, (_, n))| *n >= MIN_ROUND_TRIPS);
        let points: Vec<(f64, f64)> = known
            .map(|(size, (shortest, _))| (*size as f64 * 8.0, shortest.as_secs_f64()))
            .collect();
        if points.len() < MIN_SIZES {
            return None;
        }
        let n = points.len() as f64;
        let (x_sum, y_sum) = points
            .iter()
            .fold((0.0, 0.0), |(xs, ys), (x, y)| (xs + x, ys + y));
        let (x_mean, y_mean) = (x_sum / n, y_sum / n);
        let spread: f64 = points.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
        let common: f64 = points
            .iter()
            .map(|(x, y)| (x - x_mean) * (y - y_mean))
            .sum();
        let slope = common / spread;
        let residual = |(x, y): &(f64, f64)| (y - y_mean - slope * (x - x_mean)).powi(2);
        let residuals: f64 = points.iter().map(residual).sum();
        let deviation = (residuals / (n - 2.0) / spread).sqrt();
        (slope > 0.0).then(|| ActiveEstimate {
            rate: Rate::from_bits_per_sec((2.0 / slope) as u64),
            error: (2.0 * deviation / slope).min(1.0),
            saturated: true,
        })
    }
}
