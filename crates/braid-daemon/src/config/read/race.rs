//! `[race]`.

use std::time::Duration;

use braid_core::Frequency;
use toml::de::DeTable;

use super::super::problem::Problem;
use super::super::race::RaceConfig;
use super::super::table::Table;
use super::{RACE, SECTIONS};

/// Below a second every connection of a page would be raced; after an hour paths are others.
const MEMORIES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));
/// What is raced anew less often than this is not raced anew.
const RAREST: u32 = 65_535;
/// Most races a second: what is more is no politeness.
const MOST_RACES: u32 = 100_000;

pub(super) fn race(inner: &DeTable<'_>, problems: &mut Vec<Problem>) -> RaceConfig {
    let mut table = Table::new(RACE.0, RACE.1, inner);
    let usual = RaceConfig::default();
    let memory = table.time("memory", MEMORIES, problems);
    let again = table.count("again", 0..=RAREST, problems);
    let per_destination = often(&mut table, "per_destination", problems);
    let total = often(&mut table, "total", problems);
    let metered = table.truth("metered", problems);
    table.finish(SECTIONS, problems);
    RaceConfig {
        memory: memory.map_or(usual.memory, |time| time.value),
        again: again.map_or(usual.again, |number| number.value),
        per_destination: per_destination.unwrap_or(usual.per_destination),
        total: total.unwrap_or(usual.total),
        metered: metered.unwrap_or(usual.metered),
    }
}

/// Takes out how often a race may be.
fn often(table: &mut Table<'_, '_>, key: &str, problems: &mut Vec<Problem>) -> Option<Frequency> {
    let fix = "write it as \"8 /s\"";
    let often = table.parsed::<Frequency>(key, fix, problems)?;
    let (label, fix) = match often.value.times_per_second() {
        0 => ("never", "to race nothing, choose another policy".to_owned()),
        times if times > MOST_RACES => ("too often", format!("write at most \"{MOST_RACES} /s\"")),
        _ => return Some(often.value),
    };
    let what = format!("`{key}` cannot be \"{}\"", often.value);
    problems.push(Problem::new(what, often.at, label).fix(fix));
    None
}
