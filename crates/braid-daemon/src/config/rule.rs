//! Rules: which flows are not for the common policy, and what is done with them instead.

use std::fmt;
use std::path::{Component, Path};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bond::BondClass;
use super::domain::DomainPattern;
use super::header::{Dscp, IpProtocol};
use super::matcher::{IpVersion, Mac, PortRange, Prefix, UidRange, as_text};
use super::policy::Policy;
use super::sticky::Sticky;

/// One rule. The first one that matches a new flow decides; a matcher that is not there matches
/// everything, and one that is a list matches what any of its entries does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    /// What the rule is called in reports; `rule-1`, `rule-2`, … by place if not given.
    pub name: String,
    /// The client's address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<Prefix>,
    /// The far end's address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destination: Vec<Prefix>,
    /// The transport protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<IpProtocol>,
    /// The client's port (TCP and UDP).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_port: Vec<PortRange>,
    /// The far end's port (TCP and UDP).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port: Vec<PortRange>,
    /// The code point of the flow's first packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<Dscp>,
    /// The link-layer address of a client on a LAN.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mac: Vec<Mac>,
    /// The name that the client asked for, learnt from answers of name servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domain: Vec<DomainPattern>,
    /// The user of a local program by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uid: Vec<UidRange>,
    /// The user of a local program by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The control group (version 2) of a local program, or one above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<CgroupPath>,
    /// The IP version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<IpVersion>,
    /// What is done with the flow.
    #[serde(rename = "use")]
    pub action: Action,
    /// What is done while the uplink that the rule names cannot take it.
    #[serde(default)]
    pub on_down: OnDown,
    /// Whether a client's flows to a site stay together; as the top level says if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<Sticky>,
    /// How the flow's packets are treated inside the bond, where the rule sends it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<BondClass>,
}

impl RuleConfig {
    /// A rule that matches everything.
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

/// What is done with a flow that a rule matches.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Action {
    /// It is shared out by this policy.
    Policy(Policy),
    /// It takes the uplink of this name.
    Uplink(String),
    /// It goes through the bond.
    Bond,
    /// It is shared out over the uplinks as flows without a rule are where there is no bond.
    Balance,
    /// Braid leaves it alone: it goes the way that the main routing table says.
    None,
    /// It goes nowhere.
    Block,
}

impl Action {
    /// Words that mean something here, so that no uplink can have them as its name.
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

/// What is done with a flow while the uplink that its rule names cannot take it.
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
    /// It is shared out like flows without a rule.
    #[default]
    Fallback,
    /// It goes nowhere: what belongs on one uplink is never seen on another.
    Block,
}

impl OnDown {
    /// The words a user may write.
    pub(super) const NAMES: [&'static str; 2] = ["fallback", "block"];
}

impl FromStr for OnDown {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "fallback" => Ok(OnDown::Fallback),
            "block" => Ok(OnDown::Block),
            _ => Err(format!("there is no {text:?}")),
        }
    }
}

/// A control group's path below the cgroup2 mount, `"/user.slice"`.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct CgroupPath(String);

impl CgroupPath {
    /// The path without the slash in front: relative to the mount.
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
