//! Loss of probes, and the number of unanswered ones that makes a death.

use std::collections::VecDeque;

use braid_core::Share;

use super::constants::{ASSUMED_LOSS, FALSE_DEATH_PROBABILITY, LOSS_WINDOW, MIN_LOSS_SAMPLES};

/// Weight of a probe in the long average: about the last hundred count.
const LONG_TERM_WEIGHT: f64 = 1.0 / 64.0;

/// Results of the last probes.
#[derive(Clone, Debug, Default)]
pub(super) struct Loss {
    last: VecDeque<bool>,
    long: f64,
}

impl Loss {
    pub(super) fn add(&mut self, lost: bool) {
        if self.last.len() == LOSS_WINDOW {
            self.last.pop_front();
        }
        self.last.push_back(lost);
        self.long += LONG_TERM_WEIGHT * (f64::from(u8::from(lost)) - self.long);
    }

    /// Forgets the last probes: they say nothing about the time after a return.
    pub(super) fn reset_window(&mut self) {
        self.last.clear();
    }

    /// Returns the loss of the last probes; `None` before the first.
    pub(super) fn share(&self) -> Option<Share> {
        let lost = self.last.iter().filter(|lost| **lost).count();
        // At most LOSS_WINDOW.
        let (lost, all) = (lost as u32, self.last.len() as u32);
        (all > 0).then(|| Share::of(lost, all))
    }

    /// Returns the same once there are enough samples for a verdict.
    pub(super) fn known(&self) -> Option<f64> {
        self.share()
            .filter(|_| self.last.len() >= MIN_LOSS_SAMPLES)
            .map(Share::fraction)
    }

    /// Returns the number of unanswered probes that chance does not explain: the smallest n with lossⁿ ≤ 10⁻⁷.
    pub(super) fn loss_limit(&self) -> u32 {
        let seen = self.known().unwrap_or_default().max(self.long);
        let loss = seen.clamp(ASSUMED_LOSS.0, ASSUMED_LOSS.1);
        // Between 6 and 46, by the bounds of the assumed loss.
        (FALSE_DEATH_PROBABILITY.ln() / loss.ln()).ceil() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_is_lost_the_more_silence_it_takes() {
        let mut loss = Loss::default();
        assert_eq!(loss.loss_limit(), 6);
        (0..20).for_each(|i| loss.add(i % 5 == 0));
        assert_eq!(loss.share(), Some(Share::of(1, 5)));
        assert_eq!(loss.loss_limit(), 11);
        (0..20).for_each(|_| loss.add(true));
        assert_eq!(loss.loss_limit(), 46);
    }

    #[test]
    fn loss_is_judged_by_enough_probes_only() {
        let mut loss = Loss::default();
        assert_eq!(loss.share(), None);
        (1..MIN_LOSS_SAMPLES).for_each(|_| loss.add(true));
        assert_eq!((loss.share(), loss.known()), (Some(Share::ALL), None));
        loss.add(true);
        assert_eq!(loss.known(), Some(1.0));
    }
}
