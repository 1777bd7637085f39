//! Failover: the flows of an uplink that has died.
//!
//! A flow is *closed* by a TCP reset to both ends, or for QUIC by "port unreachable" to the inside.
//!
//! Rules, and why:
//! - Flows are closed or moved only if another uplink works: a connection that hangs may come back with its
//!   line, a closed one does not.
//! - New flows first, running ones after: a closed connection reconnects at once and must not meet the dead
//!   uplink again.
//! - States of a device that may be transient get a grace period by their cause ([`crate::uplinks::registry`]).
//!   New flows avoid the uplink at once, unanswered first packets are repeated on other uplinks, and the rest
//!   is closed or moved only after the grace period. An uplink that returns unchanged loses nothing.
//! - A daemon that starts closes nothing on uplinks that it finds dead by their device: it does not know what
//!   an earlier one closed.
//! - A QUIC server that leaves a moved flow unanswered is remembered. This flow and those that would be moved
//!   later are closed.
//! - With `tcp_reset = false` no flow is closed; QUIC and other datagrams still move with their next packet from
//!   inside.
//! - Connections on a lost address are closed too, because no answer can reach them: at once if there is
//!   another address, else after [`RENEWAL_GRACE`]. An address that the device still has (deprecated, or second
//!   to a new one) keeps its connections.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use braid_balance::{Evacuated, Family, Flow, KernelTime, Protocol, Release};
use braid_core::UplinkId;
use braid_host::user_error::UserError;

use super::Engine;
use super::datapath_tables::Tables;
use crate::events::EventKind;
use crate::no_migration::NoMigration;
use crate::uplinks::registry::{RENEWAL_GRACE, UplinkRecord};

/// Time in which a server has to answer a moved flow. Its answer takes one round trip; a client that gets none
/// retransmits after two or three.
const MOVED_FLOW_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for which moved flows are checked: past the idle timeout of most QUIC connections (30 s), after which
/// silence says nothing about the server.
const MOVED_FLOW_CHECK_TIME: Duration = Duration::from_secs(40);
/// IANA protocol number of TCP.
pub(super) const TCP: Protocol = Protocol(6);

/// Longest extension of a grace period by an unread change of the network. The kernel answers late while it
/// takes down network namespaces, and the change may be the return of the uplink.
const MAX_UNREAD_GRACE: Duration = Duration::from_secs(2);

/// State of failover.
#[derive(Debug, Default)]
pub(super) struct Failover {
    /// Dead uplinks whose flows have been closed or moved. At most as many as uplinks.
    evacuated: BTreeSet<UplinkId>,
    /// Dead uplinks whose unanswered flows have been repeated elsewhere. As many.
    asked_again: BTreeSet<UplinkId>,
    /// Uplinks that were dead by their device when this daemon started. As many.
    inherited: BTreeSet<UplinkId>,
    /// Uplinks whose device is down, or just back. As many.
    flaps: BTreeMap<UplinkId, Flap>,
    /// Addresses that new flows no longer take. Their connections are closed once the device has lost the
    /// address. At most as many as the devices have addresses.
    stale: Vec<(UplinkId, IpAddr, Instant)>,
    /// Time of the oldest change of the network that no snapshot has shown.
    unread_since: Option<Instant>,
    no_migration: NoMigration,
    /// Time until which moved flows are checked.
    moves_checked_until: Option<Instant>,
}

/// A device that went away and may soon be back unchanged.
#[derive(Clone, Copy, Debug)]
struct Flap {
    began: Instant,
    /// True while it is away; false once it is back, without proof that packets pass.
    away: bool,
    /// Time until which its flows stay.
    until: Instant,
}

/// Longest grace of a flapping line.
const MAX_FLAP_GRACE: Duration = Duration::from_secs(3);

/// Interval between checks of a returned uplink that answers, when it is watched for longer than a grace
/// period.
const ANSWERING_GRACE: Duration = Duration::from_millis(500);

impl Failover {
    /// Treats the uplinks that this daemon finds dead as handled by an earlier daemon.
    pub fn inherit(&mut self, records: &[UplinkRecord]) {
        let dead = records.iter().filter(|record| record.is_dead());
        self.inherited = dead.map(|record| record.id).collect();
    }

    /// Records the addresses that a change removes.
    pub fn note_addresses(&mut self, now: Instant, applied: &Tables, tables: &Tables) {
        for (id, address) in tables.lost_addresses(applied) {
            self.stale
                .retain(|(of, old, _)| (*of, *old) != (id, address));
            self.stale.push((id, address, now + RENEWAL_GRACE));
        }
    }

