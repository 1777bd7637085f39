//! Source addresses of a hub's clients, each with the local address that it uses.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::listeners::LocalEndpoint;
use crate::proto::handshake::PublicKey;

/// Addresses kept per client: as many as it has links. A client that sends from more loses its own.
const MAX_ADDRESSES_PER_CLIENT: usize = 32;

/// Addresses of authentic packets, at most [`MAX_ADDRESSES_PER_CLIENT`] per client.
#[derive(Debug, Default)]
pub(super) struct ClientAddresses {
    known: HashMap<SocketAddr, (LocalEndpoint, PublicKey)>,
    /// Addresses of each client, the most recent one last.
    of: HashMap<PublicKey, Vec<SocketAddr>>,
}

impl ClientAddresses {
    /// Records the source address of an authentic packet.
    pub fn insert(&mut self, from: SocketAddr, local: LocalEndpoint, peer: PublicKey) {
        let before = self.known.insert(from, (local, peer));
        if let Some((_, other)) = before.filter(|(_, owner)| *owner != peer) {
            self.drop_of(other, from);
        }
        let own = self.of.entry(peer).or_default();
        if own.last() == Some(&from) {
            return;
        }
        match own.iter().position(|known| *known == from) {
            Some(at) => own[at..].rotate_left(1),
            None => own.push(from),
        }
        if own.len() > MAX_ADDRESSES_PER_CLIENT {
            let oldest = own.remove(0);
            self.known.remove(&oldest);
        }
    }

    /// The local address that the client uses.
    pub fn get(&self, from: SocketAddr) -> Option<LocalEndpoint> {
        self.known.get(&from).map(|(local, _)| *local)
    }

    /// Forgets a client.
    pub fn remove(&mut self, peer: PublicKey) {
        for from in self.of.remove(&peer).unwrap_or_default() {
            self.known.remove(&from);
        }
    }

    fn drop_of(&mut self, peer: PublicKey, from: SocketAddr) {
        if let Some(own) = self.of.get_mut(&peer) {
            own.retain(|known| *known != from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(listener: usize) -> LocalEndpoint {
        LocalEndpoint { listener, to: None }
    }

    fn from(number: u32) -> SocketAddr {
        let [a, b, c, d] = number.to_be_bytes();
        SocketAddr::from(([10, b, c, d], 1000 + u16::from(a)))
    }

    const ONE: PublicKey = PublicKey([1; 32]);
    const TWO: PublicKey = PublicKey([2; 32]);

    #[test]
    fn a_client_with_a_million_addresses_costs_as_much_as_one_with_thirty_two() {
        let mut addresses = ClientAddresses::default();
        addresses.insert(from(u32::MAX), local(7), TWO);
        for number in 0..1_000_000 {
            addresses.insert(from(number), local(0), ONE);
            // The address of a link in use is inserted again and again.
            addresses.insert(from(3), local(1), ONE);
        }
        assert_eq!(addresses.known.len(), MAX_ADDRESSES_PER_CLIENT + 1);
        assert_eq!(addresses.of[&ONE].len(), MAX_ADDRESSES_PER_CLIENT);
        assert_eq!(addresses.get(from(3)), Some(local(1)));
        assert_eq!(addresses.get(from(999_999)), Some(local(0)));
        assert_eq!(addresses.get(from(0)), None);
        assert_eq!(
            addresses.get(from(u32::MAX)),
            Some(local(7)),
            "another client's"
        );
        addresses.remove(ONE);
        assert_eq!(addresses.known.len(), 1);
    }

    #[test]
    fn an_address_is_of_whoever_was_heard_from_there_last() {
        let mut addresses = ClientAddresses::default();
        addresses.insert(from(1), local(0), ONE);
        addresses.insert(from(1), local(1), TWO);
        addresses.remove(ONE);
        assert_eq!(addresses.get(from(1)), Some(local(1)));
        addresses.remove(TWO);
        assert_eq!(addresses.get(from(1)), None);
        assert!(addresses.of.is_empty());
    }
}
