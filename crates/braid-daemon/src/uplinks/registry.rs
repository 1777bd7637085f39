//! Registry of uplinks: those present, and earlier ones whose flows are still in the kernel; and the status of
//! each.
//!
//! Pure: takes discoveries and verdicts, and returns the datapath's entries and the status of each uplink for
//! the classes.
//!
//! Rules:
//! - An uplink keeps its number for as long as it is known, also across restarts of the daemon, because flows
//!   in the kernel refer to it.
//! - An uplink that goes away stays listed and keeps its number, without new flows: when it comes back with its
//!   address, its flows continue. Without its device it has no entry in the datapath, because another device
//!   might have its index by then.
//! - An uplink without configuration is its device: if that is renamed, it is the same uplink under another
//!   name (with the weight of that name). A configured uplink is whichever device has the configured name.
//! - A dead uplink takes no new flows, unless there is no better one for that address family: then the verdict
//!   may be wrong, and nothing is lost by trying.
//! - A paused uplink takes none either. If it works and no other line does, it stands in, ahead of dead ones, unless
//!   its pause is forced.

mod epoch;
mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;
use std::time::Duration;

use braid_balance::{Family, Layer, NextHop, UplinkEntry};
use braid_core::{MAX_UPLINKS, UplinkId};
use braid_host::state::UplinkNumber;
use braid_uplink::liveness::{HealthSnapshot, Verdict};
use braid_uplink::{Discovery, Link, LinkState, RejectReason, Snapshot, Uplink};

use crate::classes::{Load, UplinkStatus};
use crate::config::Settings;
use crate::report::Pause;

pub use record::{FAMILIES, UplinkRecord};

/// A change that a user would notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An uplink is used from now on.
    Taken(String),
    /// An uplink is usable again.
    Back(String),
    /// An uplink cannot be used any more; the second text says why.
    Gone(String, String),
    /// An uplink's device was renamed: old name, new name.
    Renamed(String, String),
    /// An uplink has another address, gateway, MTU or device index.
    Renumbered(String),
    /// There is an uplink, but no free number for it.
    NoRoom(String),
}

/// All uplinks of an instance.
#[derive(Clone, Debug, Default)]
pub struct UplinkRegistry {
    records: Vec<UplinkRecord>,
    numbers: Vec<UplinkNumber>,
}

impl UplinkRegistry {
    /// Starts with the numbers that an earlier daemon assigned.
    #[must_use]
    pub fn new(numbers: Vec<UplinkNumber>) -> UplinkRegistry {
        UplinkRegistry {
            records: Vec::new(),
            numbers,
        }
    }

    /// Sets the assigned numbers. For a registry without records.
    pub fn recall(&mut self, numbers: Vec<UplinkNumber>) {
        self.numbers = numbers;
    }

    /// All uplinks, in the order in which they were first seen.
    #[must_use]
    pub fn records(&self) -> &[UplinkRecord] {
        &self.records
    }

    /// Returns the assigned numbers, for the next daemon.
    #[must_use]
    pub fn numbers(&self) -> &[UplinkNumber] {
        &self.numbers
    }

    /// Adds an uplink of an earlier daemon that cannot take new flows yet; `why` is the reason.
    pub fn inherit(&mut self, uplink: &Uplink, why: String, settings: &Settings) {
        self.note(uplink, settings);
        let mut records = self.records.iter_mut();
        if let Some(record) = records.find(|record| record.uplink.device == uplink.device) {
            record.down = Some(why);
        }
    }

