//! `[[alarm]]` and `[mail]`: conditions of which people are told.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use braid_alarm::Destination;
use braid_core::Share;
use braid_core::units::duration;
use braid_host::as_text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A condition, and who is told when it begins and ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlarmConfig {
    /// Name.
    pub name: String,
    /// Condition.
    pub when: AlarmCondition,
    /// Limit of a condition that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<AlarmLimit>,
    /// The only uplink that counts; none for all of them, each by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<String>,
    /// Time for which the condition must hold.
    #[serde(rename = "for", with = "duration")]
    #[schemars(with = "String")]
    pub hold: Duration,
    /// Program with its arguments that gets the message as JSON on its standard input.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// URLs to which the message is posted as JSON.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub webhook: Vec<String>,
    /// Addresses of e-mail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mail: Vec<String>,
}

impl AlarmConfig {
    /// Returns where its messages go.
    pub fn destinations(&self) -> impl Iterator<Item = Destination> {
        let command =
            (!self.command.is_empty()).then(|| Destination::Command(self.command.clone()));
        let webhooks = self.webhook.iter().cloned().map(Destination::Webhook);
        let addresses = self.mail.iter().cloned().map(Destination::Mail);
        command.into_iter().chain(webhooks).chain(addresses)
    }
}

/// Condition of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AlarmCondition {
    /// An uplink takes no flows because nothing answers behind it, its device is down, or a captive portal answers.
    UplinkDead,
    /// An uplink loses or delays too many packets.
    UplinkDegraded,
    /// No uplink takes flows.
    NoUplink,
    /// An uplink has used this part of its quota.
    Quota,
    /// An uplink loses this part of its probes.
    Loss,
    /// An uplink's round-trip time reaches this.
    Rtt,
    /// The bond takes no flows although this machine has joined a hub.
    BondDown,
    /// Any health problem, as in `braid status`.
    Problem,
}

impl AlarmCondition {
    /// Every condition, in the order of [`AlarmCondition::NAMES`].
    pub const ALL: [AlarmCondition; 8] = [
        AlarmCondition::UplinkDead,
        AlarmCondition::UplinkDegraded,
        AlarmCondition::NoUplink,
        AlarmCondition::Quota,
        AlarmCondition::Loss,
        AlarmCondition::Rtt,
        AlarmCondition::BondDown,
        AlarmCondition::Problem,
    ];

    /// Every word, for error messages.
    pub const NAMES: [&str; 8] = [
        "uplink-dead",
        "uplink-degraded",
        "no-uplink",
        "quota",
        "loss",
        "rtt",
        "bond-down",
        "problem",
    ];

    /// Returns its word in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        AlarmCondition::NAMES[self as usize]
    }

    /// Returns the limit that holds if none is written; none for a condition without one.
    #[must_use]
    pub fn default_limit(self) -> Option<AlarmLimit> {
        match self {
            AlarmCondition::Quota => Some(AlarmLimit::Share(Share::of(80, 100))),
            AlarmCondition::Loss => Some(AlarmLimit::Share(Share::of(5, 100))),
            AlarmCondition::Rtt => Some(AlarmLimit::Time(Duration::from_millis(300))),
            _ => None,
        }
    }

    /// Returns true if it is about single uplinks.
    #[must_use]
    pub fn is_about_uplinks(self) -> bool {
        !matches!(
            self,
            AlarmCondition::NoUplink | AlarmCondition::BondDown | AlarmCondition::Problem
        )
    }
}

impl FromStr for AlarmCondition {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        let all = AlarmCondition::ALL.iter();
        all.copied()
            .find(|condition| condition.as_str() == word)
            .ok_or(())
    }
}

/// Limit of a condition: a part (`"80 %"`) or a time (`"300 ms"`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum AlarmLimit {
    /// A part of a whole.
    Share(Share),
    /// A time.
    Time(Duration),
}

impl fmt::Display for AlarmLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AlarmLimit::Share(share) => share.fmt(f),
            AlarmLimit::Time(time) => duration::display(*time).fmt(f),
        }
    }
}

impl FromStr for AlarmLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.contains('%') {
            return text
                .parse()
                .map(AlarmLimit::Share)
                .map_err(|error| format!("{error}"));
        }
        duration::parse(text)
            .map(AlarmLimit::Time)
            .map_err(|error| format!("{error}"))
    }
}

as_text!(AlarmLimit);
