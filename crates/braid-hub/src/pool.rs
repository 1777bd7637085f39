//! Assignment of inner addresses. Decisions only.
//!
//! A pool is one network per IP version. The hub has the first address of each; a client gets the
//! same offset in all of them, so that 10.73.0.9 and fd00::9 are one client. Offsets are assigned
//! in turn, not the lowest free one: packets in flight to a revoked client must not reach the next
//! one.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use braid_host::config::Prefix;

/// The hub's own offset in every network.
const HUB_PLACE: u128 = 1;

/// Offset of the first client.
const FIRST_PLACE: u128 = 2;

/// Pool of inner addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressPool {
    networks: Vec<Prefix>,
}

/// Error of a pool or an assignment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// A network without room for the hub and one client.
    #[error("{0} has no room for the hub and a client: a network is /30 or larger (IPv6: /126)")]
    Small(Prefix),
    /// Two networks of one IP version.
    #[error("{0} and {1}: there is one network per IP version")]
    Twice(Prefix, Prefix),
    /// No network at all.
    #[error("the pool has no network")]
    Nothing,
    /// All addresses are assigned.
    #[error("all {0} addresses of the pool are in use")]
    Full(u128),
    /// A wanted address is in no network, or not a host's.
    #[error(
        "{0} is not an address for a client: the pool is {1}, without the first and last address"
    )]
    Outside(IpAddr, String),
    /// Two wanted addresses of one IP version, or the same one twice.
    #[error("{0} and {1}: a client has one inner address per IP version")]
    Again(IpAddr, IpAddr),
    /// A wanted address is assigned already.
    #[error("{0} is in use already")]
    Taken(IpAddr),
}

