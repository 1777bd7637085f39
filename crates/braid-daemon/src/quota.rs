//! Usage of the uplinks' quotas, per day or month. A hub counts its clients with [`Used`].
//!
//! Pure but for `Usage::load` and `Usage::store`. Rules, and why:
//! - Both directions count, of the bond's packets as well as of balanced ones: providers count the same way.
//! - Counters are compared with their values at the last call; one that has restarted counts from zero. Traffic
//!   without a running daemon is not counted.
//! - A day or month begins by the machine's clock in UTC. A clock that goes back starts no new period.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use braid_core::Bytes;
use serde::{Deserialize, Serialize};

use crate::config::{Period, Quota};
use crate::state_dir::StateDir;
use crate::user_error::UserError;

/// Interval at which the usage is stored: a crash loses at most this much of it.
pub const STORE_INTERVAL: Duration = Duration::from_secs(10);

/// Usage of one uplink, or of one client of a hub, in its period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// First day of the period, in days since 1970.
    began: u64,
    bytes: u64,
}

impl Used {
    /// Adds bytes; a new period begins with them.
    pub fn add(&mut self, now: SystemTime, period: Period, more: u64) {
        let began = first_day(days(now), period);
        if self.began < began {
            *self = Used { began, bytes: 0 };
        }
        self.bytes = self.bytes.saturating_add(more);
    }

    /// Returns the usage of the period that `now` is in.
    #[must_use]
    pub fn at(&self, now: SystemTime, period: Period) -> Bytes {
        match self.began < first_day(days(now), period) {
            true => Bytes::new(0),
            false => Bytes::new(self.bytes),
        }
    }
}

/// Usage of all uplinks, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    used: BTreeMap<String, Used>,
    /// Last values of the counters, by uplink and counter.
    seen: BTreeMap<(String, u32), u64>,
}

impl Usage {
    /// Loads the usage that an earlier daemon stored.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn load(state_dir: &StateDir) -> Result<Usage, UserError> {
        let path = state_dir.usage();
        let fix = "remove it: quotas then begin anew";
        let used = state_dir.read(&path, fix)?.unwrap_or_default();
        Ok(Usage {
            used,
            seen: BTreeMap::new(),
        })
    }

    /// Stores the usage.
    ///
    /// # Errors
    /// The system refused to write it.
    pub fn store(&self, state_dir: &StateDir) -> Result<(), UserError> {
        state_dir.write(&state_dir.usage(), &self.used)
    }

    /// Takes a counter of an uplink with a quota.
    pub fn note(&mut self, now: SystemTime, name: &str, quota: Quota, counter: u32, bytes: u64) {
        let key = (name.to_owned(), counter);
        // The first value has no reference.
        let before = self.seen.insert(key, bytes).unwrap_or(bytes);
        let more = bytes.checked_sub(before).unwrap_or(bytes);
        let used = self.used.entry(name.to_owned()).or_default();
        used.add(now, quota.period, more);
    }

    /// Stores the usage, unless nothing has a quota.
    ///
    /// # Errors
    /// The system refused to write it.
    pub fn store_if_used(&self, state_dir: &StateDir) -> Result<(), UserError> {
        match self.used.is_empty() {
            true => Ok(()),
            false => self.store(state_dir),
        }
    }

    /// Returns true if the usage is the same.
    #[must_use]
    pub fn is_as_used(&self, other: &Usage) -> bool {
        self.used == other.used
    }

    /// Returns the usage of an uplink.
    #[must_use]
    pub fn of(&self, name: &str) -> Bytes {
        Bytes::new(self.used.get(name).map_or(0, |used| used.bytes))
    }

    /// Returns the rest of an uplink's quota.
    #[must_use]
    pub fn left(&self, name: &str, quota: Quota) -> Bytes {
        Bytes::new(quota.volume.get().saturating_sub(self.of(name).get()))
    }
}

fn days(now: SystemTime) -> u64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() / 86_400
}

/// Returns the first day of the period that a day is in.
fn first_day(day: u64, period: Period) -> u64 {
    match period {
        Period::Day => day,
        Period::Month => day - u64::from(day_of_month(day)) + 1,
    }
}

/// Returns the day of the month, from 1, by the proleptic Gregorian calendar. Years are counted from March, so
/// that leap days come last.
fn day_of_month(day: u64) -> u32 {
    const ERA: u64 = 146_097;
    let from_march_0000 = day + 719_468;
    let of_era = from_march_0000 % ERA;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / (ERA - 1)) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    u32::try_from(of_year - (153 * month + 2) / 5 + 1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(day * 86_400 + 40_000)
    }

    #[test]
    fn months_begin_on_the_first() {
        // 1970-01-01, 2000-02-29, 2026-11-22, 2027-01-01, 2100-03-01.
        for (day, of_month) in [(0, 1), (11_016, 29), (20_779, 22), (20_819, 1), (47_541, 1)] {
            assert_eq!(day_of_month(day), of_month, "{day}");
        }
        for day in 0..100_000 {
            let next = day_of_month(day + 1);
            assert!(next == day_of_month(day) + 1 || next == 1 && day_of_month(day) >= 28);
        }
    }

    #[test]
    fn what_is_carried_counts_until_the_period_is_over() {
        let quota: Quota = "1 MB/month".parse().unwrap();
        let mut usage = Usage::default();
        usage.note(at(20_779), "lte", quota, 0, 5_000_000);
        assert_eq!(
            usage.of("lte"),
            Bytes::new(0),
            "carried before anybody looked"
        );
        usage.note(at(20_779), "lte", quota, 0, 5_400_000);
        usage.note(at(20_779), "lte", quota, 1, 0);
        usage.note(at(20_787), "lte", quota, 1, 300_000);
        assert_eq!(usage.left("lte", quota), Bytes::new(300_000));
        // The counter has restarted, and the clock has gone back.
        usage.note(at(20_000), "lte", quota, 1, 200_000);
        assert_eq!(usage.left("lte", quota), Bytes::new(100_000));
        usage.note(at(20_787), "lte", quota, 1, 900_000);
        assert_eq!(usage.left("lte", quota), Bytes::new(0));
        usage.note(at(20_788), "lte", quota, 1, 900_100);
        assert_eq!(usage.of("lte"), Bytes::new(100), "the first of December");
    }

    #[test]
    fn what_nobody_has_added_to_ends_with_its_period_too() {
        let mut used = Used::default();
        used.add(at(20_779), Period::Month, 700);
        assert_eq!(used.at(at(20_787), Period::Month), Bytes::new(700));
        assert_eq!(used.at(at(20_788), Period::Month), Bytes::new(0));
        assert_eq!(used.at(at(20_000), Period::Month), Bytes::new(700));
    }

    #[test]
    fn a_restart_goes_on_from_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::new(folder.path());
        let quota: Quota = "1 MB/day".parse().unwrap();
        let mut usage = Usage::load(&state).unwrap();
        usage.note(at(1), "lte", quota, 0, 0);
        usage.note(at(1), "lte", quota, 0, 1234);
        usage.store(&state).unwrap();
        let mut usage = Usage::load(&state).unwrap();
        assert_eq!(usage.of("lte"), Bytes::new(1234));
        usage.note(at(2), "lte", quota, 0, 0);
        assert_eq!(usage.of("lte"), Bytes::new(0), "another day");
    }
}
