//! How far a link reorders, learned from packets that came late.

use std::time::Duration;

use crate::Time;

/// A packet later than this is no reordering any more: whoever waited for it would wait too long.
const MAX_EXTENT: Duration = Duration::from_millis(50);

/// Without packets as late as half the extent for so long, the extent shrinks by a quarter.
const SHRINK_INTERVAL: Duration = Duration::from_secs(5);

/// Below this it is rounded to nothing: one link's timestamps are no better.
const MIN_EXTENT: Duration = Duration::from_micros(200);

/// How long a missing packet of a link may still be on its way after a later one arrived.
///
/// It begins at zero (a wire is a FIFO, its gaps are losses at once) and grows at once to a
/// quarter more than the latest packet was late, since each misjudged packet costs the inner flow a
/// retransmission; it shrinks slowly.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReorderExtent {
    extent: Duration,
    needed: Time,
}

impl ReorderExtent {
    /// A packet came `late` after the first one that was sent behind it.
    pub fn handle_late(&mut self, now: Time, late: Duration) {
        if late > MAX_EXTENT {
            return;
        }
        if late * 2 >= self.extent {
            self.needed = now;
        }
        self.extent = self
            .extent
            .max(late + late / 4 + MIN_EXTENT)
            .min(MAX_EXTENT);
    }

    /// The extent at `now`; zero for a link that keeps order.
    pub fn extent(&mut self, now: Time) -> Duration {
        while !self.extent.is_zero() && now.since(self.needed) >= SHRINK_INTERVAL {
            self.needed = self.needed + SHRINK_INTERVAL;
            self.extent = self.extent * 3 / 4;
            if self.extent < MIN_EXTENT {
                self.extent = Duration::ZERO;
            }
        }
        self.extent
    }
}
