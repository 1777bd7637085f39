//! Limit of flows per inside host, so that one host cannot fill the table that all of them share.
//!
//! Pure. Rules, and why:
//! - No host is limited while the table is filled below [`LIMIT_ABOVE`]: free entries may be used by anyone.
//! - Above it each host has the same share of the whole table. A host over its share opens no new flows;
//!   running ones continue. A host alone has all of the table. However many addresses a host makes up, every
//!   host may use [`MIN_SHARE`] of the table.
//! - A host that rotates IPv6 addresses stays under every per-address limit. Above [`LIMIT_NETWORKS_ABOVE`], a
//!   /64 that holds [`LIMIT_ABOVE`] of the table, without its hosts that are limited already, is therefore
//!   limited as one. Its other hosts may lack IPv6 for a while; otherwise they would lack everything, together
//!   with all other networks.
//! - A limit ends below [`RELEASE_BELOW`] of the share, or when the table has emptied to [`NO_LIMIT_BELOW`], so
//!   that a host at the limit does not flap.
//! - Every update counts the present flows, so no state accumulates: at most [`MAX_LIMITED`] hosts and networks
//!   are limited, those with most flows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Fill of the table, as a fraction, above which hosts are limited.
const LIMIT_ABOVE: (usize, usize) = (1, 2);
/// Fill of the table above which whole networks are limited.
const LIMIT_NETWORKS_ABOVE: (usize, usize) = (3, 4);
/// Fill of the table below which all limits end.
const NO_LIMIT_BELOW: (usize, usize) = (3, 8);
/// Fraction of its share below which a limited host is released.
const RELEASE_BELOW: (usize, usize) = (3, 4);
/// Fraction of the table that every host may use.
const MIN_SHARE: (usize, usize) = (1, 64);
/// Most hosts and networks limited at once.
const MAX_LIMITED: usize = 256;

/// A host or network that may be limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    /// One address.
    Host(IpAddr),
    /// A /64, by its first address.
    Network(Ipv6Addr),
}

impl Client {
    /// Returns the /64 of an IPv6 address.
    fn network_of(address: IpAddr) -> Option<Client> {
        match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(v6) => {
                let network = Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64);
                Some(Client::Network(network))
            }
        }
    }

    /// Returns the address for [`braid_balance::Datapath::limit_clients`].
    fn address(self) -> IpAddr {
        match self {
            Client::Host(address) => address,
            Client::Network(network) => network.into(),
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::Host(address) => write!(f, "{address}"),
            Client::Network(network) => write!(f, "{network}/64"),
        }
    }
}

/// The limited hosts and networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    limited: BTreeSet<Client>,
}

/// A host or network over its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit {
    /// The host or network.
    pub client: Client,
    /// Flows that it has.
    pub flows: usize,
    /// Flows that it may have.
    pub share: usize,
}

/// Changes of an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Limited from now on.
    pub limited: Vec<OverLimit>,
    /// Released.
    pub freed: Vec<Client>,
}

fn part(of: usize, (numerator, denominator): (usize, usize)) -> usize {
    of * numerator / denominator
}

impl Limits {
    /// Returns true if a table of `capacity` with `held` flows needs an update host by host.
    #[must_use]
    pub fn applies(&self, held: usize, capacity: usize) -> bool {
        held > part(capacity, LIMIT_ABOVE) || !self.limited.is_empty()
    }

