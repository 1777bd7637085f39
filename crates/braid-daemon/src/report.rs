//! What the API answers and `--json` prints: one set of types for both, described by a schema.

mod bond;
mod explain;
mod path;
mod run;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use schemars::{JsonSchema, Schema, schema_for};
use serde::{Deserialize, Serialize};

use crate::config::{Config, Policy};
use crate::doctor::Finding;
use crate::events::Event;
use crate::user_error::UserError;

pub use bond::{
    BondLinkReport, BondLinkState, BondPacketsReport, BondReport, BondState, JoinRequest,
};
pub use explain::{
    Candidate, ExplainQuestion, ExplainReport, ExplainsReport, Outcome, Stage, Step,
};
pub use path::{DestinationReport, PathReport, PathsReport};
pub use run::{RunRequest, RunsReport};

/// Answer to `GET /v1/uplinks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UplinksReport {
    /// Every uplink, in the order in which they were taken.
    pub uplinks: Vec<UplinkReport>,
}

/// One uplink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UplinkReport {
    /// Its name.
    pub name: String,
    /// Its network device.
    pub device: String,
    /// Its number in the datapath; stable while it is known.
    pub id: u8,
    /// How frames look on it.
    pub layer: LayerName,
    /// Whether new flows may take it.
    pub state: UplinkState,
    /// How preferred it is: the lowest tier with an uplink that is up is used. 1 where nobody said.
    pub tier: u8,
    /// Smoothed round-trip time to the probes' targets and of handshakes, in milliseconds; none
    /// before the first answer.
    pub rtt_ms: Option<f64>,
    /// Fraction of the last probes that nobody answered, 0 to 1; none before the first.
    pub loss: Option<f64>,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// The way out for IPv4, if it has one.
    pub ipv4: Option<NextHopReport<Ipv4Addr>>,
    /// The way out for IPv6, if it has one.
    pub ipv6: Option<NextHopReport<Ipv6Addr>>,
    /// Relative weight; 1 where the policy gives everyone the same.
    pub weight: u32,
    /// Fraction of new flows that the slot table gives it, 0 to 1. Of the IPv4 table where there is
    /// one, else of the IPv6 table.
    pub share: f64,
    /// Bytes sent through it, IP headers included.
    pub tx_bytes: u64,
    /// Bytes received through it for flows of ours, IP headers included.
    pub rx_bytes: u64,
    /// Packets sent through it.
    pub tx_packets: u64,
    /// Packets received through it for flows of ours.
    pub rx_packets: u64,
    /// Flows put on it.
    pub flows_opened: u64,
    /// Bytes that it has carried of its quota, both directions and the bond's included; none without
    /// a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_used_bytes: Option<u64>,
    /// Its quota for the day or the month, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// TCP packets with data that were seen on it, in both directions.
    pub data_packets: u64,
    /// Of those, what tells of a loss: repeats from inside, gaps from outside. An uplink that reorders
    /// looks worse than it is.
    pub lost_packets: u64,
    /// Why it is used, or why not: the evidence.
    pub why: String,
}

/// How frames look on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LayerName {
    /// Ethernet-like.
    L2,
    /// Bare IP packets.
    L3,
}

/// Whether an uplink takes new flows, and why not. `why` has the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UplinkState {
    /// It does.
    Up,
    /// It does, but fewer than its share: it loses or delays too much.
    Degraded,
    /// It could, but a preferred one does, or failback holds it back.
    Standby,
    /// It does not: a captive portal answers in the internet's place.
    Portal,
    /// It does not: its device is fine and nobody answers.
    Dead,
    /// It does not: its device cannot carry anything.
    Down,
}

impl UplinkState {
    /// Whether new flows are put on it.
    #[must_use]
    pub fn takes_new_flows(self) -> bool {
        matches!(self, UplinkState::Up | UplinkState::Degraded)
    }

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            UplinkState::Up => "up",
            UplinkState::Degraded => "degraded",
            UplinkState::Standby => "standby",
            UplinkState::Portal => "portal",
            UplinkState::Dead => "dead",
            UplinkState::Down => "down",
        }
    }
}

/// One family's way out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NextHopReport<A> {
    /// The address that flows leave with.
    pub address: A,
    /// The next hop; none on a point-to-point link.
    pub gateway: Option<A>,
}

