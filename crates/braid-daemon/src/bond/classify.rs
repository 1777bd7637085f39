//! How a packet is treated inside the bond, by the configuration's rules.
//!
//! Pure. A rule with `class` goes by what is still to be seen of a packet there: its destination,
//! protocol, port, code point and family. What no such rule names is treated as the bond itself sees
//! fit ([`flow::class`]).

use std::sync::Arc;

use braid_bond::drive::Classify;
use braid_bond::proto::flow;
use braid_core::schedule::Class;
use braid_packet::{Fragment, Ip};

use braid_balance::{FlowFacts, RuleEntry};

use crate::config::BondClass;
use crate::rules::entries;
use crate::settings::Settings;

/// A rule with a class, as the datapath would ask it.
type Ruled = (RuleEntry, Class);

/// What the settings say of packets.
#[must_use]
pub fn classify(settings: &Settings) -> Classify {
    let ruled = ruled(settings);
    match ruled.is_empty() {
        true => Arc::new(flow::class),
        false => Arc::new(move |packet| class(&ruled, packet)),
    }
}

fn ruled(settings: &Settings) -> Vec<Ruled> {
    let rules = settings
        .rules()
        .filter_map(|rule| Some((rule, rule.class?)));
    let entries = rules.flat_map(|(rule, class)| {
        let class = match class {
            BondClass::Ordered => Class::Ordered,
            BondClass::Unordered => Class::Unordered,
            BondClass::Redundant => Class::Redundant,
            BondClass::Pinned => Class::Pinned,
        };
        entries(rule).into_iter().map(move |entry| (entry, class))
    });
    entries.collect()
}

fn class(ruled: &[Ruled], packet: &[u8]) -> Class {
    let Some(facts) = facts(packet) else {
        return flow::class(packet);
    };
    let found = ruled.iter().find(|(entry, _)| entry.matches(&facts));
    found.map_or_else(|| flow::class(packet), |(_, class)| *class)
}

/// What rules go by, of one packet. Fragments have no ports that could be seen.
fn facts(packet: &[u8]) -> Option<FlowFacts> {
    let ip = Ip::parse(packet).ok()?;
    let traffic_class = match ip.source.is_ipv4() {
        true => packet[1],
        false => packet[0] << 4 | packet[1] >> 4,
    };
    let ports = packet.get(ip.header..ip.header + 4);
    let has_ports = matches!(ip.protocol, 6 | 17) && ip.fragment == Fragment::Whole;
    let ports = ports.filter(|_| has_ports).map_or((0, 0), |ports| {
        let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
        (port(0), port(2))
    });
    Some(FlowFacts {
        source: ip.source,
        dest: ip.dest,
        protocol: ip.protocol,
        ports,
        dscp: traffic_class >> 2,
        mac: None,
        uid: None,
        cgroups: Vec::new(),
        names: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::settings::Overrides;
    use braid_packet::build;

    fn classes(text: &str) -> Classify {
        let config = Config::parse("test", text).unwrap();
        classify(&Settings::new(config, &Overrides::default()).unwrap())
    }

    fn end(address: &str, port: u16) -> build::End {
        (address.parse().unwrap(), port)
    }

    #[test]
    fn the_first_rule_that_matches_decides_and_else_the_bond_itself() {
        let classify = classes(
            "[[rule]]\nprotocol='udp'\nport=[4000,'5000-5010']\nuse='bond'\nclass='redundant'\n\
             [[rule]]\ndestination=['198.51.100.0/24','2001:db8::/32']\nuse='bond'\nclass='pinned'\n\
             [[rule]]\nport=22\nuse='bond'\nclass='unordered'\n\
             [[rule]]\nport=53\nuse='balance'\n",
        );
        let inner = end("10.73.0.2", 1000);
        let udp = |dest, port| classify(&build::udp(inner, end(dest, port), b""));
        let tcp = |dest, port| classify(&build::tcp(inner, end(dest, port), 0, b""));
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
        let v6 = build::tcp(end("fd00::2", 1), end("2001:db8::1", 443), 0, b"");
        assert_eq!(classify(&v6), Class::Pinned);
        assert_eq!(classify(&[0x45]), Class::Ordered);
    }
}
