//! Races of new connections: their settings, and the removal of those that are over.

use std::os::fd::AsFd;
use std::time::Duration;

use aya::maps::{HashMap, MapData};

use super::idle_times::TCP_EMBRYO_IDLE;
use crate::maps::layout::{RaceValue, Tuple};
use crate::maps::tables::{Tables, found, ignore_missing, read, refused};
use crate::{Error, KernelTime};

const _: () = assert!(TCP_EMBRYO_IDLE.as_secs() == crate::generated::RACE_TIMEOUT_SECONDS as u64);

/// Limits of races, for all classes that race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaceSettings {
    /// Time after which a path cache entry expires, in whole seconds, at least 1.
    pub cache_ttl: Duration,
    /// One flow in this many is raced although the path cache knows every candidate; 0: none.
    pub explore_one_in: u32,
    /// Most races a second towards one prefix; 0: none at all.
    pub per_prefix: u32,
    /// Most races a second.
    pub total: u32,
}

/// Writes the settings; new ones hold from the next SYN on.
pub(crate) fn set(tables: &mut Tables, race: RaceSettings) -> Result<(), Error> {
    let failed = |error| refused("map settings", &error);
    let before = tables.settings.get(&0, 0).map_err(failed)?;
    let mut settings = before;
    let seconds = race.cache_ttl.as_secs().max(1);
    settings.cache_ttl = u32::try_from(seconds).unwrap_or(u32::MAX);
    settings.explore_one_in = race.explore_one_in;
    settings.per_prefix = race.per_prefix;
    settings.total = race.total;
    tables.settings.set(0, settings, 0).map_err(failed)
}

/// Removes races whose client has given up.
pub(crate) fn sweep(
    races: &mut HashMap<MapData, Tuple, RaceValue>,
    data: &MapData,
    now: KernelTime,
) -> Result<(), Error> {
    for (key, race) in read::<RaceValue>("races", data.fd().as_fd())? {
        if now.since(KernelTime::from_nanos(race.last_syn)) < TCP_EMBRYO_IDLE {
            continue;
        }
        // A new race may have replaced it under the same key.
        let current = found(races.get(&key, 0))?;
        if current.is_some_and(|current| current.last_syn == race.last_syn) {
            ignore_missing("map races", races.remove(&key))?;
        }
    }
    Ok(())
}
