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

use super::UplinkStatus;
use crate::config::Policy;

/// The uplinks that one family's flows may be raced on, of those that may take them: none where the
/// policy does not race.
pub(super) fn of_family(
    policy: Policy,
    metered: bool,
    able: &[&UplinkStatus],
    slots: &[UplinkId],
) -> Vec<UplinkId> {
    let lowest = able.iter().map(|status| status.tier).min();
    let first: Vec<&UplinkStatus> = able
        .iter()
        .copied()
        .filter(|status| Some(status.tier) == lowest)
        .collect();
    let helped = slots.iter().any(|slot| first.iter().all(|s| s.id != *slot));
    if !policy.races() || helped {
        return Vec::new();
    }
    let asked: Vec<&UplinkStatus> = first
        .into_iter()
        .filter(|status| metered || !status.metered)
        .collect();
    let ids = |of: &[&UplinkStatus]| of.iter().map(|status| status.id).collect::<Vec<_>>();
    let well: Vec<&UplinkStatus> = asked.iter().copied().filter(|s| !s.degraded).collect();
    match policy {
        Policy::Race if well.len() >= 2 => ids(&well),
        _ => ids(&asked),
    }
}

/// The uplinks that a class' flows may be raced on, by what each family may, lowest number first.
pub(super) fn of_class(
    families: &[(Family, Vec<UplinkId>)],
    statuses: &[UplinkStatus],
) -> Vec<UplinkId> {
    let suits = |status: &&UplinkStatus| {
        let carries = |family: &Family| status.up && status.has(*family);
        let mut carried = families
            .iter()
            .filter(|(family, _)| carries(family))
            .peekable();
        carried.peek().is_some() && carried.all(|(_, candidates)| candidates.contains(&status.id))
    };
    let mut candidates: Vec<UplinkId> = statuses.iter().filter(suits).map(|s| s.id).collect();
    candidates.sort_unstable();
    candidates
}
