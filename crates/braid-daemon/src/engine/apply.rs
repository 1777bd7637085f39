//! From the roster to the kernel: tables, attachments, routes.

use braid_balance::{Attachments, ClassEntry, ClassId, Family};
use braid_uplink::{Snapshot, Uplink};

use super::Engine;
use crate::failure::Failure;
use crate::plumbing::{Desired, Divert, INNER_V4, INNER_V6};
use crate::roster::walk;
use crate::tables::Tables;

impl Engine {
    /// The first half of a change, which must not wait: who died takes no new flow from now on, and
    /// what is on it is told or moved.
    pub(super) fn steer(&mut self) -> Result<(), Failure> {
        let tables = self.tables();
        let Some(applied) = &self.applied else {
            // A start diverts nothing yet; a restart finds everything in place, and tells nobody.
            self.leaving.inherit(self.roster.members());
            let tables = self.tables();
            return self.set_tables(tables);
        };
        let first = tables.first_half(applied);
        self.leaving.note_addresses(applied, &first);
        self.set_tables(first)?;
        self.leave()
    }

    /// The second half, when everything is ready for it: who is new or back takes flows.
    pub(super) fn settle(&mut self) -> Result<(), Failure> {
        let tables = self.tables();
        let returned = self
            .applied
            .as_ref()
            .map_or_else(Vec::new, |applied| tables.returned(applied));
        self.set_tables(tables)?;
        self.come_back(&returned)
    }

    /// Both halves, after a verdict: devices are as they were.
    pub(super) fn follow_verdicts(&mut self) -> Result<(), Failure> {
        self.steer()?;
        // While a change of the network is not followed to its end, who is new has no program that
        // would translate the answers.
        match self.trouble.reconcile {
            None => self.settle(),
            Some(_) => Ok(()),
        }
    }

    fn tables(&self) -> Tables {
        Tables {
            walk: walk(self.settings.config.policy),
            uplinks: self.roster.entries(|member| self.tells(member)),
            v4: self.roster.slots(Family::V4).to_vec(),
            v6: self.roster.slots(Family::V6).to_vec(),
        }
    }

    fn set_tables(&mut self, tables: Tables) -> Result<(), Failure> {
        if self.applied.as_ref() == Some(&tables) {
            return Ok(());
        }
        self.datapath.set_uplinks(&tables.uplinks)?;
        let applied = self.applied.as_ref();
        if applied.is_none_or(|applied| tables.walks_otherwise(applied)) {
            self.datapath.set_classes(&[ClassEntry {
                id: ClassId::default(),
                walk: tables.walk,
                sticky: None,
                v4: tables.v4.clone(),
                v6: tables.v6.clone(),
            }])?;
        }
        self.applied = Some(tables);
        Ok(())
    }

    pub(super) async fn plumb(&mut self, divert: Divert) -> Result<(), Failure> {
        let usable = || self.roster.usable();
        let desired = Desired {
            inner_v4: INNER_V4,
            inner_v6: INNER_V6,
            uplinks: usable()
                .map(|member| (member.id, member.uplink.clone()))
                .collect(),
            ports: self
                .roster
                .members()
                .iter()
                .map(|member| member.ports.clone())
                .collect(),
            forward: self
                .settings
                .config
                .lan
                .as_ref()
                .is_some_and(|lan| lan.forward),
            divert,
        };
        let plan = self.plumbing.plan(&desired, &self.state.saved).await?;
        if self.state.saved != plan.saved {
            self.state.saved = plan.saved.clone();
            self.state.store(&self.run_dir)?;
        }
        Ok(self.plumbing.apply(&plan).await?)
    }

    pub(super) async fn attachments(&self, snapshot: &Snapshot) -> Result<Attachments, Failure> {
        let steer = self.plumbing.steer_ifindex().await?.ok_or_else(|| {
            Failure::new("plumbing", "braid0 is gone right after it was made")
                .fix("see whether a network manager removes devices that it does not know")
        })?;
        let present = self.roster.members().iter().filter(|member| member.present);
        Ok(Attachments {
            steer,
            uplinks: present.map(|member| member.uplink.ifindex).collect(),
            lans: self.lans(snapshot),
        })
    }

    /// Devices whose clients are served: those named, or on a gateway all that are no uplinks.
    fn lans(&self, snapshot: &Snapshot) -> Vec<u32> {
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
                .map(|link| link.index)
                .collect(),
            None if !is_gateway() => Vec::new(),
            _ => {
                let members = self.roster.members().iter();
                let uplinks: Vec<Uplink> = members.map(|member| member.uplink.clone()).collect();
                braid_uplink::lans(snapshot, &uplinks)
                    .iter()
                    .map(|lan| lan.ifindex)
                    .collect()
            }
        }
    }
}

/// Whether the machine forwards packets already.
fn is_gateway() -> bool {
    [
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/net/ipv6/conf/all/forwarding",
    ]
    .iter()
    .any(|path| std::fs::read_to_string(path).is_ok_and(|value| value.trim() != "0"))
}
