//! Slot tables: exact proportions, spread, and the fewest moves.

use std::collections::BTreeMap;

use braid_core::slots::{SLOTS, SlotTable, WeightError, Weights};
use braid_core::{MAX_UPLINKS, UplinkId};
use proptest::collection::btree_map;
use proptest::prelude::*;

fn weights(given: &[(u8, u32)]) -> Weights {
    Weights::new(given.iter().map(|&(id, weight)| (UplinkId(id), weight))).expect("valid weights")
}

/// One to 32 uplinks; weights close together, or up to a factor of a million apart.
fn any_weights() -> impl Strategy<Value = Weights> {
    let weight = prop_oneof![Just(1u32), 1u32..10, 1u32..1000, 1u32..1_000_000];
    btree_map(0..MAX_UPLINKS as u8, weight, 1..=MAX_UPLINKS)
        .prop_map(|map: BTreeMap<u8, u32>| weights(&map.into_iter().collect::<Vec<_>>()))
}

/// Distances between neighbouring slots of one uplink, the table being a ring.
fn gaps(table: &SlotTable, uplink: UplinkId) -> Vec<usize> {
    let at: Vec<usize> = (0..SLOTS)
        .filter(|&i| table.as_slice()[i] == uplink)
        .collect();
    (0..at.len())
        .map(|i| (at[(i + 1) % at.len()] + SLOTS - at[i] - 1) % SLOTS + 1)
        .collect()
}

fn widest(table: &SlotTable, uplink: UplinkId) -> usize {
    gaps(table, uplink).into_iter().max().unwrap_or(SLOTS)
}

fn harmonic(n: usize) -> f64 {
    (1..=n).map(|i| 1.0 / i as f64).sum()
}

#[test]
fn a_table_that_is_at_work_is_taken_up_as_it_is() {
    let table = SlotTable::spread(&weights(&[(0, 4), (3, 1)]));
    let found = SlotTable::from_slots(table.as_slice()).expect("a whole table");
    assert_eq!(found, table);
    assert_eq!(found.rebalance(&weights(&[(0, 4), (3, 1)])), table);
    assert_eq!(SlotTable::from_slots(&[]), None);
    assert_eq!(SlotTable::from_slots(&table.as_slice()[1..]), None);
    let foreign = [UplinkId(MAX_UPLINKS as u8); SLOTS];
    assert_eq!(SlotTable::from_slots(&foreign), None);
}

#[test]
fn four_three_one_repeats_its_pattern_of_eight() {
    // By hand: add (4, 3, 1) to the credits, take 8 from the largest, the lower on a tie.
    let table = SlotTable::spread(&weights(&[(0, 4), (1, 3), (2, 1)]));
    let expected = [0, 1, 0, 1, 2, 0, 1, 0].map(UplinkId);
    for period in table.as_slice().chunks(8) {
        assert_eq!(period, expected);
    }
}

#[test]
fn equal_weights_alternate() {
    let table = SlotTable::spread(&weights(&[(3, 7), (9, 7)]));
    for pair in table.as_slice().chunks(2) {
        assert_eq!(pair, [UplinkId(3), UplinkId(9)]);
    }
}

#[test]
fn refused_weights_say_why() {
    let refuse = |given: &[(u8, u32)]| {
        Weights::new(given.iter().map(|&(id, weight)| (UplinkId(id), weight))).unwrap_err()
    };
    assert_eq!(refuse(&[]), WeightError::Empty);
    assert_eq!(refuse(&[(0, 1), (1, 0)]), WeightError::Zero(UplinkId(1)));
    assert_eq!(refuse(&[(2, 1), (2, 3)]), WeightError::Twice(UplinkId(2)));
    assert_eq!(refuse(&[(32, 1)]), WeightError::OutOfRange(UplinkId(32)));
    assert_eq!(
        refuse(&[(1, 0)]).to_string(),
        "uplink 1 has weight 0: a weight is 1 or more; leave the uplink out instead"
    );
}

#[test]
fn a_tiny_weight_still_gets_a_slot() {
    let table = SlotTable::spread(&weights(&[(0, 1), (1, u32::MAX)]));
    assert_eq!(
        (table.share(UplinkId(0)), table.share(UplinkId(1))),
        (1, SLOTS - 1)
    );
}

/// FNV-1a of a table, one byte a slot.
fn digest(weights: &[u32]) -> u64 {
    let weights = (0u8..).map(UplinkId).zip(weights.iter().copied());
    let table = SlotTable::spread(&Weights::new(weights).unwrap());
    table
        .as_slice()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |value, uplink| {
            (value ^ uplink.index() as u64).wrapping_mul(0x100_0000_01b3)
        })
}

