//! Loss of a link, in a fast and a slow average, split into random and congestive loss.

use std::time::Duration;

use braid_core::Time;

/// Span of the fast average, which follows a burst within a few reports.
const FAST_SPAN: Duration = Duration::from_millis(200);

/// Span of the slow average, by which a link is judged.
const SLOW_SPAN: Duration = Duration::from_secs(2);

/// Averages of a link's loss as fractions of packets, 0 to 1, and totals.
///
/// Loss with a queue on the link is congestive: slowing down helps. Loss without one counts as
/// random: slowing down wastes capacity and does not help.
#[derive(Debug, Clone, Copy, Default)]
pub struct LossEstimator {
    last: Option<Time>,
    fast: Average,
    slow: Average,
    /// As `slow`, without congestive loss.
    slow_random: Average,
    random: u64,
    congestive: u64,
    packets: u64,
}

/// Lost and settled packets, decaying alike: their ratio weighs every packet the same, so a report
/// of two packets does not count like one of two hundred.
#[derive(Debug, Clone, Copy, Default)]
struct Average {
    lost: f64,
    settled: f64,
}

impl LossEstimator {
    /// Takes a report: `lost` packets were lost and `arrived` arrived; `queued` is true if the link
    /// had a queue then.
    pub fn handle_loss(&mut self, now: Time, lost: u64, arrived: u64, queued: bool) {
        let passed = self.last.map_or(Duration::ZERO, |last| now.since(last));
        self.last = Some(now);
        // A malicious end may report any numbers.
        self.packets = self.packets.saturating_add(lost.saturating_add(arrived));
        let random = if queued { 0 } else { lost };
        let averages = [
            (&mut self.fast, FAST_SPAN, lost),
            (&mut self.slow, SLOW_SPAN, lost),
            (&mut self.slow_random, SLOW_SPAN, random),
        ];
        for (average, span, gone) in averages {
            let keep = (-passed.as_secs_f64() / span.as_secs_f64()).exp();
            average.lost = average.lost * keep + gone as f64;
            average.settled = average.settled * keep + (lost + arrived) as f64;
        }
        let total = if queued {
            &mut self.congestive
        } else {
            &mut self.random
        };
        *total = total.saturating_add(lost);
    }

    /// Returns the loss over about the last 0.2 s.
    #[must_use]
    pub fn fast(&self) -> f64 {
        self.fast.ratio()
    }

    /// Returns the loss over about the last 2 s.
    #[must_use]
    pub fn slow(&self) -> f64 {
        self.slow.ratio()
    }

    /// Returns the random loss over about the last 2 s.
    #[must_use]
    pub fn slow_random(&self) -> f64 {
        self.slow_random.ratio()
    }

    /// Returns the packets behind the slow average, older ones counting less.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.slow.settled
    }

    /// Returns the packets that arrived or were lost, in total.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the packets lost without a queue, in total.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.random
    }

    /// Returns the packets lost with a queue, in total.
    #[must_use]
    pub fn congestive(&self) -> u64 {
        self.congestive
    }

    /// Clears the averages, as for a link that restarts.
    pub fn restart(&mut self) {
        self.fast = Average::default();
        self.slow = Average::default();
        self.slow_random = Average::default();
    }
}

impl Average {
    fn ratio(&self) -> f64 {
        if self.settled < 1.0 {
            return 0.0;
        }
        (self.lost / self.settled).min(1.0)
    }
}
