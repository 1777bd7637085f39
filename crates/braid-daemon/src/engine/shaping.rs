//! Shaping of the uplinks, if the configuration asks for it.

use std::time::{Duration, Instant};

use braid_balance::ShapeCounters;
use braid_core::UplinkId;
use braid_host::user_error::UserError;

use super::Engine;
use crate::uplinks::registry::UplinkRecord;

impl Engine {
    /// Returns the uplinks that are shaped. A bond has its own control of its queues.
    pub(super) fn shaped_records(&self) -> impl Iterator<Item = &UplinkRecord> {
        let enabled = self.settings.config.shape.enabled;
        let records = self.registry.records().iter();
        records.filter(move |record| enabled && record.present && !record.is_bond())
    }

    /// Returns the counters of the shaping, where there is any.
    pub(super) fn shape_counters(&self) -> Result<Vec<(UplinkId, [ShapeCounters; 2])>, UserError> {
        match self.shapers.is_empty() {
            true => Ok(Vec::new()),
            false => self.datapath.shape_counters(),
        }
    }

    /// Shapes what the configuration and the registry say, from now on.
    pub(super) fn update_shaping(&mut self) -> Result<(), UserError> {
        let uplinks: Vec<_> = self.shaped_records().map(|record| record.id).collect();
        self.shapers.set_uplinks(&uplinks);
        self.apply_shaping()
    }

    /// Adjusts the rates at the end of an interval.
    pub(super) fn adjust_shaping(
        &mut self,
        now: Instant,
        span: Duration,
        counters: &[(UplinkId, [ShapeCounters; 2])],
    ) -> Result<(), UserError> {
        let (settings, registry) = (&self.settings, &self.registry);
        let ceiling = |id| settings.capacity(&registry.record(id)?.uplink.name);
        let capacities = &self.health_checks.capacities;
        self.shapers.note(now, span, counters, capacities, ceiling);
        self.apply_shaping()?;
        match counters.iter().any(|(_, [sent, _])| sent.queued) {
            true => self.datapath.correct_egress_queues(),
            false => Ok(()),
        }
    }

    fn apply_shaping(&mut self) -> Result<(), UserError> {
        let target = self.settings.config.shape.target;
        match self.shapers.poll_entries(target) {
            Some(entries) => self.datapath.set_shaping(entries),
            None => Ok(()),
        }
    }
}
