//! Store of the path cache from `braid down` to `braid up`.
//!
//! The datapath's path cache is pinned in the kernel and outlives the daemon. It does not outlive `braid down`,
//! which an upgrade to a version with other tables needs. A daemon that removes everything therefore saves the
//! cache in the run directory, where the next one finds it.
//!
//! Rules, and why:
//! - Saved only if some flows are raced: otherwise the directory is removed like everything else.
//! - Readable by root alone, because it shows where people went. It is in memory (`/run`), is read once, and is
//!   valid for this boot only.
//! - An uplink is identified by its device, addresses and gateways, not by its number. Ages continue.
//! - 4,096 networks at most, the most recently used ones first.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use braid_balance::{CachedPath, KernelTime, PathCacheEntry};
use braid_core::UplinkId;
use braid_host::run_dir::RunDir;
use braid_host::state::boot;
use braid_host::user_error::UserError;
use serde::{Deserialize, Serialize};

/// Most networks saved.
const MAX_PATHS: usize = 4096;
/// Oldest age that counts under any configuration.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// The saved path cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathCacheSnapshot {
    /// The boot that it belongs to.
    boot: String,
    /// Time of saving, in milliseconds of the kernel's monotonic clock.
    taken_ms: u64,
    paths: Vec<SavedPath>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedPath {
    prefix: IpAddr,
    bits: u8,
    uplinks: Vec<SavedUplink>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedUplink {
    device: String,
    route_hash: u32,
    rtt_us: Option<u64>,
    age_ms: u64,
    packets: u32,
    lost: u32,
}

impl PathCacheSnapshot {
    /// Selects the entries worth saving; `None` without any. `uplink_of` returns an uplink's device and the
    /// hash of its route.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(crate) fn of(
        mut paths: Vec<PathCacheEntry>,
        uplink_of: impl Fn(UplinkId) -> Option<(String, u32)>,
        now: KernelTime,
    ) -> Result<Option<PathCacheSnapshot>, UserError> {
        paths.sort_by_key(|path| (path.paths.iter().map(|way| way.age).min(), path.prefix));
        let kept = |way: &CachedPath| {
            let (device, route_hash) =
                uplink_of(way.uplink).filter(|_| way.valid && way.age <= MAX_AGE)?;
            Some(SavedUplink {
                device,
                route_hash,
                rtt_us: way.rtt.map(|rtt| whole(rtt.as_micros())),
                age_ms: whole(way.age.as_millis()),
                packets: way.packets,
                lost: way.lost,
            })
        };
        let paths = paths.into_iter().map(|path| SavedPath {
            prefix: path.prefix,
            bits: path.bits,
            uplinks: path.paths.iter().filter_map(kept).collect(),
        });
        let paths: Vec<SavedPath> = paths
            .filter(|p| !p.uplinks.is_empty())
            .take(MAX_PATHS)
            .collect();
        if paths.is_empty() {
            return Ok(None);
        }
        Ok(Some(PathCacheSnapshot {
            boot: boot()?,
            taken_ms: milliseconds(now),
            paths,
        }))
    }

    /// Returns the entries that are still valid. `uplink_of` returns the uplink with this device and route
    /// hash.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(crate) fn paths(
        self,
        uplink_of: impl Fn(&str, u32) -> Option<UplinkId>,
        now: KernelTime,
    ) -> Result<Vec<PathCacheEntry>, UserError> {
        let passed = milliseconds(now).checked_sub(self.taken_ms);
        let Some(passed) = passed.filter(|_| self.boot == boot().unwrap_or_default()) else {
            return Ok(Vec::new());
        };
        let way = |way: &SavedUplink| {
            let age = Duration::from_millis(way.age_ms.saturating_add(passed));
            let uplink = uplink_of(&way.device, way.route_hash).filter(|_| age <= MAX_AGE)?;
            Some(CachedPath {
                uplink,
                rtt: way.rtt_us.map(Duration::from_micros),
                tried: false,
                age,
                packets: way.packets,
                lost: way.lost,
                valid: true,
            })
        };
        let paths = self
            .paths
            .iter()
            .take(MAX_PATHS)
            .map(|path| PathCacheEntry {
                prefix: path.prefix,
                bits: path.bits,
                paths: path.uplinks.iter().filter_map(way).collect(),
            });
        Ok(paths.filter(|path| !path.paths.is_empty()).collect())
    }

    /// Saves it in the run directory, readable by root alone.
    ///
    /// # Errors
    /// The system refused to write it.
    pub(crate) fn save(&self, run_dir: &RunDir) -> Result<(), UserError> {
        let path = run_dir.path_cache();
        run_dir.create()?;
        let write = || -> io::Result<()> {
            let text = serde_json::to_vec(self)?;
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(&path)?.write_all(&text)
        };
        write().map_err(|error| {
            // Half a file is of no use.
            let _ = fs::remove_file(&path);
            UserError::io(format!("write {}", path.display()), &error)
        })
    }

    /// Loads the saved cache and removes the file; `None` without a readable one.
    pub(crate) fn take(path: &Path) -> Option<PathCacheSnapshot> {
        let bytes = fs::read(path).ok()?;
        if let Err(error) = fs::remove_file(path) {
            tracing::debug!(%error, "cannot remove the saved path cache");
        }
        serde_json::from_slice(&bytes)
            .inspect_err(|error| tracing::debug!(%error, "cannot read the saved path cache"))
            .ok()
    }
}

