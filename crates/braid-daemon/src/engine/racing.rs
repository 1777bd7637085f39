//! What the datapath must be told for races, and what it knows of the ways to destinations.

use std::time::Instant;

use braid_balance::{KernelTime, LbMethod, RaceSettings, UplinkCounters};
use braid_core::UplinkId;

use super::Engine;
use crate::settings::Settings;
use crate::user_error::UserError;
use crate::ways::Keepsake;

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
    pub(super) fn tell_outlooks(
        &mut self,
        now: Instant,
        counters: &[(UplinkId, UplinkCounters)],
    ) -> Result<(), UserError> {
        // Losses count whether or not anybody asks: a reload may ask for them.
        let carried = |id| {
            let name = &self.roster.member(id)?.uplink.name;
            let load = self.watching.load(id, &self.settings, name)?;
            let capacity = self.classes.room(id)?.capacity.bits_per_sec();
            Some(load.tx.max(load.rx).bits_per_sec() as f64 / capacity.max(1) as f64)
        };
        let load = |id| carried(id).unwrap_or_default();
        self.outlooks.note(now, counters, load);
        if !self.walks(&[LbMethod::Fastest]) {
            self.outlooks.forget();
            return Ok(());
        }
        let flow_activity = self.datapath.flow_activity()?;
        let outlooks = self
            .outlooks
            .tell(&flow_activity, |id| self.classes.room(id));
        Ok(self.datapath.set_forecasts(outlooks)?)
    }

    /// Says so at once where a racer is new: without a word an uplink is taken to carry nothing.
    pub(super) fn introduce_racers(&mut self) -> Result<(), UserError> {
        let classes = self.classes.entries().iter();
        let fastest = classes.filter(|class| class.lb_method == LbMethod::Fastest);
        let mut racers = fastest.flat_map(|class| &class.candidates);
        if racers.all(|id| self.outlooks.line(*id, &[]).is_some()) {
            return Ok(());
        }
        let counters = self.datapath.uplink_counters()?;
        self.tell_outlooks(Instant::now(), &counters)
    }

    /// What was learnt of the ways, for an instance after this one that has another datapath.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub fn keepsake(&self) -> Result<Option<Keepsake>, UserError> {
        if !self.walks(&[LbMethod::Race, LbMethod::Fastest]) {
            return Ok(None);
        }
        let paths = self.datapath.path_cache()?;
        let who = |id| {
            let member = self.roster.member(id)?;
            Some((member.uplink.device.clone(), member.way_out()))
        };
        Keepsake::of(paths, who, KernelTime::now())
    }

    /// Goes on from what an instance before this one has learnt. What cannot be read is as if it were
    /// not there: all of it can be learnt again.
    pub(super) fn take_up_keepsake(&mut self) -> Result<(), UserError> {
        let Some(keepsake) = Keepsake::take(&self.run_dir.path_cache()) else {
            return Ok(());
        };
        let members = self.roster.members();
        let who = |device: &str, way_out| {
            let mut members = members.iter().filter(|member| member.present);
            let found = members.find(|m| m.uplink.device == device && m.way_out() == way_out);
            found.map(|member| member.id)
        };
        let paths = keepsake.paths(who, KernelTime::now())?;
        tracing::debug!(paths = paths.len(), "ways of an earlier instance");
        Ok(self.datapath.restore_path_cache(&paths)?)
    }
}
