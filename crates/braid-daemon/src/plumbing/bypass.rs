//! What the configuration's rules keep away from us: `use = "none"`.
//!
//! The first rule that matches decides, also here. So where a rule before one with `none` wants its
//! packets balanced, its packets go past the latter, to where they would have been looked at
//! without it. Rules that ask for what the kernel's routing does not know cannot be put in between;
//! the configuration's check says which ones that concerns.

use std::net::IpAddr;

use braid_balance::RuleEntry;

use super::selector::Selector;
use super::state::{Family, Leads, MAIN_TABLE, Rule};
use super::{BYPASS_PREFERENCES, SPECIFIC_PREFERENCE};
use crate::config::{Action, IpProtocol};
use crate::rules::{System, kernel_knows, resolved};
use crate::settings::Settings;

/// One of the configuration's rules, as the kernel's routing carries it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bypass {
    preference: u32,
    leads: Leads,
    entries: Vec<RuleEntry>,
}

impl Bypass {
    /// All that the kernel must know: rules with `none`, and those before the last of them.
    #[must_use]
    pub fn all(settings: &Settings, system: &System) -> Vec<Bypass> {
        let numbered = || BYPASS_PREFERENCES.zip(settings.rules());
        let last = numbered()
            .filter(|(_, rule)| rule.action == Action::None)
            .last();
        let Some((last, _)) = last else {
            return Vec::new();
        };
        let known =
            numbered().filter(|(preference, rule)| *preference <= last && kernel_knows(rule));
        known
            .map(|(preference, rule)| Bypass {
                preference,
                leads: match rule.action {
                    Action::None => Leads::to(MAIN_TABLE),
                    _ => Leads::Past(SPECIFIC_PREFERENCE),
                },
                entries: resolved(rule, system),
            })
            .collect()
    }

    /// The kernel's rules for one family.
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

/// Ports are asked for with a protocol: the kernel would take an ICMP type for a port.
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
        from: some_network(entry.source),
        to: some_network(entry.dest),
        protocol,
        source_ports: entry.source_ports.clone(),
        ports: entry.dest_ports.clone(),
        users: entry.uid.clone(),
    };
    protocols.into_iter().map(select).collect()
}

/// A network of length 0 is every address, which the kernel does not want to be told.
fn some_network(network: Option<(IpAddr, u8)>) -> Option<(IpAddr, u8)> {
    network.filter(|(_, length)| *length > 0)
}
