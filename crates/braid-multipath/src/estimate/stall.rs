//! Stalls: times in which a link delivers nothing although packets wait in it, the mark of a radio
//! scheduler.
//!
//! A stall is not a queue. The delay rises by as much, but everything sent meanwhile arrives at
//! once when the stall ends, and a sender that slowed down finds the link empty then. A link that
//! stalled recently is *unsteady*:
//! - its rate is the mean over several stalls, not a sample of 50 ms that may lie within one;
//! - its limit is a window of 1.1 times what that mean fills in a round trip, a report interval and
//!   30 ms. During a stall the window fills, so no more than that waits; after it the link has
//!   something to carry. The round trip includes the way back of the reports, since that direction
//!   stalls as well;
//! - a link that runs dry while packets wait has a larger window until it has a queue;
//! - delay does not lower the rate. The window bounds a standing queue, and follows the mean within
//!   0.3 s.
//!
//! The sender is then never more cautious than a BBR flow, whose window is twice the
//! bandwidth-delay product.

use std::time::Duration;

use braid_core::Time;

use super::REPORT_INTERVAL;

/// A link that recently stalled for longer than this is unsteady. Links that retransmit below IP
/// and keep order reach 20 to 30 ms without a scheduler that pauses; on them, steering by the queue
/// works better.
const MIN_UNSTEADY_STALL_S: f64 = 0.040;

/// The longest stall decays to 1/e in this time.
const STALL_FADE: Duration = Duration::from_secs(10);

/// Delay that stays the same for this long after a stall is a route that became longer meanwhile:
/// what a stall held up is soon delivered, and a queue grows or shrinks.
const STEP_SPAN: Duration = Duration::from_millis(300);

/// Delays that differ by less than this part of the lowest are the same.
const MAX_STEP_SPREAD: f64 = 0.1;

/// A stall that may prove to be a change of route.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    since: Time,
    /// Longest stall before, and when.
    before: (f64, Time),
    /// Lowest and highest delay above the base since then.
    lowest: Duration,
    highest: Duration,
}

/// The longest recent stall, older ones counting less.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StallDetector {
    longest: f64,
    at: Time,
    doubt: Option<Doubt>,
}

impl StallDetector {
    /// Takes two consecutive reports about packets that arrived `gap` apart, all of the second ones
    /// `above` later than the base delay. For the shorter of the two times, the packets that
    /// arrived could have arrived before: the link stalled.
    pub fn handle_gap(&mut self, now: Time, gap: Duration, above: Duration) {
        let stall = gap.saturating_sub(REPORT_INTERVAL).min(above).as_secs_f64();
        let longest = self.longest(now);
        if stall > longest {
            self.doubt = Some(Doubt {
                since: now,
                before: (self.longest, self.at),
                lowest: above,
                highest: above,
            });
            (self.longest, self.at) = (stall, now);
        } else if let Some(doubt) = &mut self.doubt {
            doubt.lowest = doubt.lowest.min(above);
            doubt.highest = doubt.highest.max(above);
            let spread = (doubt.highest - doubt.lowest).as_secs_f64();
            if spread > MAX_STEP_SPREAD * doubt.lowest.as_secs_f64() {
                self.doubt = None;
            } else if now.since(doubt.since) >= STEP_SPAN {
                (self.longest, self.at) = doubt.before;
                self.doubt = None;
            }
        }
    }

    /// Returns the longest recent stall; zero on a link that does not stall.
    pub fn stall(&self, now: Time) -> Duration {
        // It only decays, so nothing is to be computed on a steady link: this is called per packet.
        if self.longest <= MIN_UNSTEADY_STALL_S {
            return Duration::ZERO;
        }
        let longest = self.longest(now);
        match longest > MIN_UNSTEADY_STALL_S {
            true => Duration::from_secs_f64(longest),
            false => Duration::ZERO,
        }
    }

    fn longest(&self, now: Time) -> f64 {
        self.longest * (-now.since(self.at).as_secs_f64() / STALL_FADE.as_secs_f64()).exp()
    }

    /// Returns true if the link stalls.
    pub fn is_unsteady(&self, now: Time) -> bool {
        !self.stall(now).is_zero()
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
            // A report interval of silence, whatever the delay: a queue.
            (25, 300, false),
            // Nothing was sent, and nothing had waited.
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

    #[test]
    fn a_delay_that_stays_is_a_route_that_became_longer() {
        let begun = Time::ZERO + Duration::from_secs(100);
        let unsteady_after = |delays: &dyn Fn(u64) -> u64| {
            let mut stalls = StallDetector::default();
            stalls.handle_gap(begun, ms(120), ms(90));
            for report in 1..=12 {
                let now = begun + ms(25 * report);
                stalls.handle_gap(now, ms(25), ms(delays(report)));
            }
            stalls.is_unsteady(begun + ms(300))
        };
        assert!(!unsteady_after(&|report| 90 + report % 2 * 8));
        // Delivered at once, and a queue that shrinks.
        assert!(unsteady_after(&|_| 10));
        assert!(unsteady_after(&|report| 90 - report));
    }
}
