//! Recovery of an uplink after a failure.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::target_set::TargetIndex;

/// Good probes since a death, a captive portal or a missing device.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    /// Good probes in a row that are needed …
    rise: u32,
    /// … from this many different targets …
    quorum: usize,
    /// … and the time that they have to span.
    hold: Duration,
    row: u32,
    indices: BTreeSet<TargetIndex>,
    misses: u32,
    good_since: Option<Instant>,
    /// Time at which the first good probe was sent. Earlier ones were sent into the silence.
    good_from: Option<Instant>,
}

impl Recovery {
    pub(super) fn new(rise: u32, quorum: usize, hold: Duration) -> Recovery {
        Recovery {
            rise: rise.max(1),
            quorum,
            hold,
            row: 0,
            indices: BTreeSet::new(),
            misses: 0,
            good_since: None,
            good_from: None,
        }
    }

    pub(super) fn good(&mut self, now: Instant, sent: Instant, index: TargetIndex) {
        self.row = self.row.saturating_add(1);
        self.indices.insert(index);
        self.misses = 0;
        self.good_since.get_or_insert(now);
        self.good_from.get_or_insert(sent);
    }

    /// Handles a miss. One breaks the row; two in a row also restart the hold time, so that a lossy line that
    /// works gets through a long one.
    pub(super) fn missed(&mut self, sent: Instant) {
        if self.good_from.is_some_and(|from| sent < from) {
            return;
        }
        self.row = 0;
        self.indices.clear();
        self.misses = self.misses.saturating_add(1);
        if self.misses >= 2 {
            (self.good_since, self.good_from) = (None, None);
        }
    }

    /// Returns the time at which the recovery is complete, if nothing else happens.
    pub(super) fn done_at(&self) -> Option<Instant> {
        let enough = self.row >= self.rise && self.indices.len() >= self.quorum;
        enough.then_some(self.good_since? + self.hold)
    }

    pub(super) fn row(&self) -> u32 {
        self.row
    }

    pub(super) fn good_since(&self) -> Option<Instant> {
        self.good_since
    }
}
