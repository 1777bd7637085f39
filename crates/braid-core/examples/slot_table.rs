//! Weights become a slot table, and a changed weight changes few slots.
//!
//! `cargo run -p braid-core --example slot_table`

use braid_core::UplinkId;
use braid_core::slots::{SlotTable, WeightError, Weights};

fn main() -> Result<(), WeightError> {
    let (dsl, lte, sat) = (UplinkId(0), UplinkId(1), UplinkId(2));
    let before = SlotTable::spread(&Weights::new([(dsl, 5_u32), (lte, 3), (sat, 1)])?);
    show("dsl 5, lte 3, sat 1", &before);
    // New flows alone follow the new weights: a flow keeps the uplink that its slot named.
    let after = before.rebalance(&Weights::new([(dsl, 5_u32), (lte, 6), (sat, 1)])?);
    show("lte 6", &after);
    let slots = before.as_slice().iter().zip(after.as_slice());
    let changed = slots.filter(|(one, other)| one != other).count();
    println!("{changed} of {} slots changed", after.as_slice().len());
    Ok(())
}

fn show(weights: &str, table: &SlotTable) {
    let first: Vec<String> = (table.as_slice().iter().take(18))
        .map(|uplink| uplink.0.to_string())
        .collect();
    let shares: Vec<usize> = (0..3).map(|id| table.share(UplinkId(id))).collect();
    println!(
        "{weights}: slots per uplink {shares:?}, first ones {}",
        first.join(" ")
    );
}
