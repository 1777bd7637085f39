//! How long a link delivers nothing though packets wait in it: the mark of a radio scheduler.
//!
//! A stall is not a queue. Delay rises by as much, but what was sent meanwhile comes in at once when it ends, and a sender
//! that slows down for it finds the link empty then. A link that stalled of late is *unsteady*:
//! - its rate is the mean over several stalls, not a sample of 50 ms that may lie within one;
//! - what limits is a window, 1.1 times what that mean fills in a round trip, a report's interval and 30 ms: during a stall
//!   it fills, so no more than that waits, and after it the link has something to carry. The round trip counts with what
//!   reports take on their way back, since that direction stalls as well;
//! - delay does not lower the rate. A queue that stands is bounded by the window, which follows the mean within 0.3 s.
//!
//! So it is never more cautious than a BBR flow is, whose window is twice the product of bandwidth and delay.

use std::time::Duration;

use super::REPORT_INTERVAL;
use crate::Time;

/// A link that stalled for longer than this of late is unsteady. Links that retransmit below IP and keep order reach 20
/// to 30 ms without a scheduler that pauses; there the queue is what steers better.
const MIN_UNSTEADY_STALL_S: f64 = 0.040;

/// A stall is forgotten to a third in so long.
const STALL_FADE: Duration = Duration::from_secs(10);

/// The longest stall of late, older ones counting for less.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StallDetector {
    longest: f64,
    at: Time,
}

impl StallDetector {
    /// Two reports in a row told of packets that came `gap` apart, and all that the second one tells of had been under
    /// way for `above` longer than the link takes: for the shorter of the two, what arrived could have arrived before.
    pub fn handle_gap(&mut self, now: Time, gap: Duration, above: Duration) {
        let stall = gap.saturating_sub(REPORT_INTERVAL).min(above).as_secs_f64();
        let longest = self.longest(now);
        if stall > longest {
            (self.longest, self.at) = (stall, now);
        }
    }

    fn longest(&self, now: Time) -> f64 {
        self.longest * (-now.since(self.at).as_secs_f64() / STALL_FADE.as_secs_f64()).exp()
    }

    /// Whether the link is one that stalls.
    pub fn is_unsteady(&self, now: Time) -> bool {
        self.longest(now) > MIN_UNSTEADY_STALL_S
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_gap_that_delay_explains_is_a_stall() {
        let now = Time::ZERO + Duration::from_secs(100);
        for (gap, above, unsteady) in [
            // A report's interval of silence, whatever the delay: a queue.
            (25, 300, false),
            // Nothing was sent: what came had not waited.
            (400, 5, false),
            (120, 90, true),
            (60, 90, false),
        ] {
            let mut stalls = StallDetector::default();
            stalls.handle_gap(now, ms(gap), ms(above));
            assert_eq!(stalls.is_unsteady(now), unsteady, "{gap} {above}");
            assert!(!stalls.is_unsteady(now + Duration::from_secs(60)));
        }
    }
}