    /// Records devices that are unusable now, or just back. Flows stay on an uplink as long as it `answers`,
    /// however long it takes until new flows take it again.
    pub fn note_flaps(
        &mut self,
        now: Instant,
        records: &[UplinkRecord],
        answers: impl Fn(UplinkId) -> bool,
    ) {
        let known = |id: &UplinkId| records.iter().any(|record| record.id == *id);
        self.flaps.retain(|id, _| known(id));
        for record in records {
            let away = record.down.is_some();
            if !away && !record.is_dead() {
                self.flaps.remove(&record.id);
                continue;
            }
            let grace = record.cut.filter(|_| away).unwrap_or(RENEWAL_GRACE);
            let until = now + grace;
            let flap = match self.flaps.get(&record.id) {
                None if away => Flap {
                    began: now,
                    away,
                    until,
                },
                // It fell silent, which the health monitor handles.
                None => continue,
                // A worse state gets the shorter grace.
                Some(flap) if flap.away == away && away => Flap {
                    until: flap.until.min(until),
                    ..*flap
                },
                Some(flap) if flap.away == away && answers(record.id) => Flap {
                    until: flap.until.max(now + ANSWERING_GRACE),
                    ..*flap
                },
                Some(flap) if flap.away == away => *flap,
                Some(flap) => Flap {
                    away,
                    until: until.min(flap.began + MAX_FLAP_GRACE),
                    ..*flap
                },
            };
            self.flaps.insert(record.id, flap);
        }
    }

    /// Returns the end of the next grace period; `None` if there is none.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let flaps = self.flaps.values().map(|flap| flap.until);
        let stale = self.stale.iter().map(|(_, _, until)| *until);
        flaps
            .chain(stale)
            .map(|until| self.end(until))
            .filter(|end| *end > now)
            .min()
    }

    /// Returns the end of a grace period that is over at `until` if everything is read by then.
    fn end(&self, until: Instant) -> Instant {
        self.unread_since
            .map_or(until, |since| until.max(since + MAX_UNREAD_GRACE))
    }

    /// Checks moved flows from now on.
    pub fn watch_moved_flows(&mut self, now: Instant) {
        self.moves_checked_until = Some(now + MOVED_FLOW_CHECK_TIME);
    }
}

impl Engine {
    /// Records since when there is a change of the network that no snapshot has shown, if there is one. No
    /// grace period ends meanwhile, for up to 2 s.
    pub fn note_unread(&mut self, since: Option<Instant>) {
        self.failover.unread_since = since;
    }

    /// Returns true if TCP connections on this uplink are reset because it is dead.
    pub(super) fn tells(&self, record: &UplinkRecord) -> bool {
        self.settings.config.liveness.tcp_reset && self.is_abandoned(record)
    }

    /// Returns true if flows leave this uplink because it is dead.
    fn is_abandoned(&self, record: &UplinkRecord) -> bool {
        let flap = self.failover.flaps.get(&record.id);
        record.is_dead()
            && flap.is_none_or(|flap| self.failover.end(flap.until) <= Instant::now())
            && self.registry.has_alternative(record)
            && !self.failover.inherited.contains(&record.id)
    }

    /// Closes or moves the flows of dead uplinks, once for each death, and closes those on lost addresses.
    pub(super) fn fail_over(&mut self) -> Result<(), UserError> {
        let records = self.registry.records();
        let dead: BTreeSet<UplinkId> = records
            .iter()
            .filter(|record| record.is_dead())
            .map(|record| record.id)
            .collect();
        let failover = &mut self.failover;
        failover.evacuated.retain(|id| dead.contains(id));
        failover.inherited.retain(|id| dead.contains(id));
        failover.asked_again.retain(|id| dead.contains(id));
        let due: Vec<(UplinkId, String)> = records
            .iter()
            .filter(|record| !self.failover.evacuated.contains(&record.id))
            .filter(|record| self.is_abandoned(record))
            .map(|record| (record.id, record.uplink.name.clone()))
            .collect();
        for (id, name) in due {
            self.evacuate(id, &name)?;
        }
        self.repeat_unanswered()?;
        self.abandon_addresses()
    }

    /// Repeats, once for each death, unanswered flows of uplinks in their grace period on other uplinks.
    fn repeat_unanswered(&mut self) -> Result<(), UserError> {
        let failover = &self.failover;
        let waits = |record: &&UplinkRecord| {
            record.is_dead()
                && self.registry.has_alternative(record)
                && ![
                    &failover.evacuated,
                    &failover.inherited,
                    &failover.asked_again,
                ]
                .iter()
                .any(|known| known.contains(&record.id))
        };
        let waiting: Vec<UplinkId> = self
            .registry
            .records()
            .iter()
            .filter(waits)
            .map(|record| record.id)
            .collect();
        for id in waiting {
            let asked = self.datapath.replay_unanswered(id, |_| true)?;
            self.failover.asked_again.insert(id);
            tracing::debug!(uplink = %id, ?asked, "unanswered packets are sent again");
        }
        Ok(())
    }

