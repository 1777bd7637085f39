//! Transitions of one uplink's verdict: suspicion and death, return, quality, captive portals.

use std::time::{Duration, Instant};

use super::constants::{
    FAST_HTTP_PROBE_INTERVAL, LOSS_RECOVERY_FACTOR, MAX_LATENESS_GRACE, MIN_HOLD, MIN_SLOW_TIME,
    MIN_TRIAL_HOLD, ONE_WAY_SUSPICION_TIME, RISE_AFTER_DEVICE_RETURN, RTT_RECOVERY_FACTOR,
    TRAFFIC_DEATH_TIME, UNRESPONSIVE_AFTER,
};
use super::families::Families;
use super::loss::Loss;
use super::recovery::Recovery;
use super::rtt::Rtt;
use super::suspicion::{Suspicion, SuspicionCause};
use super::target_set::ResponsiveTargets;
use super::traffic::Moved;
use super::uplink_monitor::UplinkMonitor;
use super::{Cause, Evidence, Verdict};

impl UplinkMonitor {
    /// Applies every transition that is due.
    pub(super) fn advance(&mut self, now: Instant, responsive: &ResponsiveTargets) {
        while let Some(probe) = self.targets.take_lost(now) {
            self.missed(now, &probe, responsive);
        }
        if !self.uplink.usable {
            return;
        }
        // A portal silences other targets on purpose, so only its own target is probed.
        if !self.verdict.takes_new_flows() {
            self.try_return(now);
            return;
        }
        self.suspect_silence(now, responsive);
        self.suspect_missing(now, responsive);
        self.judge_suspicion(now);
        if self.verdict != Verdict::Dead {
            self.judge_quality(now);
        }
    }

    fn suspect_silence(&mut self, now: Instant, responsive: &ResponsiveTargets) {
        let traffic = &self.traffic;
        let silence_limit = traffic.silence_limit(&self.rtt);
        if let Some(silence) = traffic.silence.filter(|s| !s.explained) {
            let lasting = now.saturating_duration_since(silence.since);
            let conclusive = traffic.since(&silence).is_conclusive();
            let local_drops = traffic.local_drops.is_some_and(|at| at >= silence.since);
            if lasting >= silence_limit
                && !self.suspect(SuspicionCause::Silence, now, silence.since, responsive)
                && self.suspicion.is_none()
                && conclusive
                && lasting >= TRAFFIC_DEATH_TIME
                && !local_drops
            {
                self.die_by_traffic(now);
            }
        } else if let Some(unanswered_syns) = traffic.unanswered_syns
            && traffic.silence.is_none()
            && now >= unanswered_syns.since + ONE_WAY_SUSPICION_TIME.max(silence_limit)
            && traffic.since(&unanswered_syns).is_conclusive()
        {
            self.suspect(
                SuspicionCause::OneWay,
                now,
                unanswered_syns.since,
                responsive,
            );
        }
    }

    /// Handles probes whose answer is overdue.
    fn suspect_missing(&mut self, now: Instant, responsive: &ResponsiveTargets) {
        let rto = self.rtt.timeout();
        let mut overdue = None;
        for probe in self.targets.in_flight_mut() {
            if probe.regular && !probe.overdue_handled && now >= probe.sent + rto {
                probe.overdue_handled = true;
                overdue = overdue.or(Some(*probe));
            }
        }
        if let Some(probe) = overdue
            && self
                .targets
                .is_evidence(probe.index, responsive, self.has_received())
            && !self.targets.is_unresponsive(probe.index)
            && self.targets.is_frequent(probe.index)
        {
            self.handle_overdue(now, probe.sent, responsive);
        }
    }

    /// Handles a probe sent at `sent` whose answer is missing. Traffic received since then excuses it.
    pub(super) fn handle_overdue(
        &mut self,
        now: Instant,
        sent: Instant,
        responsive: &ResponsiveTargets,
    ) {
        let excused = self.traffic.received.is_some_and(|at| at > sent);
        if !excused && self.uplink.usable && self.verdict.takes_new_flows() {
            self.suspect(SuspicionCause::NoAnswer, now, sent, responsive);
        }
    }

    /// Begins a burst, unless one is under way. Returns false if there is no target to probe.
    fn suspect(
        &mut self,
        cause: SuspicionCause,
        now: Instant,
        from: Instant,
        responsive: &ResponsiveTargets,
    ) -> bool {
        if self.suspicion.is_some() {
            return true;
        }
        let eligible = self.targets.eligible(responsive, self.has_received());
        if eligible.is_empty() {
            return false;
        }
        let (quorum, loss_limit) = (self.uplink.rules.quorum, self.loss.loss_limit());
        let suspicion = Suspicion::new(cause, now, from, eligible, quorum, loss_limit);
        self.suspicion = Some(suspicion);
        true
    }