/// Answer to `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// How new flows are shared out.
    pub policy: Policy,
    /// Every uplink.
    pub uplinks: Vec<UplinkReport>,
    /// The way over all uplinks at once; none on a machine that has joined no hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bond: Option<BondReport>,
    /// How many flows there are.
    pub flows: FlowCounts,
    /// Packets per exit reason of the datapath since it was loaded.
    pub reasons: BTreeMap<String, u64>,
    /// Kernel memory that the datapath's tables hold, in bytes.
    pub memory_bytes: u64,
    /// What is not as it should be; empty when all is well.
    pub health: Vec<HealthProblem>,
}

/// How many flows there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowCounts {
    /// Answered flows, which nothing evicts.
    pub established: u64,
    /// Flows that nobody has answered yet.
    pub embryonic: u64,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthProblem {
    /// Stable word for programs: `uplink-down`, `flow-table-full`, …
    pub code: String,
    /// What is the matter and what it means.
    pub text: String,
    /// What to do about it; empty if only waiting helps.
    pub fix: String,
}

/// Answer to `GET /v1/flows`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowsReport {
    /// Every flow, embryonic ones too.
    pub flows: Vec<FlowReport>,
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowReport {
    /// `tcp`, `udp`, `icmp`, … or the IANA number.
    pub protocol: String,
    /// Inside address and port, of ICMP address and echo id; the address alone where the protocol
    /// has no ports.
    pub inner: String,
    /// The far end, without port where it has none (ICMP); none where one mapping serves every far
    /// end (UDP other than QUIC).
    pub remote: Option<String>,
    /// Outside address and port, as the inside's.
    pub outer: String,
    /// Name of the uplink that carries it.
    pub uplink: String,
    /// Where it is in its life: `new`, `answered`, `established`, `fin_wait`, `closing`, `reset`.
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
    /// Name of the uplink that it was on before, if it was moved.
    pub previous_uplink: Option<String>,
    /// Why it is on this uplink.
    pub why: String,
}

/// Answer to `GET /v1/events?after=N&wait=SECONDS`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventsReport {
    /// Events with a number above `after` that are still remembered, oldest first.
    pub events: Vec<Event>,
    /// Number of the latest event of all: the next `after`. Zero before the first.
    pub latest: u64,
}

/// Answer to `GET /v1/version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionReport {
    /// Version of the program.
    pub version: String,
    /// Commit that it was built from, if it was built from a repository.
    pub commit: Option<String>,
    /// The running kernel's release.
    pub kernel: String,
    /// What the datapath is, if it is loaded.
    pub datapath: Option<DatapathReport>,
}

/// The loaded datapath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatapathReport {
    /// Version of the programs in the kernel.
    pub version: String,
    /// Process id of the daemon that looks after them.
    pub pid: u32,
}

/// Answer to `POST /v1/down`, and what `braid down` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DownReport {
    /// What was undone, in order; empty if there was nothing to undo.
    pub undone: Vec<String>,
}

/// What `braid up` reports when the daemon is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UpReport {
    /// Process id of the daemon.
    pub pid: u32,
    /// Whether a datapath that was already at work was taken over.
    pub adopted: bool,
    /// How new flows are shared out.
    pub policy: Policy,
    /// The uplinks that were taken.
    pub uplinks: Vec<UplinkReport>,
    /// What could have been an uplink and was not taken, with the reason.
    pub skipped: Vec<String>,
}

/// What `braid doctor` finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorReport {
    /// Every check, prerequisites first.
    pub findings: Vec<Finding>,
}

/// Every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorReport {
    /// What went wrong.
    pub error: UserError,
}

/// Names the type of each answer, for the schema alone.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "a schema describes it, nobody makes one")]
#[schemars(title = "Braid's local API: request path to answer")]
struct Api {
    #[schemars(rename = "GET /v1/status")]
    status: StatusReport,
    #[schemars(rename = "GET /v1/uplinks")]
    uplinks: UplinksReport,
    #[schemars(rename = "GET /v1/flows")]
    flows: FlowsReport,
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

/// The JSON schema of everything above, as kept in `docs/api.schema.json`.
#[must_use]
pub fn schema() -> Schema {
    schema_for!(Api)
}
