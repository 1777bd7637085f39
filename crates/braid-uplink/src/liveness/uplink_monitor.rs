//! State and inputs of the monitor of one uplink.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use braid_core::UplinkId;

use super::constants::{
    HTTP_RETRY_DELAY, MIN_LOSS_TIME, MIN_PORTAL_ANSWERS, REVOCATION_WINDOW, RTO_BOUNDS,
    UNRESPONSIVE_AFTER,
};
use super::damping::Damping;
use super::families::Families;
use super::loss::Loss;
use super::recovery::Recovery;
use super::rtt::Rtt;
use super::suspicion::Suspicion;
use super::target_set::{InFlightProbe, ResponsiveTargets, TargetIndex, TargetSet};
use super::traffic::Traffic;
use super::{
    Cause, Evidence, HealthSnapshot, MonitoredUplink, ProbeOutcome, ProbeResult, Sample, Verdict,
    VerdictChange, WorkingFamilies,
};

/// The monitor of one uplink.
#[derive(Debug)]
pub(super) struct UplinkMonitor {
    pub(super) id: UplinkId,
    pub(super) uplink: MonitoredUplink,
    pub(super) verdict: Verdict,
    pub(super) since: Instant,
    pub(super) evidence: Evidence,
    pub(super) targets: TargetSet,
    pub(super) rtt: Rtt,
    /// Time of the last sample of `rtt`.
    pub(super) answered: Option<Instant>,
    pub(super) loss: Loss,
    /// Time of the last result in `loss`.
    pub(super) probed: Option<Instant>,
    pub(super) traffic: Traffic,
    pub(super) families: Families,
    pub(super) damping: Damping,
    /// True while a late answer may revoke the death.
    pub(super) revocable: bool,
    pub(super) suspicion: Option<Suspicion>,
    pub(super) recovery: Option<Recovery>,
    pub(super) trial_at: Option<Instant>,
    /// Time since which the round trip is too long.
    pub(super) slow_since: Option<Instant>,
    /// Wrong HTTP answers in a row, and missing ones.
    wrong: u32,
    http_missing: u32,
    /// Time of the next regular probe.
    pub(super) next_regular: Instant,
    /// Probes left of the first round, and of the time of fast probing.
    pub(super) initial_probes: u32,
    pub(super) fast_probes: u32,
    /// Answers may be waiting unread until then: nothing dies before.
    pub(super) grace: Instant,
    was_usable: bool,
    pub(super) changes: VecDeque<VerdictChange>,
}

impl UplinkMonitor {
    /// Starts as up, until there is evidence against it.
    pub(super) fn new(now: Instant, id: UplinkId, uplink: MonitoredUplink) -> UplinkMonitor {
        let targets = TargetSet::new(now, &uplink);
        let mut monitor = UplinkMonitor {
            id,
            verdict: Verdict::Up,
            since: now,
            evidence: Evidence::none(),
            targets,
            rtt: Rtt::default(),
            answered: None,
            loss: Loss::default(),
            probed: None,
            traffic: Traffic::default(),
            families: Families::default(),
            damping: Damping::default(),
            revocable: false,
            suspicion: None,
            recovery: None,
            trial_at: None,
            slow_since: None,
            wrong: 0,
            http_missing: 0,
            next_regular: now,
            initial_probes: 0,
            fast_probes: 0,
            grace: now,
            was_usable: uplink.usable,
            changes: VecDeque::new(),
            uplink,
        };
        monitor.open(now);
        monitor
    }

    /// Applies a change of the rules or of the device.
    pub(super) fn set(
        &mut self,
        now: Instant,
        uplink: MonitoredUplink,
        responsive: &ResponsiveTargets,
    ) {
        if uplink == self.uplink {
            return;
        }
        let old = std::mem::replace(&mut self.uplink, uplink);
        let same_targets = old.rules.targets == self.uplink.rules.targets
            && (old.v4, old.v6) == (self.uplink.v4, self.uplink.v6);
        if !same_targets {
            let mut targets = TargetSet::new(now, &self.uplink);
            targets.inherit(&self.targets);
            self.targets = targets;
            self.suspicion = None;
            self.open(now);
            self.ask_others(now, responsive);
        }
        match (old.usable, self.uplink.usable) {
            (true, false) => self.leave(now),
            (false, true) if self.was_usable => self.come_back(now, responsive),
            (false, true) => self.open(now),
            _ => {}
        }
        self.was_usable |= self.uplink.usable;
    }