    /// Returns the time at which the burst is proof, if no answer comes.
    pub(super) fn proof_at(&self) -> Option<Instant> {
        let suspicion = self.suspicion.as_ref()?;
        let suffering_since = self
            .traffic
            .suffering_since(self.traffic.silence_limit(&self.rtt));
        let proof = suspicion.proof_at(&self.targets, self.rtt.timeout(), suffering_since)?;
        // A machine that is always late must still reach a verdict.
        Some(proof.max(self.grace.min(proof + MAX_LATENESS_GRACE)))
    }

    fn judge_suspicion(&mut self, now: Instant) {
        if self.targets.cannot_send() {
            self.suspicion = None;
        }
        if self.proof_at().is_none_or(|proof| now < proof) {
            return;
        }
        let Some(suspicion) = self.suspicion.take() else {
            return;
        };
        // Packets that never left the machine have no answer.
        if self
            .traffic
            .local_drops
            .is_some_and(|at| at >= suspicion.began)
        {
            return;
        }
        let (probes, answers) = suspicion.figures(&self.targets);
        let silence = self.traffic.silence.or(self.traffic.unanswered_syns);
        let moved = silence.map(|s| self.traffic.since(&s)).unwrap_or_default();
        let from = silence.map_or(suspicion.from, |s| s.since.min(suspicion.from));
        let cause = if moved == Moved::default() {
            Cause::NoAnswer
        } else {
            Cause::Silence
        };
        let evidence = Evidence {
            window: now.saturating_duration_since(from),
            probes,
            answers,
            ..self.moved(cause, moved)
        };
        self.die(now, evidence, None);
    }

    fn die_by_traffic(&mut self, now: Instant) {
        let Some(silence) = self.traffic.silence else {
            return;
        };
        let evidence = Evidence {
            window: now.saturating_duration_since(silence.since),
            ..self.moved(Cause::Traffic, self.traffic.since(&silence))
        };
        self.die(now, evidence, Some(MIN_TRIAL_HOLD));
    }

    fn moved(&self, cause: Cause, moved: Moved) -> Evidence {
        Evidence {
            sent: moved.sent,
            received: moved.received,
            syns: moved.syns,
            ..self.evidence(cause)
        }
    }

    /// Declares the uplink dead. With `trial` it returns after that hold time without having answered.
    fn die(&mut self, now: Instant, evidence: Evidence, trial: Option<Duration>) {
        self.damping.add_penalty(now);
        // Revoking again and again would be flapping: only the first death for long may be revoked at once.
        self.revocable = self.damping.is_first();
        self.forget_quality(now);
        self.trial_at = trial.map(|first| now + self.damping.hold(first));
        let rules = &self.uplink.rules;
        let hold = self.damping.hold(MIN_HOLD);
        self.recovery = Some(Recovery::new(rules.rise, self.quorum(), hold));
        // The cause may be a portal.
        self.targets.http_at = now;
        self.change(now, Verdict::Dead, evidence);
    }

    /// Returns the number of targets that have to answer: no more than have ever answered.
    fn quorum(&self) -> usize {
        let known = self.targets.ever_answered();
        self.uplink.rules.quorum.clamp(1, known.max(1))
    }

    fn forget_quality(&mut self, now: Instant) {
        self.suspicion = None;
        self.slow_since = None;
        self.traffic.forget();
        self.loss.reset_window();
        self.next_regular = now;
    }

    fn try_return(&mut self, now: Instant) {
        let done = self.recovery.as_ref().and_then(Recovery::done_at);
        if done.is_some_and(|at| at <= now) {
            let Some(recovery) = self.recovery.take() else {
                return;
            };
            let began = recovery.good_since().unwrap_or(now);
            let evidence = Evidence {
                window: now.saturating_duration_since(began),
                probes: recovery.row(),
                answers: recovery.row(),
                ..self.evidence(Cause::Answers)
            };
            self.rise(now, evidence);
        } else if self.trial_at.is_some_and(|at| at <= now) {
            let evidence = self.evidence(Cause::Trial);
            self.rise(now, evidence);
        }
    }

    /// Handles a change of the targets. If none is left that could show a return, a trial is scheduled.
    pub(super) fn ask_others(&mut self, now: Instant, responsive: &ResponsiveTargets) {
        let nobody = match self.verdict {
            Verdict::Dead => self
                .targets
                .eligible(responsive, self.has_received())
                .is_empty(),
            Verdict::Portal => !self.targets.has_http(),
            _ => false,
        };
        if nobody {
            self.trial_at = Some(now + self.damping.hold(MIN_TRIAL_HOLD));
        }
    }

