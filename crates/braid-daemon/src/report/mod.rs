//! The types of the API's answers and of `--json`, described by a JSON schema.

mod alarm;
mod bond;
mod explain;
mod history;
mod measure;
mod path;
mod pause;
mod run;
mod web;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use braid_alarm::Message;
use braid_host::report::{ErrorReport, HealthProblem};
use braid_host::web::{SessionReport, TokenReport, TokenRequest};
use schemars::{JsonSchema, Schema, schema_for};
use serde::{Deserialize, Serialize};

use crate::config::{Config, Policy};
use crate::doctor::Finding;
use crate::events::Event;

pub use alarm::{
    AlarmReport, AlarmTarget, AlarmTestQuestion, AlarmTestReport, AlarmTestResult, AlarmsReport,
    FailingDestination,
};
pub use bond::{
    BondLinkReport, BondLinkState, BondPacketsReport, BondReport, BondState, JoinRequest,
};
pub use explain::{
    Candidate, ExplainQuestion, ExplainReport, ExplainsReport, FlowLinkShare, FlowLinksReport,
    Outcome, ReservationReport, Stage, Step,
};
pub use history::{
    HistoryCapacity, HistoryPoint, HistoryQuestion, HistoryReport, RecordedTrace, RecordingReport,
};
pub use measure::{
    FailedMeasurement, MeasureReport, MeasuredDirection, MeasurementMethod, MeasurementReport,
    MeasurementRequest,
};
pub use path::{DestinationReport, PathReport, PathsReport};
pub use pause::{
    Pause, PauseOrigin, RulePauseRequest, RuleReport, RulesReport, UplinkPauseRequest,
};
pub use run::{RunRequest, RunsReport};
pub use web::{LookupQuestion, LookupReport};

/// Answer to `GET /v1/uplinks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UplinksReport {
    /// Every uplink, in the order in which they were taken.
    pub uplinks: Vec<UplinkReport>,
}

/// One uplink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UplinkReport {
    /// Name.
    pub name: String,
    /// Network device.
    pub device: String,
    /// Number in the datapath; stable while the uplink is known.
    pub id: u8,
    /// Layer of the frames on its device.
    pub layer: LayerName,
    /// State, which says whether new flows may take it.
    pub state: UplinkState,
    /// Preference: the lowest tier with an uplink that is up is used. 1 by default.
    pub tier: u8,
    /// Round-trip time, in milliseconds: the mean of its TCP traffic (handshakes, and timestamps in flows that move data)
    /// over ten seconds, or the smoothed one of probes where there is no traffic; none before the first answer.
    pub rtt_ms: Option<f64>,
    /// Evidence for `rtt_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_known: Option<KnownReport>,
    /// Mean difference of one round trip to the next, in milliseconds: of the same flow over ten seconds, or of the last 16
    /// probes; none before there are two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<f64>,
    /// Evidence for `jitter_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_known: Option<KnownReport>,
    /// Fraction lost, 0 to 1: of the TCP segments with data over ten seconds if there were a hundred of them, or of the last 20
    /// probes; none before either. Reordering is counted as loss.
    pub loss: Option<f64>,
    /// Evidence for `loss`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_known: Option<KnownReport>,
    /// True if the first packets of its flows are sent twice, since it loses packets.
    pub sends_twice: bool,
    /// Smoothed round-trip time of probes, in milliseconds, or of handshakes where no probe is answered: that by which health
    /// and alarms are judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_rtt_ms: Option<f64>,
    /// Fraction of the last 20 probes without an answer, 0 to 1: that by which health and alarms are judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_loss: Option<f64>,
    /// MTU: largest IP packet, in bytes.
    pub mtu: u32,
    /// Source address and next hop for IPv4, if it has one.
    pub ipv4: Option<NextHopReport<Ipv4Addr>>,
    /// Source address and next hop for IPv6, if it has one.
    pub ipv6: Option<NextHopReport<Ipv6Addr>>,
    /// Relative weight; 1 if the policy treats all uplinks alike.
    pub weight: u32,
    /// Rate sent over the last second, IP headers included; none before it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_bit_s: Option<u64>,
    /// Rate received over the last second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_bit_s: Option<u64>,
    /// Capacity to send, as measured from its own traffic or by `braid measure`; none before either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_capacity: Option<CapacityReport>,
    /// The same to receive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_capacity: Option<CapacityReport>,
    /// Shaping of the packets sent; none without `[shape]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_shaping: Option<ShapingReport>,
    /// The same of those received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_shaping: Option<ShapingReport>,
    /// Fraction of new flows that the slot table gives it, 0 to 1. Taken from the IPv4 table if there
    /// is one, else from the IPv6 table.
    pub share: f64,
    /// Bytes sent through it, IP headers included.
    pub tx_bytes: u64,
    /// Bytes received through it for flows of the datapath, IP headers included.
    pub rx_bytes: u64,
    /// Packets sent through it.
    pub tx_packets: u64,
    /// Packets received through it for flows of the datapath.
    pub rx_packets: u64,
    /// Flows opened on it.
    pub flows_opened: u64,
    /// Bytes of its quota used, in both directions and including the bond's; none without a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_used_bytes: Option<u64>,
    /// Quota for the day or the month, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// TCP packets with data seen on it, in both directions.
    pub data_packets: u64,
    /// Signs of loss among those: retransmissions from inside, gaps from outside. Reordering is counted
    /// as loss.
    pub lost_packets: u64,
    /// Time of the last change of its state, in milliseconds since 1970; none if that is no longer known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_unix_ms: Option<u64>,
    /// Its pause, if somebody has set it aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// Evidence for the state.
    pub why: String,
}

