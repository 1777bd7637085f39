//! What becomes of the flows of an uplink that nothing gets through any more.
//!
//! Rules, and why:
//! - Nobody is told or moved unless another uplink works: a connection that hangs may come back
//!   with its line, one that was reset does not.
//! - New flows first, running ones after: what is told connects anew at once, and must not meet the
//!   dead uplink again.
//! - What may be a passing state of a device gets a grace by its cause ([`crate::uplink_registry`]): no new flow takes it from the
//!   first moment, what nobody has answered yet is asked again by others, and the rest is told or moved only when that is
//!   over. What comes back as it was loses nothing.
//! - A daemon that starts tells nothing about uplinks that it finds dead by their device: it does
//!   not know what an earlier one told.
//! - A QUIC server that leaves a moved flow unanswered is remembered. Its flows are told, this one
//!   and those that would be moved later.
//! - Where TCP is not to be told (`tcp_reset = false`), nothing is said at all: QUIC and other
//!   datagrams still leave with their next packet from inside.
//! - Connections on an address that is gone are told too: no answer can reach them. At once if there is another one, else
//!   after [`RENEWAL_GRACE`]. One that its device still has (deprecated, or second to a new one) goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use braid_balance::{Evacuated, Family, Flow, KernelTime, Protocol, Release};
use braid_core::UplinkId;

use super::Engine;
use crate::events::EventKind;
use crate::no_migration::NoMigration;
use crate::tables::Tables;
use crate::uplink_registry::{RENEWAL_GRACE, UplinkRecord};
use crate::user_error::UserError;

/// How long a server may leave a moved flow unanswered. Its answer takes one round trip; a client
/// that hears nothing says the same again after two or three.
const MOVED_FLOW_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// How long moved flows are looked after: past the idle time-out of most QUIC connections (30 s),
/// after which a silent one says nothing about its server.
const MOVED_FLOW_CHECK_TIME: Duration = Duration::from_secs(40);
/// IANA's number of TCP.
pub(super) const TCP: Protocol = Protocol(6);

/// A change of the network that is not read yet prolongs a grace period by this at most. The kernel answers late while it takes
/// down network namespaces, and what it has not told yet may be that the uplink is back.
const MAX_UNREAD_GRACE: Duration = Duration::from_secs(2);

/// What was done about dead uplinks.
#[derive(Debug, Default)]
pub(super) struct Failover {
    /// Dead, and their flows were told or moved since they died. At most as many as uplinks.
    evacuated: BTreeSet<UplinkId>,
    /// Dead, and what nobody had answered there was asked again. As many.
    asked_again: BTreeSet<UplinkId>,
    /// Dead by their device when this daemon began. As many.
    inherited: BTreeSet<UplinkId>,
    /// Down by their device, or just back. As many.
    flaps: BTreeMap<UplinkId, Flap>,
    /// Addresses that new flows do not take any more, whose connections are to be told when their
    /// device has them no longer, and not before. At most as many as the devices have addresses.
    stale: Vec<(UplinkId, IpAddr, Instant)>,
    /// The time of the oldest change of the network that no snapshot has shown.
    unread_since: Option<Instant>,
    no_migration: NoMigration,
    /// Until when moved flows are looked after.
    moves_checked_until: Option<Instant>,
}

/// A device that went away, and may be back in a moment as it was.
#[derive(Clone, Copy, Debug)]
struct Flap {
    began: Instant,
    /// It is away; else it is back, and has not shown yet that anything gets through.
    away: bool,
    /// Until when its flows stay.
    until: Instant,
}

/// A flapping line keeps its flows no longer than this.
const MAX_FLAP_GRACE: Duration = Duration::from_secs(3);

/// Interval of looks at an uplink that is back and answers, when it is watched for longer than a grace period.
const ANSWERING_GRACE: Duration = Duration::from_millis(500);

impl Failover {
    /// Takes the uplinks that this daemon finds dead for another daemon's.
    pub fn inherit(&mut self, records: &[UplinkRecord]) {
        let dead = records.iter().filter(|record| record.is_dead());
        self.inherited = dead.map(|record| record.id).collect();
    }

    /// Notes which addresses a change takes away.
    pub fn note_addresses(&mut self, now: Instant, applied: &Tables, tables: &Tables) {
        for (id, address) in tables.lost_addresses(applied) {
            self.stale
                .retain(|(of, old, _)| (*of, *old) != (id, address));
            self.stale.push((id, address, now + RENEWAL_GRACE));
        }
    }

    /// Notes whose device is of no use now, or is just back. What is on an uplink stays as long as it `answers`, however
    /// long that has to go on before new flows take it again.
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
                // It fell silent, which is another matter.
                None => continue,
                // A worse state may be a passing one for a shorter time.
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

    /// When the next grace is over; `None`: there is none.
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

    /// From now on moved flows are looked after.
    pub fn watch_moved_flows(&mut self, now: Instant) {
        self.moves_checked_until = Some(now + MOVED_FLOW_CHECK_TIME);
    }
}

impl Engine {
    /// Notes since when there is a change of the network that no snapshot has shown; `None`: there is none. No grace
    /// period ends meanwhile, for up to 2 s.
    pub fn note_unread(&mut self, since: Option<Instant>) {
        self.failover.unread_since = since;
    }

    /// Whether TCP is told that its uplink is dead.
    pub(super) fn tells(&self, record: &UplinkRecord) -> bool {
        self.settings.config.liveness.tcp_reset && self.is_abandoned(record)
    }

    /// Whether flows leave an uplink because it is dead.
    fn is_abandoned(&self, record: &UplinkRecord) -> bool {
        let flap = self.failover.flaps.get(&record.id);
        record.is_dead()
            && flap.is_none_or(|flap| self.failover.end(flap.until) <= Instant::now())
            && self.registry.has_alternative(record)
            && !self.failover.inherited.contains(&record.id)
    }

    /// Tells or moves what is on dead uplinks, once for each death, and tells what goes by an address
    /// that is gone.
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

    /// Asks again, once for each death, what nobody has answered on an uplink whose grace is not over.
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
            let asked = self.datapath.replay_unanswered(id)?;
            self.failover.asked_again.insert(id);
            tracing::debug!(uplink = %id, ?asked, "what nobody had answered is asked again");
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
        // Also for what has moved by itself before it was looked at.
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
                // Others move by themselves with their next packet.
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

    /// Learns which servers left moved flows unanswered, and tells those flows.
    ///
    /// # Errors
    /// The flows cannot be read or told.
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
        // A change that stays unread for long prolongs nothing later.
        failover.unread_since = Some(began);
        failover.stale[0].2 = began + MAX_UNREAD_GRACE * 2;
        assert_eq!(failover.next(began), Some(began + MAX_UNREAD_GRACE * 2));
        failover.unread_since = None;
        assert_eq!(failover.next(began + MAX_UNREAD_GRACE * 2), None);
    }
}
