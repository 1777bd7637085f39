//! The datapath of Open vSwitch: a bridge whose ports are `braid1` and the uplinks, and its controller.
//!
//! The daemon makes the bridge ([`bridge`]), keeps the kernel from answering packets that are the bridge's
//! ([`kernel_filter`]), and runs the controller, `braid-sdn host run` ([`controller`]). It writes the controller the
//! desired state ([`messages`]) and reads its reports. The controller gives each new flow the next slot of the daemon's
//! tables; it works on without the daemon, and rules of flows work on without the controller.
//!
//! The uplinks keep their addresses in the kernel. A userspace bridge (`datapath_type=netdev`) reads frames beside the
//! kernel's own stack, so probes, DHCP and local servers on the uplinks go on whatever happens to the bridge.

mod bridge;
mod controller;
mod device_flows;
mod device_packets;
mod dns_tap;
mod held_answers;
mod kernel_filter;
mod messages;
mod port_filter;
mod quic_replay;
mod recent_items;
mod sender_groups;
mod senders;
mod tracker;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use braid_balance::{
    Attachments, ClassEntry, Counters, Evacuated, Flow, FlowActivity, Layer, Name, Opened,
    PathCacheEntry, Protocol, RaceSettings, Release, Released, RuleEntry, Sticky, SweepReport,
    UplinkCounters, UplinkEntry, UplinkForecast,
};
use braid_core::UplinkId;
use braid_device::Interface;
use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;
use serde::{Deserialize, Serialize};

use self::bridge::{BRIDGE, Bridge};
pub(crate) use self::controller::Acceptance;
use self::controller::Controller;
use self::device_packets::DevicePackets;
use self::dns_tap::DnsSwitch;
pub(crate) use self::dns_tap::DnsTap;
use self::kernel_filter::KernelFilter;
use self::messages::{Desired, ReleasedFlow};
use self::quic_replay::QuicReplay;
use self::sender_groups::SenderGroups;
use self::senders::Senders;
use super::QUIC_PORT;
use crate::config::{DatapathConfig, OpenFlowMode};
use crate::plumbing::{PEER_DEVICE, STEER_DEVICE};
use crate::rules::SystemIds;

/// Time for the bridge to connect to its controller, and for gateways to answer, at a start: on a machine with seven other
/// bridges and two busy processors 15 s were too short.
const READY_TIMEOUT: Duration = Duration::from_secs(45);

/// Time for the controller's program to start.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Packets in one message to the controller, which takes 4 MiB (`MAX_LINE` in `service.py`).
const MAX_LINE_PACKETS: usize = 1024;

const TCP: Protocol = Protocol(6);
const UDP: Protocol = Protocol(17);

/// Contents of the file that says that a bridge is at work, for `braid down`.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    ovs_run_dir: PathBuf,
}

/// The datapath.
pub(crate) struct OpenFlow {
    bridge: Bridge,
    filter: KernelFilter,
    senders: Senders,
    packets: DevicePackets,
    dns: DnsSwitch,
    /// With packet-in alone: flows of a group are not moved.
    quic: Option<QuicReplay>,
    controller: Controller,
    desired: Desired,
    uplinks: Vec<UplinkEntry>,
    rules: Vec<RuleEntry>,
    groups: SenderGroups,
    /// Number of braid0 in the kernel, once it is known.
    steer: Option<u32>,
    max_flows: u32,
    mode: OpenFlowMode,
    log: PathBuf,
    /// True once the bridge has its ports.
    attached: bool,
}

/// Ends the controller and removes the bridge of this run directory. Returns what was undone; finding nothing is success.
///
/// # Errors
/// Open vSwitch or nftables refuses. Calling again continues.
pub(crate) async fn remove(run_dir: &RunDir) -> Result<Vec<String>, UserError> {
    let path = run_dir.openflow_record();
    let record: Record = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            UserError::new("openflow", format!("{}: {error}", path.display()))
                .fix("ovs-vsctl del-br braid-ovs, remove that file, then braid down")
        })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(UserError::io(format!("read {}", path.display()), &error)),
    };
    let mut undone = Vec::new();
    if controller::end(&run_dir.openflow_socket())? {
        undone.push("the controller has ended".to_owned());
    }
    let bridge = Bridge::new(record.ovs_run_dir.clone(), run_dir.path());
    undone.extend(bridge.remove().await?);
    undone.extend(bridge.remove_timeouts().await?);
    tracker::flush(&record.ovs_run_dir);
    undone.extend(kernel_filter::remove().await?);
    undone.extend(senders::remove().await?);
    for file in run_dir.openflow_files() {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(UserError::io(format!("remove {}", file.display()), &error));
            }
            _ => {}
        }
    }
    Ok(undone)
}

