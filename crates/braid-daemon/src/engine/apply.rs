//! From the uplink registry to the kernel: tables, attachments, routes.

use std::time::Instant;

use braid_balance::Attachments;
use braid_core::UplinkId;
use braid_host::user_error::UserError;
use braid_uplink::{Link, Snapshot, Uplink};

use super::Engine;
use super::datapath_tables::Tables;
use super::race::race_settings;
use crate::classes::UplinkStatus;
use crate::config::FirstPackets;
use crate::plumbing::{Bypass, Desired, Divert, INNER_V4, INNER_V6};
use crate::rules::{CompiledRules, SystemIds};

impl Engine {
    /// Applies the first phase of a change, which must not wait: dead uplinks take no new flows from now on,
    /// and their flows are closed or moved.
    pub(super) fn withdraw(&mut self) -> Result<(), UserError> {
        if self.applied.is_none() {
            // A start diverts nothing yet. A restart finds everything in place and closes no flow.
            self.failover.inherit(self.registry.records());
        }
        let now = Instant::now();
        let monitor = &self.health_checks.monitor;
        let answers = |id| monitor.is_answering(id);
        self.failover
            .note_flaps(now, self.registry.records(), answers);
        let tables = self.tables();
        let Some(applied) = &self.applied else {
            return self.set_tables(tables);
        };
        self.working.fail(&self.registry.working());
        let first = tables.withdraw_only(applied);
        self.failover.note_addresses(now, applied, &first);
        self.set_tables(first)?;
        self.fail_over()
    }

    /// Applies the second phase, when everything is ready: new and returned uplinks take flows.
    pub(super) fn settle(&mut self) -> Result<(), UserError> {
        let tables = self.tables();
        self.set_tables(tables)?;
        self.introduce_candidates()?;
        let returned = self.working.returned(self.registry.working());
        self.fail_back(&returned)
    }

    /// Applies both phases after a verdict, when no device has changed.
    pub(super) fn follow_verdicts(&mut self) -> Result<(), UserError> {
        // A paused uplink that stands in for dead ones is a link of the bond as well.
        self.update_bond_links();
        self.withdraw()?;
        // Until a change of the network is fully applied, a new uplink has no program that would translate its
        // answers.
        match self.incidents.reconcile_error {
            None => self.settle(),
            Some(_) => Ok(()),
        }
    }

    fn tables(&mut self) -> Tables {
        let statuses = self.statuses();
        let now = Instant::now();
        let classes = self.classes.update(now, &self.settings, &statuses);
        self.rules = CompiledRules::compile(&self.settings, &self.classes, &self.system);
        Tables {
            uplinks: self.registry.entries(
                |record| self.tells(record),
                |record| self.is_to_send_twice(record.id),
            ),
            classes,
            rules: self.rules.entries().to_vec(),
            race: race_settings(&self.settings),
        }
    }

    /// Returns true if the first packets of an uplink's flows are to be sent twice.
    fn is_to_send_twice(&self, id: UplinkId) -> bool {
        self.settings.config.first_packets == FirstPackets::TwiceIfLossy
            && !self.datapath.is_openflow()
            && self.forecasts.is_lossy(id)
    }

    /// Has uplinks that have begun to lose packets, or have ceased to, send first packets accordingly.
    pub(super) fn follow_losses(&mut self) -> Result<(), UserError> {
        let tables = self.applied.as_ref();
        let mut entries = tables.into_iter().flat_map(|tables| &tables.uplinks);
        match entries.any(|entry| entry.sends_twice != self.is_to_send_twice(entry.id)) {
            true => self.follow_verdicts(),
            false => Ok(()),
        }
    }

    /// Returns the tables that the datapath has; none before the first ones are written.
    pub(crate) fn applied_tables(&self) -> Option<&Tables> {
        self.applied.as_ref()
    }

    /// Looks up the machine's identifiers of things that rules name.
    pub(crate) fn look_up_system(&mut self) {
        self.system = SystemIds::look_up(&self.settings);
    }

    /// Returns true if control groups have changed, so that [`Engine::follow_rules`] has work.
    #[must_use]
    pub fn has_other_cgroups(&self) -> bool {
        self.system.have_other_cgroups(&self.settings)
    }

    /// Returns the status of every uplink.
    pub(crate) fn statuses(&self) -> Vec<UplinkStatus> {
        let load = |id| self.health_checks.line_load(id);
        let tier = |name: &str| self.tier(name);
        self.registry.statuses(&self.settings, tier, load)
    }

