//! One uplink's state: what goes into it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use braid_core::UplinkId;

use super::constants::{DEAF_AFTER, HTTP_AGAIN, LOST_MIN, PORTAL_AFTER, PREMATURE, RTO};
use super::damping::Damping;
use super::families::Families;
use super::loss::Loss;
use super::panel::{Flight, Heard, Panel, Seat};
use super::recovery::Recovery;
use super::rtt::Rtt;
use super::suspicion::Suspicion;
use super::traffic::Traffic;
use super::{
    Cause, Evidence, Look, Outcome, ProbeAnswer, Sample, Verdict, VerdictChange, Watched, Ways,
};

/// One uplink's state.
#[derive(Debug)]
pub(super) struct Guard {
    pub(super) id: UplinkId,
    pub(super) watched: Watched,
    pub(super) verdict: Verdict,
    pub(super) since: Instant,
    pub(super) evidence: Evidence,
    pub(super) panel: Panel,
    pub(super) rtt: Rtt,
    pub(super) loss: Loss,
    pub(super) traffic: Traffic,
    pub(super) families: Families,
    pub(super) damping: Damping,
    /// Late answers may take the death back.
    pub(super) premature: bool,
    pub(super) suspicion: Option<Suspicion>,
    pub(super) recovery: Option<Recovery>,
    pub(super) trial_at: Option<Instant>,
    /// Since when the round trip is too long.
    pub(super) slow_since: Option<Instant>,
    /// Wrong answers over HTTP in a row, and missing ones.
    wrong: u32,
    http_missing: u32,
    /// When the next probe is due in quiet times.
    pub(super) next_paced: Instant,
    /// Probes left of the first round, and of the time in which much is to be learnt.
    pub(super) opening: u32,
    pub(super) keen: u32,
    /// Answers may be waiting: nothing dies before.
    pub(super) grace: Instant,
    been_usable: bool,
    pub(super) changes: VecDeque<VerdictChange>,
}

impl Guard {
    /// Up until something speaks against it.
    pub(super) fn new(now: Instant, id: UplinkId, watched: Watched) -> Guard {
        let panel = Panel::new(now, &watched);
        let mut guard = Guard {
            id,
            verdict: Verdict::Up,
            since: now,
            evidence: Evidence::none(),
            panel,
            rtt: Rtt::default(),
            loss: Loss::default(),
            traffic: Traffic::default(),
            families: Families::default(),
            damping: Damping::default(),
            premature: false,
            suspicion: None,
            recovery: None,
            trial_at: None,
            slow_since: None,
            wrong: 0,
            http_missing: 0,
            next_paced: now,
            opening: 0,
            keen: 0,
            grace: now,
            been_usable: watched.usable,
            changes: VecDeque::new(),
            watched,
        };
        guard.open(now);
        guard
    }

    /// Follows a change of the rules or of the device.
    pub(super) fn set(&mut self, now: Instant, watched: Watched, heard: &Heard) {
        if watched == self.watched {
            return;
        }
        let old = std::mem::replace(&mut self.watched, watched);
        let same_targets = old.rules.targets == self.watched.rules.targets
            && (old.v4, old.v6) == (self.watched.v4, self.watched.v6);
        if !same_targets {
            let mut panel = Panel::new(now, &self.watched);
            panel.inherit(&self.panel);
            self.panel = panel;
            self.suspicion = None;
            self.open(now);
            self.ask_others(now, heard);
        }
        match (old.usable, self.watched.usable) {
            (true, false) => self.leave(now),
            (false, true) if self.been_usable => self.come_back(now, heard),
            (false, true) => self.open(now),
            _ => {}
        }
        self.been_usable |= self.watched.usable;
    }

    /// Asks every target once, and much at the beginning.
    pub(super) fn open(&mut self, now: Instant) {
        // At most what a configuration names.
        self.opening = self.panel.len() as u32;
        self.keen = super::constants::KEEN_PROBES;
        self.next_paced = now;
    }

    /// The device is gone: nothing under way says anything.
    fn leave(&mut self, now: Instant) {
        self.forget(now);
        self.recovery = None;
        self.trial_at = None;
        if !self.watched.vouched {
            self.damping.strike(now);
        }
    }

    /// What is under way says nothing any more.
    pub(super) fn forget(&mut self, now: Instant) {
        self.panel.forget_flights();
        self.suspicion = None;
        self.slow_since = None;
        self.traffic.forget();
        self.next_paced = now;
    }

    pub(super) fn handle_traffic(&mut self, now: Instant, sample: Sample) {
        let received = self.traffic.add(now, sample);
        // What comes in clears an uplink, unless it is only the way out that is in doubt.
        if received
            && self
                .suspicion
                .as_ref()
                .is_some_and(Suspicion::is_cleared_by_traffic)
        {
            self.suspicion = None;
        }
    }

