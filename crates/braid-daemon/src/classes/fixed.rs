//! Classes that share nothing out: one uplink, or none.

use braid_balance::{ClassEntry, ClassId, Family, LbMethod};
use braid_core::UplinkId;

use super::UplinkStatus;
use crate::config::OnDown;

/// A class whose flows take one uplink.
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
        // Where the uplink takes the flow there is nothing to walk.
        lb_method: common.lb_method,
        sticky: None,
        v4: slots(Family::V4, &common.v4),
        v6: slots(Family::V6, &common.v6),
        // Where all go the common way they race as the others do.
        // Where all go the common way, the bond is part of it.
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

/// A class whose flows go nowhere.
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
