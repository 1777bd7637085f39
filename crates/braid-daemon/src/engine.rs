//! Puts what is wanted into the kernel: plumbing, programs, uplinks and slots, in an order that
//! never cuts traffic.
//!
//! Rules, and why:
//! - What is about to be changed is on disk before it is changed; see [`crate::state`].
//! - A start on a clean machine is all or nothing. A start on a machine where a datapath is at work
//!   changes nothing that works, also when it fails: the old programs go on carrying the flows.
//! - Tables before programs, programs before rules: traffic is diverted only into what is ready.
//! - A dead uplink leaves the tables before anything else is done, a new one takes flows after
//!   everything else is; see [`Tables::first_half`].

use std::path::Path;

use braid_balance::{Attachments, Datapath, Family, HookKind, KernelTime, Opened, SweepReport};
use braid_core::slots::SlotTable;
use braid_uplink::{Discovery, Rejected, Selection, Snapshot, Uplink, Watch};

use crate::config::Hook;
use crate::failure::Failure;
use crate::health::Trouble;
use crate::plumbing::{Desired, Divert, INNER_V4, INNER_V6, Plumbing, STEER_DEVICE};
use crate::report::UpReport;
use crate::roster::{Change, Roster, walk};
use crate::run_dir::RunDir;
use crate::settings::{Origin, Settings};
use crate::state::State;
use crate::tables::Tables;
use crate::teardown;

/// A running instance.
pub struct Engine {
    pub(crate) settings: Settings,
    /// Where the settings came from and will be read again.
    pub(crate) origin: Origin,
    pub(crate) selection: Selection,
    pub(crate) datapath: Datapath,
    pub(crate) roster: Roster,
    pub(crate) trouble: Trouble,
    /// Candidates that are not uplinks, from the last look.
    pub(crate) passed_over: Vec<Rejected>,
    run_dir: RunDir,
    plumbing: Plumbing,
    state: State,
    /// What the datapath's tables were last set to.
    applied: Option<Tables>,
}

/// A successful start.
pub struct Started {
    /// The running instance.
    pub engine: Engine,
    /// Tells when to [`Engine::reconcile`].
    pub watch: Watch,
    /// What was taken.
    pub report: UpReport,
}

impl Engine {
    /// Starts an instance, or takes over what an earlier daemon left at work. The caller holds the
    /// run directory's lock. `step` is told what goes on.
    ///
    /// # Errors
    /// What stood in the way. On a clean machine everything is undone again.
    pub async fn start(
        settings: Settings,
        origin: Origin,
        run_dir: RunDir,
        mut step: impl FnMut(&str),
    ) -> Result<Started, Failure> {
        let earlier = State::load(&run_dir)?;
        if let Some(state) = &earlier {
            state.check_network()?;
        }
        step("looking for uplinks");
        let selection = settings.selection()?;
        let watch = braid_uplink::watch()?;
        let snapshot = braid_uplink::netlink::read().await?;
        let found = braid_uplink::choose(&snapshot, &selection);
        let clean = earlier.is_none();
        if clean {
            refuse_remains(&snapshot)?;
            found.require_any()?;
        }
        origin.check_found(&settings, &found)?;
        let state = match earlier {
            Some(state) => state,
            None => State::fresh()?,
        };

        let brought_up = Engine::bring_up(
            settings,
            origin,
            selection,
            run_dir.clone(),
            state,
            &snapshot,
            step,
        );
        match brought_up.await {
            Ok((engine, report)) => Ok(Started {
                engine,
                watch,
                report,
            }),
            Err(failure) if clean => {
                if let Err(second) = teardown::remove(&run_dir).await {
                    tracing::warn!(failure = %second, "cannot undo the failed start");
                }
                Err(failure)
            }
            Err(failure) => Err(failure),
        }
    }

    async fn bring_up(
        settings: Settings,
        origin: Origin,
        selection: Selection,
        run_dir: RunDir,
        state: State,
        snapshot: &Snapshot,
        mut step: impl FnMut(&str),
    ) -> Result<(Engine, UpReport), Failure> {
        state.store(&run_dir)?;
        run_dir.mount_bpffs()?;
        step("loading the datapath");
        let (datapath, opened) = Datapath::open(&options(&settings, &run_dir.pins()))?;
        match &opened {
            Opened::Fresh => tracing::info!("datapath loaded"),
            Opened::Adopted => tracing::info!("datapath taken over as it is"),
            Opened::Upgraded { from } => tracing::info!(from, "datapath taken over and upgraded"),
        }
        let at_work = |family| {
            let slots = datapath.slots(family)?;
            Ok::<_, Failure>(SlotTable::found(&slots))
        };
        let (v4, v6) = (at_work(Family::V4)?, at_work(Family::V6)?);
        let mut engine = Engine {
            plumbing: Plumbing::open()?,
            roster: Roster::new(state.uplinks.clone(), v4, v6),
            trouble: Trouble::default(),
            passed_over: Vec::new(),
            applied: None,
            settings,
            origin,
            selection,
            datapath,
            run_dir,
            state,
        };
        step("setting up routes");
        engine.reconcile(snapshot).await?;
        let report = UpReport {
            pid: std::process::id(),
            adopted: opened != Opened::Fresh,
            policy: engine.settings.config.policy,
            uplinks: engine.uplinks()?.uplinks,
            passed_over: engine.passed_over.iter().map(ToString::to_string).collect(),
        };
        Ok((engine, report))
    }