impl UplinkReport {
    /// Returns true if new flows are put on it by its state, or because it stands in although it is paused.
    #[must_use]
    pub fn takes_new_flows(&self) -> bool {
        self.state.takes_new_flows() || (self.state == UplinkState::Paused && self.share > 0.0)
    }
}

/// Evidence for a measured value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnownReport {
    /// The kind of evidence.
    pub basis: QualityBasisName,
    /// Milliseconds since its last sample.
    pub age_ms: u64,
}

/// The evidence for a round trip, jitter or loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QualityBasisName {
    /// The uplink's own flows.
    Traffic,
    /// Probes.
    Probes,
}

/// Measured capacity of one direction of an uplink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CapacityReport {
    /// The capacity, or a lower bound of it, in bits per second, IP headers included.
    pub rate_bit_s: u64,
    /// The way in which it is known.
    pub basis: CapacityBasisName,
    /// Expected error as a fraction of the rate, 0 to 1; it grows with the age. 1 for a lower bound.
    pub error: f64,
    /// Milliseconds since it was last measured.
    pub age_ms: u64,
    /// The estimate of the other method, if both have measured; the later one is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<Box<CapacityReport>>,
}

/// Shaping of one direction of an uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShapingReport {
    /// The rate that it is shaped to, in bits per second, IP headers included; none before a capacity was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bit_s: Option<u64>,
    /// Packets dropped because they were above it.
    pub dropped_packets: u64,
    /// Packets that got a congestion mark instead (RFC 3168).
    pub marked_packets: u64,
}

/// The way in which a capacity is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CapacityBasisName {
    /// A queue stood at the uplink while this rate was carried.
    Saturated,
    /// It carried this rate and may carry more.
    AtLeast,
    /// `braid measure` made a transfer to measure it.
    Transfer,
    /// `braid measure` sent trains of packets to measure it.
    Dispersion,
}

/// Layer of the frames on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LayerName {
    /// Frames with an Ethernet header.
    L2,
    /// Bare IP packets.
    L3,
}

/// State of an uplink. `why` has the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UplinkState {
    /// Takes new flows.
    Up,
    /// Takes fewer new flows than its share, because it loses or delays too many packets.
    Degraded,
    /// Takes none, although it works: a preferred uplink does, failback holds it back, or it is not set up yet.
    Standby,
    /// Takes none: a captive portal answers instead of the internet.
    Portal,
    /// Takes none: its device is fine but no target answers.
    Dead,
    /// Takes none: its device cannot carry packets.
    Down,
    /// Takes none, unless no other works: somebody has set it aside (`braid uplink pause`).
    Paused,
}

impl UplinkState {
    /// Returns true if new flows are put on it.
    #[must_use]
    pub fn takes_new_flows(self) -> bool {
        matches!(self, UplinkState::Up | UplinkState::Degraded)
    }

    /// Returns its name in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            UplinkState::Up => "up",
            UplinkState::Degraded => "degraded",
            UplinkState::Standby => "standby",
            UplinkState::Portal => "portal",
            UplinkState::Dead => "dead",
            UplinkState::Down => "down",
            UplinkState::Paused => "paused",
        }
    }
}

/// Source address and next hop of an uplink for one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NextHopReport<A> {
    /// Source address of translated flows.
    pub address: A,
    /// Next hop; none on a point-to-point link.
    pub gateway: Option<A>,
}

/// Answer to `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Policy for new flows.
    pub policy: Policy,
    /// Every uplink.
    pub uplinks: Vec<UplinkReport>,
    /// The bond; none on a machine that has joined no hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bond: Option<BondReport>,
    /// Number of flows.
    pub flows: FlowCounts,
    /// Packets per exit reason of the datapath since it was loaded.
    pub reasons: BTreeMap<String, u64>,
    /// Kernel memory that the datapath's tables hold, in bytes.
    pub memory_bytes: u64,
    /// Rules that are switched off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused_rules: Vec<RuleReport>,
    /// Health problems; empty when all is well.
    pub health: Vec<HealthProblem>,
}

