//! A burst of probes, and the time at which its silence is proof.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::constants::{
    BURST_PROBE_INTERVAL, FAST_PROBE_INTERVAL, INITIAL_BURST_PROBES, MIN_BURST_TIME,
    MIN_UNHURRIED_BURST_TIME,
};
use super::target_set::{InFlightProbe, TargetIndex, TargetSet};

/// The reason that an uplink is suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SuspicionCause {
    /// Packets were sent and none came in.
    Silence,
    /// A probe was not answered.
    NoAnswer,
    /// Connections go unanswered although packets come in: perhaps only the upstream direction is broken.
    OneWay,
}

/// An uplink under suspicion.
#[derive(Clone, Debug)]
pub(super) struct Suspicion {
    cause: SuspicionCause,
    pub(super) began: Instant,
    /// Unanswered probes sent since then are evidence against the uplink.
    pub(super) from: Instant,
    /// Number of unanswered probes that is proof.
    loss_limit: u32,
    /// Number of different targets whose answers clear the uplink.
    quorum: usize,
    eligible: Vec<TargetIndex>,
    answered: BTreeSet<TargetIndex>,
    sent: u32,
    /// Probes that count and are no longer in flight.
    lost: u32,
    pub(super) next: Instant,
}

impl Suspicion {
    pub(super) fn new(
        cause: SuspicionCause,
        now: Instant,
        from: Instant,
        eligible: Vec<TargetIndex>,
        quorum: usize,
        loss_limit: u32,
    ) -> Suspicion {
        Suspicion {
            cause,
            began: now,
            from,
            loss_limit,
            quorum: quorum.clamp(1, eligible.len().max(1)),
            eligible,
            answered: BTreeSet::new(),
            sent: 0,
            lost: 0,
            next: now,
        }
    }

    /// Returns the target of the next probe. The first probes go out together, so that one unresponsive target
    /// costs no time.
    pub(super) fn next_target(&mut self, now: Instant) -> Option<TargetIndex> {
        let count = self.eligible.len();
        let index = self.eligible.get(self.sent as usize % count.max(1));
        self.sent = self.sent.saturating_add(1);
        let salvo = INITIAL_BURST_PROBES.min(count as u32);
        self.next = match self.sent {
            sent if sent < salvo => now,
            sent if sent < self.loss_limit => now + BURST_PROBE_INTERVAL,
            _ => now + FAST_PROBE_INTERVAL,
        };
        index.copied()
    }

    /// Returns true if received packets clear the uplink. They prove both directions, unless connections are
    /// unanswered in spite of them.
    pub(super) fn is_cleared_by_traffic(&self) -> bool {
        self.cause != SuspicionCause::OneWay
    }

    /// Takes an answer; returns true if it clears the uplink.
    pub(super) fn handle_answer(&mut self, probe: &InFlightProbe) -> bool {
        if probe.sent >= self.from {
            self.answered.insert(probe.index);
        }
        self.answered.len() >= self.quorum
    }

    pub(super) fn lost(&mut self, probe: &InFlightProbe) {
        self.lost += u32::from(self.counts(probe));
    }

    fn counts(&self, probe: &InFlightProbe) -> bool {
        probe.sent >= self.from && self.eligible.contains(&probe.index)
    }

    /// Returns the time at which silence is proof, if it lasts; `None` while too few probes are in flight. From
    /// the time in `suffering_since` on traffic suffers, and the shorter burst is enough.
    pub(super) fn proof_at(
        &self,
        targets: &TargetSet,
        rto: Duration,
        suffering_since: Option<Instant>,
    ) -> Option<Instant> {
        let patient = self.began + MIN_UNHURRIED_BURST_TIME.max(rto * 2);
        let end = match suffering_since {
            Some(from) if self.answered.is_empty() => {
                patient.min(self.began.max(from) + MIN_BURST_TIME.max(rto))
            }
            _ => patient,
        };
        let Some(missing) = self.loss_limit.checked_sub(self.lost + 1) else {
            return Some(end);
        };
        let mut sent: Vec<Instant> = targets
            .in_flight()
            .filter(|probe| self.counts(probe))
            .map(|probe| probe.sent)
            .collect();
        sent.sort_unstable();
        let last = sent.get(missing as usize)?;
        Some(end.max(*last + rto))
    }

    /// Returns the number of probes sent and of targets that answered.
    pub(super) fn figures(&self, targets: &TargetSet) -> (u32, u32) {
        let under_way = targets.in_flight().filter(|f| self.counts(f)).count() as u32;
        let answers = self.answered.len() as u32;
        (under_way + self.lost + answers, answers)
    }
}
