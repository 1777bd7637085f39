//! A hub's peers: routing of inner addresses, source checks, rate limits and counters.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use braid_core::{Bytes, Rate, Time};
use braid_multipath::LinkId;

use super::snapshot::{self, LinkShares};
use super::{FlowStatus, Peer, PeerStatus, Prefix, Traffic};
use crate::proto::handshake::PublicKey;
use crate::proto::server::Server;

/// Burst of a peer, as a time at its rate.
const BURST_SPAN: Duration = Duration::from_millis(50);

/// Least burst, for low rates: two super-packets.
const MIN_BURST_BYTES: u64 = 128 * 1024;

/// A peer with its counters.
#[derive(Debug)]
struct PeerState {
    peer: Peer,
    sent: Traffic,
    received: Traffic,
    spoofed: u64,
    capped: u64,
    to: CapBucket,
    from: CapBucket,
    shares: LinkShares,
}

/// All peers of a hub.
#[derive(Debug)]
pub(super) struct Peers {
    /// True if peers reach each other.
    between: bool,
    known: BTreeMap<PublicKey, PeerState>,
    /// Owners of single addresses.
    hosts: HashMap<IpAddr, PublicKey>,
    /// Owners of networks, the longest prefix first.
    networks: Vec<(Prefix, PublicKey)>,
    unrouted: u64,
}

impl Peers {
    /// No peers yet. `between`: peers reach each other.
    pub fn new(between: bool) -> Self {
        Peers {
            between,
            known: BTreeMap::new(),
            hosts: HashMap::new(),
            networks: Vec::new(),
            unrouted: 0,
        }
    }

    pub fn insert(&mut self, peer: Peer) {
        let key = peer.key;
        self.unroute(key);
        for prefix in &peer.inner {
            match Prefix::from(prefix.address()) == *prefix {
                true => _ = self.hosts.insert(prefix.address(), key),
                false => self.networks.push((*prefix, key)),
            }
        }
        self.networks
            .sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.length()));
        match self.known.get_mut(&key) {
            Some(known) => known.peer = peer,
            None => {
                let known = PeerState {
                    peer,
                    sent: Traffic::default(),
                    received: Traffic::default(),
                    spoofed: 0,
                    capped: 0,
                    to: CapBucket::default(),
                    from: CapBucket::default(),
                    shares: LinkShares::default(),
                };
                self.known.insert(key, known);
            }
        }
    }

    /// Changes a peer's rate. Returns true if the peer is known.
    pub fn set_cap(&mut self, key: PublicKey, cap: Option<Rate>) -> bool {
        let known = self.known.get_mut(&key);
        known.map(|known| known.peer.cap = cap).is_some()
    }

    pub fn remove(&mut self, key: PublicKey) {
        self.unroute(key);
        self.known.remove(&key);
    }

    fn unroute(&mut self, key: PublicKey) {
        let Some(known) = self.known.get(&key) else {
            return;
        };
        for prefix in &known.peer.inner {
            let address = prefix.address();
            if Prefix::from(address) != *prefix {
                self.networks.retain(|(_, owner)| *owner != key);
            } else if self.hosts.get(&address) == Some(&key) {
                self.hosts.remove(&address);
            }
        }
    }

    /// The peer that a packet is for. A packet for no peer, or from another peer that may not reach
    /// it, is counted.
    pub fn route(&mut self, packet: &[u8]) -> Option<PublicKey> {
        let owner = ends(packet).and_then(|(source, dest)| {
            let owner = self.owner(dest)?;
            (self.between || self.owner(source).is_none()).then_some(owner)
        });
        if owner.is_none() {
            self.unrouted += 1;
        }
        owner
    }

    fn owner(&self, address: IpAddr) -> Option<PublicKey> {
        let host = self.hosts.get(&address).copied();
        host.or_else(|| {
            let mut networks = self.networks.iter();
            let found = networks.find(|(prefix, _)| prefix.contains(address));
            found.map(|(_, owner)| *owner)
        })
    }

    pub fn count_unrouted(&mut self) {
        self.unrouted += 1;
    }

    pub fn unrouted(&self) -> u64 {
        self.unrouted
    }

    /// Returns true if this many bytes may be sent to a peer now; counted either way.
    pub fn allows_to(&mut self, now: Time, key: PublicKey, bytes: usize) -> bool {
        let Some(known) = self.known.get_mut(&key) else {
            return false;
        };
        let allowed = known.to.take(now, known.peer.cap, bytes as u64);
        match allowed {
            true => known.sent.add(1, bytes as u64),
            false => known.capped += 1,
        }
        allowed
    }

    /// Returns true if an inner packet from a peer may pass: its source belongs to the peer, and
    /// its rate permits it; counted either way.
    pub fn allows_from(&mut self, now: Time, key: PublicKey, packet: &[u8]) -> bool {
        let Some(known) = self.known.get_mut(&key) else {
            return false;
        };
        let Some((source, _)) = ends(packet) else {
            known.spoofed += 1;
            return false;
        };
        // Link-local traffic of a kernel, such as router solicitations, ends at the device.
        if is_local(source) {
            return false;
        }
        if !known.peer.inner.iter().any(|own| own.contains(source)) {
            known.spoofed += 1;
            return false;
        }
        let bytes = packet.len() as u64;
        let allowed = known.from.take(now, known.peer.cap, bytes);
        match allowed {
            true => known.received.add(1, bytes),
            false => known.capped += 1,
        }
        allowed
    }

    /// Counts a datagram from a peer.
    pub fn handle_received(&mut self, key: PublicKey, link: LinkId, bytes: u64) {
        if let Some(known) = self.known.get_mut(&key) {
            known.shares.received[link.index()].add(1, bytes);
        }
    }

    pub fn status(&mut self, now: Time, server: &mut Server) -> Vec<PeerStatus> {
        let status = |(key, known): (&PublicKey, &mut PeerState)| {
            let came_by = server.listener().came_by(*key);
            let tunnel = server.tunnel(*key);
            if let Some(tunnel) = &tunnel {
                for link in tunnel.links() {
                    let sent = tunnel.sender().link(link).map(|(link, _)| link.sent());
                    if let Some((packets, bytes)) = sent {
                        let packets = packets.0;
                        known.shares.sent[link.index()] = Traffic { packets, bytes };
                    }
                }
                known.shares.rotate(now);
            }
            PeerStatus {
                key: *key,
                came_by,
                session: tunnel.as_ref().and_then(|t| snapshot::session(now, t)),
                links: tunnel
                    .as_ref()
                    .map(|tunnel| snapshot::links(now, tunnel, &known.shares))
                    .unwrap_or_default(),
                flow: tunnel.map_or_else(FlowStatus::default, |tunnel| snapshot::flow(tunnel)),
                sent: known.sent,
                received: known.received,
                spoofed: known.spoofed,
                capped: known.capped,
            }
        };
        self.known.iter_mut().map(status).collect()
    }
}

