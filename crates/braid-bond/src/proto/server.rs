//! The end that is called: many tunnels behind one address.
//!
//! Handshakes go to the [`Listener`], data to the tunnel whose session index it names, and data
//! that no tunnel knows is answered with a reset. A session that does not continue one begins beside
//! the peer's tunnel, and takes its place once something authentic has arrived in it: a recorded
//! handshake displaces nobody.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use super::entropy::Entropy;
use super::frame::Reason;
use super::handshake::{Answer, Ciphers, Identity, Listener, Offer, Options, Psk, PublicKey};
use super::packet::{Kind, SessionIndex};
use super::reject::{Reject, Rejects};
use super::tunnel::{Datagram, Settings, Tunnel};
use braid_core::Time;

/// Handshake answers that wait to be sent; more are dropped, and asked for again.
const MOST_REPLIES: usize = 1024;

/// The end that is called.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    ciphers: Ciphers,
    settings: fn() -> Settings,
    entropy: Entropy,
    tunnels: BTreeMap<PublicKey, Tunnel>,
    /// Tunnels in which nothing has arrived yet, at most one per peer.
    unproven: BTreeMap<PublicKey, Tunnel>,
    /// Whose a session index is.
    indices: BTreeMap<SessionIndex, PublicKey>,
    replies: VecDeque<(SocketAddr, Vec<u8>)>,
    rejects: Rejects,
}

impl Server {
    /// Serves nobody yet. `settings` are for each tunnel anew.
    #[must_use]
    pub fn new(
        now: Time,
        own: Identity,
        ciphers: Ciphers,
        settings: fn() -> Settings,
        mut entropy: Entropy,
    ) -> Self {
        Server {
            listener: Listener::new(now, own, entropy.fork()),
            ciphers,
            settings,
            entropy,
            tunnels: BTreeMap::new(),
            unproven: BTreeMap::new(),
            indices: BTreeMap::new(),
            replies: VecDeque::new(),
            rejects: Rejects::default(),
        }
    }

    /// Serves a peer from now on.
    pub fn insert(&mut self, peer: PublicKey, psk: Psk) {
        self.listener.insert(peer, psk);
    }

    /// Serves a peer no more: what it says from now on is not heard. It is told so by the next
    /// datagrams of [`Server::poll_transmit`].
    pub fn revoke(&mut self, peer: PublicKey) {
        self.listener.remove(peer);
        self.unproven.remove(&peer);
        if let Some(tunnel) = self.tunnels.get_mut(&peer) {
            tunnel.close(Reason::Revoked);
        }
    }

    /// A peer's tunnel.
    pub fn tunnel(&mut self, peer: PublicKey) -> Option<&mut Tunnel> {
        self.tunnels.get_mut(&peer)
    }

    /// All tunnels.
    pub fn tunnels(&mut self) -> impl Iterator<Item = (PublicKey, &mut Tunnel)> {
        self.tunnels
            .iter_mut()
            .map(|(peer, tunnel)| (*peer, tunnel))
    }

    /// What handshakes came to.
    #[must_use]
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// What was refused before it reached a tunnel.
    #[must_use]
    pub fn rejects(&self) -> &Rejects {
        &self.rejects
    }

