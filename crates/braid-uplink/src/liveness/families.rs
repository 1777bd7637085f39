//! Health of each address family. One may fail while the other works: an IPv6 prefix that is no longer routed,
//! a provider's IPv4 translator that is down.

use std::time::Instant;

/// Good probes in a row that bring a silent family back.
const FAMILY_RISE: u32 = 3;

/// Results of the probes of one family.
#[derive(Clone, Copy, Debug, Default)]
struct Family {
    answered: Option<Instant>,
    answers: u32,
    misses: u32,
    missing_since: Option<Instant>,
    silent: bool,
}

/// Results of both families, IPv4 first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Families([Family; 2]);

impl Families {
    pub(super) fn is_silent(&self, v6: bool) -> bool {
        self.0[usize::from(v6)].silent
    }

    /// Handles an answer; returns true if it brings a silent family back.
    pub(super) fn answered(&mut self, now: Instant, v6: bool) -> bool {
        let family = &mut self.0[usize::from(v6)];
        family.answered = Some(now);
        family.answers = family.answers.saturating_add(1);
        (family.misses, family.missing_since) = (0, None);
        let back = family.silent && family.answers >= FAMILY_RISE;
        family.silent &= !back;
        back
    }

    /// Handles a missing answer; returns true if it makes the family silent.
    pub(super) fn missed(&mut self, sent: Instant, v6: bool, loss_limit: u32) -> bool {
        let family = &mut self.0[usize::from(v6)];
        if family.answered.is_some_and(|at| at >= sent) {
            return false;
        }
        family.answers = 0;
        family.misses = family.misses.saturating_add(1);
        family.missing_since.get_or_insert(sent);
        let silent = !family.silent && family.misses >= loss_limit && self.other_answers(v6);
        self.0[usize::from(v6)].silent |= silent;
        silent
    }

    /// Returns the family that misses answers while the other gets some, `true` for IPv6. It is probed soon.
    pub(super) fn suspect(&self) -> Option<bool> {
        [false, true].into_iter().find(|v6| {
            let family = &self.0[usize::from(*v6)];
            !family.silent && family.misses > 0 && self.other_answers(*v6)
        })
    }

    /// Returns true if the other family got an answer since this one began to miss some.
    fn other_answers(&self, v6: bool) -> bool {
        let (family, other) = (&self.0[usize::from(v6)], &self.0[usize::from(!v6)]);
        let (missing, answered) = (family.missing_since, other.answered);
        missing.is_some_and(|since| answered.is_some_and(|at| at > since))
    }
}
