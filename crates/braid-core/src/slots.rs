//! Slot tables: the interface of every weighted choice.
//!
//! A policy writes an array of [`SLOTS`] uplinks; a datapath only walks it: `slot[counter++ % N]`
//! for exact weighted round robin, `slot[hash % N]` for stickiness.
//!
//! - [`SlotTable::spread`] makes a new table by smooth weighted round robin. The slots of an uplink
//!   lie apart, so consecutive flows take different uplinks.
//! - [`SlotTable::rebalance`] changes a table to new weights and moves as few slots as possible,
//!   because a moved slot takes the flows that stick to it to another uplink.

use thiserror::Error;

use crate::{MAX_UPLINKS, UplinkId};

/// Slots of a table: a power of two, so that `% SLOTS` is a mask, and 32 for each of
/// [`MAX_UPLINKS`]. A share is exact to half a slot, 0.05 %.
pub const SLOTS: usize = 1024;

/// Error in the weights.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WeightError {
    /// There is no uplink to choose from.
    #[error("no uplink has a weight: at least one is needed")]
    Empty,
    /// A weight is zero.
    #[error("uplink {0} has weight 0: a weight is 1 or more; leave the uplink out instead")]
    Zero(UplinkId),
    /// An uplink has two weights.
    #[error("uplink {0} has two weights: give it one")]
    Twice(UplinkId),
    /// An index is out of range.
    #[error("uplink {0} is out of range: indices are 0 to {last}", last = MAX_UPLINKS - 1)]
    OutOfRange(UplinkId),
}

/// The uplinks of a table and their weights: sorted by uplink, each once, none of them zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights(Vec<(UplinkId, u64)>);

impl Weights {
    /// Checks and sorts the weights. Only their proportions matter, and any size will do.
    ///
    /// # Errors
    /// If there are no weights, one is zero, or an uplink is named twice or out of range.
    pub fn new<W: Into<u64>>(
        weights: impl IntoIterator<Item = (UplinkId, W)>,
    ) -> Result<Weights, WeightError> {
        let weights = weights.into_iter();
        let mut weights: Vec<_> = weights.map(|(id, weight)| (id, weight.into())).collect();
        weights.sort_unstable();
        if weights.is_empty() {
            return Err(WeightError::Empty);
        }
        for &(uplink, weight) in &weights {
            if uplink.index() >= MAX_UPLINKS {
                return Err(WeightError::OutOfRange(uplink));
            }
            if weight == 0 {
                return Err(WeightError::Zero(uplink));
            }
        }
        match weights.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(WeightError::Twice(pair[0].0)),
            None => Ok(Weights(weights)),
        }
    }

    /// Returns the uplinks and their weights, by uplink.
    #[must_use]
    pub fn as_slice(&self) -> &[(UplinkId, u64)] {
        &self.0
    }

    /// Returns how many of the [`SLOTS`] each uplink gets, by uplink. By the largest-remainder
    /// method each has its exact quota `SLOTS · weight / sum` rounded down or up, the exact quota
    /// if that is whole, and the sum is `SLOTS`.
    ///
    /// One deviation: an uplink whose quota rounds to zero gets one slot, taken from the one
    /// furthest above its quota. A weight asks for some traffic, never for none.
    #[must_use]
    pub fn counts(&self) -> Vec<(UplinkId, usize)> {
        let sum: u128 = self.0.iter().map(|&(_, weight)| u128::from(weight)).sum();
        let scaled = |weight: u64| u128::from(weight) * SLOTS as u128;
        let mut counts: Vec<u128> = self.0.iter().map(|&(_, w)| scaled(w) / sum).collect();
        let mut by_remainder: Vec<usize> = (0..counts.len()).collect();
        // The sort is stable: of equal remainders the lower uplink is served first.
        by_remainder.sort_by_key(|&i| std::cmp::Reverse(scaled(self.0[i].1) % sum));
        let left = SLOTS - counts.iter().sum::<u128>() as usize;
        for &i in &by_remainder[..left] {
            counts[i] += 1;
        }
        while let Some(poor) = counts.iter().position(|&count| count == 0) {
            // Both products are below 2^80.
            let above = |&i: &usize| (counts[i] * sum) as i128 - scaled(self.0[i].1) as i128;
            let donor = (0..counts.len())
                .filter(|&i| counts[i] > 1)
                .max_by_key(above);
            // With 32 uplinks and 1024 slots, some uplink has two.
            let Some(donor) = donor else { break };
            counts[donor] -= 1;
            counts[poor] += 1;
        }
        self.0
            .iter()
            .zip(counts)
            .map(|(&(uplink, _), count)| (uplink, count as usize))
            .collect()
    }
}