    /// Updates the registry from a discovery.
    pub fn update(
        &mut self,
        found: &Discovery,
        snapshot: &Snapshot,
        settings: &Settings,
    ) -> Vec<Change> {
        let mut changes = match settings.config.uplinks.is_empty() {
            true => self.rename(snapshot),
            false => Vec::new(),
        };
        for record in &mut self.records {
            let link = snapshot.link_named(&record.uplink.device);
            record.present = link.is_some();
            if let Some(link) = link {
                // A device that was removed and created again under its old name has another index.
                record.uplink.ifindex = link.index;
            }
            if found
                .uplinks
                .iter()
                .any(|uplink| uplink.device == record.uplink.device)
            {
                continue;
            }
            let device = &record.uplink.device;
            let rejected = found
                .rejected
                .iter()
                .find(|r| r.candidate.device == *device);
            // A device that goes down loses its routes and is then no candidate any more.
            let reason = rejected.map_or_else(|| state_of(link), |r| r.reason.clone());
            record.cut = grace(&reason);
            let why = match rejected {
                None if !settings.selects(device) => "not in the configuration any more".into(),
                _ => reason.to_string(),
            };
            if record.down.as_ref() != Some(&why) {
                changes.push(Change::Gone(record.uplink.name.clone(), why.clone()));
                record.down = Some(why);
            }
        }
        for uplink in &found.uplinks {
            changes.extend(self.note(uplink, settings));
        }
        self.remember_indices();
        self.count_failures();
        changes
    }

