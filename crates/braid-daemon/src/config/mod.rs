//! The daemon's configuration: one type, read from TOML.
//!
//! Rules, and why:
//! - No file at all is a valid configuration, because a newcomer should need nothing but
//!   `braid up`: uplinks are then found by their default routes and share equally.
//! - All errors in a file are reported at once, with line, column and the fix, so that one run is enough
//!   to find them all.
//! - Unknown keys are errors: a misspelt key must not silently become a default.
//! - A value with a unit is a string of its own type (`"20 Mbit/s"`), never a bare number.

mod alarm;
mod bond;
mod conflict;
mod datapath;
mod domain;
mod header;
mod liveness;
mod matcher;
mod name_servers;
mod policy;
mod race;
mod read;
mod rule;
mod rule_entries;
mod settings;
mod shape;
mod sticky;
mod target;
mod uplink;
mod words;

use std::path::{Path, PathBuf};

use braid_alarm::MailServer;
use braid_host::config::{ApiConfig, ConfigError, MetricsConfig, Warnings, WebConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use alarm::{AlarmCondition, AlarmConfig, AlarmLimit};
pub use bond::{
    BondClass, BondConfig, BondFlows, BondReordering, BondScheduler, Encapsulation, Fallback,
    OverflowConfig, Thousandths,
};
pub use braid_host::config::HostName;
pub use datapath::{DatapathConfig, DatapathKind, FailMode, Hook, OpenFlowMode};
pub use domain::DomainPattern;
pub use header::{Dscp, IpProtocol};
pub use liveness::LivenessConfig;
pub use matcher::{IpVersion, Mac, PortRange, UidRange};
pub use name_servers::{NameServer, NameServers};
pub use policy::{Failback, FirstPackets, Policy};
pub use race::RaceConfig;
pub use rule::{Action, CgroupPath, OnDown, RuleConfig};
pub use settings::{Overrides, Settings, SettingsSource};
pub use shape::ShapeConfig;
pub use sticky::Sticky;
pub use target::{HttpTarget, Target};
pub use uplink::{FIRST_TIER, Ports, UplinkConfig};

/// Default path of the configuration file.
pub const DEFAULT_PATH: &str = "/etc/braid/braid.toml";

/// The whole configuration. `Config::default()` applies without a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Policy that distributes new flows. Default: `wrr` if any uplink has a weight or a capacity, else
    /// `fastest`.
    pub policy: Policy,
    /// Time during which a client's flows to a site keep their uplink.
    #[serde(default)]
    pub sticky: Sticky,
    /// Flows that return to an uplink that works again.
    #[serde(default)]
    pub failback: Failback,
    /// Copies of a flow's first packets.
    #[serde(default)]
    pub first_packets: FirstPackets,
    /// Name servers whose answers to clients are trusted, for rules by domain and for sites. Replies to
    /// this machine's own queries are always trusted.
    #[serde(default)]
    pub name_servers: NameServers,
    /// The uplinks, exactly these. Empty: the devices of default routes.
    #[serde(default, rename = "uplink", skip_serializing_if = "Vec::is_empty")]
    pub uplinks: Vec<UplinkConfig>,
    /// Health checks of uplinks.
    #[serde(default)]
    pub liveness: LivenessConfig,
    /// Races of connections, under the policies `race` and `fastest`.
    #[serde(default)]
    pub race: RaceConfig,
    /// Shaping of the uplinks by their measured capacity.
    #[serde(default)]
    pub shape: ShapeConfig,
    /// The bond over all uplinks at once, through a hub that you run.
    #[serde(default)]
    pub bond: BondConfig,
    /// Exceptions to the common policy. The first rule that matches decides.
    #[serde(default, rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleConfig>,
    /// Set if the machine is a gateway for the networks behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lan: Option<LanConfig>,
    /// The datapath that carries the flows.
    #[serde(default)]
    pub datapath: DatapathConfig,
    /// The local API on the Unix socket.
    #[serde(default)]
    pub api: ApiConfig,
    /// Metrics for a monitoring system.
    #[serde(default)]
    pub metrics: MetricsConfig,
    /// Conditions of which people are told.
    #[serde(default, rename = "alarm", skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<AlarmConfig>,
    /// The server that takes e-mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mail: Option<MailServer>,
    /// The page for browsers.
    #[serde(default)]
    pub web: WebConfig,
}

/// The networks behind this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LanConfig {
    /// Devices towards the clients. Empty: every device that has an address and is no uplink.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Switch IP forwarding on while Braid is up; `braid down` restores it.
    pub forward: bool,
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The file cannot be read, or all errors in it.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        Config::look(path).map(|(config, _)| config)
    }

    /// As [`Config::load`], with warnings about an accepted configuration.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn look(path: &Path) -> Result<(Config, Warnings), ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Config::check(&path.display().to_string(), &text)
    }

    /// Checks the text of a configuration; diagnostics call it `name`.
    ///
    /// # Errors
    /// All errors in it.
    pub fn parse(name: &str, text: &str) -> Result<Config, ConfigError> {
        Config::check(name, text).map(|(config, _)| config)
    }

    /// As [`Config::parse`], with warnings about an accepted configuration: rules that can never match,
    /// and rules that overlap in part.
    ///
    /// # Errors
    /// All errors in it.
    pub fn check(name: &str, text: &str) -> Result<(Config, Warnings), ConfigError> {
        read::read(name, text)
    }

    /// Loads the named file, or the one at the default path if it exists, or the default configuration.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn find(named: Option<&Path>) -> Result<(Config, Option<PathBuf>), ConfigError> {
        let path = match named {
            Some(path) => path.to_owned(),
            None if Path::new(DEFAULT_PATH).exists() => PathBuf::from(DEFAULT_PATH),
            None => return Ok((Config::default(), None)),
        };
        Ok((Config::load(&path)?, Some(path)))
    }

    /// Returns the title of every table, with its keys.
    #[must_use]
    pub fn keys() -> &'static [(&'static str, &'static [&'static str])] {
        read::SECTIONS
    }

    /// Returns the configuration as an equivalent file that includes every default.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Every field is a plain string, number, table or list, which TOML can represent.
        toml::to_string(self).expect("a configuration is plain data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_a_valid_configuration() {
        assert_eq!(Config::parse("empty", "").unwrap(), Config::default());
    }

    #[test]
    fn effective_text_reads_back_as_itself() {
        let text = r#"
            [[uplink]]
            name = "dsl"
            device = "eth0"
            capacity = "20 Mbit/s"
            gateway4 = "192.0.2.1"

            [[uplink]]
            device = "wwan0"
            capacity = "30 Mbit/s"
            ports = "20000-29999"

            [lan]
            devices = ["eth1"]

            [api]
            group = "netdev"
        "#;
        let config = Config::parse("one", text).unwrap();
        assert_eq!(config.policy, Policy::Wrr, "a capacity asks for wrr");
        assert_eq!(
            config.uplinks[1].name, "wwan0",
            "an uplink is called by its device"
        );
        assert!(config.lan.as_ref().unwrap().forward);
        assert_eq!(Config::parse("again", &config.to_toml()).unwrap(), config);
    }
}
