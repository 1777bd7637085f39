//! One uplink's probes: when the next is due, and to whom.

use std::time::{Duration, Instant};

use super::constants::{
    BURST_PACE, BY_TRAFFIC, HTTP_KEEN, IDLE, KEEN, KEEN_AFTER_DEATH, KEEN_METERED, ONE_WAY,
    SLOW_FOR,
};
use super::guard::Guard;
use super::panel::{Flight, Heard};
use super::recovery::Recovery;
use super::{ProbeId, ProbeOrder, Verdict};

impl Guard {
    /// The next probe to send now.
    pub(super) fn next_order(
        &mut self,
        now: Instant,
        id: ProbeId,
        heard: &Heard,
    ) -> Option<ProbeOrder> {
        if self.send_at().is_none_or(|at| now < at) {
            return None;
        }
        let (seat, paced) = match &mut self.suspicion {
            Some(suspicion) => (suspicion.next_seat(now)?, false),
            None => {
                let witnesses = self.panel.witnesses(heard, self.passes());
                let seat = self.panel.next(now, &witnesses, self.families.doubted())?;
                self.next_paced = now + self.pace(now);
                if !self.verdict.takes_new_flows() {
                    self.panel.http_at = self.panel.http_at.min(now + HTTP_KEEN);
                }
                self.opening = self.opening.saturating_sub(1);
                self.keen = self.keen.saturating_sub(1);
                (seat, true)
            }
        };
        let timeout = self.lost_after();
        let flight = Flight {
            seat,
            sent: now,
            lost_at: now + timeout,
            paced,
            noticed: false,
        };
        self.panel.launch(id, flight);
        Some(ProbeOrder {
            uplink: self.id,
            id,
            target: self.panel.target(seat).clone(),
            timeout,
        })
    }

    /// When the next probe is due; `None` while none may be sent.
    fn send_at(&self) -> Option<Instant> {
        let may = self.watched.usable && self.panel.len() > 0 && self.panel.has_room();
        let next = self.suspicion.as_ref().map_or(self.next_paced, |s| s.next);
        may.then_some(next)
    }

    /// From one probe to the next in quiet times.
    fn pace(&self, now: Instant) -> Duration {
        let rules = &self.watched.rules;
        let moved = self.traffic.moved;
        let idle = moved.is_none_or(|at| now.saturating_duration_since(at) >= IDLE);
        let interval = if rules.metered && idle {
            rules.metered_interval
        } else {
            rules.interval
        };
        let keen = if rules.metered { KEEN_METERED } else { KEEN };
        let newly_dead = self.verdict == Verdict::Dead
            && now.saturating_duration_since(self.since) < KEEN_AFTER_DEATH;
        let returning = self.recovery.as_ref().is_some_and(|r| r.row() > 0);
        let unanswered = self.traffic.silence.is_some_and(|s| s.explained);
        let doubtful = self.families.doubted().is_some();
        if self.opening > 1 {
            BURST_PACE
        } else if self.keen > 1 && !self.rtt.is_known() {
            KEEN
        } else if newly_dead || returning || unanswered || doubtful {
            keen.min(interval)
        } else {
            interval
        }
    }

    /// When something changes without anything being heard.
    pub(super) fn next_time(&self, heard: &Heard) -> Option<Instant> {
        if !self.watched.usable {
            return None;
        }
        let lost = self.panel.flights().map(|f| f.lost_at).min();
        let returns = self.recovery.as_ref().and_then(Recovery::done_at);
        let others = match self.verdict {
            Verdict::Dead | Verdict::Portal => self.trial_at,
            _ => earliest([
                self.proof_at(),
                self.suspicion_at(heard),
                self.slow_since
                    .map(|since| since + SLOW_FOR)
                    .filter(|_| self.verdict == Verdict::Up),
            ]),
        };
        earliest([self.send_at(), lost, returns, others])
    }

    /// When the uplink becomes suspect, or dead by its traffic alone.
    fn suspicion_at(&self, heard: &Heard) -> Option<Instant> {
        if self.suspicion.is_some() {
            return None;
        }
        let rto = self.rtt.timeout();
        let paced = self.panel.flights().filter(|f| f.paced && !f.noticed);
        let missing = paced.map(|f| f.sent + rto).min();
        let patience = self.traffic.patience(&self.rtt);
        let asks = !self.panel.witnesses(heard, self.passes()).is_empty();
        let traffic = match (self.traffic.silence, self.traffic.unheard) {
            (Some(silence), _) if !silence.explained => {
                let telling = self.traffic.since(&silence).is_telling();
                let wait = if asks { patience } else { BY_TRAFFIC };
                (asks || telling).then_some(silence.since + wait)
            }
            (None, Some(unheard)) if asks && self.traffic.since(&unheard).is_telling() => {
                Some(unheard.since + ONE_WAY.max(patience))
            }
            _ => None,
        };
        earliest([missing, traffic])
    }
}

fn earliest<const N: usize>(times: [Option<Instant>; N]) -> Option<Instant> {
    times.into_iter().flatten().min()
}
