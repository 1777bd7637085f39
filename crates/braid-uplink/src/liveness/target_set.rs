//! The targets of one uplink: their answers, and the next one to probe.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::constants::{
    HTTP_PROBE_INTERVAL, MAX_IN_FLIGHT_PROBES, MAX_SEND_FAILURES, UNRESPONSIVE_AFTER,
    UNRESPONSIVE_PROBE_RATIO,
};
use super::{MonitoredUplink, ProbeId, Target};

/// Targets that have answered on any uplink.
pub(super) type ResponsiveTargets = BTreeSet<Arc<Target>>;

/// Index of a target in the set.
pub(super) type TargetIndex = usize;

/// One target, as seen through one uplink.
#[derive(Clone, Debug)]
struct TargetState {
    target: Arc<Target>,
    answered: Option<Instant>,
    /// Unanswered probes in a row, and the time at which the first of them was sent.
    misses: u32,
    missing_since: Option<Instant>,
}

/// A probe in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlightProbe {
    pub(super) index: TargetIndex,
    pub(super) sent: Instant,
    /// Time from which on it is lost and not late.
    pub(super) lost_at: Instant,
    /// True for a regular probe, which is not part of a burst: it counts for loss, and a missing answer makes
    /// the uplink suspect.
    pub(super) regular: bool,
    /// True once its missing answer has been handled.
    pub(super) overdue_handled: bool,
}

/// The targets of one uplink and the probes in flight to them.
#[derive(Clone, Debug)]
pub(super) struct TargetSet {
    targets: Vec<TargetState>,
    in_flight: BTreeMap<ProbeId, InFlightProbe>,
    turn: usize,
    pub(super) http_at: Instant,
    unsendable: u32,
    pub(super) send_error: Option<String>,
}

impl TargetSet {
    /// Takes those targets whose family the uplink has.
    pub(super) fn new(now: Instant, uplink: &MonitoredUplink) -> TargetSet {
        let has_way = |target: &&Arc<Target>| match target.address() {
            Some(address) if address.is_ipv4() => uplink.v4,
            Some(_) => uplink.v6,
            None => true,
        };
        let state = |target: &Arc<Target>| TargetState {
            target: Arc::clone(target),
            answered: None,
            misses: 0,
            missing_since: None,
        };
        let targets = uplink.rules.targets.iter().filter(has_way);
        TargetSet {
            targets: targets.map(state).collect(),
            in_flight: BTreeMap::new(),
            turn: 0,
            http_at: now,
            unsendable: 0,
            send_error: None,
        }
    }