    /// Starts the first round: every target once, then fast probing.
    pub(super) fn open(&mut self, now: Instant) {
        // No more than a configuration can name.
        self.initial_probes = self.targets.len() as u32;
        self.fast_probes = super::constants::INITIAL_FAST_PROBES;
        self.next_regular = now;
    }

    /// Handles the loss of the device: probes in flight are no evidence.
    fn leave(&mut self, now: Instant) {
        self.forget(now);
        self.recovery = None;
        self.trial_at = None;
        if !self.uplink.self_reported {
            self.damping.add_penalty(now);
        }
    }

    /// Forgets everything in flight.
    pub(super) fn forget(&mut self, now: Instant) {
        self.targets.forget_in_flight();
        self.suspicion = None;
        self.slow_since = None;
        self.traffic.forget();
        self.next_regular = now;
    }

    pub(super) fn handle_traffic(&mut self, now: Instant, sample: Sample) {
        let received = self.traffic.add(now, sample);
        // Received packets clear an uplink, unless only its upstream direction is suspect.
        if received
            && self
                .suspicion
                .as_ref()
                .is_some_and(Suspicion::is_cleared_by_traffic)
        {
            self.suspicion = None;
        }
    }

    /// Takes the result of a probe. Returns the target's index if it gave the expected answer.
    pub(super) fn handle_probe(
        &mut self,
        now: Instant,
        answer: ProbeResult,
        responsive: &ResponsiveTargets,
    ) -> Option<TargetIndex> {
        let probe = self.targets.take_in_flight(answer.id)?;
        let is_http = self.targets.target(probe.index).is_http();
        match answer.outcome {
            ProbeOutcome::Answered { rtt } => {
                self.good(now, &probe, rtt);
                return Some(probe.index);
            }
            ProbeOutcome::Wrong { what, .. } if is_http => self.wrong(now, &probe, what),
            ProbeOutcome::Wrong { .. } | ProbeOutcome::Silent => {
                self.missed(now, &probe, responsive)
            }
            ProbeOutcome::NotSent { why } => self.targets.not_sent(why),
        }
        None
    }

