//! The datapath that obeys the engine: eBPF programs in the kernel, or rules of an Open vSwitch bridge.
//!
//! The engine decides which uplinks take flows, and in which shares. It does not know which datapath obeys: this is the
//! one place that tells them apart. Features that a datapath lacks are refused where they are configured
//! (`config/datapath.rs`), so what this module leaves out is never asked for.

#[cfg(not(feature = "openflow"))]
#[path = "no_openflow.rs"]
pub(crate) mod openflow;
#[cfg(feature = "openflow")]
pub(crate) mod openflow;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use braid_balance::{
    Attachments, ClassEntry, ClassId, Counters, Evacuated, Family, Flow, FlowActivity, Fragments,
    HookKind, KernelTime, Lease, MapMemory, Name, Opened, PathCacheEntry, Protocol, RaceSettings,
    RefusedPacket, Release, Released, RuleEntry, ShapeCounters, ShapeEntry, Sticky, SweepReport,
    Upcall, Upcalls, UplinkCounters, UplinkEntry, UplinkForecast,
};
use braid_core::UplinkId;
use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;

pub(crate) use self::openflow::Acceptance;
use self::openflow::{DnsTap, OpenFlow};
use crate::config::{DatapathConfig, DatapathKind, Hook};
use crate::rules::SystemIds;
use crate::user_errors::of_datapath;

/// UDP to this port is QUIC to both datapaths.
pub(crate) const QUIC_PORT: u16 = 443;

/// The datapath at work. Its methods are those of [`braid_balance::Datapath`], which describes them.
pub(crate) enum Datapath {
    /// Programs in the kernel.
    Ebpf(Box<braid_balance::Datapath>),
    /// An Open vSwitch bridge and its controller.
    OpenFlow(Box<OpenFlow>),
}

/// Upcalls of a datapath that has them.
pub(crate) enum UpcallSource {
    /// The ring buffer of the programs.
    Ring(Upcalls),
    /// Copies of answers that a bridge has passed inside.
    Tap(DnsTap),
}

impl UpcallSource {
    /// Returns a descriptor of its own that is readable while there are upcalls.
    pub fn readiness(&self) -> std::io::Result<OwnedFd> {
        match self {
            Self::Ring(ring) => ring.as_fd().try_clone_to_owned(),
            Self::Tap(tap) => tap.readiness(),
        }
    }

    /// Returns the next upcall.
    pub fn next(&mut self) -> Option<Upcall> {
        match self {
            Self::Ring(ring) => ring.next(),
            Self::Tap(tap) => tap.next(),
        }
    }
}

impl Datapath {
    /// Opens the configured datapath, or adopts the one at work.
    ///
    /// # Errors
    /// The kernel or Open vSwitch refuses, or a datapath of the other kind is at work.
    pub async fn open(
        config: &DatapathConfig,
        run_dir: &RunDir,
    ) -> Result<(Self, Opened), UserError> {
        let other = match config.kind {
            DatapathKind::Ebpf => is_bridge_at_work(run_dir),
            DatapathKind::OpenFlow => run_dir.pins().join("datapath").exists(),
        };
        if other {
            let text = "the datapath at work is of another kind than [datapath] kind";
            let fix = "braid down, then braid up; running flows are lost";
            return Err(UserError::new("fixed", text).fix(fix));
        }
        match config.kind {
            DatapathKind::Ebpf => {
                run_dir.mount_bpffs()?;
                let options = ebpf_options(config, run_dir);
                let (datapath, opened) =
                    braid_balance::Datapath::open(&options).map_err(of_datapath)?;
                Ok((Self::Ebpf(Box::new(datapath)), opened))
            }
            DatapathKind::OpenFlow => {
                let (datapath, opened) = OpenFlow::open(config, run_dir).await?;
                Ok((Self::OpenFlow(Box::new(datapath)), opened))
            }
        }
    }

