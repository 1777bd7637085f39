//! Comparison of the present with the desired state. Pure.

use std::fmt;
use std::net::IpAddr;

use braid_host::sysctl::{self, Saved, Values};

use super::desired::{Desired, Divert};
use super::state::{Family, Route, Rule, Step};
use super::{Error, PEER_DEVICE, STEER_DEVICE};

const PEER_V4_FORWARDING: &str = "net/ipv4/conf/braid1/forwarding";
const PEER_V6_DISABLED: &str = "net/ipv6/conf/braid1/disable_ipv6";
const STEER_V6_DISABLED: &str = "net/ipv6/conf/braid0/disable_ipv6";
/// Sysctls of Braid's own devices.
pub(super) const OWN_SYSCTLS: [&str; 3] = [PEER_V4_FORWARDING, PEER_V6_DISABLED, STEER_V6_DISABLED];

/// The steps from the present to the desired state. Displays as commands, one a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps, in this order.
    pub steps: Vec<Step>,
    /// Previous values of sysctls, including those that this plan is about to change. To be stored before the
    /// steps are applied.
    pub saved: Saved,
}

impl Plan {
    /// Returns true if there are no steps.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

/// The kernel's state, as far as Braid needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// `braid0`, Braid's or foreign.
    pub steer: Option<Device>,
    /// `braid1`, Braid's or foreign.
    pub peer: Option<Device>,
    /// Addresses of `braid0`.
    pub addresses: Vec<IpAddr>,
    /// Routes with Braid's protocol in its tables.
    pub routes: Vec<Route>,
    /// Rules with Braid's protocol and its preferences.
    pub rules: Vec<Rule>,
    /// Present values of the requested sysctls.
    pub sysctls: Values,
    /// True if the kernel has IPv6.
    pub ipv6: bool,
}

/// One end of the veth pair as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub index: u32,
    /// True for a veth with Braid's alias or group.
    pub ours: bool,
    pub mtu: u32,
    pub up: bool,
    /// True if it has Braid's alias, no ARP and no link-local address.
    pub set_up: bool,
}

/// Returns the missing steps. Their order never interrupts traffic: stale rules go first and new ones come
/// last, the diverting ones at the outermost. An inner address stays although its family has lost its last
/// uplink: local sockets are bound to it and continue when an uplink is back.
pub(super) fn plan(desired: &Desired, found: &Found, saved: &Saved) -> Result<Plan, Error> {
    let sysctls = sysctl::changes(&desired.sysctls(), &found.sysctls, saved);
    let fixed = desired.fixed_rules();
    let divert = match desired.divert {
        Divert::On => desired.divert_rules(),
        Divert::Off => Vec::new(),
        Divert::AsFound => found
            .rules
            .iter()
            .filter(|r| r.diverts())
            .cloned()
            .collect(),
    };
    let wanted_rule = |r: &Rule| fixed.contains(r) || divert.contains(r);
    let stale_rules = found.rules.iter().filter(|r| !wanted_rule(r));
    let routes = desired.routes();
    let addresses = desired.addresses();

    let mut steps = remove_rules(stale_rules);
    let (links, fresh) = link_steps(desired, found)?;
    let overwritten = fresh || sysctl::switches_forwarding(&sysctls.writes);
    steps.extend(sysctls.writes.into_iter().map(Step::Sysctl));
    steps.extend(links);
    steps.extend(own_sysctls(desired, found, overwritten));
    let has = |address: &IpAddr| !fresh && found.addresses.contains(address);
    steps.extend(
        addresses
            .iter()
            .filter(|a| !has(a))
            .map(|a| Step::AddAddress(*a)),
    );

    // The addresses and routes of a pair that is made anew are gone with the old one.
    let there = |r: &&Route| !(fresh && r.device == STEER_DEVICE);
    let present: Vec<&Route> = found.routes.iter().filter(there).collect();
    let missing: Vec<&Route> = routes.iter().filter(|r| !present.contains(r)).collect();
    steps.extend(missing.iter().map(|r| Step::PutRoute((*r).clone())));
    let replaced = |r: &Route| missing.iter().any(|m| m.key() == r.key());
    let stale = present
        .iter()
        .filter(|r| !routes.contains(r) && !replaced(r));
    steps.extend(stale.map(|r| Step::DelRoute((*r).clone())));
    if !fresh {
        let inner = [IpAddr::from(desired.inner_v4), desired.inner_v6.into()];
        let stale = found
            .addresses
            .iter()
            .filter(|a| !inner.contains(a) && is_global(**a));
        steps.extend(stale.map(|a| Step::DelAddress(*a)));
    }

    let rules = fixed
        .iter()
        .chain(&divert)
        .filter(|r| !found.rules.contains(r));
    steps.extend(rules.map(|r| Step::AddRule(r.clone())));
    steps.extend(sysctls.restores.into_iter().map(Step::Sysctl));
    Ok(Plan {
        steps,
        saved: sysctls.saved,
    })
}

