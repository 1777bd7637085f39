//! The effective settings: the configuration and the command line's overrides.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use braid_core::Rate;
use braid_host::config::Quota;
use braid_host::user_error::UserError;
use braid_uplink::{BOND_DEVICE, Discovery, Override, Selection, UplinkSpec};

use super::{Action, Config, FIRST_TIER, Policy, Ports, RuleConfig, UplinkConfig};
use crate::user_errors;

/// Options of `braid up` that override the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--policy`.
    pub policy: Option<Policy>,
    /// `--weight NAME=N`, in the order given.
    pub weights: Vec<(String, NonZeroU32)>,
}

/// Sources of the settings, which are read again on reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingsSource {
    /// The file that the user named, if any; see [`Config::find`].
    pub file: Option<PathBuf>,
    /// Overrides from the command line.
    pub overrides: Overrides,
}

impl SettingsSource {
    /// Reads and joins both.
    ///
    /// # Errors
    /// As [`Config::find`] and [`Settings::new`].
    pub fn read(&self) -> Result<Settings, UserError> {
        let (config, _) = Config::find(self.file.as_deref())?;
        Settings::new(config, &self.overrides)
    }

    /// Checks the command line's uplink names against the uplinks that were found, if only those tell the
    /// names.
    ///
    /// # Errors
    /// As [`Overrides::check_names`].
    pub fn check_found(&self, settings: &Settings, found: &Discovery) -> Result<(), UserError> {
        if !settings.config.uplinks.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = found
            .uplinks
            .iter()
            .map(|uplink| uplink.name.as_str())
            .collect();
        self.overrides.check_names(&names)
    }
}

/// The effective settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The configuration, with the command line's policy.
    pub config: Config,
    /// Weights by uplink name, from either source; 1 for uplinks that are not listed.
    pub weights: BTreeMap<String, NonZeroU32>,
    /// Rules of programs under `braid run`; they precede those of the file.
    pub run_rules: Vec<RuleConfig>,
    /// Names of the file's rules that somebody has switched off.
    pub paused_rules: BTreeSet<String>,
    /// True if the user gave weights, not only capacities.
    pub weighted: bool,
    /// True if this machine has joined a hub, which has accepted it: there is a bond.
    pub bonded: bool,
}

/// Returns true if weights decide under a policy, and not only for flows without better information.
fn asks_for_weights(policy: Policy) -> bool {
    policy.uses_weights() && policy != Policy::default()
}

impl Settings {
    /// Joins the two. The command line wins; a weight there asks for weighted round robin if the
    /// file says nothing that uses weights.
    ///
    /// # Errors
    /// A contradiction on the command line, or a weight for an uplink that the file does not know.
    pub fn new(mut config: Config, overrides: &Overrides) -> Result<Settings, UserError> {
        let weighted = !overrides.weights.is_empty();
        for (at, (name, _)) in overrides.weights.iter().enumerate() {
            if overrides.weights[..at]
                .iter()
                .any(|(other, _)| other == name)
            {
                let failure = UserError::new("usage", format!("--weight {name} is given twice"));
                return Err(failure.fix("keep one of the two"));
            }
        }
        config.policy = match overrides.policy {
            Some(Policy::Rr) if weighted => {
                let failure = UserError::new("usage", "--weight means nothing under --policy rr");
                return Err(failure.fix("say --policy wrr, or leave the weights out"));
            }
            Some(policy) => policy,
            None if weighted && !asks_for_weights(config.policy) => Policy::Wrr,
            None => config.policy,
        };
        let given = config.uplinks.iter().any(|uplink| uplink.weight.is_some());
        let mut weights = configured_weights(&config);
        if !config.uplinks.is_empty() {
            let names: Vec<&str> = config.uplinks.iter().map(|u| u.name.as_str()).collect();
            overrides.check_names(&names)?;
        }
        weights.extend(overrides.weights.iter().cloned());
        let weighs = |rule: &RuleConfig| matches!(&rule.action, Action::Policy(policy) if policy.uses_weights());
        if !config.policy.uses_weights() && !config.rules.iter().any(weighs) {
            weights.clear();
        }
        Ok(Settings {
            config,
            weights,
            run_rules: Vec::new(),
            paused_rules: BTreeSet::new(),
            weighted: weighted || given,
            bonded: false,
        })
    }

