//! `[datapath]`: which datapath carries the flows, and its settings.

use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words::words;
use super::{Action, CgroupPath, Config, RuleConfig};

/// Default run directory of Open vSwitch.
const OVS_RUN_DIR: &str = "/run/openvswitch";

/// The datapath that carries the flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DatapathConfig {
    /// Kind of the datapath.
    pub kind: DatapathKind,
    /// Kernel hook of the datapath's programs.
    pub hook: Hook,
    /// Share the hook with other programs instead of refusing to start.
    pub coexist: bool,
    /// Maximum number of established flows. A flow takes about half a KiB of kernel memory while it lives.
    pub max_flows: u32,
    /// Maximum number of flows without an answer; the oldest are evicted.
    pub max_embryonic: u32,
    /// Run directory of Open vSwitch, with the socket of its database.
    pub ovs_run_dir: PathBuf,
    /// Fate of new flows while no controller serves the bridge of Open vSwitch.
    pub fail_mode: FailMode,
    /// Manner in which Open vSwitch gives new connections their uplinks.
    pub openflow_mode: OpenFlowMode,
}

impl Default for DatapathConfig {
    fn default() -> Self {
        Self {
            kind: DatapathKind::Ebpf,
            hook: Hook::Auto,
            coexist: false,
            max_flows: 262_144,
            max_embryonic: 65_536,
            ovs_run_dir: PathBuf::from(OVS_RUN_DIR),
            fail_mode: FailMode::Secure,
            openflow_mode: OpenFlowMode::PacketIn,
        }
    }
}

/// Kernel hook of the datapath's programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Hook {
    /// TCX if the kernel has it (6.6), else clsact.
    #[default]
    Auto,
    /// TCX links only.
    Tcx,
    /// clsact filters only.
    Clsact,
}

impl FromStr for Hook {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Hook::Auto),
            "tcx" => Ok(Hook::Tcx),
            "clsact" => Ok(Hook::Clsact),
            _ => Err(format!("no hook {text:?}; there are auto, tcx, clsact")),
        }
    }
}

/// Kind of the datapath.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DatapathKind {
    /// Programs in the kernel.
    #[default]
    Ebpf,
    /// Rules of an Open vSwitch bridge, written by an OpenFlow controller.
    #[serde(rename = "openflow")]
    OpenFlow,
}

words!(DatapathKind, "kind", Ebpf = "ebpf", OpenFlow = "openflow");

/// Fate of new flows while no controller serves the bridge; the names are OpenFlow's (1.3 §6.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FailMode {
    /// They wait.
    #[default]
    Secure,
    /// They take the best uplink, translated by the switch.
    Standalone,
}

words!(
    FailMode,
    "mode",
    Secure = "secure",
    Standalone = "standalone"
);

/// Manner in which Open vSwitch gives new connections their uplinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OpenFlowMode {
    /// The controller gives each new flow its uplink, and rules of its own.
    #[default]
    PacketIn,
    /// The switch does, for TCP and QUIC: a group chooses, and its connection tracker translates.
    Group,
}

words!(
    OpenFlowMode,
    "mode",
    PacketIn = "packet-in",
    Group = "group"
);

impl Config {
    /// Returns what the configuration asks for and a bridge of Open vSwitch does not do, each with the fix.
    pub(super) fn missing_in_openflow(&self) -> Vec<(String, String)> {
        let mut missing = Vec::new();
        if self.shape.enabled {
            missing.push((
                "[shape]".to_owned(),
                "remove it; a qdisc on the bridge's port shapes what is sent",
            ));
        }
        let of = |rule: &RuleConfig, what: &str| format!("rule {:?}: {what}", rule.name);
        for rule in self.rules.iter().filter(|rule| rule.action != Action::None) {
            // A string of nft ends there.
            let is_quoted = |path: &CgroupPath| path.relative().to_string_lossy().contains('"');
            if rule.cgroup.as_ref().is_some_and(is_quoted) {
                missing.push((
                    of(rule, "cgroup with a quotation mark"),
                    "match a group above it, or the program's user by uid",
                ));
            }
            if rule.action == Action::Bond {
                missing.push((of(rule, "use = \"bond\""), "name an uplink"));
            }
        }
        let missing = missing.into_iter();
        missing.map(|(what, fix)| (what, fix.to_owned())).collect()
    }
}