fn milliseconds(now: KernelTime) -> u64 {
    whole(now.since(KernelTime::from_nanos(0)).as_millis())
}

fn whole(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(uplink: u8, age: u64, valid: bool) -> CachedPath {
        CachedPath {
            uplink: UplinkId(uplink),
            rtt: Some(Duration::from_micros(21_400)),
            tried: false,
            age: Duration::from_secs(age),
            packets: 640,
            lost: 3,
            valid,
        }
    }

    fn path(third: u8, paths: Vec<CachedPath>) -> PathCacheEntry {
        PathCacheEntry {
            prefix: [198, 51, third, 0].into(),
            bits: 24,
            paths,
        }
    }

    fn at(seconds: u64) -> KernelTime {
        KernelTime::from_nanos(seconds * 1_000_000_000)
    }

    fn device(id: UplinkId) -> Option<(String, u32)> {
        [("dsl", 7), ("lte", 8)]
            .get(id.index())
            .map(|(name, route_hash)| ((*name).to_owned(), *route_hash))
    }

    #[test]
    fn what_is_left_is_found_under_other_numbers_and_older() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path().join("run"));
        let paths = vec![
            path(
                1,
                vec![way(0, 10, true), way(1, 20, false), way(5, 1, true)],
            ),
            path(2, vec![way(1, 3599, true)]),
            path(3, vec![way(0, 3601, true)]),
        ];
        let kept = PathCacheSnapshot::of(paths, device, at(1000))
            .unwrap()
            .unwrap();
        kept.save(&run_dir).unwrap();
        let found = PathCacheSnapshot::take(&run_dir.path_cache()).unwrap();
        assert_eq!(found, kept);
        assert_eq!(
            PathCacheSnapshot::take(&run_dir.path_cache()),
            None,
            "read once"
        );
        let uplink_of =
            |device: &str, route_hash| (device == "dsl" && route_hash == 7).then_some(UplinkId(4));
        let back = found.paths(uplink_of, at(1060)).unwrap();
        assert_eq!(back, [path(1, vec![way(4, 70, true)])]);
    }

    #[test]
    fn what_leads_elsewhere_or_is_of_another_boot_counts_no_more() {
        let paths = vec![path(1, vec![way(0, 10, true)])];
        let kept = PathCacheSnapshot::of(paths, device, at(1000))
            .unwrap()
            .unwrap();
        let id = Some(UplinkId(0));
        let other_gateway = |_: &str, route_hash| id.filter(|_| route_hash == 9);
        assert_eq!(kept.clone().paths(other_gateway, at(1000)).unwrap(), []);
        assert_eq!(kept.clone().paths(|_, _| id, at(999)).unwrap(), []);
        assert_eq!(kept.clone().paths(|_, _| id, at(9000)).unwrap(), []);
        let other = PathCacheSnapshot {
            boot: "another".into(),
            ..kept
        };
        assert_eq!(other.paths(|_, _| id, at(1000)).unwrap(), []);
        assert_eq!(
            PathCacheSnapshot::of(Vec::new(), device, at(1)).unwrap(),
            None
        );
    }

    #[test]
    fn the_latest_are_kept_of_too_many() {
        let many = (0..=MAX_PATHS).map(|n| PathCacheEntry {
            prefix: IpAddr::from(u32::try_from(n << 8).unwrap().to_be_bytes()),
            bits: 24,
            paths: vec![way(0, n as u64 % 3000, true)],
        });
        let kept = PathCacheSnapshot::of(many.collect(), device, at(1))
            .unwrap()
            .unwrap();
        assert_eq!(kept.paths.len(), MAX_PATHS);
        let dropped = kept
            .paths
            .iter()
            .all(|path| path.uplinks[0].age_ms < 2_999_000);
        assert!(dropped, "the oldest of all is the one that went");
    }
}
