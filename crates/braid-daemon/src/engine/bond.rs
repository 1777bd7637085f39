//! The bond as one of the uplinks: joining and leaving while running, its events, its links over the usable
//! uplinks; and the usage of the uplinks' quotas.

use std::time::{Duration, Instant, SystemTime};

use braid_balance::UplinkCounters;
use braid_core::UplinkId;
use braid_host::quota::STORE_INTERVAL;
use braid_host::state_dir::StateDir;
use braid_host::user_error::UserError;
use braid_uplink::{BOND_DEVICE, Snapshot};

use super::Engine;
use crate::bond::{BondChange, BondEvent, BondUplink, State, parse_token};
use crate::config::DatapathKind;
use crate::datapath::no_bond;
use crate::events::EventKind;
use crate::report::BondReport;
use crate::uplinks::quota::Usage;
use crate::uplinks::registry::{FAMILIES, UplinkRecord};

/// Delay until a bond driver that has ended is restarted.
const BOND_RESTART_DELAY: Duration = Duration::from_secs(2);

/// Tier of a link whose uplink's quota is used up: behind every tier that can be configured.
const SPENT_QUOTA_TIER: u8 = u8::MAX;

/// Usage of the quotas.
#[derive(Debug)]
pub(crate) struct Quotas {
    usage: Usage,
    state_dir: StateDir,
    written: (Usage, Instant),
    /// Error of the last write to disk.
    pub unwritten: Option<UserError>,
}

impl Quotas {
    /// Continues from the usage that an earlier daemon stored.
    ///
    /// # Errors
    /// The stored usage cannot be read.
    pub fn open(state_dir: StateDir) -> Result<Quotas, UserError> {
        let usage = Usage::load(&state_dir)?;
        Ok(Quotas {
            written: (usage.clone(), Instant::now()),
            usage,
            state_dir,
            unwritten: None,
        })
    }

    /// Stores the usage if it is time.
    fn write(&mut self, now: Instant) {
        let (before, at) = &self.written;
        if now.saturating_duration_since(*at) < STORE_INTERVAL || before.is_as_used(&self.usage) {
            return;
        }
        self.unwritten = self.usage.store(&self.state_dir).err();
        self.written = (self.usage.clone(), now);
    }
}

impl Engine {
    /// Joins a hub, or retries with the same token.
    ///
    /// # Errors
    /// The token is invalid, another hub was joined, or the disk refuses; then nothing has changed.
    pub fn join_bond(&mut self, token: &str) -> Result<BondReport, UserError> {
        if self.settings.config.datapath.kind == DatapathKind::OpenFlow {
            return Err(no_bond());
        }
        let was_joined = self.bond.is_joined();
        self.bond.join(parse_token(token)?)?;
        if !was_joined {
            let text = "this machine has joined a hub";
            self.events.note(EventKind::BondJoined, None, text, None);
        }
        self.set_bond_going();
        self.bond_report()
    }

    /// Leaves the hub.
    ///
    /// # Errors
    /// The disk or the kernel refused a change.
    pub fn leave_bond(&mut self) -> Result<BondReport, UserError> {
        if !self.bond.leave()? {
            let failure = UserError::new("not-joined", "this machine has joined no hub");
            return Err(failure.fix("braid hub invite NAME, on the hub, prints a token to join by"));
        }
        self.settings.bonded = false;
        let text = "this machine has left its hub";
        self.events.note(EventKind::BondJoined, None, text, None);
        // The kernel reports the removal of the device as well.
        self.look_at_bond_after(Duration::ZERO);
        self.follow_verdicts()?;
        self.bond_report()
    }

    /// Takes over an earlier daemon's bond with its flows, before the datapath learns of this daemon's uplinks.
    pub(super) fn inherit_bond(&mut self, snapshot: &Snapshot) {
        let Some((uplink, why)) = self.bond.inherit(snapshot, Instant::now()) else {
            return;
        };
        self.registry.inherit(&uplink, why, &self.settings);
        self.look_when_given_up();
    }

    /// Starts the bond driver if it should run and does not.
    pub(super) fn set_bond_going(&mut self) {
        let datapath = &self.datapath;
        let lease = || datapath.lease();
        self.bond.set_going(&self.settings, lease);
        self.update_bond_links();
        if matches!(self.bond.state(), State::Stopped(_)) && self.bond.is_joined() {
            self.look_at_bond_after(BOND_RESTART_DELAY);
        }
    }

    /// Handles an event of the bond. The caller reads the network's state afterwards.
    pub fn handle_bond_event(&mut self, event: BondEvent) {
        let before = self.bond.state().word();
        let stopped = matches!(self.bond.state(), State::Stopped(_));
        if stopped && matches!(event, BondEvent::Recheck) {
            self.set_bond_going();
        }
        for told in self.bond.handle_event(Instant::now(), event) {
            match told {
                BondChange::Bond(text) => {
                    let takes = if self.bond.state().is_up() {
                        "up"
                    } else {
                        "down"
                    };
                    tracing::info!(text, takes, "bond");
                    self.events
                        .note(EventKind::Bond, Some(crate::bond::NAME), text, None);
                }
                BondChange::Link(uplink, text) => {
                    tracing::info!(uplink, text, "bond");
                    self.events
                        .note(EventKind::BondLink, Some(&uplink), text, None);
                }
            }
        }
        self.settings.bonded = self.bond.is_accepted();
        let state = self.bond.state();
        match state {
            _ if state.word() == before => {}
            State::Stopped(_) => self.look_at_bond_after(BOND_RESTART_DELAY),
            _ => self.look_when_given_up(),
        }
    }

