//! The running instance: brings the kernel (routes, programs, uplinks, slot tables) in line with the desired
//! state, in an order that never interrupts traffic.
//!
//! Rules, and why:
//! - Changes are recorded on disk before they are made, unless the disk refuses; see `persistence.rs`.
//! - A start on a clean machine is all or nothing. A start where a datapath is at work changes nothing that
//!   works, even if it fails: the old programs keep carrying the flows.
//! - Tables before programs, programs before rules: traffic is only diverted into what is ready.
//! - A dead uplink is withdrawn from the tables before anything else is done; a new one takes flows after
//!   everything else is ready. See [`Tables::withdraw_only`].

mod apply;
mod bond;
mod cached_snapshot;
mod commands;
mod datapath_tables;
mod failback;
mod failover;
mod health_check;
pub(crate) mod incidents;
mod pauses;
mod persistence;
mod race;
mod reload;
mod shaping;
mod start;
mod upcall;
mod upkeep;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use braid_balance::{Flow, KernelTime, Protocol};
use braid_core::app_limited::AppLimitedFlows;
use braid_host::run_dir::RunDir;
use braid_host::state::State;
use braid_host::user_error::UserError;
use braid_uplink::liveness::ProbeResult;
use braid_uplink::{Discovery, NetworkMonitor, Rejected, Selection, Snapshot};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use self::bond::Quotas;
use self::cached_snapshot::CachedSnapshot;
use self::datapath_tables::Tables;
use self::failback::WorkingUplinks;
use self::failover::Failover;
use self::health_check::HealthChecks;
use self::incidents::Incidents;
use self::upcall::UpcallHandler;
use crate::alarms::AlarmMonitor;
use crate::bond::{Bond, BondEvent};
use crate::classes::Classes;
use crate::config::{Settings, SettingsSource};
use crate::connlimit::Limits;
use crate::datapath::Datapath;
use crate::dns_snoop::NameCache;
use crate::events::{Event, EventKind, Events};
use crate::history::History;
use crate::pauses::Pauses;
use crate::plumbing::{Divert, Plumbing};
use crate::report::{FlowCounts, UpReport};
use crate::rules::{CompiledRules, SystemIds};
use crate::runs::Runs;
use crate::uplinks::registry::{Change, FAMILIES, UplinkRecord, UplinkRegistry};
use crate::uplinks::shapers::Shapers;
use crate::uplinks::uplink_forecasts::UplinkForecasts;

/// A flow among all that there have been: an outside port may be used again.
type FlowKey = (KernelTime, Protocol, SocketAddr, Option<SocketAddr>);

/// A running instance.
pub struct Engine {
    pub(crate) settings: Settings,
    /// Number of reloads.
    reloads: u64,
    /// Source of the settings, read again at a reload.
    pub(crate) settings_source: SettingsSource,
    pub(crate) selection: Selection,
    pub(crate) datapath: Datapath,
    pub(crate) registry: UplinkRegistry,
    pub(crate) incidents: Incidents,
    pub(crate) events: Events,
    /// Candidates that are not uplinks, from the last discovery.
    pub(crate) skipped: Vec<Rejected>,
    pub(crate) run_dir: RunDir,
    plumbing: Plumbing,
    state: State,
    /// The tables that were last written to the datapath.
    applied: Option<Tables>,
    pub(crate) classes: Classes,
    health_checks: HealthChecks,
    failover: Failover,
    working: WorkingUplinks,
    upcalls: UpcallHandler,
    pub(crate) limits: Limits,
    /// The machine's own identifiers of things that rules name; looked up at start, at a reload and with each
    /// run.
    system: SystemIds,
    /// Cached list of flows.
    pub(crate) cached_flows: CachedSnapshot<Vec<Flow>>,
    /// Number of flows at the last sweep; none before the first.
    pub(crate) swept_flows: Option<FlowCounts>,
    /// True during a start on a clean machine, when a change that cannot be recorded is not made.
    starting: bool,
    /// The rules as written to the datapath.
    pub(crate) rules: CompiledRules,
    /// Programs that run on one uplink (`braid run`).
    pub(crate) runs: Runs,
    /// Names of remote addresses.
    pub(crate) names: NameCache,
    /// Forecasts of the uplinks.
    pub(crate) forecasts: UplinkForecasts,
    app_limited: AppLimitedFlows<FlowKey>,
    /// Time of the next count of flows for that.
    app_limited_due: Option<Instant>,
    /// Rates that the uplinks are shaped to.
    pub(crate) shapers: Shapers,
    /// The bond, which uses all uplinks at once.
    pub(crate) bond: Bond,
    /// Usage of the uplinks' quotas.
    pub(crate) quotas: Quotas,
    /// Uplinks that are set aside, and rules that are switched off.
    pub(crate) pauses: Pauses,
    /// Alarms.
    pub(crate) alarms: AlarmMonitor,
    /// History of the uplinks.
    pub(crate) history: History,
}

/// A successful start.
pub struct Started {
    /// The running instance.
    pub engine: Engine,
    /// Signals when [`Engine::reconcile`] is due.
    pub watch: NetworkMonitor,
    /// Readable while [`Engine::handle_upcalls`] has work.
    pub notices: OwnedFd,
    /// Results of probes, for [`Engine::handle_probe_result`].
    pub answers: UnboundedReceiver<ProbeResult>,
    /// Events of the bond, for [`Engine::handle_bond_event`].
    pub bond_events: UnboundedReceiver<BondEvent>,
    /// The report of the start.
    pub report: UpReport,
}

