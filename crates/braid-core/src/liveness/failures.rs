//! Who keeps failing has to prove itself for longer.

use std::time::Duration;

use crate::Time;

/// A failure is forgiven if the next one comes later than this.
const FORGET_AFTER: Duration = Duration::from_secs(30);

/// So often does a further failure double what is wanted.
const MAX_DOUBLINGS: u32 = 4;

/// How often something failed of late.
#[derive(Debug, Clone, Copy, Default)]
pub struct FailureHistory {
    count: u32,
    last: Time,
}

impl FailureHistory {
    /// It failed.
    pub fn add(&mut self, now: Time) {
        if now.since(self.last) > FORGET_AFTER {
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.last = now;
    }

    /// Signs of life in a row that are wanted from it: `first` after one failure, or 30 s after the last
    /// of more, doubled by each that came within 30 s of the one before, four times at the most. One
    /// from who has never failed.
    #[must_use]
    pub fn required_signs(&self, now: Time, first: u32) -> u32 {
        match self.count {
            0 => 1,
            _ if now.since(self.last) > FORGET_AFTER => first,
            count => first.saturating_mul(1 << (count - 1).min(MAX_DOUBLINGS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_what_is_wanted_and_time_forgives() {
        let mut failures = FailureHistory::default();
        let mut now = Time::ZERO + FORGET_AFTER * 2;
        assert_eq!(failures.required_signs(now, 3), 1);
        let wanted = [3, 6, 12, 24, 48, 48].map(|wanted| {
            now = now + FORGET_AFTER;
            failures.add(now);
            (failures.required_signs(now + FORGET_AFTER, 3), wanted)
        });
        assert!(wanted.iter().all(|(is, be)| is == be), "{wanted:?}");
        let late = now + FORGET_AFTER + Duration::from_millis(1);
        assert_eq!(failures.required_signs(late, 3), 3);
        failures.add(late);
        assert_eq!(failures.required_signs(late, 3), 3);
    }
}