impl OpenFlow {
    /// Starts the controller, or finds the one of an earlier daemon. The bridge is made by [`OpenFlow::attach`].
    pub async fn open(
        config: &DatapathConfig,
        run_dir: &RunDir,
    ) -> Result<(Self, Opened), UserError> {
        let bridge = Bridge::new(config.ovs_run_dir.clone(), run_dir.path());
        let adopted = bridge.find().await?;
        let record = Record {
            ovs_run_dir: config.ovs_run_dir.clone(),
        };
        let path = run_dir.openflow_record();
        let text = serde_json::to_string(&record).expect("a path is plain data");
        fs::write(&path, text)
            .map_err(|error| UserError::io(format!("write {}", path.display()), &error))?;
        let controller = Controller::start(run_dir, &bridge.controller_socket())?;
        let quic = match config.openflow_mode {
            OpenFlowMode::PacketIn => Some(QuicReplay::start().map_err(no_packet_socket)?),
            OpenFlowMode::Group => None,
        };
        let datapath = Self {
            bridge,
            filter: KernelFilter::default(),
            senders: Senders::default(),
            packets: DevicePackets::default(),
            dns: DnsSwitch::new().map_err(no_packet_socket)?,
            quic,
            controller,
            desired: Desired::new(config),
            uplinks: Vec::new(),
            rules: Vec::new(),
            groups: SenderGroups::default(),
            steer: None,
            max_flows: config.max_flows,
            mode: config.openflow_mode,
            log: run_dir.openflow_log(),
            attached: adopted,
        };
        let opened = match adopted {
            true => Opened::Adopted,
            false => Opened::Fresh,
        };
        Ok((datapath, opened))
    }

    /// Makes the bridge, with exactly these uplinks as its ports.
    pub async fn attach(&mut self, wanted: &Attachments) -> Result<(), UserError> {
        let present = |entry: &&UplinkEntry| wanted.uplinks.contains(&entry.ifindex);
        let entries: Vec<&UplinkEntry> = self.uplinks.iter().filter(present).collect();
        let mut ports = BTreeMap::new();
        for entry in &entries {
            let device = device_of(entry.ifindex)?;
            check_device(entry, &device)?;
            ports.insert(device, *entry);
        }
        // A userspace bridge sends what it reads: packets must be whole, with complete checksums.
        let steer = Interface::open(STEER_DEVICE)
            .and_then(|interface| interface.switch_off_send_offloads());
        steer.map_err(|error| device_error(STEER_DEVICE, &error))?;
        self.filter.set(&ports).await?;
        self.packets.follow(&entries).map_err(no_packet_counter)?;
        self.steer = Some(wanted.steer);
        self.dns.follow(wanted.steer).map_err(no_packet_socket)?;
        if let Some(quic) = &self.quic {
            quic.follow(wanted.steer).map_err(no_packet_socket)?;
        }
        if !self.attached {
            // The bridge's first attempt to connect succeeds then, and it need not wait for the second.
            self.controller.wait_answer(ANSWER_TIMEOUT).await;
        }
        let mut names: Vec<&str> = ports.keys().map(String::as_str).collect();
        names.push(PEER_DEVICE);
        if self.mode == OpenFlowMode::Group {
            self.bridge.set_timeouts().await?;
        }
        self.bridge.set_ports(&names).await?;
        self.attached = true;
        // The host has its MAC address by now.
        if self.desired.wants_inside() {
            self.send();
        }
        Ok(())
    }

    /// Has the kernel tell the bridge the senders that the rules name.
    pub async fn tell_senders(&mut self) -> Result<(), UserError> {
        match self.steer {
            Some(steer) => self.senders.set(&self.rules, &self.groups, steer).await,
            None => Ok(()),
        }
    }

    /// Returns a wait until the bridge follows what its controller was told last.
    pub fn acceptance(&self) -> Option<Acceptance> {
        let acceptance = self.controller.acceptance(self.desired.revision());
        Some(match self.mode {
            OpenFlowMode::PacketIn => acceptance,
            OpenFlowMode::Group => acceptance.by_switch(self.bridge.ovs_run_dir().to_owned()),
        })
    }

    /// Waits until the controller has rules in the bridge and knows the gateways.
    pub async fn wait_ready(&self) -> Result<(), UserError> {
        let acceptance = self.controller.acceptance(self.desired.revision());
        if acceptance.wait(READY_TIMEOUT).await {
            return Ok(());
        }
        let why = self.controller.problem();
        let text = format!(
            "the OpenFlow controller is not ready: {}",
            why.as_deref().unwrap_or("it is still at work")
        );
        Err(UserError::new("openflow", text).fix(format!("see {}", self.log.display())))
    }

    /// Stops watching the controller, which goes on.
    pub fn release_control(&mut self) {
        self.controller.stop();
    }

    pub fn problem(&self) -> Option<String> {
        self.controller.problem()
    }

