//! Classes, rules, and what came of a choice.

use std::net::IpAddr;
use std::time::Duration;

use braid_balance::{ClassEntry, ClassId, Flow, LbMethod, RuleEntry};
use braid_core::UplinkId;
use braid_packet::build;

use super::probe::Verdict::Sent;
use super::probe::{Outcome, Probe};
use super::talk::{INNER, INNER6, SYN};
use super::world::OUTSIDE;

/// A class that walks these slots in both families.
pub fn class(id: u8, slots: &[u8]) -> ClassEntry {
    let slots: Vec<_> = slots.iter().copied().map(UplinkId).collect();
    ClassEntry {
        id: ClassId(id),
        lb_method: LbMethod::RoundRobin,
        sticky: None,
        v4: slots.clone(),
        v6: slots,
        prefers: None,
        candidates: Vec::new(),
    }
}

/// The same, with clients that keep to their uplink.
pub fn sticky(id: u8, slots: &[u8], time: Duration) -> ClassEntry {
    ClassEntry {
        sticky: Some(time),
        ..class(id, slots)
    }
}

pub fn set_classes(probe: &Probe, classes: &[ClassEntry]) {
    let mut datapath = probe.datapath.borrow_mut();
    datapath.set_classes(classes).expect("classes");
}

pub fn set_rules(probe: &Probe, rules: &[RuleEntry]) {
    let mut datapath = probe.datapath.borrow_mut();
    datapath.set_rules(rules).expect("rules");
}

/// The uplink that a packet left by.
pub fn uplink(outcome: &Outcome) -> usize {
    let source = outcome.read().ip.source;
    let position = OUTSIDE.iter().position(|ends| ends.contains(&source));
    position.expect("an outer address")
}

/// Opens a connection from the host; the uplink it takes.
pub fn open(probe: &Probe, port: u16, remote: IpAddr) -> usize {
    let inner = if remote.is_ipv4() { INNER } else { INNER6 };
    let syn = build::tcp((inner, port), (remote, 443), SYN, b"");
    uplink(&probe.out(&syn).is(Sent, "out_new"))
}

pub fn flow_of(probe: &Probe, inner: IpAddr, port: u16) -> Flow {
    probe.flow((inner, port)).expect("a flow")
}

pub fn ip(address: &str) -> IpAddr {
    address.parse().expect("an address")
}
