//! Samples of a rate, and their crucial interval.

use std::time::Duration;

/// Width of an interval, as a fraction of its rates, below which it is as narrow as any.
pub(super) const NARROW: f64 = 0.02;
/// Packets without which a queue shows nothing.
const QUEUE_PACKETS: f64 = 3.0;
pub(super) const PACKET_BITS: f64 = 1500.0 * 8.0;

/// A sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub seconds: f64,
    pub bits: f64,
    /// Part of the round trip at its end that was not there before the transfer; zero if that is not known.
    pub queue: Duration,
    /// True if it began long after slow start.
    pub at_rest: bool,
}

impl Sample {
    /// Returns a sample of which nothing but the rate is known.
    pub fn of(seconds: f64, bits: f64) -> Sample {
        Sample {
            seconds,
            bits,
            queue: Duration::ZERO,
            at_rest: false,
        }
    }

    pub fn rate(&self) -> f64 {
        self.bits / self.seconds
    }

    /// Returns true if the transfer has a queue of this length, and of some packets.
    pub fn has_queue(&self, least: Duration) -> bool {
        let packets = QUEUE_PACKETS * PACKET_BITS / self.rate();
        self.queue >= least && self.queue.as_secs_f64() >= packets
    }
}

/// The crucial interval of some samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crucial {
    pub lowest: f64,
    pub highest: f64,
    pub mean: f64,
    /// Upper quartile.
    pub upper: f64,
    pub inside: usize,
}

/// Returns the crucial interval: that with the largest product of number and density. Of equal ones the highest.
pub(super) fn crucial(samples: &[Sample]) -> Option<Crucial> {
    let mut sorted: Vec<&Sample> = samples.iter().filter(|sample| sample.bits > 0.0).collect();
    sorted.sort_by(|one, other| one.rate().total_cmp(&other.rate()));
    let mut best: Option<(f64, usize, usize)> = None;
    for low in 0..sorted.len() {
        for high in low..sorted.len() {
            let (lowest, highest) = (sorted[low].rate(), sorted[high].rate());
            let width = (highest - lowest).max(highest * NARROW) / highest;
            let worth = ((high - low + 1) as f64).powi(2) / width;
            if best.is_none_or(|(most, ..)| worth >= most) {
                best = Some((worth, low, high));
            }
        }
    }
    let (_, low, high) = best?;
    let inside = &sorted[low..=high];
    Some(Crucial {
        lowest: sorted[low].rate(),
        highest: sorted[high].rate(),
        mean: mean(inside.iter().copied()),
        upper: inside[inside.len() * 3 / 4].rate(),
        inside: inside.len(),
    })
}

/// Returns the mean rate of some samples, in bits per second.
pub(super) fn mean<'s>(samples: impl IntoIterator<Item = &'s Sample>) -> f64 {
    let (bits, seconds) = samples
        .into_iter()
        .fold((0.0, 0.0), |(bits, seconds), each| {
            (bits + each.bits, seconds + each.seconds)
        });
    bits / seconds
}
