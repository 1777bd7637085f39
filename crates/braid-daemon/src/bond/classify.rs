//! Classification of packets in the bond by the configuration's rules.
//!
//! Pure. A rule with `class` uses fields that both ends of the bond see: the remote address and port, protocol,
//! code point and family. Other packets are classified by the bond itself (`braid_bond::proto::flow::class`).

use braid_balance::{Family, RuleEntry};
use braid_bond::io::Rule;
use braid_bond::proto::policy;
use braid_core::Prefix;
use braid_multipath::schedule::Class;

use crate::config::{BondClass, Settings};

/// Returns the rules that the settings give.
#[must_use]
pub fn rules(settings: &Settings) -> Vec<Rule> {
    let rules = settings
        .rules()
        .filter_map(|rule| Some((rule, rule.class?)));
    let each = rules.flat_map(|(rule, class)| {
        let class = match class {
            BondClass::Ordered => Class::Ordered,
            BondClass::Unordered => Class::Unordered,
            BondClass::Redundant => Class::Redundant,
            BondClass::Pinned => Class::Pinned,
        };
        let entries = rule.entries().into_iter();
        entries.map(move |entry| of_entry(entry, class))
    });
    each.collect()
}

/// A policy has room for all rules of the datapath.
const _: () = assert!(braid_balance::MAX_RULES <= policy::MAX_RULES);

fn of_entry(entry: RuleEntry, class: Class) -> Rule {
    Rule {
        network: entry
            .dest
            .and_then(|(address, length)| Prefix::new(address, length)),
        protocol: entry.protocol,
        ports: entry.dest_ports,
        dscp: entry.dscp,
        is_v4: entry.family.map(|family| family == Family::V4),
        class,
    }
}

#[cfg(test)]
mod tests {
    use braid_bond::io::Policy;
    use braid_bond::proto::flow::FlowInfo;
    use braid_bond::proto::policy::RemoteSide;
    use braid_packet::build;

    use super::*;
    use crate::config::{Config, Overrides};

    fn policy(text: &str) -> Policy {
        let config = Config::parse("test", text).unwrap();
        let settings = Settings::new(config, &Overrides::default()).unwrap();
        Policy {
            rules: rules(&settings),
            ..Policy::default()
        }
    }

    fn end(address: &str, port: u16) -> build::End {
        (address.parse().unwrap(), port)
    }

    #[test]
    fn the_first_rule_that_matches_decides_and_else_the_bond_itself() {
        let policy = policy(
            "[[rule]]\nprotocol='udp'\nport=[4000,'5000-5010']\nuse='bond'\nclass='redundant'\n\
             [[rule]]\ndestination=['198.51.100.0/24','2001:db8::/32']\nuse='bond'\nclass='pinned'\n\
             [[rule]]\nport=22\nuse='bond'\nclass='unordered'\n\
             [[rule]]\nport=53\nuse='balance'\n\
             [[rule]]\nport=80\nfamily='ipv6'\nuse='bond'\nclass='pinned'\n",
        );
        let inner = end("10.73.0.2", 1000);
        let class =
            |packet: Vec<u8>| policy.class(FlowInfo::of(&packet).as_ref(), RemoteSide::Destination);
        let udp = |dest, port| class(build::udp(inner, end(dest, port), b""));
        let tcp = |dest, port| class(build::tcp(inner, end(dest, port), 0, b""));
        assert_eq!(udp("198.51.100.1", 5005), Class::Redundant);
        assert_eq!(udp("198.51.100.1", 6000), Class::Pinned);
        assert_eq!(tcp("198.51.100.1", 5005), Class::Pinned);
        assert_eq!(tcp("192.0.2.1", 22), Class::Unordered);
        assert_eq!(tcp("192.0.2.1", 443), Class::Ordered);
        assert_eq!(
            udp("192.0.2.1", 53),
            Class::Unordered,
            "as the bond sees fit"
        );
        assert_eq!(tcp("192.0.2.1", 80), Class::Ordered, "of IPv6 alone");
        let v6 = |dest, port| build::tcp(end("fd00::2", 1), end(dest, port), 0, b"");
        assert_eq!(class(v6("2001:db8::1", 443)), Class::Pinned);
        assert_eq!(class(v6("2001:db9::1", 80)), Class::Pinned);
        assert_eq!(class(vec![0x45]), Class::Ordered);
        // The hub gives the answers the same treatment.
        let answer = build::udp(end("198.51.100.1", 4000), inner, b"");
        assert_eq!(
            policy.class(FlowInfo::of(&answer).as_ref(), RemoteSide::Source),
            Class::Redundant
        );
    }
}
