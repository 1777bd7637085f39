//! Schedule of one uplink's probes: the time and the target of the next one.

use std::time::{Duration, Instant};

use super::constants::{
    BURST_PROBE_INTERVAL, FAST_HTTP_PROBE_INTERVAL, FAST_PROBE_INTERVAL, FAST_PROBING_AFTER_DEATH,
    IDLE_AFTER, METERED_FAST_PROBE_INTERVAL, MIN_SLOW_TIME, ONE_WAY_SUSPICION_TIME,
    TRAFFIC_DEATH_TIME,
};
use super::recovery::Recovery;
use super::target_set::{InFlightProbe, ResponsiveTargets};
use super::uplink_monitor::UplinkMonitor;
use super::{ProbeId, ProbeRequest, Verdict};

impl UplinkMonitor {
    /// Returns the next probe to send now.
    pub(super) fn next_request(
        &mut self,
        now: Instant,
        id: ProbeId,
        responsive: &ResponsiveTargets,
    ) -> Option<ProbeRequest> {
        if self.send_at().is_none_or(|at| now < at) {
            return None;
        }
        let (index, regular) = match &mut self.suspicion {
            Some(suspicion) => (suspicion.next_target(now)?, false),
            None => {
                let eligible = self.targets.eligible(responsive, self.has_received());
                let index = self.targets.next(now, &eligible, self.families.suspect())?;
                self.next_regular = now + self.interval(now);
                if !self.verdict.takes_new_flows() {
                    self.targets.http_at = self.targets.http_at.min(now + FAST_HTTP_PROBE_INTERVAL);
                }
                self.initial_probes = self.initial_probes.saturating_sub(1);
                self.fast_probes = self.fast_probes.saturating_sub(1);
                (index, true)
            }
        };
        let timeout = self.lost_after();
        let probe = InFlightProbe {
            index,
            sent: now,
            lost_at: now + timeout,
            regular,
            overdue_handled: false,
        };
        self.targets.add_in_flight(id, probe);
        Some(ProbeRequest {
            uplink: self.id,
            id,
            target: self.targets.target(index).clone(),
            timeout,
        })
    }

    /// Returns the time of the next probe; `None` while none may be sent.
    fn send_at(&self) -> Option<Instant> {
        let may = self.uplink.usable && self.targets.len() > 0 && self.targets.has_room();
        let next = self
            .suspicion
            .as_ref()
            .map_or(self.next_regular, |s| s.next);
        may.then_some(next)
    }

    /// Returns the interval between regular probes.
    fn interval(&self, now: Instant) -> Duration {
        let rules = &self.uplink.rules;
        let moved = self.traffic.moved;
        let idle = moved.is_none_or(|at| now.saturating_duration_since(at) >= IDLE_AFTER);
        let interval = if rules.metered && idle {
            rules.metered_interval
        } else {
            rules.interval
        };
        let fast = if rules.metered {
            METERED_FAST_PROBE_INTERVAL
        } else {
            FAST_PROBE_INTERVAL
        };
        let newly_dead = self.verdict == Verdict::Dead
            && now.saturating_duration_since(self.since) < FAST_PROBING_AFTER_DEATH;
        let returning = self.recovery.as_ref().is_some_and(|r| r.row() > 0);
        let unanswered = self.traffic.silence.is_some_and(|s| s.explained);
        let doubtful = self.families.suspect().is_some();
        if self.initial_probes > 1 {
            BURST_PROBE_INTERVAL
        } else if self.fast_probes > 1 && !self.rtt.is_known() {
            FAST_PROBE_INTERVAL
        } else if newly_dead || returning || unanswered || doubtful {
            fast.min(interval)
        } else {
            interval
        }
    }

    /// Returns the time of the next transition that needs no input.
    pub(super) fn next_time(&self, responsive: &ResponsiveTargets) -> Option<Instant> {
        if !self.uplink.usable {
            return None;
        }
        let lost = self.targets.in_flight().map(|f| f.lost_at).min();
        let returns = self.recovery.as_ref().and_then(Recovery::done_at);
        let others = match self.verdict {
            Verdict::Dead | Verdict::Portal => self.trial_at,
            _ => earliest([
                self.proof_at(),
                self.suspicion_at(responsive),
                self.slow_since
                    .map(|since| since + MIN_SLOW_TIME)
                    .filter(|_| self.verdict == Verdict::Up),
            ]),
        };
        earliest([self.send_at(), lost, returns, others])
    }

    /// Returns the time at which the uplink becomes suspect, or dead by its traffic alone.
    fn suspicion_at(&self, responsive: &ResponsiveTargets) -> Option<Instant> {
        if self.suspicion.is_some() {
            return None;
        }
        let rto = self.rtt.timeout();
        let regular = self
            .targets
            .in_flight()
            .filter(|f| f.regular && !f.overdue_handled);
        let missing = regular.map(|f| f.sent + rto).min();
        let silence_limit = self.traffic.silence_limit(&self.rtt);
        let asks = !self
            .targets
            .eligible(responsive, self.has_received())
            .is_empty();
        let traffic = match (self.traffic.silence, self.traffic.unanswered_syns) {
            (Some(silence), _) if !silence.explained => {
                let conclusive = self.traffic.since(&silence).is_conclusive();
                let wait = if asks {
                    silence_limit
                } else {
                    TRAFFIC_DEATH_TIME
                };
                (asks || conclusive).then_some(silence.since + wait)
            }
            (None, Some(unanswered_syns))
                if asks && self.traffic.since(&unanswered_syns).is_conclusive() =>
            {
                Some(unanswered_syns.since + ONE_WAY_SUSPICION_TIME.max(silence_limit))
            }
            _ => None,
        };
        earliest([missing, traffic])
    }
}

fn earliest<const N: usize>(times: [Option<Instant>; N]) -> Option<Instant> {
    times.into_iter().flatten().min()
}