    /// Schedules a check of a lost bond for the time when its flows have waited long enough.
    fn look_when_given_up(&self) {
        if let State::Lost { patience, .. } = self.bond.state() {
            self.look_at_bond_after(*patience);
        }
    }

    fn look_at_bond_after(&self, pause: Duration) {
        let event = self.bond.events();
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            // A closed channel needs no reminder.
            let _ = event.send(BondEvent::Recheck);
        });
    }

    pub(super) async fn give_bond_addresses(&mut self) -> Result<(), UserError> {
        if !self.bond.is_carried() {
            return Ok(());
        }
        let addresses = self.bond.addresses();
        Ok(self
            .plumbing
            .give_addresses(BOND_DEVICE, &addresses)
            .await?)
    }

    /// Updates the bond's links from the uplinks. A paused one is a link only while it stands in.
    pub(super) fn update_bond_links(&mut self) {
        let stands_in = |record: &UplinkRecord| {
            let mut families = FAMILIES.into_iter();
            families.any(|family| self.registry.stands_in(record, family))
        };
        let uplinks = self
            .registry
            .usable()
            .filter(|record| !record.is_bond() && (record.pause.is_none() || stands_in(record)));
        let uplinks = uplinks.map(|record| self.bond_uplink(record)).collect();
        self.bond.follow_uplinks(uplinks, &self.settings);
    }

    fn bond_uplink(&self, record: &UplinkRecord) -> BondUplink {
        let uplink = &record.uplink;
        let v4 = uplink.v4.as_ref().map(|next_hop| next_hop.address.into());
        let v6 = uplink.v6.as_ref().map(|next_hop| next_hop.address.into());
        let quota = self.settings.quota(&uplink.name);
        BondUplink {
            name: uplink.name.clone(),
            device: uplink.device.clone(),
            sources: v4.into_iter().chain(v6).collect(),
            tier: self.tier(&uplink.name),
            cap: self.settings.capacity(&uplink.name),
            left: quota.map(|quota| self.quotas.usage.left(&uplink.name, quota)),
        }
    }

    /// Returns true if an uplink has used up its quota.
    pub(crate) fn is_spent(&self, name: &str) -> bool {
        let quota = self.settings.quota(name);
        quota.is_some_and(|quota| self.quotas.usage.left(name, quota).get() == 0)
    }

    /// Returns the tier of an uplink; the last one if its quota is used up.
    pub(crate) fn tier(&self, name: &str) -> u8 {
        match self.is_spent(name) {
            true => SPENT_QUOTA_TIER,
            false => self.settings.tier(name),
        }
    }

    /// Adds the traffic of uplinks with a quota to their usage. Returns true if a quota was used up or renewed.
    pub(super) fn note_quotas(&mut self, counters: &[(UplinkId, UplinkCounters)]) -> bool {
        let records = self.registry.records().iter();
        let quotas = records.filter_map(|record| {
            let name = &record.uplink.name;
            Some((record.id, name.clone(), self.settings.quota(name)?))
        });
        let quotas: Vec<_> = quotas.collect();
        if quotas.is_empty() {
            return false;
        }
        let spent = |engine: &Engine| -> Vec<bool> {
            let spent = quotas.iter().map(|(_, name, _)| engine.is_spent(name));
            spent.collect()
        };
        let before = spent(self);
        let now = SystemTime::now();
        let links = self.bond.latest().map(|status| status.links);
        for (id, name, quota) in &quotas {
            let carried = counters.iter().find(|(other, _)| other == id);
            if let Some((_, counters)) = carried {
                let bytes = counters.tx.bytes + counters.rx.bytes;
                self.quotas.usage.note(now, name, *quota, 0, bytes);
            }
            for link in links.iter().flatten() {
                if self.bond.name_of(link.id) == Some(name) {
                    let bytes = link.sent.bytes.get() + link.received.bytes.get();
                    let counter = 1 + u32::from(link.id.0);
                    self.quotas.usage.note(now, name, *quota, counter, bytes);
                }
            }
        }
        self.quotas.write(Instant::now());
        self.update_bond_links();
        before != spent(self)
    }

    /// Returns the usage of an uplink's quota, and the quota, if it has one.
    pub(crate) fn quota_of(&self, name: &str) -> Option<(u64, u64)> {
        let quota = self.settings.quota(name)?;
        Some((self.quotas.usage.of(name).get(), quota.volume.get()))
    }

    /// Stops the bond driver at the end of the daemon: the bond's flows wait for the next one.
    pub fn end_bond(&mut self) {
        self.bond.end();
        if let Err(failure) = self.quotas.usage.store_if_used(&self.quotas.state_dir) {
            tracing::warn!(%failure, "cannot save the use of quotas");
        }
    }
}
