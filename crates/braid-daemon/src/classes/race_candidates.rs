//! Candidates of races: the uplinks on which the flows of a class are raced.
//!
//! Rules, and why:
//! - Only uplinks of the lowest tier: an expensive uplink is not raced against a cheap one.
//! - While a later tier takes the overflow of the lowest one, nothing is raced. Raced, every flow would stay on
//!   the full tier.
//! - Metered uplinks are left out unless `[race]` includes them: a race costs packets on each.
//! - Under `race` a degraded uplink is left out as long as two others are left: a SYN that came through says
//!   nothing about the next hundred packets. `fastest` accounts for its loss itself.
//! - The datapath has one list for both families. An uplink that one family may race on and the other carries
//!   without racing is on it for neither.

use braid_balance::Family;
use braid_core::UplinkId;

use super::UplinkStatus;
use crate::config::Policy;

/// Returns the candidates for one family's flows; none where the policy does not race.
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

/// Returns the candidates of a class from those of its families, lowest number first.
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
