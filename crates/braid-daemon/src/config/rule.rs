//! `[[rule]]`: exceptions to the common policy.

use std::fmt;
use std::path::{Component, Path};
use std::str::FromStr;

use braid_host::as_text;
use braid_host::config::Prefix;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bond::BondClass;
use super::domain::DomainPattern;
use super::header::{Dscp, IpProtocol};
use super::matcher::{IpVersion, Mac, PortRange, UidRange};
use super::policy::Policy;
use super::sticky::Sticky;
use super::words::words;

/// One rule. The first one that matches a new flow decides. An absent matcher matches everything; a
/// list matches if any of its entries does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    /// Name of the rule in reports; `rule-1`, `rule-2`, … by position if not given.
    pub name: String,
    /// Source addresses (the client's).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<Prefix>,
    /// Destination addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destination: Vec<Prefix>,
    /// The transport protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<IpProtocol>,
    /// Source ports (TCP and UDP).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_port: Vec<PortRange>,
    /// Destination ports (TCP and UDP).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port: Vec<PortRange>,
    /// DSCP of the flow's first packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<Dscp>,
    /// Link-layer address of a client on a LAN.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mac: Vec<Mac>,
    /// Name that the client looked up, learned from answers of name servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domain: Vec<DomainPattern>,
    /// User of a local program, by numeric id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uid: Vec<UidRange>,
    /// User of a local program, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Control group (version 2) of a local program, or a group above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<CgroupPath>,
    /// The IP version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<IpVersion>,
    /// Action for matching flows.
    #[serde(rename = "use")]
    pub action: Action,
    /// Action while the uplink that the rule names takes no such flow.
    #[serde(default)]
    pub on_down: OnDown,
    /// Time during which a client's flows to a site keep their uplink; the top-level `sticky` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<Sticky>,
    /// Treatment of the flow's packets inside the bond, if the rule sends it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<BondClass>,
}

impl RuleConfig {
    /// Returns a rule that matches everything.
    #[must_use]
    pub fn everything(name: impl Into<String>, action: Action) -> RuleConfig {
        RuleConfig {
            name: name.into(),
            source: Vec::new(),
            destination: Vec::new(),
            protocol: None,
            source_port: Vec::new(),
            port: Vec::new(),
            dscp: None,
            mac: Vec::new(),
            domain: Vec::new(),
            uid: Vec::new(),
            user: None,
            cgroup: None,
            family: None,
            action,
            on_down: OnDown::Fallback,
            sticky: None,
            class: None,
        }
    }
}

/// Action for a flow that a rule matches.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Action {
    /// Distribute it by this policy.
    Policy(Policy),
    /// Send it over the uplink of this name.
    Uplink(String),
    /// Send it through the bond.
    Bond,
    /// Distribute it over the uplinks, as without a bond and a rule.
    Balance,
    /// Do not handle it: it follows the main routing table.
    None,
    /// Block it.
    Block,
}

impl Action {
    /// Keywords, which no uplink may have as its name.
    pub const RESERVED: [&'static str; 11] = {
        let [a, b, c, d, e, f, g] = Policy::NAMES;
        [a, b, c, d, e, f, g, "bond", "balance", "none", "block"]
    };
}

impl FromStr for Action {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "" => return Err("empty".to_owned()),
            "bond" => Action::Bond,
            "balance" => Action::Balance,
            "none" => Action::None,
            "block" => Action::Block,
            _ => match text.parse() {
                Ok(policy) => Action::Policy(policy),
                Err(_) => Action::Uplink(text.to_owned()),
            },
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Policy(policy) => policy.name(),
            Action::Uplink(name) => name,
            Action::Bond => "bond",
            Action::Balance => "balance",
            Action::None => "none",
            Action::Block => "block",
        })
    }
}

as_text!(Action);

/// Action for a flow while the uplink that its rule names cannot take it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum OnDown {
    /// Distribute it like flows without a rule.
    #[default]
    Fallback,
    /// Block it: traffic that belongs on one uplink never leaves by another.
    Block,
}

words!(OnDown, "action", Fallback = "fallback", Block = "block");

/// Path of a control group below the cgroup2 mount, `"/user.slice"`.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct CgroupPath(String);

impl CgroupPath {
    /// Returns the path relative to the mount, without the leading slash.
    #[must_use]
    pub fn relative(&self) -> &Path {
        Path::new(self.0.trim_start_matches('/'))
    }
}

impl FromStr for CgroupPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.starts_with('/') {
            return Err("not a path from the top: it begins with a slash".to_owned());
        }
        if text.contains(|c: char| c.is_control()) {
            return Err("no path has control characters".to_owned());
        }
        let mut parts = Path::new(text).components().skip(1).peekable();
        if parts.peek().is_none() {
            return Err("the top: every program is in it".to_owned());
        }
        if !parts.all(|part| matches!(part, Component::Normal(_))) {
            return Err("a path that goes up".to_owned());
        }
        Ok(CgroupPath(text.to_owned()))
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

as_text!(CgroupPath);
