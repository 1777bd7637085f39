//! Measurements that were made to know a capacity.

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

/// Method of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MeasurementMethod {
    /// A transfer that fills the line.
    #[default]
    Transfer,
    /// The dispersion of packet trains.
    Dispersion,
    /// Round trips of packets of several sizes. For comparison: the daemon takes no such result.
    VariablePacketSize,
}

/// Body of `POST /v1/measurements`: a result, which becomes the uplink's capacity.
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
    /// True if it is the line's capacity; otherwise the rate is a lower bound.
    pub saturated: bool,
    /// Method: a transfer unless it is given.
    #[serde(default)]
    pub method: MeasurementMethod,
}

/// Output of `braid measure --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasureReport {
    /// One for each uplink and direction that was measured.
    pub measurements: Vec<MeasurementReport>,
    /// Those that could not be measured.
    pub failed: Vec<FailedMeasurement>,
}

/// Result of a measurement.
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
    /// True if it is the line's capacity: a queue stood, more connections carried no more, or trains of two lengths showed
    /// the same. Otherwise the rate is a lower bound.
    pub saturated: bool,
    /// Bytes sent and received for it, IP headers included.
    pub spent_bytes: u64,
    /// Its duration, in milliseconds.
    pub took_ms: u64,
    /// Parallel connections at its end, or the most of a train; 0 for echo requests.
    pub connections: usize,
    /// Method.
    pub method: MeasurementMethod,
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