    /// Attaches to exactly these devices.
    pub async fn attach(&mut self, wanted: &Attachments) -> Result<(), UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.attach(wanted).map_err(of_datapath),
            Self::OpenFlow(openflow) => openflow.attach(wanted).await,
        }
    }

    /// Makes the senders that rules name known to a bridge. The programs see them by themselves.
    pub async fn tell_senders(&mut self) -> Result<(), UserError> {
        match self {
            Self::Ebpf(_) => Ok(()),
            Self::OpenFlow(openflow) => openflow.tell_senders().await,
        }
    }

    /// Returns a wait until a bridge follows the last rules; `None`: they hold already.
    pub fn acceptance(&self) -> Option<Acceptance> {
        match self {
            Self::Ebpf(_) => None,
            Self::OpenFlow(openflow) => openflow.acceptance(),
        }
    }

    /// Waits until new flows get uplinks. The programs need no time.
    pub async fn wait_ready(&mut self) -> Result<(), UserError> {
        match self {
            Self::Ebpf(_) => Ok(()),
            Self::OpenFlow(openflow) => openflow.wait_ready().await,
        }
    }

    /// Lets go of the datapath, which works on without this daemon.
    pub fn release_control(&mut self) {
        if let Self::OpenFlow(openflow) = self {
            openflow.release_control();
        }
    }

    /// Returns why new flows get no uplink at the moment; `None`: they do.
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Ebpf(_) => None,
            Self::OpenFlow(openflow) => openflow.problem(),
        }
    }

    /// Returns what is wrong with a bridge although new flows get uplinks, each as a code, a text and the fix.
    pub fn bridge_problems(&self) -> Vec<(&'static str, String, String)> {
        match self {
            Self::Ebpf(_) => Vec::new(),
            Self::OpenFlow(openflow) => openflow.bridge_problems(),
        }
    }

    pub fn set_uplinks(&mut self, uplinks: &[UplinkEntry]) -> Result<(), UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.set_uplinks(uplinks).map_err(of_datapath),
            Self::OpenFlow(openflow) => {
                openflow.set_uplinks(uplinks);
                Ok(())
            }
        }
    }

    pub fn set_classes(&mut self, classes: &[ClassEntry]) -> Result<(), UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.set_classes(classes).map_err(of_datapath),
            Self::OpenFlow(openflow) => {
                openflow.set_classes(classes);
                Ok(())
            }
        }
    }

    /// Returns the slots at work; a bridge's controller does not tell them.
    pub fn class_slots(&self, class: ClassId, family: Family) -> Result<Vec<UplinkId>, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.class_slots(class, family).map_err(of_datapath),
            Self::OpenFlow(_) => Ok(Vec::new()),
        }
    }

    /// Sets the rules; `system` has the paths of their control groups.
    pub fn set_rules(&mut self, rules: &[RuleEntry], system: &SystemIds) -> Result<(), UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.set_rules(rules).map_err(of_datapath),
            Self::OpenFlow(openflow) => {
                openflow.set_rules(rules, system);
                Ok(())
            }
        }
    }

    pub fn limit_clients(&mut self, clients: &[IpAddr]) -> Result<(), UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.limit_clients(clients).map_err(of_datapath),
            Self::OpenFlow(openflow) => {
                openflow.limit_clients(clients);
                Ok(())
            }
        }
    }

    /// Returns true if Open vSwitch carries the flows.
    pub fn is_openflow(&self) -> bool {
        matches!(self, Self::OpenFlow(_))
    }

    /// Replays unanswered flows of some protocols elsewhere. By a bridge, their next packet from inside chooses anew.
    pub fn replay_unanswered(
        &mut self,
        uplink: UplinkId,
        which: impl Fn(Protocol) -> bool,
    ) -> Result<Evacuated, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.replay_unanswered(uplink, which).map_err(of_datapath),
            Self::OpenFlow(_) => Ok(Evacuated::default()),
        }
    }

    pub fn evacuate(
        &mut self,
        uplink: UplinkId,
        resets_tcp: bool,
        survives: impl Fn(IpAddr) -> bool,
    ) -> Result<Evacuated, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf
                .evacuate(uplink, resets_tcp, survives)
                .map_err(of_datapath),
            Self::OpenFlow(openflow) => Ok(openflow.evacuate(uplink, resets_tcp, survives)),
        }
    }

    pub fn release(&mut self, which: impl Fn(&Flow) -> Release) -> Result<Released, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.release(which).map_err(of_datapath),
            Self::OpenFlow(openflow) => Ok(openflow.release(which)),
        }
    }

    pub fn keep_alive(&mut self, uplink: UplinkId) -> Result<usize, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.keep_alive(uplink).map_err(of_datapath),
            Self::OpenFlow(_) => Ok(0),
        }
    }

    pub fn indicate_disruption(
        &mut self,
        uplink: UplinkId,
        active: Duration,
    ) -> Result<usize, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf
                .indicate_disruption(uplink, active)
                .map_err(of_datapath),
            Self::OpenFlow(_) => Ok(0),
        }
    }

    pub fn end_unanswered_moves(
        &mut self,
        older_than: Duration,
        now: KernelTime,
    ) -> Result<Vec<Flow>, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf
                .end_unanswered_moves(older_than, now)
                .map_err(of_datapath),
            Self::OpenFlow(_) => Ok(Vec::new()),
        }
    }

    /// Opens the lease of the bond, which only the programs have.
    pub fn lease(&self) -> Result<Lease, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.lease().map_err(of_datapath),
            Self::OpenFlow(_) => Err(no_bond()),
        }
    }

    pub fn upcalls(&self) -> Result<UpcallSource, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.upcalls().map(UpcallSource::Ring).map_err(of_datapath),
            Self::OpenFlow(openflow) => openflow.upcalls().map(UpcallSource::Tap),
        }
    }

    pub fn sweep(&mut self, now: KernelTime) -> Result<SweepReport, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.sweep(now).map_err(of_datapath),
            Self::OpenFlow(openflow) => Ok(openflow.swept()),
        }
    }

    pub fn flows(&self) -> Result<Vec<Flow>, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.flows().map_err(of_datapath),
            Self::OpenFlow(openflow) => Ok(openflow.flows()),
        }
    }

    pub fn counters(&self) -> Result<Counters, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.counters().map_err(of_datapath),
            Self::OpenFlow(openflow) => Ok(openflow.counters()),
        }
    }

    pub fn uplink_counters(&self) -> Result<Vec<(UplinkId, UplinkCounters)>, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.uplink_counters().map_err(of_datapath),
            Self::OpenFlow(openflow) => Ok(openflow.counters().uplinks),
        }
    }

    /// Returns packets of flows that each uplink has sent and received so far, where [`Datapath::uplink_counters`] knows
    /// them only later.
    pub fn prompt_packets(&mut self) -> BTreeMap<UplinkId, [u64; 2]> {
        match self {
            Self::Ebpf(_) => BTreeMap::new(),
            Self::OpenFlow(openflow) => openflow.prompt_packets(),
        }
    }

    /// Returns the counters by which capacities are measured, where [`Datapath::uplink_counters`] knows less.
    pub fn line_counters(&mut self) -> BTreeMap<UplinkId, UplinkCounters> {
        match self {
            Self::Ebpf(_) => BTreeMap::new(),
            Self::OpenFlow(openflow) => openflow.line_counters(),
        }
    }

    pub fn uplink_devices(&self) -> Result<Vec<(UplinkId, u32)>, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.uplink_devices().map_err(of_datapath),
            Self::OpenFlow(_) => Ok(Vec::new()),
        }
    }

    pub fn capacity(&self) -> Result<u32, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.capacity().map_err(of_datapath),
            Self::OpenFlow(openflow) => Ok(openflow.max_flows()),
        }
    }

    pub fn memory(&self) -> Result<Vec<MapMemory>, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.memory().map_err(of_datapath),
            Self::OpenFlow(_) => Ok(Vec::new()),
        }
    }
}

