//! Recent failures of a link or path: the more it fails, the more signs of life it must show.

use std::time::Duration;

use braid_core::Time;

/// A failure is forgotten if the next one comes later than this.
const FORGET_AFTER: Duration = Duration::from_secs(30);

/// Further failures that double the required signs of life.
const MAX_DOUBLINGS: u32 = 4;

/// Recent failures of a link or path.
#[derive(Debug, Clone, Copy, Default)]
pub struct FailureHistory {
    count: u32,
    last: Time,
}

impl FailureHistory {
    /// Adds a failure.
    pub fn add(&mut self, now: Time) {
        if now.since(self.last) > FORGET_AFTER {
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.last = now;
    }

    /// Returns the consecutive signs of life that are required: one without a failure; `first`
    /// after one failure, or 30 s after the last of several. Each failure within 30 s of the one
    /// before doubles the number, up to four times.
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
