//! Classes that are not shared out: one uplink, or none.

use braid_balance::{ClassEntry, ClassId, Family, LbMethod};
use braid_core::UplinkId;

use super::UplinkStatus;
use crate::config::OnDown;

/// Returns a class whose flows take one uplink.
pub(super) fn only(
    id: ClassId,
    uplink: &str,
    on_down: OnDown,
    common: &ClassEntry,
    statuses: &[UplinkStatus],
) -> ClassEntry {
    let target = statuses.iter().find(|s| s.name == uplink && s.up);
    let slots = |family, others: &Vec<UplinkId>| match (target, on_down) {
        (Some(target), _) if target.has(family) => vec![target.id],
        (_, OnDown::Fallback) => others.clone(),
        (_, OnDown::Block) => Vec::new(),
    };
    ClassEntry {
        id,
        // If the uplink takes the flow, no slot is needed.
        lb_method: common.lb_method,
        sticky: None,
        v4: slots(Family::V4, &common.v4),
        v6: slots(Family::V6, &common.v6),
        // Flows that fall back to the default class race as that class does.
        // The fallback to the default class includes the bond.
        prefers: match (target, on_down) {
            (None, OnDown::Fallback) => common.prefers,
            _ => None,
        },
        candidates: match (target, on_down) {
            (None, OnDown::Fallback) => common.candidates.clone(),
            _ => Vec::new(),
        },
    }
}

/// Returns a class whose flows are blocked.
pub(super) fn blocked(id: ClassId) -> ClassEntry {
    ClassEntry {
        id,
        lb_method: LbMethod::RoundRobin,
        sticky: None,
        v4: Vec::new(),
        v6: Vec::new(),
        prefers: None,
        candidates: Vec::new(),
    }
}