    /// Updates the limits from the inside addresses of the kept flows, one for each flow.
    pub fn update(&mut self, inner: impl Iterator<Item = IpAddr>, capacity: usize) -> Changes {
        let mut held: BTreeMap<IpAddr, usize> = BTreeMap::new();
        inner.for_each(|client| *held.entry(client).or_default() += 1);
        let total: usize = held.values().sum();
        let crowded = match self.limited.is_empty() {
            true => total > part(capacity, LIMIT_ABOVE),
            false => total > part(capacity, NO_LIMIT_BELOW),
        };
        let mut over_limit = match crowded && held.len() > 1 {
            true => self.hosts(&held, capacity),
            false => Vec::new(),
        };
        if crowded {
            over_limit.extend(self.networks(&held, &over_limit, capacity));
        }
        over_limit.sort_by_key(|over| std::cmp::Reverse(over.flows));
        over_limit.truncate(MAX_LIMITED);
        let now: BTreeSet<Client> = over_limit.iter().map(|over| over.client).collect();
        over_limit.retain(|over| !self.limited.contains(&over.client));
        let freed = self.limited.difference(&now).copied().collect();
        self.limited = now;
        Changes {
            limited: over_limit,
            freed,
        }
    }

    fn hosts(&self, held: &BTreeMap<IpAddr, usize>, capacity: usize) -> Vec<OverLimit> {
        let share = (capacity / held.len()).max(part(capacity, MIN_SHARE));
        let over = held.iter().map(|(&client, &flows)| OverLimit {
            client: Client::Host(client),
            flows,
            share,
        });
        over.filter(|over| self.is_over(over)).collect()
    }

    /// Returns the networks whose unlimited hosts together leave too little for all others.
    fn networks(
        &self,
        held: &BTreeMap<IpAddr, usize>,
        over_limit: &[OverLimit],
        capacity: usize,
    ) -> Vec<OverLimit> {
        let total: usize = held.values().sum();
        let limited: BTreeSet<Client> = over_limit.iter().map(|over| over.client).collect();
        let mut networks: BTreeMap<Client, usize> = BTreeMap::new();
        for (client, flows) in held {
            let network = Client::network_of(*client);
            if let Some(network) = network.filter(|_| !limited.contains(&Client::Host(*client))) {
                *networks.entry(network).or_default() += flows;
            }
        }
        let share = part(capacity, LIMIT_ABOVE);
        let over = networks.into_iter().map(|(client, flows)| OverLimit {
            client,
            flows,
            share,
        });
        over.filter(|over| {
            let counts =
                self.limited.contains(&over.client) || total > part(capacity, LIMIT_NETWORKS_ABOVE);
            counts && over.flows < total && self.is_over(over)
        })
        .collect()
    }

    fn is_over(&self, over: &OverLimit) -> bool {
        match self.limited.contains(&over.client) {
            true => over.flows >= part(over.share, RELEASE_BELOW),
            false => over.flows > over.share,
        }
    }

    /// Returns the limited addresses, for [`braid_balance::Datapath::limit_clients`].
    #[must_use]
    pub fn limited(&self) -> Vec<IpAddr> {
        self.limited.iter().map(|client| client.address()).collect()
    }

