//! Reports on alarms.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::AlarmConfig;

/// Answer to `GET /v1/alarms`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlarmsReport {
    /// Every alarm, in the order of the configuration.
    pub alarms: Vec<AlarmReport>,
    /// Destinations whose last message was not taken; it is tried again.
    pub failing: Vec<FailingDestination>,
}

/// One alarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlarmReport {
    /// Its configuration.
    pub config: AlarmConfig,
    /// Subjects for which it is raised; empty if all is well.
    pub raised: Vec<AlarmTarget>,
}

/// An uplink, the bond or a health problem for which an alarm is raised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlarmTarget {
    /// Name of what it is about.
    pub subject: String,
    /// Milliseconds since it was raised.
    pub age_ms: u64,
    /// True if it was raised so often that people are told only when it rests.
    pub unstable: bool,
    /// Evidence.
    pub text: String,
}

/// A destination that does not take messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailingDestination {
    /// Destination, without the secret part of a URL.
    pub destination: String,
    /// Error of the last attempt.
    pub error: String,
}

/// Query of `POST /v1/alarms/test`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlarmTestQuestion {
    /// Name of an alarm; none for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Answer to `POST /v1/alarms/test`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlarmTestReport {
    /// Every destination once.
    pub results: Vec<AlarmTestResult>,
}

/// Result of the trial of one destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlarmTestResult {
    /// Destination, without the secret part of a URL.
    pub destination: String,
    /// Reason why the message was not taken; none if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
