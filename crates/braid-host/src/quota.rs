//! Usage of a quota, per day or month of the machine's clock in UTC. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use braid_core::Bytes;
use serde::{Deserialize, Serialize};

use crate::config::Period;

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

    /// Returns the usage of its last period, over or not.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
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
    fn what_nobody_has_added_to_ends_with_its_period_too() {
        let mut used = Used::default();
        used.add(at(20_779), Period::Month, 700);
        assert_eq!(used.at(at(20_787), Period::Month), Bytes::new(700));
        assert_eq!(used.at(at(20_788), Period::Month), Bytes::new(0));
        assert_eq!(used.at(at(20_000), Period::Month), Bytes::new(700));
    }
}
