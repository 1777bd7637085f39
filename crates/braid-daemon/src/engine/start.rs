//! Start of an instance: on a clean machine, or by taking over from an earlier daemon.

use std::time::Instant;

use braid_balance::{ClassId, Family, MAX_CLASSES, Opened};
use braid_core::UplinkId;
use braid_core::app_limited::AppLimitedFlows;
use braid_core::slots::SlotTable;
use braid_host::run_dir::RunDir;
use braid_host::state::{PreviousState, State, UplinkNumber};
use braid_host::state_dir::StateDir;
use braid_host::user_error::UserError;
use braid_uplink::liveness::ProbeResult;
use braid_uplink::{Selection, Snapshot};
use tokio::sync::mpsc::{self, UnboundedSender};

use super::bond::Quotas;
use super::cached_snapshot::CachedSnapshot;
use super::failback::WorkingUplinks;
use super::failover::Failover;
use super::health_check::HealthChecks;
use super::incidents::Incidents;
use super::upcall::UpcallHandler;
use super::{Engine, Started};
use crate::alarms::AlarmMonitor;
use crate::bond::Bond;
use crate::classes::Classes;
use crate::config::{DatapathKind, Settings, SettingsSource};
use crate::connlimit::Limits;
use crate::datapath::{Datapath, is_bridge_at_work, no_bond};
use crate::dns_snoop::NameCache;
use crate::events::{EventKind, Events};
use crate::history::History;
use crate::path_cache_store::PathCacheSnapshot;
use crate::pauses::Pauses;
use crate::plumbing::{Plumbing, STEER_DEVICE};
use crate::report::UpReport;
use crate::rules::{CompiledRules, SystemIds, check_table_capacity};
use crate::runs::Runs;
use crate::teardown;
use crate::uplinks::registry::{FAMILIES, UplinkRegistry};
use crate::uplinks::shapers::Shapers;
use crate::uplinks::uplink_forecasts::UplinkForecasts;
use crate::user_errors;

