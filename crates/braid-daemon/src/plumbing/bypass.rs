//! Traffic that the configuration's rules exempt from Braid: `use = "none"`.
//!
//! The first matching rule decides here, too. Where a rule before one with `none` wants its packets balanced,
//! those packets skip the latter and go where they would have been looked up without it. Rules with conditions
//! that the kernel's routing does not support cannot be put in between; the check of the configuration reports
//! these.

use std::net::IpAddr;

use braid_balance::RuleEntry;

use super::selector::Selector;
use super::state::{Family, MAIN_TABLE, Rule, RuleOutcome};
use super::{BYPASS_PREFERENCES, SPECIFIC_PREFERENCE};
use crate::config::{Action, IpProtocol, Settings};
use crate::rules::{SystemIds, resolved};

/// One of the configuration's rules, as routing rules of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bypass {
    preference: u32,
    leads: RuleOutcome,
    entries: Vec<RuleEntry>,
}

impl Bypass {
    /// Returns the rules that the kernel needs: those with `none`, and those before the last of them.
    #[must_use]
    pub fn all(settings: &Settings, system: &SystemIds) -> Vec<Bypass> {
        let numbered = || BYPASS_PREFERENCES.zip(settings.rules());
        let last = numbered()
            .filter(|(_, rule)| rule.action == Action::None)
            .last();
        let Some((last, _)) = last else {
            return Vec::new();
        };
        let known =
            numbered().filter(|(preference, rule)| *preference <= last && rule.kernel_can_match());
        known
            .map(|(preference, rule)| Bypass {
                preference,
                leads: match rule.action {
                    Action::None => RuleOutcome::to(MAIN_TABLE),
                    _ => RuleOutcome::Past(SPECIFIC_PREFERENCE),
                },
                entries: resolved(rule, system),
            })
            .collect()
    }

    /// Returns the kernel's rules for one family.
    pub(super) fn rules(&self, family: Family) -> Vec<Rule> {
        let selectors = self
            .entries
            .iter()
            .flat_map(|entry| selectors(entry, family));
        selectors
            .map(|select| Rule {
                family,
                preference: self.preference,
                select,
                leads: self.leads,
            })
            .collect()
    }
}

/// Ports need a protocol: the kernel would take an ICMP type for a port.
fn selectors(entry: &RuleEntry, family: Family) -> Vec<Selector> {
    let prefix = entry.source.or(entry.dest);
    let other_prefix = prefix.is_some_and(|(address, _)| Family::of(address) != family);
    let other_family = entry.family.is_some_and(|wanted| match wanted {
        braid_balance::Family::V4 => family != Family::V4,
        braid_balance::Family::V6 => family != Family::V6,
    });
    if other_prefix || other_family {
        return Vec::new();
    }
    let ported = entry.source_ports.is_some() || entry.dest_ports.is_some();
    let protocols = match entry.protocol {
        None if ported => {
            let version = crate::config::IpVersion::Ipv4;
            vec![
                Some(IpProtocol::TCP.number(version)),
                Some(IpProtocol::UDP.number(version)),
            ]
        }
        protocol => vec![protocol],
    };
    let select = |protocol| Selector {
        incoming: None,
        from: some_network(entry.source),
        to: some_network(entry.dest),
        protocol,
        source_ports: entry.source_ports.clone(),
        ports: entry.dest_ports.clone(),
        users: entry.uid.clone(),
    };
    protocols.into_iter().map(select).collect()
}

/// A network of length 0 is every address, which the kernel expects to be left out.
fn some_network(network: Option<(IpAddr, u8)>) -> Option<(IpAddr, u8)> {
    network.filter(|(_, length)| *length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Overrides};

    fn rules(text: &str) -> Vec<String> {
        let config = Config::parse("test", text).unwrap();
        let settings = Settings::new(config, &Overrides::default()).unwrap();
        let system = SystemIds {
            users: [("backup".to_owned(), 34)].into(),
            ..SystemIds::default()
        };
        let bypasses = Bypass::all(&settings, &system);
        let of = |family: Family| {
            let rules = bypasses.iter().flat_map(move |bypass| bypass.rules(family));
            rules.map(|rule| rule.to_string()).collect::<Vec<_>>()
        };
        [of(Family::V4), of(Family::V6)].concat()
    }

    #[test]
    fn none_is_looked_up_in_the_main_table() {
        let text = "[[rule]]
            source = '192.168.1.0/24'
            destination = '198.51.100.7'
            protocol = 'tcp'
            port = ['22', '8000-8100']
            use = 'none'
            [[rule]]
            user = 'backup'
            use = 'none'
            [[rule]]
            source = '2001:db8::/32'
            source_port = '123'
            use = 'none'
            [[rule]]
            destination = '0.0.0.0/0'
            protocol = 'icmp'
            use = 'none'
            [[rule]]
            use = 'block'";
        assert_eq!(
            rules(text),
            [
                "pref 32256 from 192.168.1.0/24 to 198.51.100.7 ipproto 6 dport 22 lookup main protocol 98",
                "pref 32256 from 192.168.1.0/24 to 198.51.100.7 ipproto 6 dport 8000-8100 lookup main protocol 98",
                "pref 32257 uidrange 34-34 lookup main protocol 98",
                "pref 32259 ipproto 1 lookup main protocol 98",
                "pref 32257 uidrange 34-34 lookup main protocol 98",
                "pref 32258 from 2001:db8::/32 ipproto 6 sport 123 lookup main protocol 98",
                "pref 32258 from 2001:db8::/32 ipproto 17 sport 123 lookup main protocol 98",
            ]
        );
    }

    #[test]
    fn what_an_earlier_rule_wants_goes_past() {
        let text = "[[rule]]
            destination = '198.51.100.7'
            use = 'wrr'
            [[rule]]
            domain = 'bank.example'
            use = 'rr'
            [[rule]]
            destination = '198.51.100.0/24'
            use = 'none'";
        assert_eq!(
            rules(text),
            [
                "pref 32256 to 198.51.100.7 goto 32763 protocol 98",
                "pref 32258 to 198.51.100.0/24 lookup main protocol 98",
            ]
        );
        assert!(rules("[[rule]]\nport = 22\nuse = 'block'\n").is_empty());
    }
}