/// The fabric's controller computes tables in Python: `tests/sdn/test_slot_table.py` has the same
/// digests.
#[test]
fn tables_that_fabric_edges_know_too() {
    assert_eq!(digest(&[1, 1]), 0x4d9c_3ea8_9a59_3b25);
    assert_eq!(digest(&[5, 3, 1]), 0x62d5_d5b9_a4ae_8ff4);
    assert_eq!(digest(&[20_000, 1, 9_999, 333]), 0xe910_137b_9014_1921);
}

proptest! {
    #[test]
    fn proportions_are_exact(weights in any_weights()) {
        let table = SlotTable::spread(&weights);
        prop_assert_eq!(table.as_slice().len(), SLOTS);
        let sum: f64 = weights.as_slice().iter().map(|&(_, w)| w as f64).sum();
        let quota = |w: u64| SLOTS as f64 * w as f64 / sum;
        let starved = weights.as_slice().iter().filter(|&&(_, w)| quota(w) < 1.0).count() as f64;
        for (&(uplink, weight), (_, count)) in weights.as_slice().iter().zip(weights.counts()) {
            let share = table.share(uplink);
            prop_assert_eq!(share, count);
            prop_assert!(share >= 1);
            // Within one slot of the exact quota; donors for starved uplinks, one more each.
            prop_assert!((share as f64 - quota(weight)).abs() < 1.0 + starved);
            if starved == 0.0 {
                prop_assert!((share as f64 - quota(weight)).abs() < 1.0);
            }
        }
    }

    #[test]
    fn whole_quotas_are_met_to_the_slot(parts in prop::collection::vec(1usize..32, 1..=MAX_UPLINKS)) {
        // Fill up to 1024 with the last one, so that every quota is whole.
        let mut parts = parts;
        let rest = SLOTS - parts.iter().sum::<usize>();
        *parts.last_mut().expect("one at least") += rest;
        let given: Vec<_> = parts.iter().enumerate().map(|(i, &p)| (i as u8, 3 * p as u32)).collect();
        let table = SlotTable::spread(&weights(&given));
        for (i, part) in parts.iter().enumerate() {
            prop_assert_eq!(table.share(UplinkId(i as u8)), *part);
        }
    }

    #[test]
    fn slots_of_an_uplink_lie_apart(weights in any_weights()) {
        let table = SlotTable::spread(&weights);
        let n = weights.as_slice().len();
        for (uplink, count) in weights.counts() {
            let even = SLOTS as f64 / count as f64;
            let bound = 1.0 + (harmonic(n) - 1.0 / n as f64) * even;
            prop_assert!(widest(&table, uplink) as f64 <= bound + 1e-9);
        }
    }

    #[test]
    fn any_stretch_of_the_table_has_its_proportions(weights in any_weights(), from in 0..SLOTS, len in 1..SLOTS) {
        // Round robin relies on this: after any number of flows the shares are exact within H(n)
        // flows.
        let table = SlotTable::spread(&weights);
        let bound = 2.0 * harmonic(weights.as_slice().len());
        for (uplink, count) in weights.counts() {
            let got = (from..from + len).filter(|&i| table.as_slice()[i % SLOTS] == uplink).count();
            let fair = len as f64 * count as f64 / SLOTS as f64;
            prop_assert!((got as f64 - fair).abs() <= bound);
        }
    }

    #[test]
    fn a_rebalance_moves_the_minimum(before in any_weights(), after in any_weights()) {
        let old = SlotTable::spread(&before);
        let new = old.rebalance(&after);
        for (uplink, count) in after.counts() {
            prop_assert_eq!(new.share(uplink), count);
        }
        let moved = (0..SLOTS).filter(|&i| old.as_slice()[i] != new.as_slice()[i]).count();
        let too_many: usize = (0..MAX_UPLINKS as u8)
            .map(UplinkId)
            .map(|uplink| old.share(uplink).saturating_sub(new.share(uplink)))
            .sum();
        prop_assert_eq!(moved, too_many);
    }

    #[test]
    fn what_is_given_up_lies_evenly(before in any_weights(), after in any_weights()) {
        let old = SlotTable::spread(&before);
        let new = old.rebalance(&after);
        for (uplink, kept) in after.counts() {
            let had = old.share(uplink);
            if kept >= had {
                continue;
            }
            // Between two kept slots at most this many neighbours were given up.
            let run = (had - kept).div_ceil(kept);
            prop_assert!(widest(&new, uplink) <= (run + 1) * widest(&old, uplink));
        }
    }

    #[test]
    fn the_same_weights_move_nothing(weights in any_weights()) {
        let table = SlotTable::spread(&weights);
        prop_assert_eq!(table.rebalance(&weights), table);
    }
}

#[test]
fn huge_weights_keep_their_proportion() {
    let huge = [(UplinkId(0), u64::MAX), (UplinkId(1), u64::MAX / 3)];
    let table = SlotTable::spread(&Weights::new(huge).unwrap());
    assert_eq!(table.share(UplinkId(0)), 768);
    assert_eq!(table.share(UplinkId(1)), 256);
}