    /// Returns every rule that is in force, in the order of evaluation.
    pub fn rules(&self) -> impl Iterator<Item = &RuleConfig> {
        let configured = self.config.rules.iter();
        let in_force = configured.filter(|rule| !self.paused_rules.contains(&rule.name));
        self.run_rules.iter().chain(in_force)
    }

    /// Returns the file's rules that somebody has switched off.
    pub fn paused_rules(&self) -> impl Iterator<Item = &RuleConfig> {
        let configured = self.config.rules.iter();
        configured.filter(|rule| self.paused_rules.contains(&rule.name))
    }

    /// Returns the configuration of an uplink.
    #[must_use]
    pub fn uplink(&self, name: &str) -> Option<&UplinkConfig> {
        self.config
            .uplinks
            .iter()
            .find(|uplink| uplink.name == name)
    }

    /// Returns the tier of an uplink; lower ones are preferred.
    #[must_use]
    pub fn tier(&self, name: &str) -> u8 {
        self.uplink(name).map_or(FIRST_TIER, |uplink| uplink.tier)
    }

    /// Returns true if traffic on an uplink costs money.
    #[must_use]
    pub fn metered(&self, name: &str) -> bool {
        self.uplink(name).is_some_and(|uplink| uplink.metered)
    }

    /// Returns the configured capacity of an uplink.
    #[must_use]
    pub fn capacity(&self, name: &str) -> Option<Rate> {
        self.uplink(name)?.capacity
    }

    /// Returns the configured quota of an uplink.
    #[must_use]
    pub fn quota(&self, name: &str) -> Option<Quota> {
        self.uplink(name)?.quota
    }

    /// Returns the load, in bits per second, at which the next tier takes flows too.
    #[must_use]
    pub fn overflow(&self, name: &str) -> Option<f64> {
        let capacity = self.capacity(name)?.bits_per_sec() as f64;
        Some(capacity * self.uplink(name)?.overflow?.fraction())
    }

    /// Returns the weight of an uplink.
    #[must_use]
    pub fn weight(&self, name: &str) -> NonZeroU32 {
        self.weights.get(name).copied().unwrap_or(NonZeroU32::MIN)
    }

    /// Returns true if a policy weighs uplinks by their capacities, as measured or configured. Hashes do not:
    /// clients would move with every change.
    #[must_use]
    pub fn weighs_by_capacity(&self, policy: Policy) -> bool {
        policy == Policy::Wrr && !self.weighted
    }

    /// Returns the source ports of an uplink.
    #[must_use]
    pub fn ports(&self, name: &str) -> Ports {
        self.uplink(name)
            .map(|uplink| uplink.ports.clone())
            .unwrap_or_default()
    }

    /// Returns all ports that address translation may use.
    #[must_use]
    pub fn all_ports(&self) -> Vec<RangeInclusive<u16>> {
        match self.config.uplinks.as_slice() {
            [] => vec![Ports::default().range()],
            uplinks => uplinks.iter().map(|uplink| uplink.ports.range()).collect(),
        }
    }

    /// Returns true if a device may be an uplink.
    #[must_use]
    pub fn selects(&self, device: &str) -> bool {
        if device == BOND_DEVICE {
            return self.bonded;
        }
        let uplinks = &self.config.uplinks;
        uplinks.is_empty() || uplinks.iter().any(|uplink| uplink.device == device)
    }

    /// Returns the selection of devices that become uplinks.
    ///
    /// # Errors
    /// As [`Selection::named`]; a configuration that was read from a file has no such mistakes.
    pub fn selection(&self) -> Result<Selection, UserError> {
        let wanted = self.config.uplinks.iter().map(|uplink| UplinkSpec {
            name: uplink.name.clone(),
            device: uplink.device.clone(),
            v4: Override {
                address: None,
                gateway: uplink.gateway4,
            },
            v6: Override {
                address: None,
                gateway: uplink.gateway6,
            },
        });
        Selection::named(wanted.collect()).map_err(user_errors::of_uplinks)
    }
}

impl Overrides {
    /// Checks the names that weights were given for against those that exist.
    ///
    /// # Errors
    /// The first name that is not among them.
    pub fn check_names(&self, known: &[&str]) -> Result<(), UserError> {
        let stranger = self
            .weights
            .iter()
            .find(|(name, _)| !known.contains(&name.as_str()));
        stranger.map_or(Ok(()), |(name, weight)| {
            let unknown = UserError::unknown_uplink(name, known.iter().copied());
            let text = format!("--weight {name}={weight}: {}", unknown.text);
            Err(UserError { text, ..unknown })
        })
    }
}

