//! Builds the report on the path cache.

use std::net::IpAddr;

use braid_balance::{CachedPath, FlowActivity, PathCacheEntry};
use braid_host::user_error::UserError;

use super::millis;
use crate::engine::Engine;
use crate::explain::{is_valid, predict};
use crate::report::{DestinationReport, PathReport, PathsReport};

impl Engine {
    /// Returns the whole path cache.
    ///
    /// # Errors
    /// The datapath's tables cannot be read.
    pub fn paths(&self) -> Result<PathsReport, UserError> {
        let mut paths = self.datapath.path_cache()?;
        paths.retain(|path| !path.paths.is_empty());
        paths.sort_by_key(|path| (path.paths.iter().map(|way| way.age).min(), path.prefix));
        let flow_activity = self.datapath.flow_activity()?;
        let report = |path: &PathCacheEntry| self.path(path, &flow_activity);
        Ok(PathsReport {
            destinations: paths.iter().map(report).collect(),
        })
    }

    pub(super) fn path(
        &self,
        path: &PathCacheEntry,
        flow_activity: &[FlowActivity],
    ) -> DestinationReport {
        DestinationReport {
            network: network(path.prefix, path.bits),
            paths: path
                .paths
                .iter()
                .map(|way| self.way(way, flow_activity))
                .collect(),
        }
    }

    fn way(&self, way: &CachedPath, flow_activity: &[FlowActivity]) -> PathReport {
        let load = self.forecasts.load(way.uplink, flow_activity);
        let found = load.and_then(|load| predict(way, &load));
        PathReport {
            uplink: self.name_of(way.uplink),
            rtt_ms: way.rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
            age_ms: millis(way.age),
            data_packets: way.packets,
            lost_packets: way.lost,
            predicted_ms: found.map(|found| found.time.as_secs_f64() * 1e3),
            valid: is_valid(way, self.settings.config.race.cache_ttl),
        }
    }
}

fn network(prefix: IpAddr, bits: u8) -> String {
    format!("{prefix}/{bits}")
}
