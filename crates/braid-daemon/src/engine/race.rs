//! Inputs of the datapath's races: settings, forecasts and the path cache.

use std::time::{Duration, Instant};

use braid_balance::{Flow, KernelTime, LbMethod, RaceSettings, UplinkCounters};
use braid_core::app_limited::{FlowTotal, LineState, MIN_AGE};
use braid_core::{Bytes, Time, UplinkId};
use braid_host::user_error::UserError;

use super::Engine;
use crate::config::Settings;
use crate::path_cache_store::PathCacheSnapshot;

/// Flows that have been silent for longer want nothing.
const MAX_IDLE_TIME: Duration = Duration::from_secs(12);
/// After flows were counted they are not for this many times as long, within these bounds: a hundredth of the time with 100,000
/// flows.
const FLOW_READING_REST: u32 = 100;
const MIN_READING_INTERVAL: Duration = Duration::from_millis(900);
const MAX_READING_INTERVAL: Duration = Duration::from_secs(9);

/// Returns the settings of races.
pub(super) fn race_settings(settings: &Settings) -> RaceSettings {
    let race = &settings.config.race;
    RaceSettings {
        cache_ttl: race.cache_ttl,
        explore_one_in: race.explore_one_in,
        per_prefix: race.per_destination.times_per_second(),
        total: race.total.times_per_second(),
    }
}

impl Engine {
    /// Returns true if some class uses one of these methods.
    fn walks(&self, walks: &[LbMethod]) -> bool {
        let mut classes = self.classes.entries().iter();
        classes.any(|class| walks.contains(&class.lb_method))
    }

    /// Updates the datapath's forecasts if some class uses them. Called about once a second: the counts of
    /// opened and active flows cover the time between two calls.
    pub(super) fn update_forecasts(
        &mut self,
        now: Instant,
        counters: &[(UplinkId, UplinkCounters)],
    ) -> Result<(), UserError> {
        // Losses are counted even if no class uses them: a reload may change that.
        let carried = |id| {
            let load = self.health_checks.line_load(id)?;
            let capacity = self.classes.capacity(id)?.bits_per_sec();
            Some(load.tx.max(load.rx).bits_per_sec() as f64 / capacity.max(1) as f64)
        };
        // By the rate of another, faster one, a slow uplink that is full would carry little.
        let load = |id| {
            carried(id).unwrap_or_else(|| f64::from(u8::from(self.health_checks.had_queue(id))))
        };
        self.forecasts.note(now, counters, load);
        if !self.walks(&[LbMethod::Fastest]) {
            self.forecasts.forget();
            self.app_limited.clear();
            return Ok(());
        }
        self.note_app_limited_flows();
        let flow_activity = self.datapath.flow_activity()?;
        let forecasts = self.forecasts.compute(
            &flow_activity,
            |id| self.classes.headroom(id),
            |id| self.app_limited.demand(id),
        );
        self.datapath.set_forecasts(forecasts)
    }

    /// Counts what long-lived flows have carried, if reading all flows does not take too long. A bridge's counts are too
    /// coarse for that.
    fn note_app_limited_flows(&mut self) {
        let began = Instant::now();
        if self.datapath.is_openflow() || self.app_limited_due.is_some_and(|due| began < due) {
            return;
        }
        let now = KernelTime::now();
        let flows = match self.datapath.flows() {
            Ok(flows) => flows,
            Err(error) => {
                tracing::debug!(%error, "flows not counted");
                return;
            }
        };
        let counts = |flow: &&Flow| {
            flow.assured
                && now.since(flow.created) >= MIN_AGE
                && now.since(flow.last_seen) < MAX_IDLE_TIME
        };
        let total = |flow: &Flow| {
            let bytes = Bytes::new(flow.tx.bytes.max(flow.rx.bytes));
            let key = (flow.created, flow.protocol, flow.outer, flow.remote);
            let uplink = flow.uplink;
            (key, FlowTotal { uplink, bytes })
        };
        let line = |id| {
            let stalls = self
                .health_checks
                .load(id)
                .is_some_and(|load| load.stall.is_some());
            let headroom = self.classes.headroom(id);
            match headroom.is_none_or(|headroom| headroom.is_full()) {
                _ if stalls => LineState::Stalled,
                true => LineState::Full,
                false => LineState::Room,
            }
        };
        let at = Time::ZERO + now.since(KernelTime::from_nanos(0));
        let totals = flows.iter().filter(counts).map(total);
        self.app_limited.note(at, totals, line);
        let rest =
            (began.elapsed() * FLOW_READING_REST).clamp(MIN_READING_INTERVAL, MAX_READING_INTERVAL);
        self.app_limited_due = Some(began + rest);
    }

    /// Updates the forecasts at once if a candidate is new: without one an uplink is taken to carry nothing.
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

    /// Returns the path cache for a later instance with another datapath.
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

    /// Restores the path cache of an earlier instance. An unreadable one is ignored: all of it can be learned
    /// again.
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
        tracing::debug!(
            paths = paths.len(),
            "path cache of an earlier instance restored"
        );
        self.datapath.restore_path_cache(&paths)
    }
}
