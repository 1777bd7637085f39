//! Rates that the uplinks are shaped to, from the counters of the shaping and the measured capacities.
//!
//! Pure: takes both at the end of each interval of the estimates, and returns what the datapath is to do.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use braid_balance::{ShapeCounters, ShapeEntry};
use braid_core::shaping::{ShapedTraffic, UplinkShaper};
use braid_core::{Bytes, Rate, Time, UplinkId};

use super::capacities::Capacities;

/// Rates of all uplinks that are shaped.
#[derive(Debug)]
pub(crate) struct Shapers {
    origin: Instant,
    uplinks: BTreeMap<UplinkId, Shaped>,
    /// The entries of the datapath, which may be an earlier daemon's.
    applied: Vec<ShapeEntry>,
}

#[derive(Debug)]
struct Shaped {
    shaper: UplinkShaper,
    /// Counters at the end of the last interval; `None` before the first.
    counters: Option<[ShapeCounters; 2]>,
}

impl Shapers {
    /// Starts with the entries that the datapath has.
    pub fn new(now: Instant, applied: Vec<ShapeEntry>) -> Shapers {
        Shapers {
            origin: now,
            uplinks: BTreeMap::new(),
            applied,
        }
    }

    /// Sets the uplinks that are shaped. Those that were continue, those of an earlier daemon as well.
    pub fn set_uplinks(&mut self, uplinks: &[UplinkId]) {
        self.uplinks.retain(|id, _| uplinks.contains(id));
        for id in uplinks {
            let resumed = self.applied.iter().find(|entry| entry.id == *id);
            let shaper = || {
                resumed.map_or_else(UplinkShaper::default, |entry| {
                    UplinkShaper::resumed(entry.tx, entry.rx)
                })
            };
            self.uplinks.entry(*id).or_insert_with(|| Shaped {
                shaper: shaper(),
                counters: None,
            });
        }
    }

    /// Takes the counters at the end of an interval. `ceiling` is an uplink's configured capacity.
    pub fn note(
        &mut self,
        now: Instant,
        span: Duration,
        counters: &[(UplinkId, [ShapeCounters; 2])],
        capacities: &Capacities,
        ceiling: impl Fn(UplinkId) -> Option<Rate>,
    ) {
        let end = Time::ZERO + now.saturating_duration_since(self.origin);
        for (id, counters) in counters {
            let Some(shaped) = self.uplinks.get_mut(id) else {
                continue;
            };
            let before = shaped.counters.replace(*counters);
            let (Some(before), Some(capacity)) = (before, capacities.of(*id)) else {
                continue;
            };
            let [tx, rx] = [0, 1].map(|direction| counters[direction].since(&before[direction]));
            let queueing = capacity.queueing();
            let tx = ShapedTraffic {
                carried: capacity.left_queue(Bytes::new(tx.passed.bytes)),
                limited: has_limited(&tx),
                queueing,
                capacity: capacity.tx(capacities.time(now)),
                drift: capacity.tx_drift(),
                queued: counters[0].queued,
            };
            let rx = ShapedTraffic {
                carried: Bytes::new(rx.passed.bytes + rx.dropped.bytes),
                limited: has_limited(&rx),
                queueing,
                // That of a stall would take the shaper too long to recover from.
                capacity: capacity.rx(capacities.time(now)),
                drift: capacity.rx_drift(),
                queued: false,
            };
            shaped.shaper.note(end, span, &tx, &rx, ceiling(*id));
        }
    }

    /// Returns the entries for the datapath; `None` if it has them.
    pub fn poll_entries(&mut self, target: Duration) -> Option<&[ShapeEntry]> {
        let entry = |(id, shaped): (&UplinkId, &Shaped)| ShapeEntry {
            id: *id,
            tx: shaped.shaper.tx(),
            rx: shaped.shaper.rx(),
            target,
        };
        let wanted: Vec<_> = self.uplinks.iter().map(entry).collect();
        if wanted == self.applied {
            return None;
        }
        self.applied = wanted;
        Some(&self.applied)
    }

    /// Returns the entry of an uplink, as the datapath has it, and its counters at the end of the last interval;
    /// `None` if it is not shaped.
    pub fn of(&self, id: UplinkId) -> Option<(&ShapeEntry, [ShapeCounters; 2])> {
        let counters = self.uplinks.get(&id)?.counters.unwrap_or_default();
        let entry = self.applied.iter().find(|entry| entry.id == id)?;
        Some((entry, counters))
    }

    /// Returns true if nothing is shaped.
    pub fn is_empty(&self) -> bool {
        self.uplinks.is_empty()
    }
}

/// Returns true if the shaping has dropped or marked packets.
fn has_limited(counters: &ShapeCounters) -> bool {
    counters.dropped.bytes > 0 || counters.marked_packets > 0
}