    /// Takes a datagram that came from there; says whose it was. Its bytes are undefined afterwards.
    ///
    /// # Errors
    /// Why it was refused; it is counted, here or in the tunnel that it was for.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        from: SocketAddr,
        datagram: &mut [u8],
    ) -> Result<Option<PublicKey>, Reject> {
        match Kind::of(datagram) {
            Some(Kind::Initiation) => {
                self.handle_initiation(now, from, datagram)?;
                Ok(None)
            }
            Some(Kind::Data(header)) => {
                let Some(peer) = self.indices.get(&header.receiver).copied() else {
                    if let Some(reset) = self.listener.reset(now, header.receiver) {
                        self.reply(from, reset);
                    }
                    self.rejects.count(Reject::Session);
                    return Err(Reject::Session);
                };
                self.handle_data(now, from, peer, header.receiver, datagram)?;
                Ok(Some(peer))
            }
            _ => {
                self.rejects.count(Reject::Malformed);
                Err(Reject::Malformed)
            }
        }
    }

    fn handle_data(
        &mut self,
        now: Time,
        from: SocketAddr,
        peer: PublicKey,
        index: SessionIndex,
        datagram: &mut [u8],
    ) -> Result<(), Reject> {
        let fresh = self
            .unproven
            .get_mut(&peer)
            .filter(|tunnel| tunnel.indices().any(|own| own == index));
        if let Some(tunnel) = fresh {
            tunnel.handle_datagram(now, from, datagram)?;
            if let Some(tunnel) = self.unproven.remove(&peer) {
                self.tunnels.insert(peer, tunnel);
            }
            self.reindex(peer);
            return Ok(());
        }
        let tunnel = self.tunnels.get_mut(&peer).ok_or(Reject::Session)?;
        tunnel.handle_datagram(now, from, datagram)
    }

    fn handle_initiation(
        &mut self,
        now: Time,
        from: SocketAddr,
        datagram: &[u8],
    ) -> Result<(), Reject> {
        let answer = self.listener.handle_initiation(now, from, datagram);
        match answer.inspect_err(|_| self.rejects.count(Reject::Handshake))? {
            Answer::Reply(reply) => self.reply(from, reply),
            Answer::Offer(offer) => {
                let reply = self.accept(now, *offer)?;
                self.reply(from, reply);
            }
        }
        Ok(())
    }

    fn accept(&mut self, now: Time, offer: Offer) -> Result<Vec<u8>, Reject> {
        let peer = offer.peer();
        let tunnel = self.tunnels.get_mut(&peer);
        let continued = tunnel.filter(|tunnel| {
            let named = offer.continues();
            tunnel.indices().any(|own| Some(own) == named)
        });
        let is_continued = continued.is_some();
        let index = loop {
            let index = SessionIndex::new(self.entropy.bytes());
            if let Some(index) = index.filter(|index| !self.indices.contains_key(index)) {
                break index;
            }
        };
        let options = Options::new();
        let ciphers = self.ciphers;
        let accepted = self
            .listener
            .accept(now, offer, index, is_continued, ciphers, &options)
            .inspect_err(|_| self.rejects.count(Reject::Handshake))?;
        match continued {
            Some(tunnel) => tunnel.offer(accepted.session),
            None => {
                let entropy = self.entropy.fork();
                let tunnel = Tunnel::answer(now, accepted.session, (self.settings)(), entropy);
                self.unproven.insert(peer, tunnel);
            }
        }
        self.reindex(peer);
        Ok(accepted.reply)
    }

    /// Notes by what a peer's tunnels are addressed now.
    fn reindex(&mut self, peer: PublicKey) {
        self.indices.retain(|_, whose| *whose != peer);
        let tunnels = [self.tunnels.get(&peer), self.unproven.get(&peer)];
        for tunnel in tunnels.into_iter().flatten() {
            self.indices.extend(tunnel.indices().map(|own| (own, peer)));
        }
    }

    fn reply(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        if self.replies.len() < MOST_REPLIES {
            self.replies.push_back((to, datagram));
        }
    }

    /// Writes the next datagram into `out`, and says where to send it; none if there is nothing to
    /// send for now.
    pub fn poll_transmit(&mut self, now: Time, out: &mut Vec<u8>) -> Option<SocketAddr> {
        if let Some((to, reply)) = self.replies.pop_front() {
            out.clear();
            out.extend_from_slice(&reply);
            return Some(to);
        }
        let mut tunnels = self.tunnels.values_mut();
        let datagram: Datagram = tunnels.find_map(|tunnel| tunnel.poll_transmit(now, out))?;
        Some(datagram.to)
    }

    /// When [`Server::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let tunnels = self.tunnels.values().chain(self.unproven.values());
        tunnels.filter_map(Tunnel::poll_timeout).min()
    }

    /// Does what is due. Early and repeated calls do no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        let tunnels = self.tunnels.values_mut().chain(self.unproven.values_mut());
        tunnels.for_each(|tunnel| tunnel.handle_timeout(now));
    }
}
