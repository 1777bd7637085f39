//! `[bond]`.

use toml::de::DeTable;

use super::super::bond::{BondConfig, BondFlows, BondScheduler, Fallback};
use super::super::problem::Problem;
use super::super::table::Table;
use super::{BOND, SECTIONS};

pub(super) fn bond(inner: &DeTable<'_>, problems: &mut Vec<Problem>) -> BondConfig {
    let mut table = Table::new(BOND.0, BOND.1, inner);
    let usual = BondConfig::default();
    let flows = table.word("flows", BondFlows::NAMES, problems);
    let fallback = table.word("fallback", Fallback::NAMES, problems);
    let scheduler = table.word("scheduler", BondScheduler::NAMES, problems);
    table.finish(SECTIONS, problems);
    BondConfig {
        flows: flows.map_or(usual.flows, |word| word.value),
        fallback: fallback.map_or(usual.fallback, |word| word.value),
        scheduler: scheduler.map_or(usual.scheduler, |word| word.value),
    }
}