    fn set_tables(&mut self, tables: Tables) -> Result<(), UserError> {
        let applied = self.applied.as_ref();
        if applied == Some(&tables) {
            return Ok(());
        }
        if applied.is_none_or(|applied| applied.race != tables.race) {
            self.datapath.set_race(tables.race)?;
        }
        self.datapath.set_uplinks(&tables.uplinks)?;
        match applied {
            Some(applied) if applied.rules == tables.rules => {
                if applied.classes != tables.classes {
                    self.datapath.set_classes(&tables.classes)?;
                }
            }
            Some(applied) => {
                // A reused class number stands for other uplinks now.
                let fresh = tables.new_classes(applied);
                if !fresh.is_empty() {
                    self.datapath
                        .forget_sticky(|sticky| fresh.contains(&sticky.class))?;
                }
                let both = tables.classes_of_both(applied);
                self.datapath.set_classes(&both)?;
                self.datapath.set_rules(&tables.rules, &self.system)?;
                self.datapath.set_classes(&tables.classes)?;
            }
            None => {
                self.datapath.set_classes(&tables.classes)?;
                self.datapath.set_rules(&tables.rules, &self.system)?;
            }
        }
        self.applied = Some(tables);
        Ok(())
    }

    pub(super) async fn plumb(&mut self, divert: Divert, lans: &[Link]) -> Result<(), UserError> {
        // Without `[lan]`, other hosts may route through this machine and need their addresses unchanged.
        let lans = match self.settings.config.lan {
            Some(_) => lans,
            None => &[],
        };
        let usable = || self.registry.usable();
        let desired = Desired {
            inner_v4: INNER_V4,
            inner_v6: INNER_V6,
            uplinks: usable()
                .map(|record| (record.id, record.uplink.clone()))
                .collect(),
            ports: self
                .registry
                .records()
                .iter()
                .map(|record| record.ports.clone())
                .collect(),
            forward: self
                .settings
                .config
                .lan
                .as_ref()
                .is_some_and(|lan| lan.forward),
            lans: lans.iter().map(|lan| lan.name.clone()).collect(),
            bypasses: Bypass::all(&self.settings, &self.system),
            divert,
        };
        let plan = self.plumbing.plan(&desired, &self.state.saved).await?;
        if self.state.saved != plan.saved {
            self.state.saved = plan.saved.clone();
            self.store_state();
            if let (true, Some(failure)) = (self.starting, &self.incidents.persist_error) {
                return Err(failure.clone());
            }
        }
        Ok(self.plumbing.apply(&plan).await?)
    }

    pub(super) async fn attachments(&self, lans: &[Link]) -> Result<Attachments, UserError> {
        let steer = self.plumbing.steer_ifindex().await?.ok_or_else(|| {
            UserError::new("plumbing", "braid0 is gone right after it was made")
                .fix("see whether a network manager removes devices that it does not know")
        })?;
        let present = self
            .registry
            .records()
            .iter()
            .filter(|record| record.present);
        Ok(Attachments {
            steer,
            uplinks: present.map(|record| record.uplink.ifindex).collect(),
            shaped: self
                .shaped_records()
                .map(|record| record.uplink.ifindex)
                .collect(),
            lans: lans.iter().map(|lan| lan.index).collect(),
        })
    }

    /// Returns the devices whose clients are served: those configured, or on a gateway all that are no uplinks.
    pub(super) fn lans(&self, snapshot: &Snapshot) -> Vec<Link> {
        let named = self
            .settings
            .config
            .lan
            .as_ref()
            .map(|lan| lan.devices.as_slice());
        match named {
            Some(devices) if !devices.is_empty() => devices
                .iter()
                .filter_map(|device| snapshot.link_named(device))
                .cloned()
                .collect(),
            None if !is_gateway() => Vec::new(),
            _ => {
                let records = self.registry.records().iter();
                let uplinks: Vec<Uplink> = records.map(|record| record.uplink.clone()).collect();
                braid_uplink::lans(snapshot, &uplinks)
                    .iter()
                    .filter_map(|lan| snapshot.link(lan.ifindex))
                    .cloned()
                    .collect()
            }
        }
    }
}

/// Returns true if the machine already forwards packets.
fn is_gateway() -> bool {
    [
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/net/ipv6/conf/all/forwarding",
    ]
    .iter()
    .any(|path| std::fs::read_to_string(path).is_ok_and(|value| value.trim() != "0"))
}
