//! `[race]`.

use std::time::Duration;

use braid_core::Frequency;
use braid_host::config::{Problem, Table};
use toml::de::DeTable;

use super::super::race::RaceConfig;
use super::{RACE, SECTIONS};

/// Bounds of `cache_ttl`. Below a second every connection of a page would be raced; after an hour
/// paths have changed.
const CACHE_TTLS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));
/// Maximum of `explore_one_in`; a rarer race would have no effect.
const MAX_EXPLORE_ONE_IN: u32 = 65_535;
/// Maximum rate of races per second; more would burden the destinations.
const MAX_RACE_RATE: u32 = 100_000;

pub(super) fn race(inner: &DeTable<'_>, problems: &mut Vec<Problem>) -> RaceConfig {
    let mut table = Table::new(RACE.0, RACE.1, inner);
    let usual = RaceConfig::default();
    let cache_ttl = table.time("cache_ttl", CACHE_TTLS, problems);
    let explore_one_in = table.count("explore_one_in", 0..=MAX_EXPLORE_ONE_IN, problems);
    let per_destination = often(&mut table, "per_destination", problems);
    let total = often(&mut table, "total", problems);
    let metered = table.boolean("metered", problems);
    table.finish(SECTIONS, problems);
    RaceConfig {
        cache_ttl: cache_ttl.map_or(usual.cache_ttl, |time| time.value),
        explore_one_in: explore_one_in.map_or(usual.explore_one_in, |number| number.value),
        per_destination: per_destination.unwrap_or(usual.per_destination),
        total: total.unwrap_or(usual.total),
        metered: metered.unwrap_or(usual.metered),
    }
}

/// Takes a rate of races.
fn often(table: &mut Table<'_, '_>, key: &str, problems: &mut Vec<Problem>) -> Option<Frequency> {
    let fix = "write it as \"8 /s\"";
    let often = table.parsed::<Frequency>(key, fix, problems)?;
    let (label, fix) = match often.value.times_per_second() {
        0 => ("never", "to race nothing, choose another policy".to_owned()),
        times if times > MAX_RACE_RATE => {
            ("too often", format!("write at most \"{MAX_RACE_RATE} /s\""))
        }
        _ => return Some(often.value),
    };
    let what = format!("`{key}` cannot be \"{}\"", often.value);
    problems.push(Problem::new(what, often.at, label).fix(fix));
    None
}
