//! One uplink's verdict: suspicion and death, return, quality, captive portals.

use std::time::{Duration, Instant};

use super::constants::{
    BY_TRAFFIC, DEAF_AFTER, GRACE_MAX, HOLD, HOLD_TRIAL, HTTP_KEEN, LOSS_LEAVE, ONE_WAY,
    RISE_RETURNED, RTT_LEAVE, SLOW_FOR,
};
use super::families::Families;
use super::guard::Guard;
use super::loss::Loss;
use super::panel::Heard;
use super::recovery::Recovery;
use super::rtt::Rtt;
use super::suspicion::{Doubt, Suspicion};
use super::traffic::Moved;
use super::{Cause, Evidence, Verdict};

impl Guard {
    /// Draws the conclusions of everything known by now.
    pub(super) fn advance(&mut self, now: Instant, heard: &Heard) {
        while let Some(flight) = self.panel.take_lost(now) {
            self.missed(now, &flight, heard);
        }
        if !self.watched.usable {
            return;
        }
        // Behind a portal other targets are silent by its will: only it is asked.
        if !self.verdict.takes_new_flows() {
            self.try_return(now);
            return;
        }
        self.suspect_silence(now, heard);
        self.suspect_missing(now, heard);
        self.judge_suspicion(now);
        if self.verdict != Verdict::Dead {
            self.judge_quality(now);
        }
    }

    fn suspect_silence(&mut self, now: Instant, heard: &Heard) {
        let traffic = &self.traffic;
        let patience = traffic.patience(&self.rtt);
        if let Some(silence) = traffic.silence.filter(|s| !s.explained) {
            let lasting = now.saturating_duration_since(silence.since);
            let telling = traffic.since(&silence).is_telling();
            let overrun = traffic.overrun.is_some_and(|at| at >= silence.since);
            if lasting >= patience
                && !self.suspect(Doubt::Silence, now, silence.since, heard)
                && self.suspicion.is_none()
                && telling
                && lasting >= BY_TRAFFIC
                && !overrun
            {
                self.die_by_traffic(now);
            }
        } else if let Some(unheard) = traffic.unheard
            && traffic.silence.is_none()
            && now >= unheard.since + ONE_WAY.max(patience)
            && traffic.since(&unheard).is_telling()
        {
            self.suspect(Doubt::OneWay, now, unheard.since, heard);
        }
    }

    /// Probes whose answer is overdue.
    fn suspect_missing(&mut self, now: Instant, heard: &Heard) {
        let rto = self.rtt.timeout();
        let mut overdue = None;
        for flight in self.panel.flights_mut() {
            if flight.paced && !flight.noticed && now >= flight.sent + rto {
                flight.noticed = true;
                overdue = overdue.or(Some(*flight));
            }
        }
        if let Some(flight) = overdue
            && self.panel.is_useful(flight.seat, heard, self.passes())
            && !self.panel.is_deaf(flight.seat)
            && self.panel.is_asked_often(flight.seat)
        {
            self.notice(now, flight.sent, heard);
        }
    }

    /// A probe that was sent then is missing. What came in since by other ways excuses it.
    pub(super) fn notice(&mut self, now: Instant, sent: Instant, heard: &Heard) {
        let excused = self.traffic.received.is_some_and(|at| at > sent);
        if !excused && self.watched.usable && self.verdict.takes_new_flows() {
            self.suspect(Doubt::NoAnswer, now, sent, heard);
        }
    }

    /// Begins a burst, unless one is under way; `false` if there is nobody to ask.
    fn suspect(&mut self, doubt: Doubt, now: Instant, from: Instant, heard: &Heard) -> bool {
        if self.suspicion.is_some() {
            return true;
        }
        let witnesses = self.panel.witnesses(heard, self.passes());
        if witnesses.is_empty() {
            return false;
        }
        let (need, too_many) = (self.watched.rules.need, self.loss.too_many());
        let suspicion = Suspicion::new(doubt, now, from, witnesses, need, too_many);
        self.suspicion = Some(suspicion);
        true
    }

    /// When the burst will be proof, if nothing is heard.
    pub(super) fn proof_at(&self) -> Option<Instant> {
        let suspicion = self.suspicion.as_ref()?;
        let hurry = self.traffic.suffers_from(self.traffic.patience(&self.rtt));
        let proof = suspicion.proof_at(&self.panel, self.rtt.timeout(), hurry)?;
        // A machine that is always late must come to a conclusion, too.
        Some(proof.max(self.grace.min(proof + GRACE_MAX)))
    }

    fn judge_suspicion(&mut self, now: Instant) {
        if self.panel.cannot_send() {
            self.suspicion = None;
        }
        if self.proof_at().is_none_or(|proof| now < proof) {
            return;
        }
        let Some(suspicion) = self.suspicion.take() else {
            return;
        };
        // Who never got out had no answer to come.
        if self.traffic.overrun.is_some_and(|at| at >= suspicion.began) {
            return;
        }
        let (probes, answers) = suspicion.figures(&self.panel);
        let silence = self.traffic.silence.or(self.traffic.unheard);
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
        self.die(now, evidence, Some(HOLD_TRIAL));
    }