/// Removes Braid's rules only.
pub(super) fn undiversion(found: &Found) -> Plan {
    Plan {
        steps: remove_rules(found.rules.iter()),
        saved: Saved::default(),
    }
}

/// Removes everything of Braid's and restores the sysctls.
pub(super) fn removal(found: &Found, saved: &Saved) -> Plan {
    let mut steps = remove_rules(found.rules.iter());
    let ours = |device: Option<Device>| device.is_some_and(|d| d.ours);
    let gone_with_link = if ours(found.steer) {
        steps.push(Step::DelLink {
            device: STEER_DEVICE,
        });
        true
    } else {
        steps.extend(ours(found.peer).then_some(Step::DelLink {
            device: PEER_DEVICE,
        }));
        false
    };
    let left = found
        .routes
        .iter()
        .filter(|r| !(gone_with_link && r.device == STEER_DEVICE));
    steps.extend(left.map(|r| Step::DelRoute(r.clone())));
    let sysctls = sysctl::restoration(&found.sysctls, saved);
    steps.extend(sysctls.restores.into_iter().map(Step::Sysctl));
    Plan {
        steps,
        saved: sysctls.saved,
    }
}

/// Diverting rules first: traffic leaves the datapath before anything else changes.
fn remove_rules<'a>(rules: impl Iterator<Item = &'a Rule>) -> Vec<Step> {
    let mut rules: Vec<&Rule> = rules.collect();
    rules.sort_by_key(|r| !r.diverts());
    rules
        .into_iter()
        .map(|r| Step::DelRule(r.clone()))
        .collect()
}

/// Returns the steps for the veth pair; true if it is made anew.
fn link_steps(desired: &Desired, found: &Found) -> Result<(Vec<Step>, bool), Error> {
    for (device, end) in [(STEER_DEVICE, found.steer), (PEER_DEVICE, found.peer)] {
        if end.is_some_and(|d| !d.ours) {
            return Err(Error::ForeignDevice { device });
        }
    }
    let mtu = desired.mtu();
    let mut steps = Vec::new();
    let fresh = match (found.steer, found.peer) {
        (Some(_), Some(_)) => false,
        (steer, peer) => {
            // Half a pair: its other end was moved or renamed.
            steps.extend(steer.map(|_| Step::DelLink {
                device: STEER_DEVICE,
            }));
            steps.extend(peer.map(|_| Step::DelLink {
                device: PEER_DEVICE,
            }));
            steps.push(Step::AddVeth { mtu });
            true
        }
    };
    for (device, end) in [(STEER_DEVICE, found.steer), (PEER_DEVICE, found.peer)] {
        if fresh || end.is_none_or(|d| d.mtu != mtu || !d.set_up) {
            steps.push(Step::SetLink {
                device,
                mtu,
                ipv6: found.ipv6,
            });
        }
    }
    for (device, end) in [(STEER_DEVICE, found.steer), (PEER_DEVICE, found.peer)] {
        if fresh || end.is_none_or(|d| !d.up) {
            steps.push(Step::LinkUp { device });
        }
    }
    Ok((steps, fresh))
}

/// Returns the sysctls of Braid's own devices, which need not be saved: they go with the devices.
///
/// `braid1` must not forward the packets that come out of it (those that the datapath did not take): they would
/// be routed into `braid0` again and circle until their hop limit. `braid0` has IPv6 even if new devices do not
/// get it. `overwritten` is true if this plan itself sets them to something else before, by making the devices
/// or by switching forwarding on for all.
fn own_sysctls(desired: &Desired, found: &Found, overwritten: bool) -> Vec<Step> {
    let mut desired_values = vec![(PEER_V4_FORWARDING, "0")];
    if found.ipv6 {
        desired_values.push((PEER_V6_DISABLED, "1"));
    }
    if found.ipv6 && desired.has(Family::V6) {
        desired_values.push((STEER_V6_DISABLED, "0"));
    }
    let wrong = |(key, value): &(&str, &str)| {
        overwritten || found.sysctls.get(*key).is_none_or(|now| now != value)
    };
    let desired_values = desired_values.into_iter().filter(wrong);
    desired_values
        .map(|(key, value)| Step::Sysctl(sysctl::Write::new(key, value)))
        .collect()
}

pub(super) fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(a) => !a.is_unicast_link_local(),
    }
}
