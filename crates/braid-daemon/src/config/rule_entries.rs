//! Entries of the datapath's rule table: one for each combination of a rule's lists.

use std::net::IpAddr;

use braid_balance::{ClassId, Family, RuleEntry};
use braid_host::config::Prefix;

use super::header::IpProtocol;
use super::matcher::IpVersion;
use super::rule::RuleConfig;

impl RuleConfig {
    /// Expands the rule's lists into all combinations, without its class, its mark and the machine's ids.
    #[must_use]
    pub fn entries(&self) -> Vec<RuleEntry> {
        let mut entries = Vec::new();
        for family in families(self) {
            let of_family = |prefixes: &[Prefix]| -> Vec<Option<(IpAddr, u8)>> {
                match prefixes {
                    [] => vec![None],
                    prefixes => prefixes
                        .iter()
                        .filter(|p| {
                            family.is_none_or(|family| IpVersion::of(p.address()) == family)
                        })
                        .map(|p| Some((p.address(), p.length())))
                        .collect(),
                }
            };
            for source in of_family(&self.source) {
                for dest in of_family(&self.destination) {
                    if let (Some((a, _)), Some((b, _))) = (source, dest)
                        && a.is_ipv4() != b.is_ipv4()
                    {
                        continue;
                    }
                    entries.push(RuleEntry {
                        source,
                        dest,
                        protocol: number(self.protocol, family),
                        dscp: self.dscp.map(|dscp| dscp.number()),
                        // A prefix implies the family.
                        family: match source.or(dest) {
                            Some(_) => None,
                            None => family.map(balance_family),
                        },
                        class: ClassId(0),
                        ..RuleEntry::default()
                    });
                }
            }
        }
        let entries = multiply(entries, &self.source_port, |entry, ports| {
            entry.source_ports = Some(ports.range());
        });
        let entries = multiply(entries, &self.port, |entry, ports| {
            entry.dest_ports = Some(ports.range());
        });
        let entries = multiply(entries, &self.mac, |entry, mac| entry.mac = Some(mac.0));
        multiply(entries, &self.uid, |entry, uid| {
            entry.uid = Some(uid.range())
        })
    }

    /// Returns true if the kernel's routing rules can express all of its matchers.
    #[must_use]
    pub fn kernel_can_match(&self) -> bool {
        self.dscp.is_none()
            && self.mac.is_empty()
            && self.domain.is_empty()
            && self.cgroup.is_none()
    }
}

/// Returns the IP versions that need an entry each: both if a protocol's number differs.
fn families(rule: &RuleConfig) -> Vec<Option<IpVersion>> {
    match (rule.family, rule.protocol) {
        (Some(family), _) => vec![Some(family)],
        (None, Some(protocol)) if protocol.one_number().is_none() => {
            vec![Some(IpVersion::Ipv4), Some(IpVersion::Ipv6)]
        }
        (None, _) => vec![None],
    }
}

fn number(protocol: Option<IpProtocol>, family: Option<IpVersion>) -> Option<u8> {
    let protocol = protocol?;
    family.map_or(protocol.one_number(), |family| {
        Some(protocol.number(family))
    })
}

fn balance_family(version: IpVersion) -> Family {
    match version {
        IpVersion::Ipv4 => Family::V4,
        IpVersion::Ipv6 => Family::V6,
    }
}

fn multiply<T>(
    entries: Vec<RuleEntry>,
    items: &[T],
    set: impl Fn(&mut RuleEntry, &T),
) -> Vec<RuleEntry> {
    if items.is_empty() {
        return entries;
    }
    let each = |entry: RuleEntry| {
        let set = &set;
        items.iter().map(move |item| {
            let mut entry = entry.clone();
            set(&mut entry, item);
            entry
        })
    };
    entries.into_iter().flat_map(each).collect()
}