    /// Returns what is wrong with the bridge although its controller works, each as a code, a text and the fix.
    pub fn bridge_problems(&self) -> Vec<(&'static str, String, String)> {
        let mut found = Vec::new();
        let foreign = self.controller.foreign_rules();
        if foreign > 0 {
            found.push((
                "openflow-foreign-rules",
                format!("{foreign} rules in the bridge {BRIDGE} are not Braid's: somebody else writes there"),
                format!("ovs-ofctl -O OpenFlow13 dump-flows {BRIDGE}: Braid's cookies begin with 0xb1d0; and ovs-vsctl get-controller {BRIDGE}"),
            ));
        }
        if !self.bridge.is_database_up() {
            found.push((
                "openflow-database",
                "the database of Open vSwitch does not answer: flows go on, and new ones get uplinks, but a change of an uplink's device cannot reach the bridge".to_owned(),
                "start ovsdb-server".to_owned(),
            ));
        }
        if self.controller.is_table_full() {
            found.push((
                "openflow-table-full",
                format!("a table of the bridge {BRIDGE} is full: flows go on, new ones are dropped"),
                format!("ovs-vsctl get bridge {BRIDGE} flow_tables: raise flow_limit, or lower max_flows in [datapath]"),
            ));
        }
        found
    }

    pub fn set_uplinks(&mut self, uplinks: &[UplinkEntry]) {
        self.uplinks = uplinks.to_vec();
        // An uplink without a device has no port either.
        let named = uplinks
            .iter()
            .filter_map(|entry| Some((device_of(entry.ifindex).ok()?, entry)));
        self.desired.set_uplinks(named);
        self.send();
    }

    pub fn set_classes(&mut self, classes: &[ClassEntry]) {
        self.desired.set_classes(classes);
        self.send();
    }

    pub fn set_rules(&mut self, rules: &[RuleEntry], system: &SystemIds) {
        self.rules = rules.to_vec();
        self.groups.set(rules, system);
        self.desired.set_rules(rules, &self.groups);
        self.send();
    }

    pub fn set_race(&mut self, race: RaceSettings) {
        self.desired.set_race(race);
        self.send();
    }

    pub fn set_forecasts(&mut self, forecasts: &[UplinkForecast]) {
        let line = messages::forecasts_line(forecasts);
        self.controller.send_forecasts(line);
    }

    pub fn flow_activity(&self) -> Vec<FlowActivity> {
        self.controller.flow_activity()
    }

    pub fn path_cache(&self) -> Vec<PathCacheEntry> {
        self.controller.path_cache()
    }

    pub fn path_cache_entry(&self, remote: IpAddr) -> Option<PathCacheEntry> {
        self.controller.path_cache_entry(remote)
    }

    pub fn restore_path_cache(&mut self, memory: &[PathCacheEntry]) {
        self.controller.send_paths(messages::paths_line(memory));
    }

    pub fn learn_names(&mut self, names: &[(IpAddr, Name)]) {
        self.controller.learn_names(names);
    }

    /// Has the controller forget all names unless their marks had this meaning before.
    pub fn keep_names(&mut self, meaning: u32) {
        self.controller.keep_names(meaning);
    }

    pub fn forget_names(&mut self, remotes: &[IpAddr]) {
        self.controller.forget_names(remotes);
    }

    /// Has the controller hold answers of name servers, and copies DNS packets of the inside from the next
    /// [`OpenFlow::attach`] on.
    pub fn snoop_dns(&mut self, wanted: bool) {
        self.dns.set_wanted(wanted);
        self.desired.hold_answers(wanted);
        self.send();
    }

    pub fn upcalls(&self) -> Result<DnsTap, UserError> {
        let answers = self.controller.answers();
        self.dns.tap(answers).map_err(no_packet_socket)
    }

    pub fn sticky(&self) -> Vec<Sticky> {
        self.controller.sticky()
    }

    pub fn forget_sticky(&mut self, which: impl Fn(&Sticky) -> bool) -> usize {
        self.controller.forget_sticky(which)
    }

    pub fn limit_clients(&mut self, clients: &[IpAddr]) {
        self.desired.limit_clients(clients);
        self.send();
    }

    fn send(&mut self) {
        if self.desired.wants_inside()
            && let Ok(mac) = Interface::open(STEER_DEVICE).and_then(|steer| steer.mac())
        {
            self.desired.set_inside(mac);
        }
        if let Some((revision, line)) = self.desired.next_line() {
            self.controller.send_desired(revision, line);
        }
    }

