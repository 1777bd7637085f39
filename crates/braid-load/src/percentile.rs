//! Exact percentiles of durations: a run has at most a few hundred thousand samples.

use serde::Serialize;
use std::time::Duration;

/// Summary of a set of durations, in microseconds.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    /// Number of samples; if zero, all other fields are zero and mean nothing.
    pub samples: usize,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl Percentiles {
    /// Summarises `samples`, in any order.
    pub(crate) fn of(mut samples: Vec<Duration>) -> Percentiles {
        samples.sort_unstable();
        Percentiles {
            samples: samples.len(),
            p50: nearest_rank(&samples, 0.50),
            p90: nearest_rank(&samples, 0.90),
            p99: nearest_rank(&samples, 0.99),
            max: nearest_rank(&samples, 1.0),
        }
    }
}

/// The smallest sample that at least `fraction` of all samples do not exceed, in microseconds.
fn nearest_rank(sorted: &[Duration], fraction: f64) -> f64 {
    let rank = (fraction * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .map_or(0.0, |d| d.as_nanos() as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(values: impl IntoIterator<Item = u64>) -> Vec<Duration> {
        values.into_iter().map(Duration::from_micros).collect()
    }

    #[test]
    fn one_to_a_hundred_in_reverse() {
        let summary = Percentiles::of(micros((1..=100).rev()));
        assert_eq!(
            summary,
            Percentiles {
                samples: 100,
                p50: 50.0,
                p90: 90.0,
                p99: 99.0,
                max: 100.0
            }
        );
    }

    #[test]
    fn a_single_sample_is_every_percentile() {
        let summary = Percentiles::of(micros([7]));
        assert_eq!(
            summary,
            Percentiles {
                samples: 1,
                p50: 7.0,
                p90: 7.0,
                p99: 7.0,
                max: 7.0
            }
        );
    }

    #[test]
    fn no_samples_give_zeros() {
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }
}