/// Number of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowCounts {
    /// Answered flows, which are never evicted.
    pub established: u64,
    /// Flows without an answer so far.
    pub embryonic: u64,
}

/// Event `snapshot` of `GET /v1/stream`: the state of now, once a second and after each event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotReport {
    /// Milliseconds since the daemon started; the difference of two is the time between them.
    pub up_ms: u64,
    /// Time by the machine's clock, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Version of the daemon.
    pub version: String,
    /// Policy for new flows.
    pub policy: Policy,
    /// Every uplink.
    pub uplinks: Vec<UplinkReport>,
    /// The bond; none on a machine that has joined no hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bond: Option<BondReport>,
    /// Number of flows, some seconds old.
    pub flows: FlowCounts,
    /// Health problems; empty when all is well.
    pub health: Vec<HealthProblem>,
}

/// Query of `GET /v1/flows`; without any of it, all flows are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FlowsQuestion {
    /// Name of the uplink that carries them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink: Option<String>,
    /// Text in an address, the protocol, the uplink or the reason, in any case of letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub find: Option<String>,
    /// Most flows to list: those with the most bytes, in that order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Answer to `GET /v1/flows`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowsReport {
    /// Every flow that was asked for, embryonic ones too.
    pub flows: Vec<FlowReport>,
    /// Number of flows that match, which may be more than are listed.
    #[serde(default)]
    pub matching: usize,
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowReport {
    /// `tcp`, `udp`, `icmp`, … or the IANA number.
    pub protocol: String,
    /// Inside address and port (for ICMP, address and echo id); only the address if the protocol has no
    /// ports.
    pub inner: String,
    /// Remote address, with a port if the protocol has ports; none where one mapping serves every remote
    /// (UDP other than QUIC).
    pub remote: Option<String>,
    /// Outside address and port, in the same form as `inner`.
    pub outer: String,
    /// Name of the uplink that carries it.
    pub uplink: String,
    /// State: `new`, `answered`, `established`, `fin_wait`, `closing`, `reset`.
    pub state: String,
    /// Milliseconds since its first packet.
    pub age_ms: u64,
    /// Milliseconds since its last packet in either direction.
    pub idle_ms: u64,
    /// Bytes from inside.
    pub tx_bytes: u64,
    /// Bytes to inside.
    pub rx_bytes: u64,
    /// Packets from inside.
    pub tx_packets: u64,
    /// Packets to inside.
    pub rx_packets: u64,
    /// Name of its previous uplink, if it was moved.
    pub previous_uplink: Option<String>,
    /// Reason why it is on this uplink.
    pub why: String,
}

impl FlowReport {
    /// Returns true if a text in lower case is part of its addresses, protocol, uplink or reason.
    #[must_use]
    pub fn mentions(&self, text: &str) -> bool {
        let remote = self.remote.as_deref().unwrap_or_default();
        [
            &self.inner,
            remote,
            &self.outer,
            &self.protocol,
            &self.uplink,
            &self.why,
        ]
        .iter()
        .any(|part| part.to_lowercase().contains(text))
    }
}

/// Answer to `GET /v1/events?after=N&wait=SECONDS`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventsReport {
    /// Events with a number above `after` that are still in memory, oldest first.
    pub events: Vec<Event>,
    /// Number of the latest event: the next `after`. Zero before the first.
    pub latest: u64,
}

/// Answer to `GET /v1/version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionReport {
    /// Version of the program.
    pub version: String,
    /// Commit of the build, if it was built from a repository.
    pub commit: Option<String>,
    /// Release of the running kernel.
    pub kernel: String,
    /// The datapath, if it is loaded.
    pub datapath: Option<DatapathReport>,
}

/// The loaded datapath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatapathReport {
    /// Version of the programs in the kernel.
    pub version: String,
    /// Process id of the daemon that manages them.
    pub pid: u32,
}

/// Answer to `POST /v1/down`, and output of `braid down --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DownReport {
    /// Changes that were undone, in order; empty if there was nothing to undo.
    pub undone: Vec<String>,
}

/// Output of `braid up --json` when the daemon is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UpReport {
    /// Process id of the daemon.
    pub pid: u32,
    /// True if a running datapath was taken over.
    pub adopted: bool,
    /// Policy for new flows.
    pub policy: Policy,
    /// The uplinks in use.
    pub uplinks: Vec<UplinkReport>,
    /// Candidate devices that were not taken, with the reason.
    pub skipped: Vec<String>,
}