    /// Brings everything in line with what there is now. Costs nothing when nothing has changed.
    ///
    /// # Errors
    /// What the kernel refused. Calling again goes on from there.
    pub async fn reconcile(&mut self, snapshot: &Snapshot) -> Result<(), Failure> {
        let found = braid_uplink::choose(snapshot, &self.selection);
        let changes = self.roster.update(&found, snapshot, &self.settings);
        changes.iter().for_each(tell);
        self.passed_over = self.not_members(found);
        self.remember(&changes)?;
        let tables = self.tables();
        if let Some(applied) = &self.applied {
            // That is what new flows wait for when an uplink died.
            self.set_tables(tables.first_half(applied))?;
        } else {
            // A start diverts nothing yet; a restart finds everything in place.
            self.set_tables(tables.clone())?;
        }
        self.plumb(Divert::AsFound).await?;
        let attachments = self.attachments(snapshot).await?;
        self.datapath.attach(&attachments)?;
        self.set_tables(tables)?;
        self.plumb(Divert::On).await
    }

    /// Stores what the next daemon must know of these changes.
    fn remember(&mut self, changes: &[Change]) -> Result<(), Failure> {
        let renamed = changes.iter().filter_map(|change| match change {
            Change::Renamed(old, new) => Some((old.as_str(), new.as_str())),
            _ => None,
        });
        let saved = self.state.saved.renamed(&renamed.collect::<Vec<_>>());
        if self.state.uplinks == self.roster.remembered() && self.state.saved == saved {
            return Ok(());
        }
        self.state.uplinks = self.roster.remembered().to_vec();
        self.state.saved = saved;
        self.state.store(&self.run_dir)
    }

    /// Removes flows that ended or fell silent, and looks for trouble in the counters.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub fn sweep(&mut self) -> Result<SweepReport, Failure> {
        let report = self.datapath.sweep(KernelTime::now())?;
        self.trouble.note(&self.datapath.counters()?);
        Ok(report)
    }

    fn not_members(&self, found: Discovery) -> Vec<Rejected> {
        let is_member = |rejected: &Rejected| {
            let device = &rejected.candidate.device;
            self.roster
                .members()
                .iter()
                .any(|member| member.uplink.device == *device)
        };
        found
            .rejected
            .into_iter()
            .filter(|rejected| !is_member(rejected))
            .collect()
    }

    fn tables(&self) -> Tables {
        Tables {
            walk: walk(self.settings.config.policy),
            uplinks: self.roster.entries(),
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
            let (datapath, walk) = (&mut self.datapath, tables.walk);
            datapath.set_slots(Family::V4, walk, &tables.v4)?;
            datapath.set_slots(Family::V6, walk, &tables.v6)?;
        }
        self.applied = Some(tables);
        Ok(())
    }

    async fn plumb(&mut self, divert: Divert) -> Result<(), Failure> {
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

    async fn attachments(&self, snapshot: &Snapshot) -> Result<Attachments, Failure> {
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

    /// Devices of `[lan]` that do not exist.
    pub(crate) fn wanted_lans(&self) -> &[String] {
        self.settings
            .config
            .lan
            .as_ref()
            .map_or(&[], |lan| &lan.devices)
    }
}

/// Refuses to build upon what an instance with another run directory left behind: its sysctls would
/// be taken for the machine's own, and nobody could put them back.
fn refuse_remains(snapshot: &Snapshot) -> Result<(), Failure> {
    if snapshot.link_named(STEER_DEVICE).is_none() {
        return Ok(());
    }
    let text = format!("{STEER_DEVICE} exists, and this run directory knows nothing of it");
    Err(Failure::new("remains", text).fix(
        "braid down with the --run-dir it was started with; if that directory is lost, \
         ip link del braid0",
    ))
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

fn options(settings: &Settings, pins: &Path) -> braid_balance::Options {
    let config = &settings.config.datapath;
    braid_balance::Options {
        pin_dir: pins.to_owned(),
        hook: match config.hook {
            Hook::Auto => HookKind::Auto,
            Hook::Tcx => HookKind::Tcx,
            Hook::Clsact => HookKind::Clsact,
        },
        coexist: config.coexist,
        max_flows: config.max_flows,
        max_embryos: config.max_embryos,
    }
}

fn tell(change: &Change) {
    match change {
        Change::Taken(uplink) => tracing::info!(uplink, "uplink taken"),
        Change::Back(uplink) => tracing::info!(uplink, "uplink is back"),
        Change::Gone(uplink, why) => tracing::warn!(uplink, why, "uplink is down"),
        Change::Renamed(old, uplink) => tracing::info!(uplink, old, "uplink has another name"),
        Change::Renumbered(uplink) => tracing::info!(uplink, "uplink has changed"),
        Change::NoRoom(uplink) => tracing::warn!(uplink, "no number left for another uplink"),
    }
}
