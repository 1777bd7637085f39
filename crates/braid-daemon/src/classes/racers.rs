//! Whom a class' flows are raced on.
//!
//! Rules, and why:
//! - Only uplinks of the lowest tier: what is dear is not raced for what is cheap.
//! - While a later tier helps the lowest one out, nothing is raced. Raced, every flow would stay on
//!   the tier that is full.
//! - Metered uplinks are left out unless `[race]` asks for them: a race costs packets on each.
//! - Under `race` a degraded uplink is left out as long as two others are left: a SYN that came through
//!   says nothing about the next hundred packets. `fastest` sees its loss by itself.
//! - The datapath has one list for both families. An uplink that one family may race on and the other
//!   carries without racing is on it for neither.

use braid_balance::Family;
use braid_core::UplinkId;

use super::Standing;
use crate::config::Policy;

/// The uplinks that one family's flows may be raced on, of those that may take them: none where the
/// policy does not race.
pub(super) fn of_family(
    policy: Policy,
    metered: bool,
    able: &[&Standing],
    slots: &[UplinkId],
) -> Vec<UplinkId> {
    let lowest = able.iter().map(|standing| standing.tier).min();
    let first: Vec<&Standing> = able
        .iter()
        .copied()
        .filter(|standing| Some(standing.tier) == lowest)
        .collect();
    let helped = slots.iter().any(|slot| first.iter().all(|s| s.id != *slot));
    if !policy.races() || helped {
        return Vec::new();
    }
    let asked: Vec<&Standing> = first
        .into_iter()
        .filter(|standing| metered || !standing.metered)
        .collect();
    let ids = |of: &[&Standing]| of.iter().map(|standing| standing.id).collect::<Vec<_>>();
    let well: Vec<&Standing> = asked.iter().copied().filter(|s| !s.degraded).collect();
    match policy {
        Policy::Race if well.len() >= 2 => ids(&well),
        _ => ids(&asked),
    }
}

/// The uplinks that a class' flows may be raced on, by what each family may, lowest number first.
pub(super) fn of_class(
    families: &[(Family, Vec<UplinkId>)],
    standings: &[Standing],
) -> Vec<UplinkId> {
    let suits = |standing: &&Standing| {
        let carries = |family: &Family| standing.up && standing.has(*family);
        let mut carried = families
            .iter()
            .filter(|(family, _)| carries(family))
            .peekable();
        carried.peek().is_some() && carried.all(|(_, racers)| racers.contains(&standing.id))
    };
    let mut racers: Vec<UplinkId> = standings.iter().filter(suits).map(|s| s.id).collect();
    racers.sort_unstable();
    racers
}
