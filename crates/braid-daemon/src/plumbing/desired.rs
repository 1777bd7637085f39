//! Desired state of the kernel, as plain data.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use braid_core::UplinkId;
use braid_host::sysctl;
use braid_uplink::{NextHop, Uplink};

use super::bypass::Bypass;
use super::selector::Selector;
use super::state::{Family, MAIN_TABLE, Route, Rule, RuleOutcome};
use super::{
    BALANCE_TABLE, DIVERT_PREFERENCE, INNER_V4, INNER_V6, NEXT_HOP_V4, NEXT_HOP_V6,
    SEGMENT_PREFERENCE, SPECIFIC_PREFERENCE, STEER_DEVICE, uplink_table,
};

/// Smallest MTU that IPv6 works on (RFC 8200 §5).
const V6_LEAST_MTU: u32 = 1280;
/// MTU without any uplink: Ethernet's.
const USUAL_MTU: u32 = 1500;

/// Desired state of the rules that divert traffic into `braid0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divert {
    /// Leave them as found. A start uses this before the datapath is attached: on a fresh machine nothing is
    /// diverted into a device without a program yet, and a restart does not interrupt traffic.
    AsFound,
    /// Traffic of every family that has an uplink goes into `braid0`.
    On,
    /// Traffic leaves as it would without Braid.
    Off,
}

/// Desired state of the kernel. Applying it again changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// Address of the host on `braid0` for IPv4; usually [`INNER_V4`].
    pub inner_v4: Ipv4Addr,
    /// Address of the host on `braid0` for IPv6; usually [`INNER_V6`].
    pub inner_v6: Ipv6Addr,
    /// The uplinks that can be used now, with their stable indices.
    pub uplinks: Vec<(UplinkId, Uplink)>,
    /// Ports that address translation uses; local sockets must not take them.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Make the machine a gateway (`[lan]` in the configuration). `false` leaves forwarding alone,
    /// on or off.
    pub forward: bool,
    /// LAN devices whose clients reach hosts on the uplinks' own links through Braid. By plain routing their
    /// packets would go there untranslated, and no answer would find its way back.
    pub lans: Vec<String>,
    /// Traffic that the configuration's rules keep away from `braid0`.
    pub bypasses: Vec<Bypass>,
    /// Desired state of the diverting rules.
    pub divert: Divert,
}

impl Desired {
    /// Creates it for these uplinks, with the usual inner addresses and without forwarding.
    #[must_use]
    pub fn new(
        uplinks: Vec<(UplinkId, Uplink)>,
        ports: Vec<RangeInclusive<u16>>,
        divert: Divert,
    ) -> Desired {
        Desired {
            inner_v4: INNER_V4,
            inner_v6: INNER_V6,
            uplinks,
            ports,
            forward: false,
            lans: Vec::new(),
            bypasses: Vec::new(),
            divert,
        }
    }

    /// Returns true if some uplink has a next hop of this family.
    #[must_use]
    pub fn has(&self, family: Family) -> bool {
        self.uplinks.iter().any(|(_, u)| match family {
            Family::V4 => u.v4.is_some(),
            Family::V6 => u.v6.is_some(),
        })
    }