/// Shaping and fragments, which the programs alone have; names of remotes, sticky clients, races and the path cache.
impl Datapath {
    pub fn learn_names(&mut self, names: &[(IpAddr, Name)]) -> Result<(), UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.learn_names(names).map_err(of_datapath),
            Self::OpenFlow(openflow) => {
                openflow.learn_names(names);
                Ok(())
            }
        }
    }

    pub fn keep_names(&mut self, meaning: u32) -> Result<bool, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.keep_names(meaning).map_err(of_datapath),
            Self::OpenFlow(openflow) => {
                openflow.keep_names(meaning);
                Ok(false)
            }
        }
    }

    pub fn forget_names(&mut self, remotes: &[IpAddr]) -> Result<(), UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.forget_names(remotes).map_err(of_datapath),
            Self::OpenFlow(openflow) => {
                openflow.forget_names(remotes);
                Ok(())
            }
        }
    }

    pub fn snoop_dns(&mut self, wanted: bool) -> Result<(), UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.snoop_dns(wanted).map_err(of_datapath),
            Self::OpenFlow(openflow) => {
                openflow.snoop_dns(wanted);
                Ok(())
            }
        }
    }

    pub fn sticky(&self) -> Result<Vec<Sticky>, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.sticky().map_err(of_datapath),
            Self::OpenFlow(openflow) => Ok(openflow.sticky()),
        }
    }

    pub fn set_shaping(&mut self, entries: &[ShapeEntry]) -> Result<(), UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.set_shaping(entries).map_err(of_datapath),
            Self::OpenFlow(_) => Ok(()),
        }
    }

    pub fn correct_egress_queues(&mut self) -> Result<(), UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.correct_egress_queues().map_err(of_datapath),
            Self::OpenFlow(_) => Ok(()),
        }
    }

    pub fn shaping(&self) -> Result<Vec<ShapeEntry>, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.shaping().map_err(of_datapath),
            Self::OpenFlow(_) => Ok(Vec::new()),
        }
    }

    pub fn shape_counters(&self) -> Result<Vec<(UplinkId, [ShapeCounters; 2])>, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.shape_counters().map_err(of_datapath),
            Self::OpenFlow(_) => Ok(Vec::new()),
        }
    }

    pub fn forget_sticky(&mut self, which: impl Fn(&Sticky) -> bool) -> Result<usize, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.forget_sticky(which).map_err(of_datapath),
            Self::OpenFlow(openflow) => Ok(openflow.forget_sticky(which)),
        }
    }

    pub fn reinject(&mut self, held: &mut Fragments, now: KernelTime) -> Result<usize, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.reinject(held, now).map_err(of_datapath),
            Self::OpenFlow(_) => Ok(0),
        }
    }

    pub fn send_icmp_error(&mut self, refused: &RefusedPacket) -> Result<bool, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.send_icmp_error(refused).map_err(of_datapath),
            Self::OpenFlow(_) => Ok(false),
        }
    }

    pub fn set_race(&mut self, race: RaceSettings) -> Result<(), UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.set_race(race).map_err(of_datapath),
            Self::OpenFlow(openflow) => {
                openflow.set_race(race);
                Ok(())
            }
        }
    }

    pub fn set_forecasts(&mut self, forecasts: &[UplinkForecast]) -> Result<(), UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.set_forecasts(forecasts).map_err(of_datapath),
            Self::OpenFlow(openflow) => {
                openflow.set_forecasts(forecasts);
                Ok(())
            }
        }
    }

    pub fn flow_activity(&self) -> Result<Vec<FlowActivity>, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.flow_activity().map_err(of_datapath),
            Self::OpenFlow(openflow) => Ok(openflow.flow_activity()),
        }
    }

    pub fn path_cache_entry(&self, remote: IpAddr) -> Result<Option<PathCacheEntry>, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.path_cache_entry(remote).map_err(of_datapath),
            Self::OpenFlow(openflow) => Ok(openflow.path_cache_entry(remote)),
        }
    }

    pub fn path_cache(&self) -> Result<Vec<PathCacheEntry>, UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.path_cache().map_err(of_datapath),
            Self::OpenFlow(openflow) => Ok(openflow.path_cache()),
        }
    }

    pub fn restore_path_cache(&mut self, memory: &[PathCacheEntry]) -> Result<(), UserError> {
        match self {
            Self::Ebpf(ebpf) => ebpf.restore_path_cache(memory).map_err(of_datapath),
            Self::OpenFlow(openflow) => {
                openflow.restore_path_cache(memory);
                Ok(())
            }
        }
    }
}

/// Returns true if a bridge of this run directory is at work.
pub(crate) fn is_bridge_at_work(run_dir: &RunDir) -> bool {
    run_dir.openflow_record().exists()
}

/// Returns the error of a bond beside a bridge of Open vSwitch.
pub(crate) fn no_bond() -> UserError {
    let text = "a bond needs the eBPF datapath, and [datapath] kind is \"openflow\"";
    UserError::new("no-bond", text).fix("braid leave, or set kind = \"ebpf\"")
}

fn ebpf_options(config: &DatapathConfig, run_dir: &RunDir) -> braid_balance::Options {
    braid_balance::Options {
        pin_dir: run_dir.pins(),
        hook: match config.hook {
            Hook::Auto => HookKind::Auto,
            Hook::Tcx => HookKind::Tcx,
            Hook::Clsact => HookKind::Clsact,
        },
        coexist: config.coexist,
        max_flows: config.max_flows,
        max_embryonic: config.max_embryonic,
    }
}
