//! Failback: flows that return to an uplink when it works again, by `failback`.
//!
//! Rules, and why:
//! - Flows go back that were moved away from the uplink, or that run on an uplink of a later tier, which was
//!   only used because this one was missing.
//! - A flow whose class cannot take the returned uplink stays: it would only choose another one.
//! - QUIC moves without harm. A TCP connection cannot move, it can only be reset. `move-idle` resets
//!   connections that have been quiet for [`IDLE_CONNECTION_TIME`], because a reset during a transfer loses
//!   data.
//! - Returning too early costs more than returning late. The health monitor's damping decides when an uplink
//!   has returned, not this module.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use braid_balance::{Choice, ClassEntry, Family, Flow, KernelTime, Protocol, Release, Released};
use braid_core::UplinkId;
use braid_host::user_error::UserError;

use super::Engine;
use super::failover::{TCP, plural};
use crate::config::Failback;
use crate::events::EventKind;

/// Time without packets after which a connection counts as idle: longer than any answer that somebody waits
/// for, shorter than the pause after which programs drop a connection themselves.
const IDLE_CONNECTION_TIME: Duration = Duration::from_secs(30);
/// IANA protocol number of UDP.
const UDP: Protocol = Protocol(17);

/// Inputs of the decision whether a flow goes back.
struct FailbackPlan<'a> {
    failback: Failback,
    returned: &'a [UplinkId],
    /// Uplinks of a later tier than the one that returned.
    later: BTreeSet<UplinkId>,
    classes: &'a [ClassEntry],
    now: KernelTime,
}

impl FailbackPlan<'_> {
    fn fate(&self, flow: &Flow) -> Release {
        // After a failback `came_from` is an uplink where the flow does not belong.
        let from = flow.came_from.filter(|_| flow.choice == Choice::Moved);
        let goes = match from {
            Some(from) if self.returned.contains(&from) => self.may_take(flow, &[from]),
            _ => self.later.contains(&flow.uplink) && self.may_take(flow, self.returned),
        };
        if !goes {
            return Release::Keep;
        }
        let idle = self.now.since(flow.last_seen) >= IDLE_CONNECTION_TIME;
        match (flow.protocol, self.failback) {
            (UDP, Failback::MoveQuic) if flow.remote.is_some() => Release::Move,
            (UDP, Failback::MoveIdle) => Release::Move,
            (TCP, Failback::MoveIdle) if idle => Release::Reset,
            _ => Release::Keep,
        }
    }

    /// Returns true if the flow's class gives flows to one of these uplinks.
    fn may_take(&self, flow: &Flow, uplinks: &[UplinkId]) -> bool {
        let family = match flow.inner.is_ipv4() {
            true => Family::V4,
            false => Family::V6,
        };
        let class = self.classes.iter().find(|class| class.id == flow.class);
        class.is_some_and(|class| {
            let slots = match family {
                Family::V4 => &class.v4,
                Family::V6 => &class.v6,
            };
            let takes = |id: &UplinkId| slots.contains(id) || class.prefers == Some(*id);
            uplinks.iter().any(takes)
        })
    }
}

/// The uplinks that work, for finding those that have returned. An uplink that takes flows only because none
/// works does not count.
#[derive(Debug, Default)]
pub(super) struct WorkingUplinks(Option<BTreeSet<UplinkId>>);

impl WorkingUplinks {
    /// Removes uplinks that no longer work.
    pub fn fail(&mut self, now: &BTreeSet<UplinkId>) {
        if let Some(working) = &mut self.0 {
            working.retain(|id| now.contains(id));
        }
    }

    /// Returns the uplinks that work now and did not before. Returns none at first: a start moves nothing.
    pub fn returned(&mut self, now: BTreeSet<UplinkId>) -> Vec<UplinkId> {
        match self.0.replace(now.clone()) {
            Some(before) => now.difference(&before).copied().collect(),
            None => Vec::new(),
        }
    }
}

impl Engine {
    /// Moves flows back to uplinks that returned, as far as the configuration wants it.
    pub(super) fn fail_back(&mut self, returned: &[UplinkId]) -> Result<(), UserError> {
        self.keep_alive_through_hub(returned)?;
        let failback = self.settings.config.failback;
        let moves = matches!(failback, Failback::MoveQuic | Failback::MoveIdle);
        if returned.is_empty() || !moves {
            return Ok(());
        }
        let statuses = self.statuses();
        let first = statuses.iter().filter(|s| returned.contains(&s.id));
        let Some(tier) = first.map(|s| s.tier).min() else {
            return Ok(());
        };
        let later = statuses.iter().filter(|s| s.tier > tier).map(|s| s.id);
        let later: BTreeSet<UplinkId> = later.collect();
        // Sticky clients would take the uplink that took over again.
        self.datapath
            .forget_sticky(|sticky| later.contains(&sticky.uplink))?;
        let plan = FailbackPlan {
            failback,
            returned,
            later,
            classes: self.classes.entries(),
            now: KernelTime::now(),
        };
        let done = self.datapath.release(|flow| plan.fate(flow))?;
        if done != Released::default() {
            self.failover.watch_moved_flows(Instant::now());
            self.log_failback(returned, &done);
        }
        Ok(())
    }