    /// Takes over the state of the targets that stay.
    pub(super) fn inherit(&mut self, old: &TargetSet) {
        for state in &mut self.targets {
            let known = old.targets.iter().find(|o| o.target == state.target);
            if let Some(known) = known {
                *state = known.clone();
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.targets.len()
    }

    pub(super) fn target(&self, index: TargetIndex) -> &Arc<Target> {
        &self.targets[index].target
    }

    /// Returns `Some(true)` for IPv6, `None` for a name.
    pub(super) fn family(&self, index: TargetIndex) -> Option<bool> {
        self.targets[index].target.address().map(|a| a.is_ipv6())
    }

    /// Returns true if silence of this target is evidence: it has answered here or, where nothing is known in
    /// this uplink's favour, on another uplink.
    pub(super) fn is_evidence(
        &self,
        index: TargetIndex,
        responsive: &ResponsiveTargets,
        has_received: bool,
    ) -> bool {
        let state = &self.targets[index];
        state.answered.is_some() || (!has_received && responsive.contains(&state.target))
    }

    /// Returns true if the target has missed some probes while another one answered: the fault is the target's.
    pub(super) fn is_unresponsive(&self, index: TargetIndex) -> bool {
        self.targets[index].misses >= UNRESPONSIVE_AFTER && self.is_alone_unresponsive(index)
    }

    /// Returns true if the target misses answers while another one gets some. One miss may be the line's fault;
    /// the next ones are more likely the target's.
    pub(super) fn is_alone_unresponsive(&self, index: TargetIndex) -> bool {
        let missing_since = self.targets[index].missing_since;
        let answered_since = |since| {
            let mut others = self.targets.iter();
            others.any(|other| other.answered.is_some_and(|at| at > since))
        };
        missing_since.is_some_and(answered_since)
    }

    /// Returns the targets whose silence is evidence about the uplink. HTTP targets are included only where
    /// there is no other kind: they are applications on servers and are probed seldom.
    pub(super) fn eligible(
        &self,
        responsive: &ResponsiveTargets,
        has_received: bool,
    ) -> Vec<TargetIndex> {
        if self.cannot_send() {
            return Vec::new();
        }
        let indices = 0..self.targets.len();
        let fit = |index: &TargetIndex| {
            self.is_evidence(*index, responsive, has_received) && !self.is_unresponsive(*index)
        };
        indices
            .filter(|s| self.is_frequent(*s))
            .filter(fit)
            .collect()
    }

    /// Returns true if the last probes could not be sent, so that silence is no evidence.
    pub(super) fn cannot_send(&self) -> bool {
        self.unsendable >= MAX_SEND_FAILURES
    }

    /// Returns the number of targets that have answered on this uplink.
    pub(super) fn ever_answered(&self) -> usize {
        let targets = self.targets.iter();
        targets.filter(|state| state.answered.is_some()).count()
    }

    pub(super) fn has_http(&self) -> bool {
        self.targets.iter().any(|state| state.target.is_http())
    }

    pub(super) fn is_frequent(&self, index: TargetIndex) -> bool {
        let is_http = |state: &TargetState| state.target.is_http();
        !is_http(&self.targets[index]) || self.targets.iter().all(is_http)
    }

    /// Returns the target of the next regular probe: an HTTP target when its time has come, every few probes an
    /// unresponsive one, else a responsive one, of the suspect family if there is one.
    pub(super) fn next(
        &mut self,
        now: Instant,
        eligible: &[TargetIndex],
        suspect: Option<bool>,
    ) -> Option<TargetIndex> {
        self.turn = self.turn.wrapping_add(1);
        let mut https = (0..self.targets.len()).filter(|index| !self.is_frequent(*index));
        if self.http_at <= now
            && let Some(index) = https.next()
        {
            self.http_at = now + HTTP_PROBE_INTERVAL;
            return Some(index);
        }
        let often: Vec<TargetIndex> = (0..self.targets.len())
            .filter(|index| self.is_frequent(*index))
            .collect();
        let others = often.iter().filter(|index| !eligible.contains(index));
        let others: Vec<TargetIndex> = others.copied().collect();
        let of_suspect_family: Vec<TargetIndex> = match suspect {
            Some(_) => {
                let mut all = often.clone();
                all.retain(|index| self.family(*index) == suspect);
                all
            }
            None => Vec::new(),
        };
        let (lists, turn) = if !of_suspect_family.is_empty() {
            (&of_suspect_family[..], self.turn)
        } else if eligible.is_empty() {
            (&often[..], self.turn)
        } else if !others.is_empty() && self.turn.is_multiple_of(UNRESPONSIVE_PROBE_RATIO as usize)
        {
            (&others[..], self.turn / UNRESPONSIVE_PROBE_RATIO as usize)
        } else {
            (eligible, self.turn)
        };
        lists.get(turn % lists.len().max(1)).copied()
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_flight.len() < MAX_IN_FLIGHT_PROBES
    }

    pub(super) fn add_in_flight(&mut self, id: ProbeId, probe: InFlightProbe) {
        self.in_flight.insert(id, probe);
    }

    pub(super) fn take_in_flight(&mut self, id: ProbeId) -> Option<InFlightProbe> {
        self.in_flight.remove(&id)
    }

    pub(super) fn in_flight(&self) -> impl Iterator<Item = &InFlightProbe> {
        self.in_flight.values()
    }

    pub(super) fn in_flight_mut(&mut self) -> impl Iterator<Item = &mut InFlightProbe> {
        self.in_flight.values_mut()
    }

    /// Removes and returns one probe that is lost by now.
    pub(super) fn take_lost(&mut self, now: Instant) -> Option<InFlightProbe> {
        let lost = self.in_flight.iter().find(|(_, f)| f.lost_at <= now);
        let id = *lost?.0;
        self.in_flight.remove(&id)
    }

    /// Forgets the probes in flight.
    pub(super) fn forget_in_flight(&mut self) {
        self.in_flight.clear();
    }

    pub(super) fn answered(&mut self, now: Instant, index: TargetIndex) {
        let state = &mut self.targets[index];
        state.answered = Some(now);
        (state.misses, state.missing_since) = (0, None);
        self.sendable();
    }

    pub(super) fn missed(&mut self, probe: &InFlightProbe) {
        self.sendable();
        let state = &mut self.targets[probe.index];
        if state.answered.is_some_and(|at| at >= probe.sent) {
            return;
        }
        state.misses = state.misses.saturating_add(1);
        state.missing_since.get_or_insert(probe.sent);
    }

    pub(super) fn not_sent(&mut self, why: String) {
        self.unsendable = self.unsendable.saturating_add(1);
        self.send_error = Some(why);
    }

    fn sendable(&mut self) {
        (self.unsendable, self.send_error) = (0, None);
    }
}