/// Source and destination of a packet.
fn ends(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match packet.first()? >> 4 {
        4 => {
            let ends: [u8; 8] = *packet.get(12..)?.first_chunk()?;
            let [a, b, c, d, e, f, g, h] = ends;
            let source = Ipv4Addr::new(a, b, c, d);
            Some((source.into(), Ipv4Addr::new(e, f, g, h).into()))
        }
        6 => {
            let source: [u8; 16] = *packet.get(8..)?.first_chunk()?;
            let dest: [u8; 16] = *packet.get(24..)?.first_chunk()?;
            Some((Ipv6Addr::from(source).into(), Ipv6Addr::from(dest).into()))
        }
        _ => None,
    }
}

fn is_local(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(address) => address.is_link_local() || address.is_unspecified(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_unspecified(),
    }
}

/// A token bucket for one direction of a peer.
#[derive(Clone, Copy, Debug, Default)]
struct CapBucket {
    /// The time at which it will be full again.
    full: Time,
}

impl CapBucket {
    fn take(&mut self, now: Time, cap: Option<Rate>, bytes: u64) -> bool {
        let Some(cap) = cap else {
            return true;
        };
        let Some(span) = cap.time_of(Bytes::new(bytes)) else {
            return false;
        };
        let least = cap.time_of(Bytes::new(MIN_BURST_BYTES)).unwrap_or_default();
        let full = self.full.max(now) + span;
        let allowed = full.since(now) <= BURST_SPAN.max(least);
        if allowed {
            self.full = full;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::handshake::{Identity, Options, Psk};
    use braid_packet::build;

    fn peer(number: u8, inner: &[(&str, u8)], cap: Option<Rate>) -> Peer {
        let prefix = |(text, length): &(&str, u8)| Prefix::new(address(text), *length);
        Peer {
            key: Identity::new([number; 32]).public(),
            psk: Psk::default(),
            options: Options::new(),
            inner: inner.iter().map(|own| prefix(own).expect("fits")).collect(),
            cap,
            gre: false,
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn packet(source: &str, dest: &str) -> Vec<u8> {
        build::udp((address(source), 1), (address(dest), 2), b"payload")
    }

    #[test]
    fn the_longest_prefix_is_whose_an_address_is() {
        let mut peers = Peers::new(true);
        let host = peer(1, &[("10.9.0.2", 32), ("fd09::2", 128)], None);
        let network = peer(2, &[("10.9.0.0", 24), ("fd09::", 64)], None);
        let smaller = peer(3, &[("10.9.0.128", 25)], None);
        let keys = [&host, &network, &smaller].map(|peer| peer.key);
        [network, smaller, host]
            .into_iter()
            .for_each(|peer| peers.insert(peer));
        for (dest, owner) in [
            ("10.9.0.2", Some(keys[0])),
            ("10.9.0.3", Some(keys[1])),
            ("10.9.0.200", Some(keys[2])),
            ("10.8.0.1", None),
            ("fd09::2", Some(keys[0])),
            ("fd09::3", Some(keys[1])),
            ("fd08::3", None),
        ] {
            let source = if dest.contains(':') {
                "2001:db8::1"
            } else {
                "192.0.2.1"
            };
            assert_eq!(peers.route(&packet(source, dest)), owner, "{dest}");
        }
        assert_eq!(peers.route(&[0x45; 7]), None, "cut short");
        assert_eq!(peers.unrouted(), 3);
        peers.remove(keys[0]);
        assert_eq!(peers.route(&packet("192.0.2.1", "10.9.0.2")), Some(keys[1]));
        // New terms replace the old ones.
        peers.insert(peer(2, &[("10.7.0.0", 24)], None));
        assert_eq!(peers.route(&packet("192.0.2.1", "10.9.0.2")), None);
    }

    #[test]
    fn peers_do_not_reach_each_other_unless_they_may() {
        for between in [false, true] {
            let mut peers = Peers::new(between);
            let (one, two) = (
                peer(1, &[("10.9.0.2", 32)], None),
                peer(2, &[("10.9.0.3", 32)], None),
            );
            let key = two.key;
            [one, two].into_iter().for_each(|peer| peers.insert(peer));
            let routed = peers.route(&packet("10.9.0.2", "10.9.0.3"));
            assert_eq!(routed, between.then_some(key));
            assert_eq!(peers.unrouted(), u64::from(!between));
            assert_eq!(peers.route(&packet("10.9.0.1", "10.9.0.3")), Some(key));
        }
    }

    #[test]
    fn only_a_peers_own_sources_pass_and_the_others_are_counted() {
        let mut peers = Peers::new(true);
        let own = peer(1, &[("10.9.0.2", 32), ("fd09:0:0:7::", 64)], None);
        let key = own.key;
        peers.insert(own);
        let mut passes = |packet: &[u8]| peers.allows_from(Time::ZERO, key, packet);
        assert!(passes(&packet("10.9.0.2", "192.0.2.1")));
        assert!(passes(&packet("fd09:0:0:7::99", "2001:db8::1")));
        assert!(!passes(&packet("10.9.0.3", "192.0.2.1")));
        assert!(!passes(&packet("fd09:0:0:8::99", "2001:db8::1")));
        assert!(!passes(&[0x60; 30]), "cut short");
        assert!(
            !passes(&packet("fe80::1", "ff02::2")),
            "meant for its device"
        );
        let known = &peers.known[&key];
        assert_eq!((known.received.packets, known.spoofed), (2, 3));
    }

    #[test]
    fn a_cap_is_kept_over_time_and_leaves_room_for_a_burst() {
        let mut peers = Peers::new(true);
        let rate = Rate::from_bits_per_sec(80_000_000);
        let capped = peer(1, &[("10.9.0.2", 32)], Some(rate));
        let key = capped.key;
        peers.insert(capped);
        let mut passed = 0u64;
        for tick in 0..10_000 {
            let now = Time::ZERO + Duration::from_micros(tick * 100);
            // Twice the rate: 2 kB in 0.1 ms.
            (0..2).for_each(|_| passed += 1000 * u64::from(peers.allows_to(now, key, 1000)));
        }
        let second = rate.bytes_in(Duration::from_secs(1)).get();
        let burst = rate.bytes_in(BURST_SPAN).get();
        assert!(
            (second..=second + burst + 2000).contains(&passed),
            "{passed}"
        );
        let known = &peers.known[&key];
        assert_eq!(known.capped + known.sent.packets, 20_000);
        // The other direction is not affected.
        let now = Time::ZERO + Duration::from_secs(1);
        assert!(peers.allows_from(now, key, &packet("10.9.0.2", "192.0.2.1")));
        // Without a cap everything passes; the peer keeps its addresses.
        assert!(peers.set_cap(key, None));
        assert!((0..10_000).all(|_| peers.allows_to(now, key, 1000)));
        assert_eq!(peers.route(&packet("192.0.2.1", "10.9.0.2")), Some(key));
        assert!(!peers.set_cap(peer(2, &[], None).key, None), "nobody's");
    }
}