    /// Sends keepalives so that the hub relearns the connections that it translates. Its machine may have
    /// restarted, and where only the remote host has something to send, nothing else would do so.
    fn keep_alive_through_hub(&mut self, returned: &[UplinkId]) -> Result<(), UserError> {
        let mut records = returned.iter().filter_map(|id| self.registry.record(*id));
        if let Some(bond) = records.find(|record| record.is_bond()) {
            let sent = self.datapath.keep_alive(bond.id)?;
            tracing::debug!(sent, "keepalives through the hub");
        }
        Ok(())
    }

    fn log_failback(&mut self, returned: &[UplinkId], done: &Released) {
        let text = format!(
            "{} moved back, {} told",
            plural(done.moved, "flow"),
            plural(done.reset, "idle connection")
        );
        let records = returned.iter().filter_map(|id| self.registry.record(*id));
        let names: Vec<String> = records.map(|record| record.uplink.name.clone()).collect();
        let names = names.join(", ");
        tracing::info!(uplink = names, text, "failback");
        self.events
            .note(EventKind::Failback, Some(&names), text, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_balance::{ClassId, FlowState, LbMethod, Traffic};

    fn flow(protocol: Protocol, uplink: u8, came_from: Option<u8>, class: u8) -> Flow {
        Flow {
            protocol,
            inner: "192.0.0.8:1000".parse().unwrap(),
            remote: Some("198.51.100.1:443".parse().unwrap()),
            outer: "192.0.2.1:1000".parse().unwrap(),
            uplink: UplinkId(uplink),
            state: FlowState::Established,
            assured: true,
            fast: false,
            choice: match came_from {
                Some(_) => Choice::Moved,
                None => Choice::NextSlot,
            },
            class: ClassId(class),
            rule: None,
            came_from: came_from.map(UplinkId),
            created: KernelTime::from_nanos(0),
            last_seen: KernelTime::from_nanos(0),
            tx: Traffic::default(),
            rx: Traffic::default(),
        }
    }

    fn class(id: u8, slots: &[u8]) -> ClassEntry {
        ClassEntry {
            id: ClassId(id),
            lb_method: LbMethod::RoundRobin,
            sticky: None,
            v4: slots.iter().copied().map(UplinkId).collect(),
            v6: vec![],
            prefers: None,
            candidates: vec![],
        }
    }

    /// Uplink 0 has returned, 1 is in its tier, 2 in a later one; class 1 is for 2 alone.
    fn fate(failback: Failback, idle: Duration, flow: &Flow) -> Release {
        let classes = [class(0, &[0, 1]), class(1, &[2])];
        let plan = FailbackPlan {
            failback,
            returned: &[UplinkId(0)],
            later: [UplinkId(2)].into(),
            classes: &classes,
            now: KernelTime::from_nanos(0).after(idle),
        };
        plan.fate(flow)
    }

    #[test]
    fn what_was_moved_away_or_only_stood_in_goes_back() {
        let quic = |failback, flow: &Flow| fate(failback, Duration::ZERO, flow);
        use Failback::{MoveIdle, MoveQuic};
        let (away, stayed) = (flow(UDP, 1, Some(0), 0), flow(UDP, 1, None, 0));
        assert_eq!(quic(MoveQuic, &away), Release::Move);
        assert_eq!(quic(MoveQuic, &stayed), Release::Keep);
        assert_eq!(quic(MoveQuic, &flow(UDP, 2, None, 0)), Release::Move);
        assert_eq!(quic(MoveQuic, &flow(UDP, 2, None, 1)), Release::Keep);
        let mapping = Flow {
            remote: None,
            ..away
        };
        assert_eq!(quic(MoveQuic, &mapping), Release::Keep);
        assert_eq!(quic(MoveIdle, &mapping), Release::Move);
        let back = Flow {
            choice: Choice::Failback,
            ..flow(UDP, 1, Some(0), 0)
        };
        assert_eq!(quic(MoveQuic, &back), Release::Keep);
    }

    #[test]
    fn who_works_again_has_returned_even_if_it_went_before_the_other_half_of_a_change() {
        let set = |ids: &[u8]| ids.iter().copied().map(UplinkId).collect::<BTreeSet<_>>();
        let mut working = WorkingUplinks::default();
        assert_eq!(working.returned(set(&[0, 1])), [], "a start moves nothing");
        working.fail(&set(&[1]));
        assert_eq!(working.returned(set(&[])), [], "none works");
        assert_eq!(working.returned(set(&[0, 1])), [UplinkId(0), UplinkId(1)]);
        working.fail(&set(&[1]));
        assert_eq!(working.returned(set(&[0, 1])), [UplinkId(0)]);
    }

    #[test]
    fn tcp_is_told_only_when_idle_and_asked_for() {
        let tcp = flow(TCP, 2, None, 0);
        assert_eq!(
            fate(Failback::MoveIdle, IDLE_CONNECTION_TIME, &tcp),
            Release::Reset
        );
        let busy = IDLE_CONNECTION_TIME - Duration::from_secs(1);
        assert_eq!(fate(Failback::MoveIdle, busy, &tcp), Release::Keep);
        assert_eq!(
            fate(Failback::MoveQuic, IDLE_CONNECTION_TIME, &tcp),
            Release::Keep
        );
    }
}
