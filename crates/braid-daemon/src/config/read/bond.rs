//! `[bond]` and `[bond.overflow]`.

use std::time::Duration;

use braid_bond::io::MAX_TIMEOUT;
use braid_host::config::{Located, Problem, Table};
use toml::de::DeTable;

use super::super::bond::{
    BondConfig, BondFlows, BondReordering, BondScheduler, Encapsulation, Fallback, OverflowConfig,
    Thousandths,
};
use super::{BOND, OVERFLOW, SECTIONS, section};

/// Bounds of `t_dwd` and `t_report`.
const OVERFLOW_TIMES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(10));

/// Bounds of `reordering_timeout`, which is sent to the hub in milliseconds.
const REORDERING_TIMEOUTS: (Duration, Duration) = (Duration::from_millis(1), MAX_TIMEOUT);

/// Bounds of `max_extra_delay`.
const EXTRA_DELAYS: (Duration, Duration) = (Duration::ZERO, Duration::from_secs(2));

/// Bounds of `w_fixed` and `w_max`; finer proportions make no practical difference.
const OVERFLOW_WEIGHTS: std::ops::RangeInclusive<u32> = 1..=1_000_000;

pub(super) fn bond(inner: &DeTable<'_>, problems: &mut Vec<Problem>) -> BondConfig {
    let mut table = Table::new(BOND.0, BOND.1, inner);
    let usual = BondConfig::default();
    let flows = table.keyword("flows", BondFlows::NAMES, problems);
    let fallback = table.keyword("fallback", Fallback::NAMES, problems);
    let scheduler = table.keyword("scheduler", BondScheduler::NAMES, problems);
    let encapsulation = table.keyword("encapsulation", Encapsulation::NAMES, problems);
    let overflow = section(&mut table, "overflow", problems)
        .map_or(usual.overflow, |(inner, _)| overflow(inner, problems));
    let reordering = table.keyword("reordering", BondReordering::NAMES, problems);
    let reordering_timeout = millis(
        &mut table,
        "reordering_timeout",
        REORDERING_TIMEOUTS,
        problems,
    );
    let max_extra_delay = millis(&mut table, "max_extra_delay", EXTRA_DELAYS, problems);
    table.finish(SECTIONS, problems);
    BondConfig {
        flows: flows.map_or(usual.flows, |word| word.value),
        fallback: fallback.map_or(usual.fallback, |word| word.value),
        scheduler: scheduler.map_or(usual.scheduler, |word| word.value),
        encapsulation: encapsulation.map_or(usual.encapsulation, |word| word.value),
        overflow,
        reordering: reordering.map_or(usual.reordering, |word| word.value),
        reordering_timeout: reordering_timeout.map_or(usual.reordering_timeout, |time| time.value),
        max_extra_delay: max_extra_delay.map_or(usual.max_extra_delay, |time| time.value),
    }
}

fn overflow(inner: &DeTable<'_>, problems: &mut Vec<Problem>) -> OverflowConfig {
    let mut table = Table::new(OVERFLOW.0, OVERFLOW.1, inner);
    let usual = OverflowConfig::default();
    let k = table.decimal("k", (0.001, 100.0), problems);
    let t_dwd = millis(&mut table, "t_dwd", OVERFLOW_TIMES, problems);
    let t_report = millis(&mut table, "t_report", OVERFLOW_TIMES, problems);
    let w_fixed = table.count("w_fixed", OVERFLOW_WEIGHTS, problems);
    let w_max = table.count("w_max", OVERFLOW_WEIGHTS, problems);
    table.finish(SECTIONS, problems);
    let at = t_dwd.as_ref().or(t_report.as_ref());
    let at = at.map(|time| time.at.clone());
    let config = OverflowConfig {
        k: k.map_or(usual.k, |number| Thousandths::from(number.value)),
        t_dwd: t_dwd.map_or(usual.t_dwd, |time| time.value),
        t_report: t_report.map_or(usual.t_report, |time| time.value),
        w_fixed: w_fixed.map_or(usual.w_fixed, |count| count.value),
        w_max: w_max.map_or(usual.w_max, |count| count.value),
    };
    let rest = config.t_dwd.as_nanos() % config.t_report.as_nanos();
    if let Some(at) = at.filter(|_| rest != 0) {
        let what = "`t_dwd` is not a multiple of `t_report`";
        let fix =
            "loss is known with each report only: write for instance \"50 ms\" and \"250 ms\"";
        problems.push(Problem::new(what, at, "no whole number of reports").fix(fix));
    }
    config
}

/// Takes a duration in whole milliseconds, the unit in which it is sent to the hub.
fn millis(
    table: &mut Table<'_, '_>,
    key: &str,
    spans: (Duration, Duration),
    problems: &mut Vec<Problem>,
) -> Option<Located<Duration>> {
    let time = table.time(key, spans, problems)?;
    if time.value.subsec_nanos() % 1_000_000 == 0 {
        return Some(time);
    }
    let what = format!("`{key}` is not a whole number of milliseconds");
    let fix = "a hub is told milliseconds: write for instance \"50 ms\"";
    problems.push(Problem::new(what, time.at, "finer than 1 ms").fix(fix));
    None
}
