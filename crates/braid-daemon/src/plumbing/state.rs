//! Kernel objects as plain data, and the steps that make or remove them. Each displays as the `ip` or `sysctl`
//! command with the same effect.

use std::fmt;
use std::net::IpAddr;

use braid_host::sysctl;
use braid_uplink::ROUTE_PROTOCOL;

use super::selector::Selector;
use super::{BALANCE_TABLE, GROUP, MARK, PEER_DEVICE, STEER_DEVICE};

/// `RT_TABLE_MAIN`.
pub(super) const MAIN_TABLE: u32 = 254;
/// The kernel's metric of an IPv6 route without one (`IP6_RT_PRIO_USER`).
const V6_METRIC: u32 = 1024;

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Returns the family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() {
            Family::V4
        } else {
            Family::V6
        }
    }

    /// Returns the metric of Braid's routes: the kernel's default.
    #[must_use]
    pub fn metric(self) -> u32 {
        match self {
            Family::V4 => 0,
            Family::V6 => V6_METRIC,
        }
    }

    /// Returns the length of a host prefix.
    #[must_use]
    pub fn host_prefix(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }

    fn flag(self) -> &'static str {
        match self {
            Family::V4 => "-4",
            Family::V6 => "-6",
        }
    }
}

/// A default route in one of Braid's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its family.
    pub family: Family,
    /// Its table.
    pub table: u32,
    /// Name of the outgoing device.
    pub device: String,
    /// The next hop, taken to be on the link without a lookup in the main table (`onlink`), whose contents may
    /// change.
    pub gateway: Option<IpAddr>,
    /// The source address for local sockets without one.
    pub source: Option<IpAddr>,
    /// Its metric.
    pub metric: u32,
}

impl Route {
    /// A new route with this key replaces an old one.
    pub(super) fn key(&self) -> (Family, u32, u32) {
        (self.family, self.table, self.metric)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("default")?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        write!(f, " dev {}", self.device)?;
        if let Some(source) = self.source {
            write!(f, " src {source}")?;
        }
        if self.metric != 0 {
            write!(f, " metric {}", self.metric)?;
        }
        if self.gateway.is_some() {
            f.write_str(" onlink")?;
        }
        write!(f, " table {} proto {ROUTE_PROTOCOL}", self.table)
    }
}

/// A routing rule of Braid's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its family.
    pub family: Family,
    /// Its preference: smaller ones come first.
    pub preference: u32,
    /// The packets that it matches.
    pub select: Selector,
    /// Its action.
    pub leads: RuleOutcome,
}

/// Action of a routing rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOutcome {
    /// Look a table up.
    Table {
        /// The table.
        table: u32,
        /// Ignore routes of prefixes this short or shorter.
        suppress: Option<u32>,
    },
    /// Skip all rules before the one of this preference.
    Past(u32),
}

impl RuleOutcome {
    /// Returns the lookup of a table with all its routes.
    #[must_use]
    pub fn to(table: u32) -> RuleOutcome {
        RuleOutcome::Table {
            table,
            suppress: None,
        }
    }
}

impl Rule {
    /// Returns true if it sends traffic into the datapath.
    #[must_use]
    pub fn diverts(&self) -> bool {
        self.leads == RuleOutcome::to(BALANCE_TABLE)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pref {}", self.preference)?;
        self.select.fmt(f)?;
        match self.leads {
            RuleOutcome::Past(preference) => write!(f, " goto {preference}")?,
            RuleOutcome::Table { table, suppress } => {
                match table {
                    MAIN_TABLE => f.write_str(" lookup main")?,
                    table => write!(f, " lookup {table}")?,
                }
                if let Some(length) = suppress {
                    write!(f, " suppress_prefixlength {length}")?;
                }
            }
        }
        write!(f, " protocol {ROUTE_PROTOCOL}")
    }
}

/// A foreign rule that comes before Braid's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignRule {
    /// Its family.
    pub family: Family,
    /// Its preference.
    pub preference: u32,
    /// Its selector, in `ip`'s words and with a space in front; empty for everything.
    pub selector: String,
    /// Its table.
    pub table: u32,
}

impl fmt::Display for ForeignRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            preference,
            selector,
            table,
            ..
        } = self;
        write!(
            f,
            "{} pref {preference}{selector} lookup {table}",
            self.family.flag()
        )
    }
}

/// One change of the kernel's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write a sysctl.
    Sysctl(sysctl::Write),
    /// Make the veth pair, down.
    AddVeth {
        /// MTU of both ends in bytes.
        mtu: u32,
    },
    /// Set up one end: alias, MTU, no ARP and (where the kernel has IPv6) no link-local address.
    SetLink {
        /// `braid0` or `braid1`.
        device: &'static str,
        /// MTU in bytes.
        mtu: u32,
        /// The kernel has IPv6.
        ipv6: bool,
    },
    /// Switch one end on.
    LinkUp {
        /// `braid0` or `braid1`.
        device: &'static str,
    },
    /// Remove one end, and with it the other, their addresses and their routes.
    DelLink {
        /// `braid0` or `braid1`.
        device: &'static str,
    },
    /// Give `braid0` an address.
    AddAddress(IpAddr),
    /// Take an address from `braid0`.
    DelAddress(IpAddr),
    /// Add a route, or replace the one with its table and metric.
    PutRoute(Route),
    /// Remove a route.
    DelRoute(Route),
    /// Add a rule.
    AddRule(Rule),
    /// Remove a rule.
    DelRule(Rule),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = |a: &IpAddr| Family::of(*a).host_prefix();
        match self {
            Step::Sysctl(write) => write.fmt(f),
            Step::AddVeth { mtu } => write!(
                f,
                "ip link add {STEER_DEVICE} mtu {mtu} group {GROUP} \
                 type veth peer name {PEER_DEVICE} mtu {mtu} group {GROUP}"
            ),
            Step::SetLink { device, mtu, ipv6 } => {
                write!(f, "ip link set {device} alias {MARK} mtu {mtu} arp off")?;
                f.write_str(if *ipv6 { " addrgenmode none" } else { "" })
            }
            Step::LinkUp { device } => write!(f, "ip link set {device} up"),
            Step::DelLink { device } => write!(f, "ip link del {device}"),
            Step::AddAddress(a @ IpAddr::V4(_)) => {
                write!(f, "ip addr add {a}/{} dev {STEER_DEVICE}", prefix(a))
            }
            Step::AddAddress(a @ IpAddr::V6(_)) => {
                write!(f, "ip addr add {a}/{} dev {STEER_DEVICE} nodad", prefix(a))
            }
            Step::DelAddress(a) => write!(f, "ip addr del {a}/{} dev {STEER_DEVICE}", prefix(a)),
            Step::PutRoute(r) => write!(f, "ip {} route replace {r}", r.family.flag()),
            Step::DelRoute(r) => write!(f, "ip {} route del {r}", r.family.flag()),
            Step::AddRule(r) => write!(f, "ip {} rule add {r}", r.family.flag()),
            Step::DelRule(r) => write!(f, "ip {} rule del {r}", r.family.flag()),
        }
    }
}
