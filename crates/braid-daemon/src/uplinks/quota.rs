//! Usage of the uplinks' quotas, per day or month. A hub counts its clients with [`Used`].
//!
//! Pure but for `Usage::load` and `Usage::store`. Rules, and why:
//! - Both directions count, of the bond's packets as well as of balanced ones: providers count the same way.
//! - Counters are compared with their values at the last call; one that has restarted counts from zero. Traffic
//!   without a running daemon is not counted.
//! - A day or month begins by the machine's clock in UTC. A clock that goes back starts no new period.

use std::collections::BTreeMap;
use std::time::SystemTime;

use braid_core::Bytes;
use braid_host::config::Quota;
use braid_host::quota::Used;
use braid_host::user_error::UserError;

use braid_host::state_dir::StateDir;

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
        Bytes::new(self.used.get(name).map_or(0, |used| used.bytes()))
    }

    /// Returns the rest of an uplink's quota.
    #[must_use]
    pub fn left(&self, name: &str, quota: Quota) -> Bytes {
        Bytes::new(quota.volume.get().saturating_sub(self.of(name).get()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn at(day: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(day * 86_400 + 40_000)
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
