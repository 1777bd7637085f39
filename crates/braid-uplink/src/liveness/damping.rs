//! Flap damping (after RFC 2439): each death of an uplink lengthens the time in which it has to prove itself.

use std::time::{Duration, Instant};

use super::constants::{MAX_HOLD, PENALTY_HALF_LIFE};

/// Penalty of an uplink: its deaths, decaying with time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Damping {
    penalty: f64,
    last: Option<Instant>,
}

impl Damping {
    /// Counts a death.
    pub(super) fn add_penalty(&mut self, now: Instant) {
        self.penalty = self.remembered(now) + 1.0;
        self.last = Some(now);
    }

    /// Returns the hold time after the last death: `first` after a single one, doubled with each further one.
    pub(super) fn hold(&self, first: Duration) -> Duration {
        let doublings = (self.penalty - 1.0).max(0.0);
        let hold = first.as_secs_f64() * doublings.exp2();
        // A float too large for a duration exceeds the bound as well.
        Duration::try_from_secs_f64(hold).map_or(MAX_HOLD, |hold| hold.min(MAX_HOLD))
    }

    /// Returns true if no earlier death counts any more.
    pub(super) fn is_first(&self) -> bool {
        self.penalty < 1.5
    }

    fn remembered(&self, now: Instant) -> f64 {
        let Some(last) = self.last else { return 0.0 };
        let halvings =
            now.saturating_duration_since(last).as_secs_f64() / PENALTY_HALF_LIFE.as_secs_f64();
        self.penalty * (-halvings).exp2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_death_doubles_the_wait_and_time_forgives() {
        let start = Instant::now();
        let mut damping = Damping::default();
        for (i, expected) in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
            .into_iter()
            .enumerate()
        {
            damping.add_penalty(start + SECOND * i as u32);
            let hold = damping.hold(SECOND).as_secs_f64();
            assert!(
                (hold / expected - 1.0).abs() < 0.1,
                "{hold} and not {expected}"
            );
        }
        assert!(!damping.is_first());
        // Twelve times halved within an hour.
        damping.add_penalty(start + SECOND * 3600);
        assert!(damping.is_first());
        assert!(damping.hold(SECOND) < SECOND * 2);
    }
}
