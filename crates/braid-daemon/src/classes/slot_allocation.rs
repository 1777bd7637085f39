//! One family's table of one class, and when it changes.

use std::time::{Duration, Instant};

use braid_core::UplinkId;
use braid_core::slots::{SlotTable, Weights};

/// How far a share, of all new flows, must be off before the table follows the load.
const MIN_SHARE_CHANGE: f64 = 0.05;
/// Least time between two changes of a table that follow the load.
const MIN_CHANGE_INTERVAL: Duration = Duration::from_secs(1);

/// Of one uplink: its weight, whether it is degraded, its tier.
pub(super) type UplinkFacts = (UplinkId, u32, bool, u8);

/// What a table should be like.
pub(super) struct DesiredShares {
    /// Who gets flows, by weight; empty: nobody.
    pub weights: Vec<(UplinkId, u32)>,
    /// What must be the same for the load alone to be what differs.
    pub facts: Vec<UplinkFacts>,
    /// The weights follow the load.
    pub follows: bool,
}

/// A table, and what it was made for.
#[derive(Clone, Debug)]
pub(super) struct ClassTable {
    table: SlotTable,
    facts: Vec<UplinkFacts>,
    shares: Vec<(UplinkId, f64)>,
    /// When the load last changed it.
    followed: Option<Instant>,
}

impl ClassTable {
    /// A table that is at work already.
    pub fn found(table: SlotTable) -> ClassTable {
        ClassTable {
            table,
            facts: Vec::new(),
            shares: Vec::new(),
            followed: None,
        }
    }

    /// The table after `before`, changed by as few slots as possible, and not at all where only the
    /// load differs and not by much. `None`: there is no uplink.
    pub fn next(
        before: Option<ClassTable>,
        now: Instant,
        wanted: DesiredShares,
    ) -> Option<ClassTable> {
        let weights = Weights::new(wanted.weights.iter().copied()).ok()?;
        let shares = shares(&wanted.weights);
        let table = match before {
            Some(before) if wanted.follows && before.facts == wanted.facts => {
                let early = before
                    .followed
                    .is_some_and(|at| now < at + MIN_CHANGE_INTERVAL);
                // Who gets nothing any more goes, however little it had.
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
            followed: wanted.follows.then_some(now),
        })
    }

    /// The slots, for the datapath.
    pub fn slots(&self) -> Vec<UplinkId> {
        self.table.as_slice().to_vec()
    }

    /// The uplinks that have slots, each as often as it has.
    pub fn used(&self) -> &[UplinkId] {
        self.table.as_slice()
    }
}

fn shares(weights: &[(UplinkId, u32)]) -> Vec<(UplinkId, f64)> {
    let sum: f64 = weights.iter().map(|(_, weight)| f64::from(*weight)).sum();
    weights
        .iter()
        .map(|(id, weight)| (*id, f64::from(*weight) / sum))
        .collect()
}

/// The largest difference between an uplink's two shares.
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