    /// Follows devices to their new names, also those of an earlier daemon. An uplink that is gone and whose
    /// name another device has now is forgotten, because the two could not be told apart.
    fn rename(&mut self, snapshot: &Snapshot) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut renamed = Vec::new();
        for known in &mut self.numbers {
            let link = snapshot.link(known.ifindex);
            let Some(link) = link.filter(|link| link.name != known.device) else {
                continue;
            };
            let old = mem::replace(&mut known.device, link.name.clone());
            let records = self.records.iter_mut();
            for record in records.filter(|record| record.id.0 == known.index) {
                record.uplink.device.clone_from(&link.name);
                record.uplink.name.clone_from(&link.name);
            }
            renamed.push((known.index, link.name.clone()));
            changes.push(Change::Renamed(old, link.name.clone()));
        }
        let stays = |id: u8, device: &str| {
            let mut others = renamed.iter().filter(|(other, _)| *other != id);
            others.all(|(_, name)| name != device)
        };
        self.records
            .retain(|record| stays(record.id.0, &record.uplink.device));
        self.numbers
            .retain(|known| stays(known.index, &known.device));
        changes
    }

    /// Stores the device indices, which identify a renamed device while it exists.
    fn remember_indices(&mut self) {
        for record in &self.records {
            let known = self.numbers.iter_mut();
            for known in known.filter(|known| known.index == record.id.0) {
                known.ifindex = match record.present {
                    true => record.uplink.ifindex,
                    false => 0,
                };
            }
        }
    }

    fn note(&mut self, uplink: &Uplink, settings: &Settings) -> Option<Change> {
        let name = uplink.name.clone();
        let known = self
            .records
            .iter_mut()
            .find(|m| m.uplink.device == uplink.device);
        if let Some(record) = known {
            let was_down = record.down.take().is_some();
            record.present = true;
            record.cut = None;
            record.weight = settings.weight(&name);
            record.ports = settings.ports(&name).range();
            let differs = record.uplink != *uplink;
            record.uplink = uplink.clone();
            return match (was_down, differs) {
                (true, _) => Some(Change::Back(name)),
                (false, true) => Some(Change::Renumbered(name)),
                (false, false) => None,
            };
        }
        let Some(id) = self.number(&uplink.device) else {
            return Some(Change::NoRoom(name));
        };
        self.records.push(UplinkRecord {
            id,
            weight: settings.weight(&name),
            ports: settings.ports(&name).range(),
            uplink: uplink.clone(),
            down: None,
            cut: None,
            present: true,
            health: None,
            worked: [false; 2],
            pause: None,
        });
        Some(Change::Taken(name))
    }

    /// Returns the number of a device: the one it had, or the lowest free one, or that of a device known from
    /// an earlier daemon alone.
    fn number(&mut self, device: &str) -> Option<UplinkId> {
        if let Some(known) = self.numbers.iter().find(|known| known.device == device) {
            return Some(UplinkId(known.index));
        }
        let limit = u8::try_from(MAX_UPLINKS).unwrap_or(u8::MAX);
        let free = (0..limit).find(|index| self.numbers.iter().all(|r| r.index != *index));
        let index = free.or_else(|| {
            let idle = |r: &UplinkNumber| self.records.iter().all(|m| m.id.0 != r.index);
            let reused = self.numbers.iter().position(idle)?;
            Some(self.numbers.remove(reused).index)
        })?;
        self.numbers.push(UplinkNumber {
            index,
            device: device.to_owned(),
            ifindex: 0,
            failures: 0,
        });
        Some(UplinkId(index))
    }

    /// Updates the health of every uplink.
    pub fn judge(&mut self, health: impl Fn(UplinkId) -> Option<HealthSnapshot>) {
        for record in &mut self.records {
            record.health = health(record.id);
        }
        self.count_failures();
    }

    /// Sets the pauses of all uplinks, by their names.
    pub fn set_pauses(&mut self, pauses: &BTreeMap<String, Pause>) {
        for record in &mut self.records {
            record.pause = pauses.get(&record.uplink.name).cloned();
        }
    }

    /// Returns the uplink with this number.
    #[must_use]
    pub fn record(&self, id: UplinkId) -> Option<&UplinkRecord> {
        self.records.iter().find(|record| record.id == id)
    }

    /// Returns true if an uplink takes new flows of a family: it works, or it is present and none works for
    /// that family. A dead one takes none at all while another works for any of its families: programs fall
    /// back from one family to the other, and its flows are to leave it.
    #[must_use]
    pub fn carries(&self, record: &UplinkRecord, family: Family) -> bool {
        if record.pause.is_some() {
            return self.stands_in(record, family);
        }
        let any_works = || {
            let mut others = self.records.iter();
            others.any(|other| other.works(family) || self.stands_in(other, family))
        };
        let last_resort = || {
            let judged_well = record.verdict().takes_new_flows();
            !any_works() && (judged_well || !self.has_alternative(record))
        };
        record.down.is_none() && record.has(family) && (record.works(family) || last_resort())
    }

    /// Returns true if a paused uplink takes new flows of a family all the same, because no other line works.
    #[must_use]
    pub fn stands_in(&self, record: &UplinkRecord, family: Family) -> bool {
        let yields = record.pause.as_ref().is_some_and(|pause| !pause.forced);
        yields && record.answers(family) && !self.has_other_line(record)
    }

    /// Returns true if another line works for any family of an uplink. The bond is none: it needs a line itself.
    #[must_use]
    pub fn has_other_line(&self, record: &UplinkRecord) -> bool {
        self.has_other(record, |other, family| {
            !other.is_bond() && other.works(family)
        })
    }

    /// Returns true if the flows of an uplink have somewhere else to go.
    #[must_use]
    pub fn has_alternative(&self, record: &UplinkRecord) -> bool {
        self.has_other(record, |other, family| {
            other.works(family) || self.stands_in(other, family)
        })
    }

    fn has_other(
        &self,
        record: &UplinkRecord,
        takes: impl Fn(&UplinkRecord, Family) -> bool,
    ) -> bool {
        let others = || self.records.iter().filter(|other| other.id != record.id);
        FAMILIES
            .into_iter()
            .any(|family| record.has(family) && others().any(|other| takes(other, family)))
    }

    /// Returns the datapath's entries of all uplinks that have a device. `tells` is true for those whose TCP
    /// connections are reset, `sends_twice` for those that send first packets twice.
    #[must_use]
    pub fn entries(
        &self,
        tells: impl Fn(&UplinkRecord) -> bool,
        sends_twice: impl Fn(&UplinkRecord) -> bool,
    ) -> Vec<UplinkEntry> {
        let entry = |record: &UplinkRecord| UplinkEntry {
            id: record.id,
            ifindex: record.uplink.ifindex,
            layer: match record.uplink.layer {
                braid_uplink::Layer::L2 => Layer::L2,
                braid_uplink::Layer::L3 => Layer::L3,
            },
            mtu: record.uplink.mtu,
            v4: record.uplink.v4.as_ref().map(next_hop),
            v6: record.uplink.v6.as_ref().map(next_hop),
            ports: record.ports.clone(),
            accepts_new: FAMILIES.iter().any(|family| self.carries(record, *family)),
            resets_tcp: tells(record),
            epoch: self.epoch(record),
            leased: record.is_bond() && record.cut.is_none(),
            waits: record.waits_for_hub(),
            sends_twice: sends_twice(record),
        };
        let present = self.records.iter().filter(|record| record.present);
        present.map(entry).collect()
    }

    /// Returns the uplinks that can be used now.
    pub fn usable(&self) -> impl Iterator<Item = &UplinkRecord> {
        self.records.iter().filter(|record| record.down.is_none())
    }

    /// Returns the uplinks that work for some family, without those used only for want of a better one.
    #[must_use]
    pub fn working(&self) -> BTreeSet<UplinkId> {
        let works = |record: &&UplinkRecord| FAMILIES.iter().any(|family| record.works(*family));
        let working = self.records.iter().filter(works);
        working.map(|record| record.id).collect()
    }

    /// Returns the status of every uplink, with its load.
    #[must_use]
    pub fn statuses(
        &self,
        settings: &Settings,
        tier: impl Fn(&str) -> u8,
        load: impl Fn(UplinkId) -> Option<Load>,
    ) -> Vec<UplinkStatus> {
        let status = |record: &UplinkRecord| {
            let carries = |family| self.carries(record, family);
            UplinkStatus {
                id: record.id,
                name: record.uplink.name.clone(),
                up: FAMILIES.into_iter().any(carries),
                degraded: record.verdict() == Verdict::Degraded,
                v4: carries(Family::V4),
                v6: carries(Family::V6),
                tier: tier(&record.uplink.name),
                weight: record.weight,
                capacity: settings.capacity(&record.uplink.name),
                metered: settings.metered(&record.uplink.name),
                bond: record.is_bond(),
                load: load(record.id),
            }
        };
        self.records.iter().map(status).collect()
    }
}

