//! Who keeps failing has to prove itself for longer.

use std::time::Duration;

use crate::Time;

/// A failure is forgiven if the next one comes later than this.
const FORGIVEN: Duration = Duration::from_secs(30);

/// So often does a further failure double what is wanted.
const DOUBLINGS_MOST: u32 = 4;

/// How often something failed of late.
#[derive(Debug, Clone, Copy, Default)]
pub struct Failures {
    count: u32,
    last: Time,
}

impl Failures {
    /// It failed.
    pub fn add(&mut self, now: Time) {
        if now.since(self.last) > FORGIVEN {
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.last = now;
    }

    /// Signs of life in a row that are wanted from it: `first` after one failure, or 30 s after the last
    /// of more, doubled by each that came within 30 s of the one before, four times at the most. One
    /// from who has never failed.
    #[must_use]
    pub fn signs_wanted(&self, now: Time, first: u32) -> u32 {
        match self.count {
            0 => 1,
            _ if now.since(self.last) > FORGIVEN => first,
            count => first.saturating_mul(1 << (count - 1).min(DOUBLINGS_MOST)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_what_is_wanted_and_time_forgives() {
        let mut failures = Failures::default();
        let mut now = Time::ZERO + FORGIVEN * 2;
        assert_eq!(failures.signs_wanted(now, 3), 1);
        let wanted = [3, 6, 12, 24, 48, 48].map(|wanted| {
            now = now + FORGIVEN;
            failures.add(now);
            (failures.signs_wanted(now + FORGIVEN, 3), wanted)
        });
        assert!(wanted.iter().all(|(is, be)| is == be), "{wanted:?}");
        let late = now + FORGIVEN + Duration::from_millis(1);
        assert_eq!(failures.signs_wanted(late, 3), 3);
        failures.add(late);
        assert_eq!(failures.signs_wanted(late, 3), 3);
    }
}