/// Output of `braid doctor --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorReport {
    /// Every check, prerequisites first.
    pub findings: Vec<Finding>,
}

/// Maps each request to the type of its answer, for the schema alone.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "a schema describes it, nobody makes one")]
#[schemars(title = "Braid's local API: request path to answer")]
struct Api {
    #[schemars(rename = "GET /v1/status")]
    status: StatusReport,
    #[schemars(rename = "GET /v1/uplinks")]
    uplinks: UplinksReport,
    #[schemars(rename = "query of GET /v1/flows")]
    flows_question: FlowsQuestion,
    #[schemars(rename = "GET /v1/flows")]
    flows: FlowsReport,
    #[schemars(rename = "body of POST /v1/uplinks/{name}/pause")]
    pause_uplink: UplinkPauseRequest,
    #[schemars(rename = "POST and DELETE /v1/uplinks/{name}/pause")]
    uplink_paused: UplinksReport,
    #[schemars(rename = "GET /v1/rules")]
    rules: RulesReport,
    #[schemars(rename = "body of POST /v1/rules/{name}/pause")]
    pause_rule: RulePauseRequest,
    #[schemars(rename = "POST and DELETE /v1/rules/{name}/pause")]
    rule_paused: RulesReport,
    #[schemars(rename = "GET /v1/paths")]
    paths: PathsReport,
    #[schemars(rename = "GET /v1/bond")]
    bond: BondReport,
    #[schemars(rename = "body of POST /v1/bond")]
    join: JoinRequest,
    #[schemars(rename = "POST /v1/bond")]
    joined: BondReport,
    #[schemars(rename = "DELETE /v1/bond")]
    left: BondReport,
    #[schemars(rename = "GET /v1/events")]
    events: EventsReport,
    #[schemars(rename = "event snapshot of GET /v1/stream")]
    snapshot: SnapshotReport,
    #[schemars(rename = "event event of GET /v1/stream")]
    event: Event,
    #[schemars(rename = "query of GET /v1/lookup")]
    lookup_question: LookupQuestion,
    #[schemars(rename = "GET /v1/lookup")]
    lookup: LookupReport,
    #[schemars(rename = "body of POST /v1/web/token")]
    token_request: TokenRequest,
    #[schemars(rename = "POST /v1/web/token, and braid web token --json")]
    token: TokenReport,
    #[schemars(rename = "GET /session, of the page alone")]
    session: SessionReport,
    #[schemars(rename = "query of GET /v1/history")]
    history_question: HistoryQuestion,
    #[schemars(rename = "GET /v1/history")]
    history: HistoryReport,
    #[schemars(rename = "braid history --record --json")]
    recording: RecordingReport,
    #[schemars(rename = "body of POST /v1/measurements")]
    measurement: MeasurementRequest,
    #[schemars(rename = "POST /v1/measurements")]
    measured: UplinkReport,
    #[schemars(rename = "braid measure --json")]
    measure: MeasureReport,
    #[schemars(rename = "query of GET /v1/explain")]
    question: ExplainQuestion,
    #[schemars(rename = "GET /v1/explain")]
    explain: ExplainReport,
    #[schemars(rename = "GET /v1/runs")]
    runs: RunsReport,
    #[schemars(rename = "body of POST /v1/runs, and its answer")]
    run: RunRequest,
    #[schemars(rename = "DELETE /v1/runs/{id}")]
    run_ended: RunRequest,
    #[schemars(rename = "GET /v1/alarms")]
    alarms: AlarmsReport,
    #[schemars(rename = "query of POST /v1/alarms/test")]
    alarm_test_question: AlarmTestQuestion,
    #[schemars(rename = "POST /v1/alarms/test")]
    alarm_test: AlarmTestReport,
    #[schemars(rename = "message of an alarm")]
    alarm_message: Message,
    #[schemars(rename = "GET /v1/version")]
    version: VersionReport,
    #[schemars(rename = "GET /v1/config")]
    config: Config,
    #[schemars(rename = "POST /v1/reload")]
    reload: UplinksReport,
    #[schemars(rename = "POST /v1/failback")]
    failback: UplinksReport,
    #[schemars(rename = "POST /v1/down")]
    down: DownReport,
    #[schemars(rename = "braid up --json")]
    up: UpReport,
    #[schemars(rename = "braid explain --json")]
    explains: ExplainsReport,
    #[schemars(rename = "braid doctor --json")]
    doctor: DoctorReport,
    #[schemars(rename = "any error")]
    error: ErrorReport,
}

/// Returns the JSON schema of these types, as kept in `docs/api.schema.json`.
#[must_use]
pub fn schema() -> Schema {
    schema_for!(Api)
}
