//! What the datapath must be told for races, and what it knows of the ways to destinations.

use std::time::Instant;

use braid_balance::{KernelTime, LbMethod, RaceSettings, UplinkCounters};
use braid_core::UplinkId;

use super::Engine;
use crate::path_cache_store::PathCacheSnapshot;
use crate::settings::Settings;
use crate::user_error::UserError;

/// When the datapath races, as the settings have it.
pub(super) fn race_settings(settings: &Settings) -> RaceSettings {
    let race = &settings.config.race;
    RaceSettings {
        memory: race.cache_ttl,
        explore_one_in: race.explore_one_in,
        per_prefix: race.per_destination.times_per_second(),
        total: race.total.times_per_second(),
    }
}

impl Engine {
    /// Whether some class is walked like that.
    fn walks(&self, walks: &[LbMethod]) -> bool {
        let mut classes = self.classes.entries().iter();
        classes.any(|class| walks.contains(&class.lb_method))
    }

    /// Says what is expected of the uplinks, where some class goes by it. To be called about once a
    /// second: flows that were opened since, and those that are moving, count from one call to the
    /// next.
    pub(super) fn update_forecasts(
        &mut self,
        now: Instant,
        counters: &[(UplinkId, UplinkCounters)],
    ) -> Result<(), UserError> {
        // Losses count whether or not anybody asks: a reload may ask for them.
        let carried = |id| {
            let name = &self.registry.record(id)?.uplink.name;
            let load = self.health_checks.load(id, &self.settings, name)?;
            let capacity = self.classes.headroom(id)?.capacity.bits_per_sec();
            Some(load.tx.max(load.rx).bits_per_sec() as f64 / capacity.max(1) as f64)
        };
        let load = |id| carried(id).unwrap_or_default();
        self.forecasts.note(now, counters, load);
        if !self.walks(&[LbMethod::Fastest]) {
            self.forecasts.forget();
            return Ok(());
        }
        let flow_activity = self.datapath.flow_activity()?;
        let forecasts = self
            .forecasts
            .tell(&flow_activity, |id| self.classes.headroom(id));
        Ok(self.datapath.set_forecasts(forecasts)?)
    }

    /// Says so at once where a racer is new: without a word an uplink is taken to carry nothing.
    pub(super) fn introduce_candidates(&mut self) -> Result<(), UserError> {
        let classes = self.classes.entries().iter();
        let fastest = classes.filter(|class| class.lb_method == LbMethod::Fastest);
        let mut candidates = fastest.flat_map(|class| &class.candidates);
        if candidates.all(|id| self.forecasts.load(*id, &[]).is_some()) {
            return Ok(());
        }
        let counters = self.datapath.uplink_counters()?;
        self.update_forecasts(Instant::now(), &counters)
    }

    /// What was learnt of the ways, for an instance after this one that has another datapath.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub fn path_cache_snapshot(&self) -> Result<Option<PathCacheSnapshot>, UserError> {
        if !self.walks(&[LbMethod::Race, LbMethod::Fastest]) {
            return Ok(None);
        }
        let paths = self.datapath.path_cache()?;
        let uplink_of = |id| {
            let record = self.registry.record(id)?;
            Some((record.uplink.device.clone(), record.route_hash()))
        };
        PathCacheSnapshot::of(paths, uplink_of, KernelTime::now())
    }

    /// Goes on from what an instance before this one has learnt. What cannot be read is as if it were
    /// not there: all of it can be learnt again.
    pub(super) fn restore_path_cache(&mut self) -> Result<(), UserError> {
        let Some(snapshot) = PathCacheSnapshot::take(&self.run_dir.path_cache()) else {
            return Ok(());
        };
        let records = self.registry.records();
        let uplink_of = |device: &str, route_hash| {
            let mut records = records.iter().filter(|record| record.present);
            let found = records.find(|m| m.uplink.device == device && m.route_hash() == route_hash);
            found.map(|record| record.id)
        };
        let paths = snapshot.paths(uplink_of, KernelTime::now())?;
        tracing::debug!(paths = paths.len(), "ways of an earlier instance");
        Ok(self.datapath.restore_path_cache(&paths)?)
    }
}