impl AddressPool {
    /// A pool of these networks.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn new(networks: Vec<Prefix>) -> Result<Self, PoolError> {
        if networks.is_empty() {
            return Err(PoolError::Nothing);
        }
        for (at, network) in networks.iter().enumerate() {
            if last(network) < FIRST_PLACE {
                return Err(PoolError::Small(*network));
            }
            let version =
                |other: &&Prefix| other.address().is_ipv4() == network.address().is_ipv4();
            if let Some(other) = networks[..at].iter().find(version) {
                return Err(PoolError::Twice(*other, *network));
            }
        }
        Ok(AddressPool { networks })
    }

    /// The networks.
    #[must_use]
    pub fn networks(&self) -> &[Prefix] {
        &self.networks
    }

    /// The hub's own addresses, with the prefix lengths of their networks.
    #[must_use]
    pub fn hub(&self) -> Vec<(IpAddr, u8)> {
        let own = |network: &Prefix| (nth(network, HUB_PLACE), network.length());
        self.networks.iter().map(own).collect()
    }

    /// Prefix length of the network of an address; none if it is in none.
    #[must_use]
    pub fn length(&self, address: IpAddr) -> Option<u8> {
        let network = self.networks.iter().find(|n| n.contains(address))?;
        Some(network.length())
    }

    /// The next free addresses, one of each network; `after` are the last assigned ones.
    ///
    /// # Errors
    /// The pool is full.
    pub fn next(
        &self,
        taken: &BTreeSet<IpAddr>,
        after: &[IpAddr],
    ) -> Result<Vec<IpAddr>, PoolError> {
        let most = self
            .networks
            .iter()
            .map(last)
            .min()
            .ok_or(PoolError::Nothing)?;
        let given = after
            .iter()
            .filter_map(|address| self.place(*address))
            .max();
        let start = given.map_or(FIRST_PLACE, |place| place + 1);
        let start = if start > most { FIRST_PLACE } else { start };
        let at = |place| -> Vec<IpAddr> {
            self.networks
                .iter()
                .map(|network| nth(network, place))
                .collect()
        };
        (start..=most)
            .chain(FIRST_PLACE..start)
            .map(at)
            // An assigned address blocks one offset at most.
            .take(taken.len() + 1)
            .find(|addresses| addresses.iter().all(|address| !taken.contains(address)))
            .ok_or(PoolError::Full(most - FIRST_PLACE + 1))
    }

    /// The wanted addresses, which are not among `taken`, and one of each network of which none is wanted, which is not
    /// among `reserved`.
    ///
    /// # Errors
    /// One of them is not available, or the pool is full.
    pub fn wanted(
        &self,
        wanted: &[IpAddr],
        taken: &BTreeSet<IpAddr>,
        reserved: &BTreeSet<IpAddr>,
        after: &[IpAddr],
    ) -> Result<Vec<IpAddr>, PoolError> {
        for (at, address) in wanted.iter().enumerate() {
            let version = |other: &&IpAddr| other.is_ipv4() == address.is_ipv4();
            if let Some(first) = wanted[..at].iter().find(version) {
                return Err(PoolError::Again(*first, *address));
            }
            if self.place(*address).is_none() {
                return Err(PoolError::Outside(*address, self.text()));
            }
            if taken.contains(address) {
                return Err(PoolError::Taken(*address));
            }
        }
        let asked = |network: &&Prefix| wanted.iter().any(|address| network.contains(*address));
        let rest: Vec<Prefix> = self
            .networks
            .iter()
            .filter(|n| !asked(n))
            .copied()
            .collect();
        let mut addresses = wanted.to_vec();
        if !rest.is_empty() {
            addresses.extend(AddressPool { networks: rest }.next(reserved, after)?);
        }
        Ok(addresses)
    }

    /// Returns true if a client can have this address.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        self.place(address).is_some()
    }

    /// The networks as text.
    #[must_use]
    pub fn text(&self) -> String {
        let networks: Vec<String> = self.networks.iter().map(Prefix::to_string).collect();
        networks.join(" and ")
    }

    /// Offset of a client's address in its network.
    fn place(&self, address: IpAddr) -> Option<u128> {
        let network = self.networks.iter().find(|n| n.contains(address))?;
        let place = bits(address) - bits(network.address());
        (FIRST_PLACE..=last(network))
            .contains(&place)
            .then_some(place)
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn nth(network: &Prefix, place: u128) -> IpAddr {
    let bits = bits(network.address()) + place;
    match network.address() {
        IpAddr::V4(_) => Ipv4Addr::from_bits(bits as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
    }
}

/// The last offset for a host: the one after it is IPv4's broadcast address, and is left free in
/// IPv6 too, so that both count alike. Zero if there is none.
fn last(network: &Prefix) -> u128 {
    let all = if network.address().is_ipv4() { 32 } else { 128 };
    let size = 1u128.checked_shl(u32::from(all - network.length()));
    size.unwrap_or(u128::MAX).saturating_sub(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pool(networks: &[&str]) -> AddressPool {
        AddressPool::new(networks.iter().map(|n| n.parse().unwrap()).collect()).unwrap()
    }

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_client_has_the_same_place_in_both_networks() {
        let pool = pool(&["10.73.0.0/16", "fd00:1:2:3::/64"]);
        let hub = [("10.73.0.1", 16), ("fd00:1:2:3::1", 64)];
        assert_eq!(
            pool.hub(),
            hub.map(|(a, length)| (a.parse().unwrap(), length))
        );
        let first = pool.next(&BTreeSet::new(), &[]).unwrap();
        assert_eq!(first, addresses(&["10.73.0.2", "fd00:1:2:3::2"]));
        let second = pool.next(&first.iter().copied().collect(), &first).unwrap();
        assert_eq!(second, addresses(&["10.73.0.3", "fd00:1:2:3::3"]));
        assert_eq!(pool.length("10.73.9.9".parse().unwrap()), Some(16));
    }

    #[test]
    fn places_go_round_and_a_full_pool_says_its_size() {
        let pool = pool(&["10.0.0.0/29"]);
        let mut taken = BTreeSet::new();
        let mut last = Vec::new();
        for place in 2..=6 {
            last = pool.next(&taken, &last).unwrap();
            assert_eq!(last, addresses(&[&format!("10.0.0.{place}")]));
            taken.extend(&last);
        }
        assert_eq!(pool.next(&taken, &last), Err(PoolError::Full(5)));
        taken.remove(&"10.0.0.3".parse().unwrap());
        assert_eq!(pool.next(&taken, &last).unwrap(), addresses(&["10.0.0.3"]));
        // The last assigned address is free again, and still not the next.
        taken.remove(&"10.0.0.2".parse().unwrap());
        let after = addresses(&["10.0.0.2"]);
        assert_eq!(pool.next(&taken, &after).unwrap(), addresses(&["10.0.0.3"]));
    }

    #[test]
    fn networks_that_are_none_are_told() {
        let network = |text: &str| text.parse::<Prefix>().unwrap();
        assert_eq!(AddressPool::new(vec![]), Err(PoolError::Nothing));
        for small in ["10.0.0.0/31", "10.0.0.0/32", "fd00::/127", "fd00::1/128"] {
            let small = network(small);
            assert_eq!(AddressPool::new(vec![small]), Err(PoolError::Small(small)));
        }
        let (a, b) = (network("10.0.0.0/24"), network("10.0.1.0/24"));
        assert_eq!(AddressPool::new(vec![a, b]), Err(PoolError::Twice(a, b)));
        assert!(AddressPool::new(vec![network("::/0")]).is_ok());
    }

    #[test]
    fn a_wanted_address_is_the_clients_or_nobodys() {
        let pool = pool(&["10.0.0.0/29", "fd00::/64"]);
        let taken: BTreeSet<IpAddr> = addresses(&["10.0.0.4", "fd00::2"]).into_iter().collect();
        let none = BTreeSet::new();
        let wanted = addresses(&["10.0.0.3"]);
        let got = pool.wanted(&wanted, &none, &taken, &[]);
        assert_eq!(got.unwrap(), addresses(&["10.0.0.3", "fd00::3"]));
        // Reserved addresses are for who wants them.
        let both = addresses(&["10.0.0.4", "fd00::2"]);
        assert_eq!(pool.wanted(&both, &none, &taken, &[]).unwrap(), both);
        let four: IpAddr = "10.0.0.4".parse().unwrap();
        assert_eq!(
            pool.wanted(&[four], &taken, &none, &[]),
            Err(PoolError::Taken(four))
        );
        for outside in ["10.0.0.0", "10.0.0.1", "10.0.0.7", "10.0.1.2", "fd01::2"] {
            let refused = pool.wanted(&addresses(&[outside]), &taken, &none, &[]);
            assert!(
                matches!(refused, Err(PoolError::Outside(..))),
                "{outside}: {refused:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_address_is_assigned_twice(length in 24u8..=30, given in proptest::collection::btree_set(2u8..=253, 0..200), after in 0u8..=255) {
            let pool = pool(&[&format!("10.0.0.0/{length}")]);
            let taken: BTreeSet<IpAddr> = given.iter().map(|g| IpAddr::from([10, 0, 0, *g])).collect();
            let most = (1u128 << (32 - length)) - 2;
            let free = (2..=most).filter(|place| !given.contains(&(*place as u8))).count();
            match pool.next(&taken, &[IpAddr::from([10, 0, 0, after])]) {
                Ok(addresses) => {
                    prop_assert!(addresses.iter().all(|a| !taken.contains(a) && pool.has(*a)));
                }
                Err(error) => {
                    prop_assert_eq!(free, 0);
                    prop_assert_eq!(error, PoolError::Full(most - 1));
                }
            }
        }
    }
}