impl Engine {
    /// Brings the kernel in line with this snapshot. Cheap if nothing has changed.
    ///
    /// # Errors
    /// The kernel refused a change. Calling again continues from there.
    pub async fn reconcile(&mut self, snapshot: &Snapshot) -> Result<(), UserError> {
        self.give_bond_addresses().await?;
        self.notice(snapshot)?;
        let lans = self.lans(snapshot);
        self.plumb(Divert::AsFound, &lans).await?;
        let attachments = self.attachments(&lans).await?;
        self.datapath.attach(&attachments).await?;
        self.update_shaping()?;
        self.settle()?;
        self.datapath.tell_senders().await?;
        if self.starting {
            // Nothing is diverted into a datapath that is not ready.
            self.datapath.wait_ready().await?;
        }
        self.plumb(Divert::On, &lans).await?;
        self.poll_monitor()
    }

    /// Does the part of [`Engine::reconcile`] that must not wait: dead uplinks take no new flows, and their
    /// flows are closed or moved.
    ///
    /// # Errors
    /// The kernel refused a change. Calling again continues from there.
    pub fn notice(&mut self, snapshot: &Snapshot) -> Result<(), UserError> {
        let mut found = braid_uplink::choose(snapshot, &self.selection);
        self.bond
            .join_discovery(&mut found, snapshot, Instant::now());
        let changes = self.registry.update(&found, snapshot, &self.settings);
        for change in &changes {
            if let Change::Renamed(old, new) = change {
                self.pauses.rename_uplink(old, new);
            }
        }
        self.note_pauses();
        self.skipped = self.not_registered(found);
        self.note_own_addresses(snapshot);
        self.watch_records();
        self.update_bond_links();
        // Neither a slow log nor a full disk may delay this.
        let steered = self.withdraw();
        self.tell(&changes);
        self.remember(&changes);
        steered
    }

    fn not_registered(&self, found: Discovery) -> Vec<Rejected> {
        let is_member = |rejected: &Rejected| {
            let device = &rejected.candidate.device;
            self.registry
                .records()
                .iter()
                .any(|record| record.uplink.device == *device)
        };
        found
            .rejected
            .into_iter()
            .filter(|rejected| !is_member(rejected))
            .collect()
    }

    /// Returns the devices of `[lan]` that do not exist.
    pub(crate) fn wanted_lans(&self) -> &[String] {
        self.settings
            .config
            .lan
            .as_ref()
            .map_or(&[], |lan| &lan.devices)
    }

    /// Returns the status in one line for a service manager.
    #[must_use]
    pub fn summary(&self) -> String {
        let records = self.registry.records();
        let takes = |record: &&UplinkRecord| FAMILIES.iter().any(|family| record.works(*family));
        let mut text = format!(
            "{} of {} uplinks work",
            records.iter().filter(takes).count(),
            records.len()
        );
        for record in records.iter().filter(|record| !takes(record)) {
            let why = match (&record.pause, &record.down) {
                (Some(_), _) => "paused".to_owned(),
                (None, Some(why)) => why.clone(),
                (None, None) => record.verdict().to_string(),
            };
            text.push_str(&format!("; {}: {why}", record.uplink.name));
        }
        text
    }

    /// Returns the uplink of this name.
    ///
    /// # Errors
    /// There is none; the error has the names that there are.
    pub(crate) fn record_named(&self, name: &str) -> Result<&UplinkRecord, UserError> {
        let records = self.registry.records();
        let known = || records.iter().map(|record| record.uplink.name.as_str());
        let found = records.iter().find(|record| record.uplink.name == name);
        found.ok_or_else(|| UserError::unknown_uplink(name, known()))
    }

    /// Lets go of the datapath, which works on.
    pub fn release_datapath(&mut self) {
        self.datapath.release_control();
    }

    /// Logs that the daemon ends and leaves the datapath running.
    pub fn note_end(&mut self) {
        let text = "traffic goes on without it";
        self.events.note(EventKind::Ended, None, text, None);
    }

    /// Returns the events with a number above `after`, oldest first; 0 returns all that are kept.
    #[must_use]
    pub fn events(&self, after: u64) -> Vec<Event> {
        self.events.after(after)
    }

    /// Returns the number of the latest event, as a channel that reports changes.
    #[must_use]
    pub fn latest_event(&self) -> watch::Receiver<u64> {
        self.events.latest()
    }

    fn tell(&mut self, changes: &[Change]) {
        for change in changes {
            let (kind, uplink, text) = match change {
                Change::Taken(uplink) => (EventKind::UplinkTaken, uplink, "taken".to_owned()),
                Change::Back(uplink) => (EventKind::UplinkBack, uplink, "usable again".to_owned()),
                Change::Gone(uplink, why) => (EventKind::UplinkGone, uplink, why.clone()),
                Change::Renamed(old, uplink) => {
                    (EventKind::UplinkRenamed, uplink, format!("was {old}"))
                }
                Change::Renumbered(uplink) => (
                    EventKind::UplinkChanged,
                    uplink,
                    "has another address, gateway, mtu or device".to_owned(),
                ),
                Change::NoRoom(uplink) => (
                    EventKind::NoRoom,
                    uplink,
                    "no number left for another uplink".to_owned(),
                ),
            };
            match change {
                Change::Gone(..) | Change::NoRoom(_) => {
                    tracing::warn!(uplink, text, "uplink is not usable");
                }
                _ => tracing::info!(uplink, text, "uplink changed"),
            }
            self.events.note(kind, Some(uplink), text, None);
        }
    }
}
