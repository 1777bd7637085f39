//! Explanations of the uplink that a flow takes.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DestinationReport, FlowReport};

/// Query of `GET /v1/explain`: a flow that may or may not exist. Rules that match on an omitted field
/// do not match; the steps say so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainQuestion {
    /// Remote address.
    pub destination: IpAddr,
    /// Remote port; none for protocols without ports, or for any port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// IANA number of the transport protocol: 6 is TCP, 17 is UDP.
    pub protocol: u8,
    /// Inside address; none for this machine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// Inside port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    /// Name by which the destination was looked up. Without it, the names that the daemon has learned
    /// for the destination are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Numeric id of the user whose program opens the flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// DSCP of its packets, 0 to 63.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<u8>,
}

/// Answer to `GET /v1/explain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainReport {
    /// The question in full: `tcp from this machine to 198.51.100.1:443`.
    pub question: String,
    /// Existing flows that match the question; they keep their uplinks.
    pub flows: Vec<FlowReport>,
    /// Links of those of them that the bond carries; at most eight of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<FlowLinksReport>,
    /// Outcome for a new flow.
    pub outcome: Outcome,
    /// Uplink that a new flow takes; none if there are several or no candidates.
    pub uplink: Option<String>,
    /// Every uplink that a new flow may take, with its share; empty if it takes none.
    pub candidates: Vec<Candidate>,
    /// Path cache entry of the destination's network, if there is one.
    pub path_cache: Option<DestinationReport>,
    /// Capacity that predictions do not count because it is left to app-limited flows, by uplink. Empty unless the
    /// class predicts, and without such flows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<ReservationReport>,
    /// Steps of the decision, in order.
    pub steps: Vec<Step>,
}

/// Links of the bond that carry a flow, by the bytes of its last 5 to 10 s. The few flows that share its lane in the
/// tunnel, one in 256, are counted with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowLinksReport {
    /// The flow's inside end, as in `flows`.
    pub inner: String,
    /// Its remote end.
    pub remote: String,
    /// Links of its packets from inside.
    pub tx: Vec<FlowLinkShare>,
    /// Links of its packets to inside.
    pub rx: Vec<FlowLinkShare>,
    /// Reason, for people. What comes from the hub is the hub's decision.
    pub why: String,
}

/// Share of a link in what a flow sends or receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowLinkShare {
    /// Name of its uplink.
    pub uplink: String,
    /// Fraction of the bytes, 0 to 1.
    pub share: f64,
}

/// Part of an uplink's capacity that new flows leave to app-limited ones: videos, calls, and others that want less than the
/// line would give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReservationReport {
    /// Name of the uplink.
    pub uplink: String,
    /// Rate that these flows want.
    pub wanted_bit_s: u64,
    /// Rate that is left to them: what they want, three quarters of the capacity at most.
    pub reserved_bit_s: u64,
    /// Capacity of the uplink, this part included.
    pub capacity_bit_s: u64,
}

/// Output of `braid explain --json`: an answer per address of the destination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainsReport {
    /// The answers.
    pub answers: Vec<ExplainReport>,
}

/// Outcome for a new flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It takes the uplink in `uplink`.
    Uplink,
    /// It takes the next of the candidates in turn.
    Shared,
    /// Its first packet is sent over all candidates, and it takes the one whose answer arrives first.
    Raced,
    /// Braid does not handle it: it follows the machine's own routes.
    Untouched,
    /// A rule blocks it.
    Blocked,
    /// It is dropped because it may not be opened: its client has too many flows or no route, its
    /// protocol cannot be translated, or another client holds the mapping that it needs.
    Refused,
    /// It is dropped because no uplink can take it.
    NoUplink,
}

/// An uplink that a new flow may take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Candidate {
    /// Name.
    pub uplink: String,
    /// Fraction of such flows that it gets, 0 to 1; none if a race decides.
    pub share: Option<f64>,
    /// Its state, with the evidence.
    pub why: String,
}

/// One step of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Stage of the decision.
    pub stage: Stage,
    /// Finding, for people.
    pub text: String,
}

/// Stages of the decision about a new flow, in order.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The kernel's routes, which decide whether Braid sees the flow at all.
    Route,
    /// The client, which may or may not open flows.
    Client,
    /// The rules of the configuration and of `braid run`.
    Rule,
    /// The protocol and its address translation.
    Protocol,
    /// The policy that follows from the rule, or from the lack of one.
    Policy,
    /// The uplink of this client's last flow to this site.
    Sticky,
    /// The race, and the path cache entry of the destination.
    Race,
    /// The slot table.
    Slot,
    /// The state of the uplinks.
    Uplink,
}
