//! Pauses: uplinks that are set aside for maintenance, and rules that are switched off.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Action;

/// A pause of an uplink or of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pause {
    /// The way in which somebody asked for it.
    pub by: PauseOrigin,
    /// Time of its beginning, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Time of its end; none if it lasts until somebody ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_ms: Option<u64>,
    /// True for an uplink that takes no flow even if no other works.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forced: bool,
}

impl Pause {
    /// Returns it in words, without its subject: `on the command line, 12 min ago, for 2 h more`.
    #[must_use]
    pub fn in_words(&self, now_unix_ms: u64) -> String {
        let ago = Duration::from_millis(now_unix_ms.saturating_sub(self.since_unix_ms));
        let end = match self.until_unix_ms {
            None => "until it is resumed".to_owned(),
            Some(until) => {
                let left = Duration::from_millis(until.saturating_sub(now_unix_ms));
                format!("for {} more", rounded(left))
            }
        };
        format!("{}, {} ago, {end}", self.by.in_words(), rounded(ago))
    }
}

/// Returns a time in seconds, minutes or hours, whichever is exact enough for a person.
fn rounded(span: Duration) -> String {
    match span.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..36_000 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{} h", seconds.div_ceil(3600)),
    }
}

/// The way in which somebody asked for a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PauseOrigin {
    /// By the socket, as the command line does.
    CommandLine,
    /// By the page for browsers.
    Page,
}

impl PauseOrigin {
    /// Returns it in words.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            PauseOrigin::CommandLine => "on the command line",
            PauseOrigin::Page => "on the page",
        }
    }
}

/// Body of `POST /v1/uplinks/{name}/pause`: the uplink takes no new flows from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UplinkPauseRequest {
    /// Seconds until it ends by itself, from 1 to a year; none to last until it is ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u64>,
    /// True to pause it although no other uplink works, and to use it for nothing even then.
    pub force: bool,
    /// True to close its TCP connections at once; otherwise they stay until they end.
    pub now: bool,
}

/// Body of `POST /v1/rules/{name}/pause`: the rule decides about no new flow from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RulePauseRequest {
    /// Seconds until it ends by itself, from 1 to a year; none to last until it is ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u64>,
}

/// Answer to `GET /v1/rules`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RulesReport {
    /// Every rule of the configuration, in the order of evaluation.
    pub rules: Vec<RuleReport>,
}

/// One rule of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuleReport {
    /// Name.
    pub name: String,
    /// True if the configuration gives its name. Another has its place for a name, and cannot be paused.
    pub named: bool,
    /// Action for matching flows.
    #[serde(rename = "use")]
    pub action: Action,
    /// Its pause, if it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_says_who_since_when_and_how_long() {
        let mut pause = Pause {
            by: PauseOrigin::CommandLine,
            since_unix_ms: 1_000_000,
            until_unix_ms: None,
            forced: false,
        };
        assert_eq!(
            pause.in_words(1_007_900),
            "on the command line, 7 s ago, until it is resumed"
        );
        pause.by = PauseOrigin::Page;
        pause.until_unix_ms = Some(1_000_000 + 2 * 3_600_000);
        assert_eq!(
            pause.in_words(1_000_000 + 720_000),
            "on the page, 12 min ago, for 108 min more"
        );
        // A clock that went back.
        assert_eq!(pause.in_words(0), "on the page, 0 s ago, for 137 min more");
    }
}
