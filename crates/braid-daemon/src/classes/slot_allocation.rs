//! Slot allocation: the table of one class and family, and the conditions of its change.

use std::time::{Duration, Instant};

use braid_core::UplinkId;
use braid_core::slots::{SlotTable, Weights};

/// Smallest change of an uplink's share, as a fraction of all new flows, for which a change of the load changes
/// the table.
const MIN_SHARE_CHANGE: f64 = 0.05;
/// Shortest interval between two changes because of the load.
const MIN_CHANGE_INTERVAL: Duration = Duration::from_secs(1);

/// Facts about an uplink that change its shares at once.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct UplinkFacts {
    pub id: UplinkId,
    /// Configured weight.
    pub weight: u32,
    /// True if its verdict is degraded.
    pub is_degraded: bool,
    /// True if it stalls.
    pub is_stalled: bool,
    pub tier: u8,
}

/// Desired contents of a table.
pub(super) struct DesiredShares {
    /// The uplinks that get flows, with their weights; empty for none.
    pub weights: Vec<(UplinkId, u64)>,
    /// If these are the same as before, only the load has changed.
    pub facts: Vec<UplinkFacts>,
    /// True if the weights are derived from the measured load.
    pub follows_load: bool,
}

/// A table, and its inputs.
#[derive(Clone, Debug)]
pub(super) struct ClassTable {
    table: SlotTable,
    facts: Vec<UplinkFacts>,
    shares: Vec<(UplinkId, f64)>,
    /// Time of the last change because of the load.
    load_change: Option<Instant>,
}

impl ClassTable {
    /// Adopts a table that the datapath already uses.
    pub fn from_datapath(table: SlotTable) -> ClassTable {
        ClassTable {
            table,
            facts: Vec::new(),
            shares: Vec::new(),
            load_change: None,
        }
    }

    /// Returns the table with the wanted shares, which differs from `before` in as few slots as possible. It is
    /// `before` itself if only the load has changed, and by less than [`MIN_SHARE_CHANGE`] or within
    /// [`MIN_CHANGE_INTERVAL`]. Returns none without uplinks.
    pub fn reallocate(
        before: Option<ClassTable>,
        now: Instant,
        wanted: DesiredShares,
    ) -> Option<ClassTable> {
        let weights = Weights::new(wanted.weights.iter().copied()).ok()?;
        let shares = shares(&wanted.weights);
        let table = match before {
            Some(before) if wanted.follows_load && before.facts == wanted.facts => {
                let early = before
                    .load_change
                    .is_some_and(|at| now < at + MIN_CHANGE_INTERVAL);
                // An uplink without any share leaves the table, however little it had.
                let gone = |(id, _): &(UplinkId, f64)| shares.iter().all(|(other, _)| other != id);
                let same = !before.shares.iter().any(gone);
                if early || (same && largest_difference(&before.shares, &shares) < MIN_SHARE_CHANGE)
                {
                    return Some(before);
                }
                before.table.rebalance(&weights)
            }
            Some(before) => before.table.rebalance(&weights),
            None => SlotTable::spread(&weights),
        };
        Some(ClassTable {
            table,
            facts: wanted.facts,
            shares,
            load_change: wanted.follows_load.then_some(now),
        })
    }

    /// Returns the slots, for the datapath.
    pub fn slots(&self) -> Vec<UplinkId> {
        self.table.as_slice().to_vec()
    }

    /// Returns the uplinks of all slots.
    pub fn used(&self) -> &[UplinkId] {
        self.table.as_slice()
    }
}

fn shares(weights: &[(UplinkId, u64)]) -> Vec<(UplinkId, f64)> {
    let sum: f64 = weights.iter().map(|(_, weight)| *weight as f64).sum();
    weights
        .iter()
        .map(|(id, weight)| (*id, *weight as f64 / sum))
        .collect()
}

/// Returns the largest difference between an uplink's two shares.
fn largest_difference(a: &[(UplinkId, f64)], b: &[(UplinkId, f64)]) -> f64 {
    let share = |shares: &[(UplinkId, f64)], id| {
        shares
            .iter()
            .find(|(other, _)| *other == id)
            .map_or(0.0, |(_, share)| *share)
    };
    let all = a.iter().chain(b).map(|(id, _)| *id);
    all.map(|id| (share(a, id) - share(b, id)).abs())
        .fold(0.0, f64::max)
}
