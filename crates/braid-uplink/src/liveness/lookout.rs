//! The lookout over all uplinks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use braid_core::UplinkId;

use super::constants::{ASLEEP, LATE};
use super::guard::Guard;
use super::panel::Heard;
use super::{Look, ProbeAnswer, ProbeId, ProbeOrder, Sample, VerdictChange, Watched};

/// Judges every uplink.
#[derive(Debug)]
pub struct Lookout {
    guards: BTreeMap<UplinkId, Guard>,
    /// Targets that have answered on any uplink: only their silence says something.
    heard: Heard,
    next_id: u64,
    /// The latest time that was passed in: time does not go back.
    latest: Instant,
}

impl Lookout {
    /// Over no uplinks yet.
    #[must_use]
    pub fn new(now: Instant) -> Lookout {
        Lookout {
            guards: BTreeMap::new(),
            heard: Heard::new(),
            next_id: 0,
            latest: now,
        }
    }

    /// Watches exactly these from now on. What is known about one that stays is kept; one whose
    /// device is away for a while is to stay, as not usable, so that its deaths are remembered.
    pub fn set_uplinks(&mut self, now: Instant, uplinks: &[(UplinkId, Watched)]) {
        let now = self.wake(now);
        let wanted: BTreeSet<UplinkId> = uplinks.iter().map(|(id, _)| *id).collect();
        self.guards.retain(|id, _| wanted.contains(id));
        for (id, watched) in uplinks {
            match self.guards.get_mut(id) {
                Some(guard) => guard.set(now, watched.clone(), &self.heard),
                None => {
                    let guard = Guard::new(now, *id, watched.clone());
                    self.guards.insert(*id, guard);
                }
            }
        }
        let asked = |target: &Arc<_>| {
            let mut rules = uplinks.iter().map(|(_, watched)| &watched.rules);
            rules.any(|rules| rules.targets.contains(target))
        };
        self.heard.retain(asked);
        self.advance(now);
    }

    /// Takes what the datapath has counted: every 50 ms while anything moves, every 250 ms else.
    pub fn handle_traffic(&mut self, now: Instant, samples: &[(UplinkId, Sample)]) {
        let now = self.wake(now);
        for (id, sample) in samples {
            if let Some(guard) = self.guards.get_mut(id) {
                guard.handle_traffic(now, *sample);
            }
        }
        self.advance(now);
    }

    /// Takes what came of a probe; unknown ones are ignored.
    pub fn handle_probe(&mut self, now: Instant, answer: ProbeAnswer) {
        let now = self.wake(now);
        if let Some(guard) = self.guards.get_mut(&answer.uplink)
            && let Some(seat) = guard.handle_probe(now, answer, &self.heard)
            && !self.heard.contains(guard.panel.target(seat))
        {
            self.heard.insert(guard.panel.target(seat).clone());
        }
        self.advance(now);
    }

    /// To be called when the time of [`Lookout::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        let now = self.wake(now);
        self.advance(now);
    }

    /// The next probe to send now. To be asked until it has none, after every other call.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<ProbeOrder> {
        let id = ProbeId(self.next_id);
        let heard = &self.heard;
        let mut guards = self.guards.values_mut();
        let order = guards.find_map(|guard| guard.next_order(now, id, heard))?;
        self.next_id += 1;
        Some(order)
    }

    /// The next change to act on. To be asked until it has none, after every other call.
    pub fn poll_event(&mut self) -> Option<VerdictChange> {
        let mut guards = self.guards.values_mut();
        guards.find_map(|guard| guard.changes.pop_front())
    }

    /// When to call [`Lookout::handle_timeout`]; may be past. `None`: nothing is watched.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let guards = self.guards.values();
        guards
            .filter_map(|guard| guard.next_time(&self.heard))
            .min()
    }

    /// How an uplink stands; `None` for one that is not watched.
    #[must_use]
    pub fn look(&self, id: UplinkId) -> Option<Look> {
        self.guards.get(&id).map(Guard::look)
    }

    /// Returns true if an uplink that takes no new flows yet has answered enough probes in a row, and only has to go on so
    /// for some time.
    #[must_use]
    pub fn answers_again(&self, id: UplinkId) -> bool {
        self.guards.get(&id).is_some_and(Guard::answers_again)
    }

    fn advance(&mut self, now: Instant) {
        for guard in self.guards.values_mut() {
            guard.advance(now, &self.heard);
        }
    }

    /// Whoever drives this should have come at the time that was asked for. If it comes much later,
    /// it was not looking, and what it did not see is no evidence.
    fn wake(&mut self, now: Instant) -> Instant {
        self.latest = self.latest.max(now);
        let now = self.latest;
        let Some(due) = self.poll_timeout() else {
            return now;
        };
        let late = now.saturating_duration_since(due);
        for guard in self.guards.values_mut() {
            if late > ASLEEP {
                guard.forget(now);
            } else if late > LATE {
                guard.grace = now + guard.rtt.timeout().max(LATE);
            }
        }
        now
    }
}
