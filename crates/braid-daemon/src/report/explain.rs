//! Why a flow went, or would go, where.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DestinationReport, FlowReport};

/// The query of `GET /v1/explain`: a flow that may or may not exist. What is not said is not looked
/// at, so that a rule that asks for it does not match; the steps say so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainQuestion {
    /// The far end.
    pub destination: IpAddr,
    /// Its port; none for protocols without ports, or for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// IANA number of the transport protocol: 6 is TCP, 17 is UDP.
    pub protocol: u8,
    /// The inside's address; none for this machine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// The inside's port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    /// Name that the destination was looked up by. Without it, the names that the daemon learnt
    /// for the destination count.
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
    /// Flows of the table that it describes; a packet of theirs goes where they are.
    pub flows: Vec<FlowReport>,
    /// What becomes of a new flow.
    pub outcome: Outcome,
    /// The uplink that a new flow takes; none if it is one of several, or none at all.
    pub uplink: Option<String>,
    /// Every uplink that a new flow may take, with its part; empty if it takes none.
    pub candidates: Vec<Candidate>,
    /// What is remembered of the ways to the destination's network; none if that is nothing.
    pub path_cache: Option<DestinationReport>,
    /// How it came to that, in the order in which it is decided.
    pub steps: Vec<Step>,
}

/// What `braid explain --json` prints: an answer for each address that the destination has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainsReport {
    /// The answers.
    pub answers: Vec<ExplainReport>,
}

/// What becomes of a new flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It takes the one uplink that is named.
    Uplink,
    /// It takes one of the candidates, by its turn.
    Shared,
    /// It goes out by all of the candidates and takes the one whose answer comes first.
    Raced,
    /// Braid does not touch it: it leaves by the machine's own routes.
    Untouched,
    /// It is refused, because a rule says so.
    Blocked,
    /// It is dropped, because it may not be opened: its client holds too many or is not there, its
    /// protocol cannot be translated, or another client has what it asks for.
    Refused,
    /// It is dropped, because no uplink can take it.
    NoUplink,
}

/// An uplink that a new flow may take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Candidate {
    /// Its name.
    pub uplink: String,
    /// Fraction of such flows that it gets, 0 to 1; none where a race decides that.
    pub share: Option<f64>,
    /// Its state with the evidence for it.
    pub why: String,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// What was looked at.
    pub stage: Stage,
    /// What it said, for people.
    pub text: String,
}

/// What is looked at for a new flow, in this order.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The kernel's routes: whether it comes to Braid at all.
    Route,
    /// The client: whether it may open flows.
    Client,
    /// The rules of the configuration and of `braid run`.
    Rule,
    /// The protocol: whether, and how, it can be translated.
    Protocol,
    /// The policy that the rule, or the lack of one, leads to.
    Policy,
    /// What this client's last flow to this site took.
    Sticky,
    /// Whether it is raced, and what is remembered of the ways to its destination.
    Race,
    /// The slot table.
    Slot,
    /// What is known of the uplinks.
    Uplink,
}