    /// Takes what came of a probe. Returns the target's seat if it answered as it should.
    pub(super) fn handle_probe(
        &mut self,
        now: Instant,
        answer: ProbeAnswer,
        heard: &Heard,
    ) -> Option<Seat> {
        let flight = self.panel.land(answer.id)?;
        let is_http = self.panel.target(flight.seat).is_http();
        match answer.outcome {
            Outcome::Answered { rtt } => {
                self.good(now, &flight, rtt);
                return Some(flight.seat);
            }
            Outcome::Wrong { what, .. } if is_http => self.wrong(now, &flight, what),
            Outcome::Wrong { .. } | Outcome::Silent => self.missed(now, &flight, heard),
            Outcome::NotSent { why } => self.panel.not_sent(why),
        }
        None
    }

    fn good(&mut self, now: Instant, flight: &Flight, rtt: Duration) {
        let seat = flight.seat;
        let often = self.panel.is_asked_often(seat);
        self.panel.answered(now, seat);
        if self.panel.target(seat).is_http() {
            (self.wrong, self.http_missing) = (0, 0);
        }
        if often {
            self.rtt.add(rtt);
        }
        if flight.paced && often {
            self.loss.add(false);
        }
        if let Some(v6) = self.panel.family(seat)
            && self.families.answered(now, v6)
        {
            self.family_changed(now, v6);
        }
        let died = now.saturating_duration_since(self.since);
        if self.verdict == Verdict::Dead && often && flight.sent < self.since && died < PREMATURE {
            self.take_back(now);
        }
        let counts = match self.verdict {
            Verdict::Portal => self.panel.target(seat).is_http(),
            _ => often,
        };
        if counts && let Some(recovery) = &mut self.recovery {
            recovery.good(now, flight.sent, seat);
        }
        if self.suspicion.as_mut().is_some_and(|s| s.heard(flight)) {
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.suspicion = None;
        self.traffic.explain();
    }

    fn wrong(&mut self, now: Instant, flight: &Flight, what: String) {
        self.wrong = self.wrong.saturating_add(1);
        self.http_missing = 0;
        self.panel.http_at = now + HTTP_AGAIN;
        let alone = self.suspicion.is_some() || self.verdict == Verdict::Dead;
        if self.verdict == Verdict::Portal {
            if let Some(recovery) = &mut self.recovery {
                recovery.missed(flight.sent);
            }
        } else if self.wrong >= PORTAL_AFTER || alone {
            self.enter_portal(now, what);
        }
    }

    /// A probe went unanswered for good.
    pub(super) fn missed(&mut self, now: Instant, flight: &Flight, heard: &Heard) {
        let seat = flight.seat;
        let useful = self.panel.is_useful(seat, heard, self.passes());
        let speaks = useful && !self.panel.is_deaf(seat) && self.panel.is_asked_often(seat);
        let alone = self.panel.is_silent_alone(seat);
        self.panel.missed(flight);
        if self.panel.target(seat).is_http() {
            self.http_missing = self.http_missing.saturating_add(1);
            if self.verdict == Verdict::Portal && self.http_missing >= DEAF_AFTER {
                self.lose_portal(now);
                return;
            }
        }
        if let Some(suspicion) = &mut self.suspicion {
            suspicion.lost(flight);
        }
        if useful && let Some(v6) = self.panel.family(seat) {
            let too_many = self.loss.too_many();
            if self.families.missed(flight.sent, v6, too_many) {
                self.family_changed(now, v6);
            }
        }
        if !speaks {
            return;
        }
        if flight.paced && !alone && self.verdict.takes_new_flows() {
            self.loss.add(true);
        }
        if self.verdict == Verdict::Dead
            && let Some(recovery) = &mut self.recovery
        {
            recovery.missed(flight.sent);
        }
        if flight.paced && !flight.noticed {
            self.notice(now, flight.sent, heard);
        }
    }

    /// Something came in since the device is there, so the uplink is known to work without probes.
    pub(super) fn passes(&self) -> bool {
        self.traffic.received.is_some()
    }

    /// How long until an unanswered probe is lost.
    pub(super) fn lost_after(&self) -> Duration {
        (self.rtt.timeout() * 2).clamp(LOST_MIN, RTO.1)
    }

    pub(super) fn ways(&self) -> Ways {
        Ways {
            v4: self.watched.v4 && !self.families.is_silent(false),
            v6: self.watched.v6 && !self.families.is_silent(true),
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

    /// Changes the verdict, or only what it rests on, and tells.
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
            ways: self.ways(),
            evidence,
        });
    }

    pub(super) fn answers_again(&self) -> bool {
        let recovery = self.recovery.as_ref();
        recovery.is_some_and(|recovery| recovery.done_at().is_some())
    }

    pub(super) fn look(&self) -> Look {
        Look {
            verdict: self.verdict,
            since: self.since,
            evidence: self.evidence.clone(),
            ways: self.ways(),
            rtt: self.round_trip(),
            loss: self.loss.share(),
            trouble: self.panel.trouble.clone(),
        }
    }
}