    fn moved(&self, cause: Cause, moved: Moved) -> Evidence {
        Evidence {
            sent: moved.sent,
            received: moved.received,
            syns: moved.syns,
            ..self.evidence(cause)
        }
    }

    /// With a trial it returns after that hold without having answered.
    fn die(&mut self, now: Instant, evidence: Evidence, trial: Option<Duration>) {
        self.damping.strike(now);
        // Taking back again and again would be flapping: only the first for long comes back at once.
        self.premature = self.damping.is_first();
        self.forget_quality(now);
        self.trial_at = trial.map(|first| now + self.damping.hold(first));
        let rules = &self.watched.rules;
        let hold = self.damping.hold(HOLD);
        self.recovery = Some(Recovery::new(rules.rise, self.need(), hold));
        // Perhaps a portal is behind it.
        self.panel.http_at = now;
        self.change(now, Verdict::Dead, evidence);
    }

    /// Targets that have to answer: no more than have ever answered.
    fn need(&self) -> usize {
        let known = self.panel.ever_answered();
        self.watched.rules.need.clamp(1, known.max(1))
    }

    fn forget_quality(&mut self, now: Instant) {
        self.suspicion = None;
        self.slow_since = None;
        self.traffic.forget();
        self.loss.begin_anew();
        self.next_paced = now;
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

    /// Other targets are asked from now on. Where none is left that could tell of a return, it is tried.
    pub(super) fn ask_others(&mut self, now: Instant, heard: &Heard) {
        let nobody = match self.verdict {
            Verdict::Dead => self.panel.witnesses(heard, self.passes()).is_empty(),
            Verdict::Portal => !self.panel.has_http(),
            _ => false,
        };
        if nobody {
            self.trial_at = Some(now + self.damping.hold(HOLD_TRIAL));
        }
    }

    /// An answer to what was asked before the death: the way has become long, and was not broken. The
    /// death still counts, since flows have left for it.
    pub(super) fn take_back(&mut self, now: Instant) {
        if !self.premature {
            return;
        }
        let evidence = self.evidence(Cause::Late);
        self.rise(now, evidence);
    }

    fn rise(&mut self, now: Instant, evidence: Evidence) {
        self.premature = false;
        self.recovery = None;
        self.trial_at = None;
        self.forget_quality(now);
        self.change(now, Verdict::Up, evidence);
    }

    /// The device is there again. It may lead elsewhere now, so little of what was known holds.
    pub(super) fn come_back(&mut self, now: Instant, heard: &Heard) {
        self.rtt = Rtt::default();
        self.loss = Loss::default();
        self.families = Families::default();
        self.traffic.forget();
        self.open(now);
        if self.watched.vouched {
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
            self.damping.hold(HOLD)
        };
        let mut evidence = self.evidence(Cause::Returned);
        if self.panel.witnesses(heard, self.passes()).is_empty() {
            if first && self.verdict == Verdict::Up {
                self.evidence = evidence;
                return;
            }
            self.trial_at = Some(now + hold);
            evidence.detail = Some(format!("waits {:.0} s", hold.as_secs_f64()));
        } else {
            evidence.detail = Some(format!("waits for {RISE_RETURNED} answers"));
        }
        self.recovery = Some(Recovery::new(RISE_RETURNED, self.need(), hold));
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
        self.recovery = Some(Recovery::new(self.watched.rules.rise, 1, HOLD));
        self.change(now, Verdict::Portal, evidence);
    }

    /// Not even the portal answers any more.
    pub(super) fn lose_portal(&mut self, now: Instant) {
        let mut evidence = self.evidence(Cause::NoAnswer);
        evidence.probes = DEAF_AFTER;
        evidence.window = HTTP_KEEN * DEAF_AFTER;
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
        let rules = &self.watched.rules;
        let rtt = self.rtt.smoothed().unwrap_or_default();
        let slow = rtt >= rules.degraded_rtt;
        self.slow_since = slow.then(|| self.slow_since.unwrap_or(now));
        let limit = rules.degraded_loss.fraction();
        let loss = self.loss.known();
        let too_lossy = limit > 0.0 && loss.is_some_and(|loss| loss >= limit);
        let too_slow = self.slow_since.is_some_and(|since| now >= since + SLOW_FOR);
        if self.verdict == Verdict::Up && (too_lossy || too_slow) {
            let cause = if too_lossy { Cause::Loss } else { Cause::Delay };
            self.change(now, Verdict::Degraded, self.evidence(cause));
        } else if self.verdict == Verdict::Degraded
            && loss.is_none_or(|loss| loss <= limit * LOSS_LEAVE)
            && rtt <= rules.degraded_rtt.mul_f64(RTT_LEAVE)
        {
            self.change(now, Verdict::Up, self.evidence(Cause::Recovered));
        }
    }
}