    fn good(&mut self, now: Instant, probe: &InFlightProbe, rtt: Duration) {
        let index = probe.index;
        let often = self.targets.is_frequent(index);
        self.targets.answered(now, index);
        if self.targets.target(index).is_http() {
            (self.wrong, self.http_missing) = (0, 0);
        }
        if often {
            self.rtt.add(rtt);
            self.answered = Some(now);
        }
        if probe.regular && often {
            self.loss.add(false);
            self.probed = Some(now);
        }
        if let Some(v6) = self.targets.family(index)
            && self.families.answered(now, v6)
        {
            self.family_changed(now, v6);
        }
        let died = now.saturating_duration_since(self.since);
        if self.verdict == Verdict::Dead
            && often
            && probe.sent < self.since
            && died < REVOCATION_WINDOW
        {
            self.revoke_death(now);
        }
        let counts = match self.verdict {
            Verdict::Portal => self.targets.target(index).is_http(),
            _ => often,
        };
        if counts && let Some(recovery) = &mut self.recovery {
            recovery.good(now, probe.sent, index);
        }
        if self
            .suspicion
            .as_mut()
            .is_some_and(|s| s.handle_answer(probe))
        {
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.suspicion = None;
        self.traffic.explain();
    }

    fn wrong(&mut self, now: Instant, probe: &InFlightProbe, what: String) {
        self.wrong = self.wrong.saturating_add(1);
        self.http_missing = 0;
        self.targets.http_at = now + HTTP_RETRY_DELAY;
        let alone = self.suspicion.is_some() || self.verdict == Verdict::Dead;
        if self.verdict == Verdict::Portal {
            if let Some(recovery) = &mut self.recovery {
                recovery.missed(probe.sent);
            }
        } else if self.wrong >= MIN_PORTAL_ANSWERS || alone {
            self.enter_portal(now, what);
        }
    }

    /// Handles a probe whose answer is lost.
    pub(super) fn missed(
        &mut self,
        now: Instant,
        probe: &InFlightProbe,
        responsive: &ResponsiveTargets,
    ) {
        let index = probe.index;
        let useful = self
            .targets
            .is_evidence(index, responsive, self.has_received());
        let speaks =
            useful && !self.targets.is_unresponsive(index) && self.targets.is_frequent(index);
        let alone = self.targets.is_alone_unresponsive(index);
        self.targets.missed(probe);
        if self.targets.target(index).is_http() {
            self.http_missing = self.http_missing.saturating_add(1);
            if self.verdict == Verdict::Portal && self.http_missing >= UNRESPONSIVE_AFTER {
                self.lose_portal(now);
                return;
            }
        }
        if let Some(suspicion) = &mut self.suspicion {
            suspicion.lost(probe);
        }
        if useful && let Some(v6) = self.targets.family(index) {
            let loss_limit = self.loss.loss_limit();
            if self.families.missed(probe.sent, v6, loss_limit) {
                self.family_changed(now, v6);
            }
        }
        if !speaks {
            return;
        }
        if probe.regular && !alone && self.verdict.takes_new_flows() {
            self.loss.add(true);
            self.probed = Some(now);
        }
        if self.verdict == Verdict::Dead
            && let Some(recovery) = &mut self.recovery
        {
            recovery.missed(probe.sent);
        }
        if probe.regular && !probe.overdue_handled {
            self.handle_overdue(now, probe.sent, responsive);
        }
    }

    /// Returns true if packets were received since the device came up: the uplink is known to work without
    /// probes.
    pub(super) fn has_received(&self) -> bool {
        self.traffic.received.is_some()
    }

    /// Returns the time after which an unanswered probe is lost.
    pub(super) fn lost_after(&self) -> Duration {
        (self.rtt.timeout() * 2).clamp(MIN_LOSS_TIME, RTO_BOUNDS.1)
    }

    pub(super) fn working_families(&self) -> WorkingFamilies {
        WorkingFamilies {
            v4: self.uplink.v4 && !self.families.is_silent(false),
            v6: self.uplink.v6 && !self.families.is_silent(true),
        }
    }

    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.rtt.smoothed().or(self.traffic.rtt.smoothed())
    }

    pub(super) fn evidence(&self, cause: Cause) -> Evidence {
        Evidence {
            cause,
            rtt: self.round_trip(),
            loss: self.loss.share(),
            ..Evidence::none()
        }
    }

    /// Changes the verdict, or only its evidence, and queues the change.
    pub(super) fn change(&mut self, now: Instant, to: Verdict, evidence: Evidence) {
        let from = std::mem::replace(&mut self.verdict, to);
        if from != to {
            self.since = now;
        }
        self.evidence = evidence.clone();
        self.changes.push_back(VerdictChange {
            uplink: self.id,
            at: now,
            from,
            to,
            families: self.working_families(),
            evidence,
        });
    }

    pub(super) fn is_answering(&self) -> bool {
        let recovery = self.recovery.as_ref();
        recovery.is_some_and(|recovery| recovery.done_at().is_some())
    }

    pub(super) fn snapshot(&self) -> HealthSnapshot {
        HealthSnapshot {
            verdict: self.verdict,
            since: self.since,
            evidence: self.evidence.clone(),
            families: self.working_families(),
            rtt: self.round_trip(),
            jitter: self.rtt.jitter(),
            answered: self.answered,
            loss: self.loss.share(),
            probed: self.probed,
            send_error: self.targets.send_error.clone(),
        }
    }
}