    /// Gives the controller the last packets of QUIC flows that may be on this uplink.
    fn replay(&self, quic: &QuicReplay, uplink: UplinkId, survives: impl Fn(IpAddr) -> bool) {
        let mut elsewhere = BTreeSet::new();
        self.controller.for_each_flow(|_, flow| {
            if flow.uplink != uplink && flow.protocol == UDP {
                elsewhere.extend(flow.remote.map(|remote| (flow.inner, remote)));
            }
        });
        // A flow that is younger than the last report may be on any uplink.
        let moves = |inner, remote: SocketAddr| {
            survives(remote.ip()) && !elsewhere.contains(&(inner, remote))
        };
        for packets in quic.take(moves).chunks(MAX_LINE_PACKETS) {
            self.controller.send_command(messages::replay_line(packets));
        }
    }

    /// Returns what leaves a dead uplink, by the last report. The controller acts on [`OpenFlow::set_uplinks`] alone;
    /// it gets the last packets of QUIC flows, and sends again those of flows that have left an uplink.
    pub fn evacuate(
        &self,
        uplink: UplinkId,
        resets_tcp: bool,
        survives: impl Fn(IpAddr) -> bool,
    ) -> Evacuated {
        let mut done = Evacuated::default();
        if let Some(quic) = &self.quic {
            self.replay(quic, uplink, survives);
        }
        self.controller.for_each_flow(|_, flow| {
            if flow.uplink != uplink {
                return;
            }
            match flow.protocol {
                TCP if !flow.assured => done.tcp_moved += 1,
                TCP if resets_tcp => done.tcp_reset += 1,
                UDP if flow.remote.is_some_and(|remote| remote.port() == QUIC_PORT) => {
                    done.quic_moved += 1;
                }
                UDP if !flow.assured => done.udp_moved += 1,
                _ => {}
            }
        });
        done
    }

    /// Has the controller move or reset flows.
    pub fn release(&mut self, which: impl Fn(&Flow) -> Release) -> Released {
        let mut released = Released::default();
        let mut chosen = Vec::new();
        self.controller.for_each_flow(|number, flow| {
            let reset = match (which(flow), flow.protocol) {
                (Release::Reset, TCP) => true,
                (Release::Move, UDP) => false,
                _ => return,
            };
            match reset {
                true => released.reset += 1,
                false => released.moved += 1,
            }
            chosen.push(ReleasedFlow { number, reset });
        });
        if !chosen.is_empty() {
            self.controller.send_release(&chosen);
        }
        released
    }

    pub fn swept(&self) -> SweepReport {
        let mut report = SweepReport::default();
        self.controller.for_each_flow(|_, flow| match flow.assured {
            true => report.established += 1,
            false => report.embryos += 1,
        });
        report
    }

    pub fn flows(&self) -> Vec<Flow> {
        let mut flows = Vec::new();
        self.controller
            .for_each_flow(|_, flow| flows.push(flow.clone()));
        flows
    }

    pub fn counters(&self) -> Counters {
        let known = self.uplinks.iter().map(|entry| entry.id);
        self.controller.counters(known)
    }

    pub fn prompt_packets(&mut self) -> BTreeMap<UplinkId, [u64; 2]> {
        self.packets.counts()
    }

    pub fn line_counters(&mut self) -> BTreeMap<UplinkId, UplinkCounters> {
        self.packets.line_counters()
    }

    pub fn max_flows(&self) -> u32 {
        self.max_flows
    }
}

fn no_packet_socket(error: io::Error) -> UserError {
    UserError::io("copy packets of braid0", &error)
}

fn no_packet_counter(error: io::Error) -> UserError {
    UserError::io("count the packets of the uplinks", &error)
}

fn device_of(ifindex: u32) -> Result<String, UserError> {
    let name = nix::net::if_::if_indextoname(ifindex);
    let name = name.map_err(|errno| {
        UserError::io(
            format!("find the device with index {ifindex}"),
            &errno.into(),
        )
    })?;
    Ok(name.to_string_lossy().into_owned())
}

/// Refuses a device that a userspace bridge cannot serve.
fn check_device(entry: &UplinkEntry, device: &str) -> Result<(), UserError> {
    if entry.layer == Layer::L3 {
        let text =
            format!("uplink on {device}: it has no Ethernet headers, which Open vSwitch needs");
        let fix = "name the other devices in [[uplink]], or set kind = \"ebpf\" in [datapath]";
        return Err(UserError::new("openflow-device", text).fix(fix));
    }
    let merges = Interface::open(device).and_then(|interface| interface.merges_received_packets());
    if merges.map_err(|error| device_error(device, &error))? {
        let text = format!(
            "uplink on {device}: it merges received packets, and Open vSwitch's userspace datapath loses merged ones"
        );
        let fix = format!("ethtool -K {device} gro off lro off");
        return Err(UserError::new("openflow-device", text).fix(fix));
    }
    Ok(())
}

fn device_error(device: &str, error: &braid_device::InterfaceError) -> UserError {
    UserError::io(format!("{device}: {}", error.step), &error.source)
}