    /// Returns the MTU of `braid0` in bytes: the smallest of the uplinks', so that the stack itself reports
    /// packets that are too big for some of them.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        let least = self
            .uplinks
            .iter()
            .map(|(_, u)| u.mtu)
            .min()
            .unwrap_or(USUAL_MTU);
        if self.has(Family::V6) {
            least.max(V6_LEAST_MTU)
        } else {
            least
        }
    }

    /// Returns the desired state of the sysctls.
    pub(super) fn sysctls(&self) -> sysctl::Desired {
        let devices = |wanted: fn(&Uplink) -> bool| {
            let wanted = self
                .uplinks
                .iter()
                .filter(move |(_, uplink)| wanted(uplink));
            wanted.map(|(_, uplink)| uplink.device.clone()).collect()
        };
        let advertised = |uplink: &Uplink| uplink.v6.as_ref().is_some_and(|hop| hop.advertised);
        sysctl::Desired {
            loose_rp_filter: devices(|uplink| uplink.v4.is_some()),
            accept_ra: match self.forward {
                true => devices(advertised),
                false => Vec::new(),
            },
            forward: self.forward,
            reserved_ports: self.ports.clone(),
        }
    }

    fn families(&self) -> impl Iterator<Item = Family> {
        [Family::V4, Family::V6]
            .into_iter()
            .filter(|f| self.has(*f))
    }

    fn inner(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.inner_v4.into(),
            Family::V6 => self.inner_v6.into(),
        }
    }

    /// Returns the addresses of `braid0`.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.families().map(|f| self.inner(f)).collect()
    }

    /// Returns all routes: into the datapath, and out of each uplink for sockets with its address.
    pub(super) fn routes(&self) -> Vec<Route> {
        let balance = self.families().map(|family| Route {
            family,
            table: BALANCE_TABLE,
            device: STEER_DEVICE.to_owned(),
            gateway: Some(next_hop(family)),
            source: Some(self.inner(family)),
            metric: family.metric(),
        });
        let uplinks = self.uplinks.iter().flat_map(|(id, uplink)| {
            let route = |family: Family, gateway| Route {
                family,
                table: uplink_table(*id),
                device: uplink.device.clone(),
                gateway,
                source: None,
                metric: family.metric(),
            };
            let v4 = uplink
                .v4
                .as_ref()
                .map(|x| route(Family::V4, x.gateway.map(IpAddr::V4)));
            let v6 = uplink
                .v6
                .as_ref()
                .map(|x| route(Family::V6, x.gateway.map(IpAddr::V6)));
            [v4, v6].into_iter().flatten()
        });
        balance.chain(uplinks).collect()
    }

    /// Returns the rules other than the diverting ones.
    ///
    /// Specific routes of the main table (LANs, containers, VPNs) win over all of Braid's. Answers of a local
    /// server leave by the uplink that the request came in on, whatever the balance. Traffic that the
    /// configuration exempts follows the main table, and so does multicast and broadcast (SSDP and mDNS
    /// discovery, for example), which cannot be balanced.
    pub(super) fn fixed_rules(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        for family in self.families() {
            rules.push(Rule {
                family,
                preference: SPECIFIC_PREFERENCE,
                select: Selector::default(),
                leads: RuleOutcome::Table {
                    table: MAIN_TABLE,
                    suppress: Some(0),
                },
            });
            rules.extend(not_unicast(family).iter().map(|to| Rule {
                family,
                preference: SPECIFIC_PREFERENCE,
                select: Selector::to_network(*to),
                leads: RuleOutcome::to(MAIN_TABLE),
            }));
            for (id, uplink) in &self.uplinks {
                rules.extend(own_addresses(uplink, family).into_iter().map(|from| Rule {
                    family,
                    preference: DIVERT_PREFERENCE - 1,
                    select: Selector::from_address(from),
                    leads: RuleOutcome::to(uplink_table(*id)),
                }));
            }
            rules.extend(self.bypasses.iter().flat_map(|bypass| bypass.rules(family)));
        }
        rules
    }

    /// Returns the rules that send traffic into the datapath: that from LANs to the uplinks' own networks, and
    /// all remaining traffic, one rule for each family with an uplink.
    pub(super) fn divert_rules(&self) -> Vec<Rule> {
        let rule = |family, preference, select| Rule {
            family,
            preference,
            select,
            leads: RuleOutcome::to(BALANCE_TABLE),
        };
        let segments = self
            .uplinks
            .iter()
            .flat_map(|(_, uplink)| uplink.segments());
        let from_lans = segments.flat_map(|segment| {
            self.lans.iter().map(move |lan| {
                let select = Selector {
                    incoming: Some(lan.clone()),
                    ..Selector::to_network((segment.address(), segment.length()))
                };
                rule(Family::of(segment.address()), SEGMENT_PREFERENCE, select)
            })
        });
        let rest = self
            .families()
            .map(|family| rule(family, DIVERT_PREFERENCE, Selector::default()));
        from_lans.chain(rest).collect()
    }
}

/// Multicast networks, the limited broadcast address, and addresses of one link, by which clouds and modems are reached.
/// Those of IPv6 are in the table "local" of each device, or of the device itself.
fn not_unicast(family: Family) -> &'static [(IpAddr, u8)] {
    const V4: [(IpAddr, u8); 3] = [
        (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
        (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4),
        (IpAddr::V4(Ipv4Addr::BROADCAST), 32),
    ];
    match family {
        Family::V4 => &V4,
        Family::V6 => &[],
    }
}

fn own_addresses(uplink: &Uplink, family: Family) -> Vec<IpAddr> {
    fn all<A: Copy + Into<IpAddr>>(next_hop: Option<&NextHop<A>>) -> Vec<IpAddr> {
        let Some(next_hop) = next_hop else {
            return Vec::new();
        };
        let others = next_hop.others.iter().copied();
        std::iter::once(next_hop.address)
            .chain(others)
            .map(Into::into)
            .collect()
    }
    match family {
        Family::V4 => all(uplink.v4.as_ref()),
        Family::V6 => all(uplink.v6.as_ref()),
    }
}

fn next_hop(family: Family) -> IpAddr {
    match family {
        Family::V4 => NEXT_HOP_V4.into(),
        Family::V6 => NEXT_HOP_V6.into(),
    }
}
