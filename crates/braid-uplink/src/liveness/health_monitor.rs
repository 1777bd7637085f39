//! The monitor of all uplinks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use braid_core::UplinkId;

use super::constants::{LATE_WAKEUP, SUSPENDED_AFTER};
use super::target_set::ResponsiveTargets;
use super::uplink_monitor::UplinkMonitor;
use super::{
    HealthSnapshot, MonitoredUplink, ProbeId, ProbeRequest, ProbeResult, Sample, VerdictChange,
};

/// Monitors the health of every uplink.
#[derive(Debug)]
pub struct HealthMonitor {
    monitors: BTreeMap<UplinkId, UplinkMonitor>,
    /// Targets that have answered on any uplink: only their silence is evidence.
    responsive: ResponsiveTargets,
    next_id: u64,
    /// The latest time passed in; time does not go back.
    latest: Instant,
}

impl HealthMonitor {
    /// Creates a monitor without uplinks.
    #[must_use]
    pub fn new(now: Instant) -> HealthMonitor {
        HealthMonitor {
            monitors: BTreeMap::new(),
            responsive: ResponsiveTargets::new(),
            next_id: 0,
            latest: now,
        }
    }

    /// Monitors exactly these uplinks from now on and keeps the state of those that stay. An uplink whose
    /// device is away for a while must stay, as not usable, so that its deaths are remembered.
    pub fn set_uplinks(&mut self, now: Instant, uplinks: &[(UplinkId, MonitoredUplink)]) {
        let now = self.wake(now);
        let wanted: BTreeSet<UplinkId> = uplinks.iter().map(|(id, _)| *id).collect();
        self.monitors.retain(|id, _| wanted.contains(id));
        for (id, uplink) in uplinks {
            match self.monitors.get_mut(id) {
                Some(monitor) => monitor.set(now, uplink.clone(), &self.responsive),
                None => {
                    let monitor = UplinkMonitor::new(now, *id, uplink.clone());
                    self.monitors.insert(*id, monitor);
                }
            }
        }
        let asked = |target: &Arc<_>| {
            let mut rules = uplinks.iter().map(|(_, uplink)| &uplink.rules);
            rules.any(|rules| rules.targets.contains(target))
        };
        self.responsive.retain(asked);
        self.advance(now);
    }

    /// Takes the datapath's counters: every 50 ms while packets flow, else every 250 ms.
    pub fn handle_traffic(&mut self, now: Instant, samples: &[(UplinkId, Sample)]) {
        let now = self.wake(now);
        for (id, sample) in samples {
            if let Some(monitor) = self.monitors.get_mut(id) {
                monitor.handle_traffic(now, *sample);
            }
        }
        self.advance(now);
    }

    /// Takes the result of a probe; unknown ones are ignored.
    pub fn handle_probe(&mut self, now: Instant, answer: ProbeResult) {
        let now = self.wake(now);
        if let Some(monitor) = self.monitors.get_mut(&answer.uplink)
            && let Some(index) = monitor.handle_probe(now, answer, &self.responsive)
            && !self.responsive.contains(monitor.targets.target(index))
        {
            self.responsive
                .insert(monitor.targets.target(index).clone());
        }
        self.advance(now);
    }

    /// To be called at the time of [`HealthMonitor::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        let now = self.wake(now);
        self.advance(now);
    }

    /// Returns the next probe to send now. Call it after every other call until it returns `None`.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<ProbeRequest> {
        let id = ProbeId(self.next_id);
        let responsive = &self.responsive;
        let mut monitors = self.monitors.values_mut();
        let request = monitors.find_map(|monitor| monitor.next_request(now, id, responsive))?;
        self.next_id += 1;
        Some(request)
    }

    /// Returns the next change to act on. Call it after every other call until it returns `None`.
    pub fn poll_event(&mut self) -> Option<VerdictChange> {
        let mut monitors = self.monitors.values_mut();
        monitors.find_map(|monitor| monitor.changes.pop_front())
    }

    /// Returns the time to call [`HealthMonitor::handle_timeout`], which may be past; `None` without uplinks.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let monitors = self.monitors.values();
        monitors
            .filter_map(|monitor| monitor.next_time(&self.responsive))
            .min()
    }

    /// Returns the health of an uplink; `None` if it is not monitored.
    #[must_use]
    pub fn snapshot(&self, id: UplinkId) -> Option<HealthSnapshot> {
        self.monitors.get(&id).map(UplinkMonitor::snapshot)
    }

    /// Returns true if an uplink that takes no new flows yet has answered enough probes in a row and only has
    /// to continue for its hold time.
    #[must_use]
    pub fn is_answering(&self, id: UplinkId) -> bool {
        self.monitors
            .get(&id)
            .is_some_and(UplinkMonitor::is_answering)
    }

    fn advance(&mut self, now: Instant) {
        for monitor in self.monitors.values_mut() {
            monitor.advance(now, &self.responsive);
        }
    }

    /// Handles a late call. The caller should have come at the requested time; if it comes much later, it may
    /// have missed packets, and what it missed is no evidence.
    fn wake(&mut self, now: Instant) -> Instant {
        self.latest = self.latest.max(now);
        let now = self.latest;
        let Some(due) = self.poll_timeout() else {
            return now;
        };
        let late = now.saturating_duration_since(due);
        for monitor in self.monitors.values_mut() {
            if late > SUSPENDED_AFTER {
                monitor.forget(now);
            } else if late > LATE_WAKEUP {
                monitor.grace = now + monitor.rtt.timeout().max(LATE_WAKEUP);
            }
        }
        now
    }
}
