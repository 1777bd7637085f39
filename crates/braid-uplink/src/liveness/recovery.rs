//! How an uplink proves itself again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::panel::Seat;

/// Good probes on the way back from a death, a captive portal or a missing device.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    /// Good probes in a row that it takes …
    rise: u32,
    /// … from so many different targets …
    need: usize,
    /// … and the time that they have to span.
    hold: Duration,
    row: u32,
    seats: BTreeSet<Seat>,
    misses: u32,
    good_since: Option<Instant>,
    /// When the first good probe was sent: those sent before were into the silence.
    good_from: Option<Instant>,
}

impl Recovery {
    pub(super) fn new(rise: u32, need: usize, hold: Duration) -> Recovery {
        Recovery {
            rise: rise.max(1),
            need,
            hold,
            row: 0,
            seats: BTreeSet::new(),
            misses: 0,
            good_since: None,
            good_from: None,
        }
    }

    pub(super) fn good(&mut self, now: Instant, sent: Instant, seat: Seat) {
        self.row = self.row.saturating_add(1);
        self.seats.insert(seat);
        self.misses = 0;
        self.good_since.get_or_insert(now);
        self.good_from.get_or_insert(sent);
    }

    /// One miss breaks the row; two in a row also begin the wait anew, so that a lossy line that
    /// works gets through a long one.
    pub(super) fn missed(&mut self, sent: Instant) {
        if self.good_from.is_some_and(|from| sent < from) {
            return;
        }
        self.row = 0;
        self.seats.clear();
        self.misses = self.misses.saturating_add(1);
        if self.misses >= 2 {
            (self.good_since, self.good_from) = (None, None);
        }
    }

    /// When it is done, if nothing else happens.
    pub(super) fn done_at(&self) -> Option<Instant> {
        let enough = self.row >= self.rise && self.seats.len() >= self.need;
        enough.then_some(self.good_since? + self.hold)
    }

    pub(super) fn row(&self) -> u32 {
        self.row
    }

    pub(super) fn good_since(&self) -> Option<Instant> {
        self.good_since
    }
}