    /// Handles an answer to a probe from before the death: the path became slow and was not broken. The death
    /// still counts for the damping, since flows have left because of it.
    pub(super) fn revoke_death(&mut self, now: Instant) {
        if !self.revocable {
            return;
        }
        let evidence = self.evidence(Cause::Late);
        self.rise(now, evidence);
    }

    fn rise(&mut self, now: Instant, evidence: Evidence) {
        self.revocable = false;
        self.recovery = None;
        self.trial_at = None;
        self.forget_quality(now);
        self.change(now, Verdict::Up, evidence);
    }

    /// Handles the return of the device. It may lead elsewhere now, so most of the history is dropped.
    pub(super) fn come_back(&mut self, now: Instant, responsive: &ResponsiveTargets) {
        self.rtt = Rtt::default();
        self.answered = None;
        self.loss = Loss::default();
        self.families = Families::default();
        self.traffic.forget();
        self.open(now);
        if self.uplink.self_reported {
            let evidence = self.evidence(Cause::Returned);
            match self.verdict {
                Verdict::Up => self.evidence = evidence,
                _ => self.rise(now, evidence),
            }
            return;
        }
        let first = self.damping.is_first();
        let hold = if first {
            Duration::ZERO
        } else {
            self.damping.hold(MIN_HOLD)
        };
        let mut evidence = self.evidence(Cause::Returned);
        if self
            .targets
            .eligible(responsive, self.has_received())
            .is_empty()
        {
            if first && self.verdict == Verdict::Up {
                self.evidence = evidence;
                return;
            }
            self.trial_at = Some(now + hold);
            evidence.detail = Some(format!("waits {:.0} s", hold.as_secs_f64()));
        } else {
            evidence.detail = Some(format!("waits for {RISE_AFTER_DEVICE_RETURN} answers"));
        }
        self.recovery = Some(Recovery::new(RISE_AFTER_DEVICE_RETURN, self.quorum(), hold));
        self.change(now, Verdict::Dead, evidence);
    }

    pub(super) fn enter_portal(&mut self, now: Instant, what: String) {
        let evidence = Evidence {
            detail: Some(what),
            ..self.evidence(Cause::Portal)
        };
        self.suspicion = None;
        self.trial_at = None;
        // One target is enough: there is seldom more than one for HTTP.
        self.recovery = Some(Recovery::new(self.uplink.rules.rise, 1, MIN_HOLD));
        self.change(now, Verdict::Portal, evidence);
    }

    /// Handles a portal that has stopped answering.
    pub(super) fn lose_portal(&mut self, now: Instant) {
        let mut evidence = self.evidence(Cause::NoAnswer);
        evidence.probes = UNRESPONSIVE_AFTER;
        evidence.window = FAST_HTTP_PROBE_INTERVAL * UNRESPONSIVE_AFTER;
        self.die(now, evidence, None);
    }

    pub(super) fn family_changed(&mut self, now: Instant, v6: bool) {
        let silent = self.families.is_silent(v6);
        let cause = if silent {
            Cause::FamilySilent
        } else {
            Cause::FamilyBack
        };
        let family = if v6 { "IPv6" } else { "IPv4" };
        let says = if silent { "is silent" } else { "answers again" };
        let evidence = Evidence {
            detail: Some(format!("{family} {says}")),
            ..self.evidence(cause)
        };
        self.change(now, self.verdict, evidence);
    }

    fn judge_quality(&mut self, now: Instant) {
        let rules = &self.uplink.rules;
        let rtt = self.rtt.smoothed().unwrap_or_default();
        let slow = rtt >= rules.degraded_rtt;
        self.slow_since = slow.then(|| self.slow_since.unwrap_or(now));
        let limit = rules.degraded_loss.fraction();
        let loss = self.loss.known();
        let too_lossy = limit > 0.0 && loss.is_some_and(|loss| loss >= limit);
        let too_slow = self
            .slow_since
            .is_some_and(|since| now >= since + MIN_SLOW_TIME);
        if self.verdict == Verdict::Up && (too_lossy || too_slow) {
            let cause = if too_lossy { Cause::Loss } else { Cause::Delay };
            self.change(now, Verdict::Degraded, self.evidence(cause));
        } else if self.verdict == Verdict::Degraded
            && loss.is_none_or(|loss| loss <= limit * LOSS_RECOVERY_FACTOR)
            && rtt <= rules.degraded_rtt.mul_f64(RTT_RECOVERY_FACTOR)
        {
            self.change(now, Verdict::Up, self.evidence(Cause::Recovered));
        }
    }
}