/// An array of [`SLOTS`] uplinks, in which each takes part by its weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotTable(Vec<UplinkId>);

impl SlotTable {
    /// Returns a new table, by smooth weighted round robin over the [`Weights::counts`].
    ///
    /// With `n` uplinks, the slots of one that has `c` of them are at most `1 + (H(n) − 1/n) ·
    /// SLOTS/c` apart, where `H(n) = 1 + 1/2 + … + 1/n`; the table counts as a ring. For two
    /// uplinks that is `1 + SLOTS/c`: as even as whole slots can be.
    ///
    /// Why: each step adds every uplink's `c/SLOTS` to its credit and takes 1 from the largest.
    /// After a step the credits sum to 0, and the mean of the `k` largest never exceeds `H(n) −
    /// H(k)` (by induction over steps and from `k + 1` to `k`), so none exceeds `H(n) − 1`; and the
    /// uplink just chosen, having had at least the mean `1/n`, keeps at least `1/n − 1`.
    #[must_use]
    pub fn spread(weights: &Weights) -> SlotTable {
        SlotTable(interleave(&weights.counts(), SLOTS))
    }

    /// Returns this table changed to new weights with the fewest moves: only slots change of which
    /// an uplink has too many. They are chosen evenly among that uplink's slots, and spread over
    /// the uplinks that gain by smooth weighted round robin.
    #[must_use]
    pub fn rebalance(&self, weights: &Weights) -> SlotTable {
        let target = weights.counts();
        let (mut has, mut wants) = ([0; MAX_UPLINKS], [0; MAX_UPLINKS]);
        self.0.iter().for_each(|uplink| has[uplink.index()] += 1);
        target
            .iter()
            .for_each(|&(uplink, count)| wants[uplink.index()] = count);

        let mut seen = [0; MAX_UPLINKS];
        let mut free = Vec::new();
        for (position, uplink) in self.0.iter().enumerate() {
            let (has, wants) = (has[uplink.index()], wants[uplink.index()]);
            let nth = seen[uplink.index()];
            seen[uplink.index()] += 1;
            if wants < has && is_evenly_picked(nth, has - wants, has) {
                free.push(position);
            }
        }
        let takers: Vec<_> = target
            .iter()
            .map(|&(uplink, count)| (uplink, count.saturating_sub(has[uplink.index()])))
            .filter(|&(_, more)| more > 0)
            .collect();
        let mut table = self.0.clone();
        for (&position, uplink) in free.iter().zip(interleave(&takers, free.len())) {
            table[position] = uplink;
        }
        SlotTable(table)
    }

    /// Returns a table in use, to be changed by [`SlotTable::rebalance`]. `None` unless it has
    /// [`SLOTS`] slots of possible uplinks.
    #[must_use]
    pub fn from_slots(slots: &[UplinkId]) -> Option<SlotTable> {
        let whole = slots.len() == SLOTS && slots.iter().all(|id| id.index() < MAX_UPLINKS);
        whole.then(|| SlotTable(slots.to_vec()))
    }

    /// Returns the slots, in the order in which they are walked.
    #[must_use]
    pub fn as_slice(&self) -> &[UplinkId] {
        &self.0
    }

    /// Returns the number of slots of this uplink.
    #[must_use]
    pub fn share(&self, uplink: UplinkId) -> usize {
        self.0.iter().filter(|&&slot| slot == uplink).count()
    }
}

/// Returns true if the `nth` of `of` items is one of `take` evenly spread ones.
fn is_evenly_picked(nth: usize, take: usize, of: usize) -> bool {
    (nth + 1) * take / of != nth * take / of
}

/// Smooth weighted round robin: `len` choices, of which each uplink gets its count. The counts sum
/// to `len`.
fn interleave(counts: &[(UplinkId, usize)], len: usize) -> Vec<UplinkId> {
    let mut credit = vec![0i64; counts.len()];
    (0..len)
        .map(|_| {
            let mut best = 0;
            for (i, &(_, count)) in counts.iter().enumerate() {
                credit[i] += count as i64;
                if credit[i] > credit[best] {
                    best = i;
                }
            }
            credit[best] -= len as i64;
            counts[best].0
        })
        .collect()
}