impl Engine {
    /// Starts an instance, or takes over the datapath of an earlier daemon. The caller holds the run
    /// directory's lock. `step` is called with the progress.
    ///
    /// # Errors
    /// The cause of the failure. On a clean machine everything is undone again.
    pub async fn start(
        settings: Settings,
        settings_source: SettingsSource,
        run_dir: RunDir,
        state_dir: StateDir,
        mut step: impl FnMut(&str),
    ) -> Result<Started, UserError> {
        let earlier = State::load(&run_dir)?;
        if let PreviousState::State(state) = &earlier {
            state.check_network()?;
        }
        step("looking for uplinks");
        let selection = settings.selection()?;
        let watch = braid_uplink::subscribe().map_err(user_errors::of_uplinks)?;
        let snapshot = braid_uplink::netlink::read()
            .await
            .map_err(user_errors::of_uplinks)?;
        let found = braid_uplink::choose(&snapshot, &selection);
        let clean = match &earlier {
            PreviousState::Nothing => true,
            PreviousState::State(_) => false,
            PreviousState::Broken(_) => !run_dir.pins().exists() && !is_bridge_at_work(&run_dir),
        };
        if clean {
            refuse_remains(&snapshot)?;
            found.require_any().map_err(user_errors::of_uplinks)?;
        }
        settings_source.check_found(&settings, &found)?;
        // A state that is on disk already needs no room there.
        let kept = matches!(earlier, PreviousState::State(_));
        let (state, lost) = match earlier {
            PreviousState::Nothing => (State::fresh()?, None),
            PreviousState::State(state) => (state, None),
            PreviousState::Broken(why) => (State::fresh()?, Some(why)),
        };

        let (tell, answers) = mpsc::unbounded_channel();
        let (bond_events, heard) = mpsc::unbounded_channel();
        let bond = Bond::open(state_dir.clone(), bond_events)?;
        let history = History::open(state_dir.history());
        let pauses = Pauses::open(state_dir.clone());
        let quotas = Quotas::open(state_dir)?;
        let brought_up = Engine::bring_up(
            settings,
            settings_source,
            selection,
            run_dir.clone(),
            state,
            kept,
            lost,
            tell,
            bond,
            quotas,
            pauses,
            history,
            &snapshot,
            step,
        );
        match brought_up.await {
            Ok((engine, report)) => Ok(Started {
                notices: engine
                    .upcalls
                    .readiness()
                    .map_err(|error| UserError::io("listen to the datapath", &error))?,
                engine,
                watch,
                answers,
                bond_events: heard,
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

    #[expect(
        clippy::too_many_arguments,
        reason = "all that a start has found out, which the engine takes over"
    )]
    async fn bring_up(
        mut settings: Settings,
        settings_source: SettingsSource,
        selection: Selection,
        run_dir: RunDir,
        state: State,
        kept: bool,
        lost: Option<String>,
        tell: UnboundedSender<ProbeResult>,
        bond: Bond,
        quotas: Quotas,
        pauses: Pauses,
        history: History,
        snapshot: &Snapshot,
        mut step: impl FnMut(&str),
    ) -> Result<(Engine, UpReport), UserError> {
        if !kept {
            state.store(&run_dir)?;
        }
        step("loading the datapath");
        let (datapath, opened) = Datapath::open(&settings.config.datapath, &run_dir).await?;
        if bond.is_joined() && settings.config.datapath.kind == DatapathKind::OpenFlow {
            return Err(no_bond());
        }
        match &opened {
            Opened::Fresh => tracing::info!("datapath loaded"),
            Opened::Adopted => tracing::info!("datapath taken over as it is"),
            Opened::Upgraded { from } => tracing::info!(from, "datapath taken over and upgraded"),
        }
        let classes = Classes::new(slots_at_work(&datapath)?);
        let runs = Runs::open(run_dir.runs());
        settings.run_rules = runs.rules();
        settings.bonded = bond.is_accepted();
        check_table_capacity(&settings)?;
        settings.paused_rules = pauses.rules().keys().cloned().collect();
        let mut engine = Engine {
            plumbing: Plumbing::open()?,
            registry: UplinkRegistry::new(state.uplinks.clone()),
            incidents: Incidents::default(),
            events: Events::open(run_dir.events()),
            skipped: Vec::new(),
            applied: None,
            classes,
            health_checks: HealthChecks::new(tell),
            failover: Failover::default(),
            working: WorkingUplinks::default(),
            upcalls: UpcallHandler::new(datapath.upcalls()?),
            limits: Limits::default(),
            system: SystemIds::look_up(&settings),
            cached_flows: CachedSnapshot::default(),
            swept_flows: None,
            starting: !kept,
            rules: CompiledRules::default(),
            names: NameCache::new(&settings),
            forecasts: UplinkForecasts::default(),
            app_limited: AppLimitedFlows::default(),
            app_limited_due: None,
            shapers: Shapers::new(Instant::now(), datapath.shaping()?),
            bond,
            quotas,
            pauses,
            alarms: AlarmMonitor::open(run_dir.alarms()),
            history,
            runs,
            reloads: 0,
            settings,
            settings_source,
            selection,
            datapath,
            run_dir,
            state,
        };
        if let Some(why) = lost {
            engine.state.uplinks = numbers(&engine.datapath.uplink_devices()?, snapshot);
            engine.registry.recall(engine.state.uplinks.clone());
            let text = "the state of an earlier daemon could not be read: sysctls will stay as \
                        Braid set them";
            engine
                .events
                .note(EventKind::Problem, None, text, Some(why.clone()));
            engine.incidents.state_error = Some(why);
        }
        engine.follow_names()?;
        // Clients that an earlier daemon limited would stay limited: this one limits nobody yet.
        engine.datapath.limit_clients(&[])?;
        engine.inherit_bond(snapshot);
        step("setting up routes");
        engine.reconcile(snapshot).await?;
        engine.starting = false;
        engine.set_bond_going();
        match opened {
            Opened::Fresh => engine.restore_path_cache()?,
            // The datapath's own path cache is more recent.
            _ => drop(PathCacheSnapshot::take(&engine.run_dir.path_cache())),
        }
        engine.forecasts.note_paths(&engine.datapath.path_cache()?);
        // The first flows may come before the next second.
        let counters = engine.datapath.uplink_counters()?;
        engine.update_forecasts(Instant::now(), &counters)?;
        let text = match &opened {
            Opened::Fresh => "on a clean machine".to_owned(),
            Opened::Adopted => "took over what was at work".to_owned(),
            Opened::Upgraded { from } => format!("took over from version {from}"),
        };
        engine.events.note(EventKind::Started, None, text, None);
        let report = UpReport {
            pid: std::process::id(),
            adopted: opened != Opened::Fresh,
            policy: engine.settings.config.policy,
            uplinks: engine.uplinks()?.uplinks,
            skipped: engine.skipped.iter().map(ToString::to_string).collect(),
        };
        Ok((engine, report))
    }
}

/// Refuses to build on the remains of an instance with another run directory: its sysctls would be taken for
/// the machine's own, and nobody could restore them.
fn refuse_remains(snapshot: &Snapshot) -> Result<(), UserError> {
    if snapshot.link_named(STEER_DEVICE).is_none() {
        return Ok(());
    }
    let text = format!("{STEER_DEVICE} exists, and this run directory knows nothing of it");
    Err(UserError::new("remains", text).fix(
        "braid down with the --run-dir it was started with; if that directory is lost, \
         ip link del braid0",
    ))
}

/// Returns the slot tables that the datapath uses.
fn slots_at_work(datapath: &Datapath) -> Result<Vec<(ClassId, Family, SlotTable)>, UserError> {
    let mut tables = Vec::new();
    for class in (0..MAX_CLASSES).filter_map(|class| u8::try_from(class).ok().map(ClassId)) {
        for family in FAMILIES {
            let slots = datapath.class_slots(class, family)?;
            tables.extend(SlotTable::from_slots(&slots).map(|table| (class, family, table)));
        }
    }
    Ok(tables)
}

/// Returns the uplink numbers of the devices, as far as the kernel has them. A device that is gone is not
/// included: its flows are lost anyway.
fn numbers(devices: &[(UplinkId, u32)], snapshot: &Snapshot) -> Vec<UplinkNumber> {
    let known = devices.iter().filter_map(|(id, ifindex)| {
        let link = snapshot.link(*ifindex)?;
        Some(UplinkNumber {
            index: id.0,
            device: link.name.clone(),
            ifindex: *ifindex,
            failures: 0,
        })
    });
    known.collect()
}
