//! Measurements by transfer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Direction of a measurement, as seen from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MeasuredDirection {
    /// Received.
    Down,
    /// Sent.
    Up,
}

impl MeasuredDirection {
    /// Returns its name in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            MeasuredDirection::Down => "down",
            MeasuredDirection::Up => "up",
        }
    }
}

/// Body of `POST /v1/measurements`: the result of a transfer, which becomes the uplink's capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasurementRequest {
    /// Name of the uplink.
    pub uplink: String,
    /// Direction.
    pub direction: MeasuredDirection,
    /// The capacity, or a lower bound of it, in bits per second, IP headers included.
    pub rate_bit_s: u64,
    /// Expected error as a fraction of the rate, 0 to 1.
    pub error: f64,
    /// True if the line was full; otherwise the rate is a lower bound.
    pub saturated: bool,
}

/// Output of `braid measure --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasureReport {
    /// One for each uplink and direction that was measured.
    pub measurements: Vec<MeasurementReport>,
    /// Those that could not be measured.
    pub failed: Vec<FailedMeasurement>,
}

/// Result of a measurement by transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasurementReport {
    /// Name of the uplink.
    pub uplink: String,
    /// Direction.
    pub direction: MeasuredDirection,
    /// The capacity, or a lower bound of it, in bits per second, IP headers included.
    pub rate_bit_s: u64,
    /// Expected error as a fraction of the rate, 0 to 1.
    pub error: f64,
    /// True if the line was full: a queue stood, or more connections carried no more. Otherwise the rate is a lower bound.
    pub saturated: bool,
    /// Bytes sent and received for it, IP headers included.
    pub spent_bytes: u64,
    /// Its duration, in milliseconds.
    pub took_ms: u64,
    /// Parallel connections at its end.
    pub connections: usize,
}

/// An uplink and direction that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedMeasurement {
    /// Name of the uplink.
    pub uplink: String,
    /// Direction.
    pub direction: MeasuredDirection,
    /// The reason.
    pub why: String,
}