/// Returns the reason that a device that is no candidate cannot be used.
fn state_of(link: Option<&Link>) -> RejectReason {
    match link.map(|link| link.state) {
        None => RejectReason::Missing,
        Some(LinkState::AdminDown) => RejectReason::AdminDown,
        Some(LinkState::NoCarrier) => RejectReason::NoCarrier,
        Some(LinkState::Dormant) => RejectReason::Dormant,
        Some(LinkState::Up) => RejectReason::NoRoute,
    }
}

/// Grace period for a lost carrier: wireless roaming and a replugged cable restore it within this. TCP retransmits after
/// 200 ms at the earliest.
const CARRIER_GRACE: Duration = Duration::from_millis(250);

/// Grace period for a lost address or route: DHCP clients and network managers remove and add both when they renew.
pub const RENEWAL_GRACE: Duration = Duration::from_secs(1);

/// Returns the grace period before flows leave a device in this state; `None` if packets still get through it. A device
/// that is removed has none, because it comes back as another one.
fn grace(reason: &RejectReason) -> Option<Duration> {
    match reason {
        RejectReason::Missing | RejectReason::Lost(_) => Some(Duration::ZERO),
        RejectReason::NoCarrier | RejectReason::Dormant => Some(CARRIER_GRACE),
        RejectReason::AdminDown | RejectReason::NoAddress | RejectReason::NotItsAddress(_) => {
            Some(RENEWAL_GRACE)
        }
        _ => None,
    }
}

fn next_hop<A: Copy + Into<IpAddr>>(next_hop: &braid_uplink::NextHop<A>) -> NextHop<A> {
    NextHop {
        address: next_hop.address,
        gateway: next_hop.gateway,
        on_link: next_hop.on_link,
    }
}
