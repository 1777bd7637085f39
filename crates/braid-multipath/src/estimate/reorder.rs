//! Reordering extent of a link, learned from late packets.

use std::time::Duration;

use braid_core::Time;

/// A packet later than this does not count as reordered: waiting for it would take too long.
const MAX_EXTENT: Duration = Duration::from_millis(50);

/// The extent shrinks by a quarter each time that no packet was as late as half of it for this
/// long.
const SHRINK_INTERVAL: Duration = Duration::from_secs(5);

/// A smaller extent is rounded to zero: timestamps are no more precise.
const MIN_EXTENT: Duration = Duration::from_micros(200);

/// Time for which a missing packet of a link may still be on its way after a later one arrived.
///
/// It begins at zero: a wire is a FIFO, and its gaps are losses at once. It grows at once to a
/// quarter more than the lateness of the latest packet, since each misjudged packet costs the inner
/// flow a retransmission. It shrinks slowly.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReorderExtent {
    extent: Duration,
    needed: Time,
}

impl ReorderExtent {
    /// Takes a packet that arrived `late` after the first one sent behind it.
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

    /// Returns the extent at `now`; zero for a link that keeps order.
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