/// Returns the weights in the file. Capacities become weights in the same proportion, in lowest terms.
fn configured_weights(config: &Config) -> BTreeMap<String, NonZeroU32> {
    let capacities = config
        .uplinks
        .iter()
        .filter_map(|u| u.capacity.map(Rate::bits_per_sec));
    let divisor = capacities.clone().fold(0, gcd).max(1);
    let largest = capacities.max().unwrap_or(0) / divisor;
    // A slot table cannot represent the bits that do not fit into a weight.
    let shift = largest
        .checked_ilog2()
        .map_or(0, |bits| bits.saturating_sub(31));
    let weigh = |capacity: Rate| {
        let units = (capacity.bits_per_sec() / divisor) >> shift;
        u32::try_from(units)
            .ok()
            .and_then(NonZeroU32::new)
            .unwrap_or(NonZeroU32::MIN)
    };
    let weights = config.uplinks.iter().filter_map(|uplink| {
        let weight = uplink.weight.or_else(|| uplink.capacity.map(weigh))?;
        Some((uplink.name.clone(), weight))
    });
    weights.collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse("test", text).unwrap()
    }

    fn weight(name: &str, weight: u32) -> (String, NonZeroU32) {
        (name.to_owned(), NonZeroU32::new(weight).unwrap())
    }

    const TWO: &str = "[[uplink]]\ndevice='a'\ncapacity='20 Mbit/s'\n\
                       [[uplink]]\ndevice='b'\ncapacity='30 Mbit/s'\n";

    #[test]
    fn capacities_become_small_weights() {
        let settings = Settings::new(config(TWO), &Overrides::default()).unwrap();
        assert_eq!(settings.config.policy, Policy::Wrr);
        assert_eq!(
            (settings.weight("a").get(), settings.weight("b").get()),
            (2, 3)
        );
    }

    #[test]
    fn huge_capacities_keep_their_proportion() {
        let text = TWO
            .replace("20 Mbit/s", "100000000001 bit/s")
            .replace("30 M", "200000 M");
        let settings = Settings::new(config(&text), &Overrides::default()).unwrap();
        let (a, b) = (settings.weight("a").get(), settings.weight("b").get());
        assert!(
            (f64::from(b) / f64::from(a) - 2.0).abs() < 1e-6,
            "{a} to {b}"
        );
    }

    #[test]
    fn the_command_line_wins() {
        let overrides = Overrides {
            policy: None,
            weights: vec![weight("a", 7)],
        };
        let settings = Settings::new(config(TWO), &overrides).unwrap();
        assert_eq!(
            (settings.weight("a").get(), settings.weight("b").get()),
            (7, 3)
        );
        let overrides = Overrides {
            policy: Some(Policy::Rr),
            weights: vec![],
        };
        let settings = Settings::new(config(TWO), &overrides).unwrap();
        assert_eq!(
            (settings.weight("a").get(), settings.weight("b").get()),
            (1, 1)
        );
    }

    #[test]
    fn a_weight_alone_asks_for_weighted_round_robin() {
        let overrides = Overrides {
            policy: None,
            weights: vec![weight("eth0", 2)],
        };
        let settings = Settings::new(Config::default(), &overrides).unwrap();
        assert_eq!(settings.config.policy, Policy::Wrr);
        let overrides = Overrides {
            policy: Some(Policy::Rr),
            ..overrides
        };
        assert!(Settings::new(Config::default(), &overrides).is_err());
    }

    #[test]
    fn two_weights_for_one_uplink_are_refused() {
        let overrides = Overrides {
            policy: None,
            weights: vec![weight("a", 2), weight("b", 1), weight("a", 3)],
        };
        let refused = Settings::new(config(TWO), &overrides).unwrap_err();
        assert_eq!(refused.text, "--weight a is given twice");
    }

    #[test]
    fn a_device_may_stand_by_itself_in_place_of_a_list() {
        let config = config("[lan]\ndevices = \"eth1\"");
        assert_eq!(config.lan.unwrap().devices, ["eth1"]);
    }

    #[test]
    fn a_weight_for_nobody_is_refused() {
        let overrides = Overrides {
            policy: None,
            weights: vec![weight("c", 2)],
        };
        let refused = Settings::new(config(TWO), &overrides).unwrap_err();
        assert_eq!(refused.text, "--weight c=2: there is no uplink \"c\"");
        assert_eq!(refused.fix.as_deref(), Some("there are a, b"));
    }
}