    /// Returns the limit that applies to an address, if any.
    #[must_use]
    pub fn limit_of(&self, address: IpAddr) -> Option<Client> {
        let network = Client::network_of(address);
        let mut who = [Some(Client::Host(address)), network].into_iter().flatten();
        who.find(|client| self.limited.contains(client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: usize = 100;

    fn look(limits: &mut Limits, held: &[(u8, usize)]) -> (Vec<u8>, Vec<u8>) {
        let flows = held.iter().flat_map(|&(client, flows)| {
            std::iter::repeat_n(IpAddr::from([192, 168, 0, client]), flows)
        });
        let last = |client: Client| match client.address() {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(_) => unreachable!(),
        };
        let changes = limits.update(flows, CAPACITY);
        let limited = changes.limited.iter().map(|over| last(over.client));
        (
            limited.collect(),
            changes.freed.into_iter().map(last).collect(),
        )
    }

    #[test]
    fn a_heavy_host_is_limited_only_while_others_need_room() {
        let mut limits = Limits::default();
        let none = (vec![], vec![]);
        assert_eq!(look(&mut limits, &[(1, 45), (2, 3)]), none, "half is free");
        assert_eq!(look(&mut limits, &[(1, 90)]), none, "it is alone");
        assert_eq!(look(&mut limits, &[(1, 50), (2, 3)]), none, "its share");
        assert_eq!(look(&mut limits, &[(1, 51), (2, 3)]), (vec![1], vec![]));
        assert_eq!(look(&mut limits, &[(1, 60), (2, 3)]), none, "said once");
        assert_eq!(look(&mut limits, &[(1, 38), (2, 3)]), none, "no flapping");
        assert_eq!(look(&mut limits, &[(1, 36), (2, 3)]), (vec![], vec![1]));
        assert_eq!(look(&mut limits, &[(1, 90), (2, 3)]), (vec![1], vec![]));
        assert_eq!(look(&mut limits, &[(1, 20), (2, 3)]), (vec![], vec![1]));
        assert!(!limits.applies(20, CAPACITY));
    }

    #[test]
    fn made_up_addresses_take_nothing_from_others() {
        let mut limits = Limits::default();
        let made_up = (0..4096_u32).flat_map(|i| std::iter::repeat_n(i.to_be_bytes().into(), 10));
        let honest = std::iter::repeat_n(IpAddr::from([192, 168, 0, 1]), 900);
        let changes = limits.update(made_up.chain(honest), 65_536);
        assert_eq!(changes, Changes::default());
    }

    #[test]
    fn everybody_else_keeps_their_share() {
        let mut limits = Limits::default();
        let held = [(1, 70), (2, 10), (3, 10), (4, 9)];
        assert_eq!(look(&mut limits, &held).0, [1]);
        assert_eq!(limits.limited().len(), 1);
    }

    /// Flows of `addresses` hosts with made-up addresses in a /64, and those of an IPv4 host.
    fn made_up(addresses: usize, own: usize) -> impl Iterator<Item = IpAddr> {
        let six = (0..addresses).map(|host| {
            let network = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 0).to_bits();
            Ipv6Addr::from_bits(network + 1 + host as u128).into()
        });
        six.chain(std::iter::repeat_n(IpAddr::from([192, 168, 0, 1]), own))
    }

    #[test]
    fn made_up_addresses_of_a_network_are_limited_as_one() {
        const CAPACITY: usize = 1000;
        let mut limits = Limits::default();
        let network = Client::Network("fd00:1::".parse().unwrap());
        let none = Changes::default();
        assert_eq!(
            limits.update(made_up(700, 10), CAPACITY),
            none,
            "room is left"
        );
        assert_eq!(
            limits.update(made_up(990, 0), CAPACITY),
            none,
            "it is alone"
        );
        assert_eq!(limits.update(made_up(400, 390), CAPACITY).limited.len(), 1);
        let mut limits = Limits::default();
        let changes = limits.update(made_up(745, 10), CAPACITY);
        assert_eq!(changes.limited.len(), 1);
        assert_eq!(changes.limited[0].client, network);
        assert_eq!(network.to_string(), "fd00:1::/64");
        assert_eq!(limits.limited(), ["fd00:1::".parse::<IpAddr>().unwrap()]);
        let of = |address: &str| limits.limit_of(address.parse().unwrap());
        assert_eq!(
            (of("fd00:1::9:9"), of("fd00:1:0:1::9")),
            (Some(network), None)
        );
        assert_eq!(of("192.168.0.1"), None);
        assert_eq!(
            limits.update(made_up(600, 10), CAPACITY),
            none,
            "no flapping"
        );
        assert_eq!(limits.update(made_up(370, 10), CAPACITY).freed, [network]);
    }

    #[test]
    fn a_heavy_host_among_neighbours_is_limited_alone() {
        const CAPACITY: usize = 1000;
        let mut limits = Limits::default();
        let heavy = IpAddr::from([0xfd00, 1, 0, 0, 0, 0, 0, 0xbad]);
        let flows = made_up(60, 10).chain(std::iter::repeat_n(heavy, 800));
        let changes = limits.update(flows, CAPACITY);
        let clients: Vec<Client> = changes.limited.iter().map(|over| over.client).collect();
        assert_eq!(clients, [Client::Host(heavy)]);
    }
}
