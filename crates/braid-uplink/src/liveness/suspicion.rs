//! A burst of probes, and when its silence is proof.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::constants::{BURST_MIN, BURST_PACE, KEEN, PATIENT_MIN, SALVO};
use super::panel::{Flight, Panel, Seat};

/// Why an uplink is suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// Packets went out and nothing came in.
    Silence,
    /// A probe was not answered.
    NoAnswer,
    /// Connections go unanswered although something comes in: perhaps only the way out is broken.
    OneWay,
}

/// An uplink under suspicion.
#[derive(Clone, Debug)]
pub(super) struct Suspicion {
    doubt: Doubt,
    pub(super) began: Instant,
    /// What was sent from then on, and is unanswered, speaks against the uplink.
    pub(super) from: Instant,
    /// So many unanswered probes are proof.
    too_many: u32,
    /// Answers of so many different targets clear it.
    need: usize,
    witnesses: Vec<Seat>,
    heard: BTreeSet<Seat>,
    sent: u32,
    /// Of the probes that count, those that are no longer under way.
    lost: u32,
    pub(super) next: Instant,
}

impl Suspicion {
    pub(super) fn new(
        doubt: Doubt,
        now: Instant,
        from: Instant,
        witnesses: Vec<Seat>,
        need: usize,
        too_many: u32,
    ) -> Suspicion {
        Suspicion {
            doubt,
            began: now,
            from,
            too_many,
            need: need.clamp(1, witnesses.len().max(1)),
            witnesses,
            heard: BTreeSet::new(),
            sent: 0,
            lost: 0,
            next: now,
        }
    }

    /// Whom to ask next. The first probes go out together, so that one deaf target costs no time.
    pub(super) fn next_seat(&mut self, now: Instant) -> Option<Seat> {
        let count = self.witnesses.len();
        let seat = self.witnesses.get(self.sent as usize % count.max(1));
        self.sent = self.sent.saturating_add(1);
        let salvo = SALVO.min(count as u32);
        self.next = match self.sent {
            sent if sent < salvo => now,
            sent if sent < self.too_many => now + BURST_PACE,
            _ => now + KEEN,
        };
        seat.copied()
    }

    /// What comes in proves both directions, unless connections are unanswered in spite of it.
    pub(super) fn is_cleared_by_traffic(&self) -> bool {
        self.doubt != Doubt::OneWay
    }

    /// Takes an answer; returns whether the uplink is cleared by it.
    pub(super) fn heard(&mut self, flight: &Flight) -> bool {
        if flight.sent >= self.from {
            self.heard.insert(flight.seat);
        }
        self.heard.len() >= self.need
    }

    pub(super) fn lost(&mut self, flight: &Flight) {
        self.lost += u32::from(self.counts(flight));
    }

    fn counts(&self, flight: &Flight) -> bool {
        flight.sent >= self.from && self.witnesses.contains(&flight.seat)
    }

    /// When silence will be proof, if it lasts; `None` while too few probes are under way. There is
    /// a hurry from that time on if traffic suffers.
    pub(super) fn proof_at(
        &self,
        panel: &Panel,
        rto: Duration,
        hurry: Option<Instant>,
    ) -> Option<Instant> {
        let patient = self.began + PATIENT_MIN.max(rto * 2);
        let end = match hurry {
            Some(from) if self.heard.is_empty() => {
                patient.min(self.began.max(from) + BURST_MIN.max(rto))
            }
            _ => patient,
        };
        let Some(missing) = self.too_many.checked_sub(self.lost + 1) else {
            return Some(end);
        };
        let mut sent: Vec<Instant> = panel
            .flights()
            .filter(|flight| self.counts(flight))
            .map(|flight| flight.sent)
            .collect();
        sent.sort_unstable();
        let last = sent.get(missing as usize)?;
        Some(end.max(*last + rto))
    }

    /// Probes that were sent, and targets that answered.
    pub(super) fn figures(&self, panel: &Panel) -> (u32, u32) {
        let under_way = panel.flights().filter(|f| self.counts(f)).count() as u32;
        let answers = self.heard.len() as u32;
        (under_way + self.lost + answers, answers)
    }
}