    fn evacuate(&mut self, id: UplinkId, name: &str) -> Result<(), UserError> {
        let now = Instant::now();
        let no_migration = &self.failover.no_migration;
        let tells = self.settings.config.liveness.tcp_reset;
        let survives = |server| no_migration.survives(server, now);
        let done = self.datapath.evacuate(id, tells, survives)?;
        self.failover.evacuated.insert(id);
        // This covers flows that moved by themselves earlier, too.
        self.failover.watch_moved_flows(now);
        tracing::info!(uplink = name, ?done, "flows left a dead uplink");
        if done != Evacuated::default() {
            let kind = EventKind::Evacuated;
            self.events.note(kind, Some(name), summary(&done), None);
        }
        Ok(())
    }

    fn abandon_addresses(&mut self) -> Result<(), UserError> {
        if !self.settings.config.liveness.tcp_reset {
            self.failover.stale.clear();
        }
        let now = Instant::now();
        let waits = |(id, address, until): &(UplinkId, IpAddr, Instant)| {
            let Some(record) = self.registry.record(*id) else {
                return false;
            };
            let family = match address {
                IpAddr::V4(_) => Family::V4,
                IpAddr::V6(_) => Family::V6,
            };
            record.has_address(*address) || (now < self.failover.end(*until) && !record.has(family))
        };
        let stale = self.failover.stale.iter().copied();
        let (still, stale): (Vec<_>, Vec<_>) = stale.partition(waits);
        if stale.is_empty() {
            return Ok(());
        }
        let released = self.datapath.release(|flow| {
            let of = |(id, address, _): &(UplinkId, IpAddr, Instant)| {
                (*id, *address) == (flow.uplink, flow.outer.ip())
            };
            let gone = stale.iter().any(of);
            match flow.protocol {
                // Other flows move by themselves with their next packet.
                TCP if gone => Release::Reset,
                _ => Release::Keep,
            }
        })?;
        self.failover.stale = still;
        for (id, address, _) in stale {
            let name = self.registry.record(id).map(|m| m.uplink.name.clone());
            let text = format!(
                "{address} is no way out any more, {} told",
                plural(released.reset, "connection")
            );
            tracing::info!(uplink = name, text, "address is gone");
            let kind = EventKind::Evacuated;
            self.events.note(kind, name.as_deref(), text, None);
        }
        Ok(())
    }

    /// Learns which servers left moved flows unanswered, and closes those flows.
    ///
    /// # Errors
    /// The flows cannot be read or closed.
    pub(super) fn check_moved_flows(&mut self) -> Result<(), UserError> {
        let now = Instant::now();
        match self.failover.moves_checked_until {
            Some(until) if now < until => {}
            _ => return Ok(()),
        }
        let ended = self
            .datapath
            .end_unanswered_moves(MOVED_FLOW_ANSWER_TIMEOUT, KernelTime::now())?;
        for server in ended.iter().filter_map(server) {
            if self.failover.no_migration.learn(server, now) {
                tracing::debug!(%server, "does not survive a move");
                let text = "a QUIC server did not answer a moved flow: its flows are told \
                            instead of moved";
                self.events.note(
                    EventKind::ServerNoMigration,
                    None,
                    text,
                    Some(server.to_string()),
                );
            }
        }
        Ok(())
    }
}

fn server(flow: &Flow) -> Option<IpAddr> {
    flow.remote.map(|remote| remote.ip())
}

fn summary(done: &Evacuated) -> String {
    let parts = [
        (done.tcp_reset, "TCP connection", "told"),
        (
            done.tcp_moved,
            "TCP connection attempt",
            "repeated elsewhere",
        ),
        (done.quic_moved, "QUIC connection", "moved"),
        (done.quic_unreachable, "QUIC connection", "told"),
        (done.udp_moved, "question", "repeated elsewhere"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(n, _, _)| *n > 0)
        .map(|(n, what, done)| format!("{} {done}", plural(*n, what)))
        .collect();
    parts.join(", ")
}

pub(super) fn plural(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        _ => format!("{n} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_said_in_words() {
        let done = Evacuated {
            tcp_reset: 1,
            quic_moved: 2,
            ..Evacuated::default()
        };
        let text = "1 TCP connection told, 2 QUIC connections moved";
        assert_eq!(summary(&done), text);
    }

    #[test]
    fn what_is_not_read_yet_prolongs_a_grace_for_a_while() {
        let began = Instant::now();
        let until = began + RENEWAL_GRACE;
        let mut failover = Failover {
            stale: vec![(UplinkId(1), IpAddr::from([192, 0, 2, 1]), until)],
            ..Failover::default()
        };
        assert_eq!(failover.next(began), Some(until));
        failover.unread_since = Some(began + RENEWAL_GRACE / 2);
        assert_eq!(
            failover.next(began),
            Some(began + RENEWAL_GRACE / 2 + MAX_UNREAD_GRACE)
        );
        // A change that stays unread for long extends nothing later.
        failover.unread_since = Some(began);
        failover.stale[0].2 = began + MAX_UNREAD_GRACE * 2;
        assert_eq!(failover.next(began), Some(began + MAX_UNREAD_GRACE * 2));
        failover.unread_since = None;
        assert_eq!(failover.next(began + MAX_UNREAD_GRACE * 2), None);
    }
}
