//! The history of an uplink.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CapacityBasisName, MeasuredDirection, QualityBasisName, UplinkState};

/// Query of `GET /v1/history`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryQuestion {
    /// Name of the uplink.
    pub uplink: String,
    /// Time until now, in seconds; a day by default and at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_s: Option<u32>,
    /// Step in seconds, at least 1 for the last hour and 60 for more; the shortest by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_s: Option<u32>,
}

/// Answer to `GET /v1/history`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryReport {
    /// Name of the uplink.
    pub uplink: String,
    /// Length of a step, in seconds.
    pub step_s: u32,
    /// The steps for which there are records, oldest first.
    pub points: Vec<HistoryPoint>,
}

/// An uplink during a step of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryPoint {
    /// Start of the step, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Mean rate sent, in bits per second.
    pub tx_bit_s: u64,
    /// Mean rate received, in bits per second.
    pub rx_bit_s: u64,
    /// Capacity to send in the last second of the step, as known at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_capacity: Option<HistoryCapacity>,
    /// The same to receive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_capacity: Option<HistoryCapacity>,
    /// Mean round-trip time as `GET /v1/uplinks` has it, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
    /// Evidence for it at the end of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_basis: Option<QualityBasisName>,
    /// Mean jitter, in milliseconds, 1638 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<f64>,
    /// Mean fraction lost, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Evidence for it at the end of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_basis: Option<QualityBasisName>,
    /// The worst state during the step.
    pub state: UplinkState,
    /// True if it stalled meanwhile: it carried next to nothing although flows waited, and was not dead.
    #[serde(default)]
    pub stalled: bool,
}

/// A capacity of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryCapacity {
    /// The capacity, or a lower bound of it, in bits per second.
    pub rate_bit_s: u64,
    /// The way in which it was known.
    pub basis: CapacityBasisName,
    /// True if it was measured during the step; otherwise it is an older one.
    #[serde(default)]
    pub measured: bool,
}

/// Output of `braid history --record --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecordingReport {
    /// Name of the uplink.
    pub uplink: String,
    /// The traces, down and up.
    pub traces: Vec<RecordedTrace>,
}

/// A trace that was recorded: its seconds, by the way in which their rates are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecordedTrace {
    /// Direction.
    pub direction: MeasuredDirection,
    /// The file; none if no rate of that direction was known in that time.
    pub file: Option<String>,
    /// Its length in seconds.
    pub seconds: u32,
    /// Seconds whose capacity was measured in them.
    pub measured_s: u32,
    /// Seconds with the capacity of the last measurement.
    pub carried_on_s: u32,
    /// Seconds of which a lower bound alone is known, the highest rate of late.
    pub at_least_s: u32,
    /// Seconds in which the line stalled; they have the rate received.
    pub stalled_s: u32,
    /// Seconds in which the uplink was dead or down, or a captive portal answered; their rate is 0.
    pub down_s: u32,
    /// Seconds of which nothing is known, with the rate before them, or after them at the start.
    pub unknown_s: u32,
}
