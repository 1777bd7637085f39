//! By which of a hub's addresses each client asked last, from where.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::doors::Asked;
use crate::proto::handshake::PublicKey;

/// Addresses that are kept of one client: as many as it has links. A client that sends from more loses its own.
const MOST: usize = 32;

/// Addresses from which something authentic came, at most [`MOST`] of each client.
#[derive(Debug, Default)]
pub(super) struct Callers {
    known: HashMap<SocketAddr, (Asked, PublicKey)>,
    /// Addresses of each client, the one that was heard last at the end.
    of: HashMap<PublicKey, Vec<SocketAddr>>,
}

impl Callers {
    /// Something authentic has come from there.
    pub fn insert(&mut self, from: SocketAddr, asked: Asked, peer: PublicKey) {
        let before = self.known.insert(from, (asked, peer));
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
        if own.len() > MOST {
            let oldest = own.remove(0);
            self.known.remove(&oldest);
        }
    }

    /// By what it asked.
    pub fn get(&self, from: SocketAddr) -> Option<Asked> {
        self.known.get(&from).map(|(asked, _)| *asked)
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

    fn asked(door: usize) -> Asked {
        Asked { door, to: None }
    }

    fn from(number: u32) -> SocketAddr {
        let [a, b, c, d] = number.to_be_bytes();
        SocketAddr::from(([10, b, c, d], 1000 + u16::from(a)))
    }

    const ONE: PublicKey = PublicKey([1; 32]);
    const TWO: PublicKey = PublicKey([2; 32]);

    #[test]
    fn a_client_with_a_million_addresses_costs_as_much_as_one_with_thirty_two() {
        let mut callers = Callers::default();
        callers.insert(from(u32::MAX), asked(7), TWO);
        for number in 0..1_000_000 {
            callers.insert(from(number), asked(0), ONE);
            // A link that is in use is heard again and again.
            callers.insert(from(3), asked(1), ONE);
        }
        assert_eq!(callers.known.len(), MOST + 1);
        assert_eq!(callers.of[&ONE].len(), MOST);
        assert_eq!(callers.get(from(3)), Some(asked(1)));
        assert_eq!(callers.get(from(999_999)), Some(asked(0)));
        assert_eq!(callers.get(from(0)), None);
        assert_eq!(
            callers.get(from(u32::MAX)),
            Some(asked(7)),
            "another client's"
        );
        callers.remove(ONE);
        assert_eq!(callers.known.len(), 1);
    }

    #[test]
    fn an_address_is_of_whoever_was_heard_from_there_last() {
        let mut callers = Callers::default();
        callers.insert(from(1), asked(0), ONE);
        callers.insert(from(1), asked(1), TWO);
        callers.remove(ONE);
        assert_eq!(callers.get(from(1)), Some(asked(1)));
        callers.remove(TWO);
        assert_eq!(callers.get(from(1)), None);
        assert!(callers.of.is_empty());
    }
}
