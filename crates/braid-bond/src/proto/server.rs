//! The responding end: many tunnels behind one address.
//!
//! Handshakes go to the [`Listener`], data to the tunnel that has the session index, and data for
//! an unknown session is answered by a reset. A session that continues no other begins beside the
//! peer's tunnel, and replaces it once an authentic packet has arrived in it: a replayed handshake
//! displaces nobody.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use braid_core::Time;
use braid_multipath::LinkId;

use super::entropy::Entropy;
use super::frame::Reason;
use super::handshake::terms::{self, Capabilities, Refusal};
use super::handshake::{
    Ciphers, EpochKeys, HandshakeAction, HubKeys, Identity, Listener, Offer, Options, Psk,
    PublicKey,
};
use super::packet::{Kind, SessionIndex};
use super::reject::{Reject, Rejects};
use super::run_queue::RunQueue;
use super::session::KEY_LIFETIME;
use super::tunnel::{Datagram, Tunnel, TunnelSettings};

/// Handshake replies waiting to be sent. More are dropped; the peers ask again.
const MAX_QUEUED_REPLIES: usize = 1024;

/// Unknown peers waiting for a decision. More are dropped; they try again.
const MAX_PENDING_PEERS: usize = 16;

/// An unknown peer that asks for a session.
#[derive(Debug)]
pub struct PendingPeer {
    from: SocketAddr,
    offer: Box<Offer>,
}

impl PendingPeer {
    /// Its public key.
    #[must_use]
    pub fn peer(&self) -> PublicKey {
        self.offer.peer()
    }

    /// Options of its handshake. They prove its key; they do not prove that it is no replay.
    #[must_use]
    pub fn options(&self) -> &Options {
        self.offer.options()
    }

    /// Source address of its handshake, not validated.
    #[must_use]
    pub fn from(&self) -> SocketAddr {
        self.from
    }
}

/// The responding end.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    ciphers: Ciphers,
    settings: TunnelSettings,
    entropy: Entropy,
    tunnels: BTreeMap<PublicKey, Tunnel>,
    /// Tunnels in which no packet has arrived yet, at most one per peer, and when their keys expire.
    unproven: BTreeMap<PublicKey, (Time, Tunnel)>,
    /// The same times, in their order: a later tunnel of a peer has a later entry.
    proofs_due: VecDeque<(Time, PublicKey)>,
    /// Peers by session index, and the indices of each.
    indices: BTreeMap<SessionIndex, PublicKey>,
    indices_of: BTreeMap<PublicKey, Vec<SessionIndex>>,
    /// Options for the handshakes of each peer.
    options: BTreeMap<PublicKey, Options>,
    /// Peers whose data may be sent in cleartext.
    gre: BTreeSet<PublicKey>,
    pending_peers: VecDeque<PendingPeer>,
    /// Peers that are no longer served and still have a tunnel.
    revoked: Vec<PublicKey>,
    replies: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Tunnels with work.
    run_queue: RunQueue<PublicKey>,
    rejects: Rejects,
}

impl Server {
    /// A server without peers. `settings` apply to each tunnel.
    #[must_use]
    pub fn new(
        now: Time,
        own: Identity,
        ciphers: Ciphers,
        settings: TunnelSettings,
        mut entropy: Entropy,
    ) -> Self {
        Server {
            listener: Listener::new(now, own, entropy.fork()),
            ciphers,
            settings,
            entropy,
            tunnels: BTreeMap::new(),
            unproven: BTreeMap::new(),
            proofs_due: VecDeque::new(),
            indices: BTreeMap::new(),
            indices_of: BTreeMap::new(),
            options: BTreeMap::new(),
            gre: BTreeSet::new(),
            pending_peers: VecDeque::new(),
            revoked: Vec::new(),
            replies: VecDeque::new(),
            run_queue: RunQueue::new(),
            rejects: Rejects::default(),
        }
    }

    /// Serves a peer.
    pub fn insert(&mut self, peer: PublicKey, psk: Psk) {
        self.listener.insert(peer, psk);
    }

    /// Sets the options for a peer's next handshakes.
    pub fn set_options(&mut self, peer: PublicKey, options: Options) {
        self.options.insert(peer, options);
    }

    /// Sets if a peer's data may be sent in cleartext, as GRE, provided that the peer wants it too.
    /// Permission counts from the peer's next session on, its withdrawal at once.
    pub fn set_gre(&mut self, peer: PublicKey, gre: bool) {
        match gre {
            true => _ = self.gre.insert(peer),
            false => _ = self.gre.remove(&peer),
        }
        let unproven = self.unproven.get_mut(&peer).map(|(_, tunnel)| tunnel);
        let tunnels = self.tunnels.get_mut(&peer).into_iter();
        tunnels
            .chain(unproven)
            .for_each(|tunnel| tunnel.set_gre(gre));
    }

    /// Sets the hub's clock: µs since 1970 at [`Time::ZERO`]. A client whose clock is more than a
    /// day ahead is told so.
    pub fn set_clock(&mut self, unix_micros: u64) {
        self.listener.set_clock(unix_micros);
    }

    /// Sets the keys of this hub's epochs. A client with a session of an earlier epoch is told by a
    /// reset that it is over; sessions of this epoch cannot be reset.
    pub fn set_epochs(&mut self, epochs: EpochKeys) {
        self.listener.set_epochs(epochs);
    }

    /// Gives resets of later sessions another key, because somebody may know the present one.
    pub fn renew_epoch(&mut self) {
        self.listener.renew_epoch();
    }

    /// Replaces the hub's keys; sessions go on. A client that comes by the previous key is told the
    /// current one.
    pub fn set_keys(&mut self, keys: HubKeys) {
        self.listener.set_keys(keys);
    }

    /// Sets if unknown keys are offered by [`Server::poll_pending_peer`], or refused at once.
    pub fn offer_unknown_peers(&mut self, hear: bool) {
        self.listener.offer_unknown_peers(hear);
    }

    /// The next unknown key that completed message 1. Drop it, or [`insert`](Server::insert) it and
    /// [`admit`](Server::admit) it.
    pub fn poll_pending_peer(&mut self) -> Option<PendingPeer> {
        self.pending_peers.pop_front()
    }

    /// Answers a pending peer that has been inserted.
    ///
    /// # Errors
    /// The reason if there is no answer; it is counted.
    pub fn admit(&mut self, now: Time, pending: PendingPeer) -> Result<(), Reject> {
        let reply = self.accept(now, *pending.offer)?;
        self.reply(pending.from, reply);
        Ok(())
    }

    /// Stops serving a peer: its packets are dropped from now on. The next datagrams of
    /// [`Server::poll_transmit`] tell it so.
    pub fn revoke(&mut self, peer: PublicKey) {
        self.listener.remove(peer);
        self.options.remove(&peer);
        self.gre.remove(&peer);
        self.unproven.remove(&peer);
        if let Some(tunnel) = self.tunnels.get_mut(&peer) {
            tunnel.close(Reason::Revoked);
            self.revoked.push(peer);
            self.run_queue.wake(peer);
        }
        self.reindex(peer);
    }

    /// Forgets all keys and sessions, because the machine was suspended or copied. Peers are told
    /// when they next send.
    pub fn forget_keys(&mut self) {
        self.tunnels.clear();
        self.unproven.clear();
        self.proofs_due.clear();
        self.indices.clear();
        self.indices_of.clear();
        self.pending_peers.clear();
        self.run_queue = RunQueue::new();
        self.listener.forget_answers();
    }

    /// A peer's tunnel.
    pub fn tunnel(&mut self, peer: PublicKey) -> Option<&mut Tunnel> {
        let tunnel = self.tunnels.get_mut(&peer)?;
        self.run_queue.wake(peer);
        Some(tunnel)
    }

    /// Calls `each` with every tunnel that is in the ready queue: only those can have inner packets
    /// or events.
    pub fn for_each_ready(&mut self, mut each: impl FnMut(PublicKey, &mut Tunnel)) {
        for peer in self.run_queue.ready() {
            if let Some(tunnel) = self.tunnels.get_mut(&peer) {
                each(peer, tunnel);
            }
        }
    }

    /// All tunnels.
    pub fn tunnels(&mut self) -> impl Iterator<Item = (PublicKey, &mut Tunnel)> {
        let run_queue = &mut self.run_queue;
        self.tunnels.iter_mut().map(|(peer, tunnel)| {
            run_queue.wake(*peer);
            (*peer, tunnel)
        })
    }

    /// The listener, with its handshake counters.
    #[must_use]
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Datagrams refused before they reached a tunnel.
    #[must_use]
    pub fn rejects(&self) -> &Rejects {
        &self.rejects
    }

    /// Handles a datagram or GRE packet that arrived at a time, which is before now if it waited to be
    /// read, from an address. Returns the peer and the link if it was data. Its bytes are undefined
    /// afterwards.
    ///
    /// # Errors
    /// The reason for refusal; it is counted here, or in the tunnel that the datagram was for.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        (arrived, from): (Time, SocketAddr),
        datagram: &mut [u8],
    ) -> Result<Option<(PublicKey, LinkId)>, Reject> {
        match Kind::of(datagram) {
            Some(Kind::Initiation) => {
                self.handle_initiation(now, from, datagram)?;
                Ok(None)
            }
            Some(Kind::Data(header)) => {
                let Some(peer) = self.indices.get(&header.receiver).copied() else {
                    if let Some(reset) = self.listener.reset(now, from, header.receiver) {
                        self.reply(from, reset);
                    }
                    self.rejects.count(Reject::Session);
                    return Err(Reject::Session);
                };
                self.handle_data(now, (arrived, from), peer, header.receiver, datagram)?;
                Ok(Some((peer, header.link)))
            }
            Some(Kind::Cleartext(header)) => {
                let peer = self.indices.get(&header.receiver).copied();
                // An unauthenticated packet replaces no tunnel, and gets no reply.
                let tunnel = peer.and_then(|peer| Some((peer, self.tunnels.get_mut(&peer)?)));
                let Some((peer, tunnel)) = tunnel else {
                    self.rejects.count(Reject::Session);
                    return Err(Reject::Session);
                };
                self.run_queue.wake(peer);
                tunnel.handle_datagram(now, (arrived, from), datagram)?;
                Ok(Some((peer, header.link)))
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
        from: (Time, SocketAddr),
        peer: PublicKey,
        index: SessionIndex,
        datagram: &mut [u8],
    ) -> Result<(), Reject> {
        let fresh = self
            .unproven
            .get_mut(&peer)
            .filter(|(_, tunnel)| tunnel.indices().any(|own| own == index));
        if let Some((_, tunnel)) = fresh {
            tunnel.handle_datagram(now, from, datagram)?;
            if let Some((_, tunnel)) = self.unproven.remove(&peer) {
                self.tunnels.insert(peer, tunnel);
            }
            self.run_queue.wake(peer);
            self.reindex(peer);
            return Ok(());
        }
        let tunnel = self.tunnels.get_mut(&peer).ok_or(Reject::Session)?;
        self.run_queue.wake(peer);
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
            HandshakeAction::Reply(reply) => self.reply(from, reply),
            HandshakeAction::Offer(offer) => {
                let reply = self.accept(now, *offer)?;
                self.reply(from, reply);
            }
            HandshakeAction::UnknownPeer(offer) => {
                if self.pending_peers.len() < MAX_PENDING_PEERS {
                    self.pending_peers.push_back(PendingPeer { from, offer });
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, now: Time, offer: Offer) -> Result<Vec<u8>, Reject> {
        let peer = offer.peer();
        let refusal = self.options.get(&peer);
        if let Some(refusal) = refusal.filter(|options| Refusal::read(options).is_some()) {
            let reply = self.listener.refuse(now, offer, refusal);
            return Ok(reply.inspect_err(|_| self.rejects.count(Reject::Handshake))?);
        }
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
        let mut options = self.options.get(&peer).cloned().unwrap_or_default();
        let gre = self.gre.contains(&peer);
        let ours = Capabilities {
            gre,
            ..Capabilities::OURS
        };
        ours.append(&mut options);
        let current = self.listener.public();
        if offer.to() != current {
            terms::push_current_key(&mut options, current);
        }
        let capabilities = Capabilities::read(offer.options());
        let ciphers = self.ciphers;
        let accepted = self
            .listener
            .accept(now, offer, index, is_continued, ciphers, &options)
            .inspect_err(|_| self.rejects.count(Reject::Handshake))?;
        match continued {
            Some(tunnel) => {
                tunnel.offer(accepted.session);
                self.run_queue.wake(peer);
            }
            None => {
                let entropy = self.entropy.fork();
                let settings = self.settings.clone();
                let mut tunnel =
                    Tunnel::accept(now, accepted.session, capabilities, settings, entropy);
                tunnel.set_gre(gre);
                self.unproven.insert(peer, (now + KEY_LIFETIME, tunnel));
                self.proofs_due.push_back((now + KEY_LIFETIME, peer));
            }
        }
        self.reindex(peer);
        Ok(accepted.reply)
    }

    /// Updates the session indices of a peer's tunnels.
    fn reindex(&mut self, peer: PublicKey) {
        for own in self.indices_of.remove(&peer).unwrap_or_default() {
            self.indices.remove(&own);
        }
        let unproven = self.unproven.get(&peer).map(|(_, tunnel)| tunnel);
        let tunnels = self.tunnels.get(&peer).into_iter().chain(unproven);
        let indices: Vec<SessionIndex> = tunnels.flat_map(Tunnel::indices).collect();
        self.indices.extend(indices.iter().map(|own| (*own, peer)));
        if !indices.is_empty() {
            self.indices_of.insert(peer, indices);
        }
    }

    fn reply(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        if self.replies.len() < MAX_QUEUED_REPLIES {
            self.replies.push_back((to, datagram));
        }
    }

    /// Writes the next datagram into `out` and returns its destination; none if there is nothing to
    /// send for now.
    pub fn poll_transmit(&mut self, now: Time, out: &mut Vec<u8>) -> Option<SocketAddr> {
        if let Some((to, reply)) = self.replies.pop_front() {
            out.clear();
            out.extend_from_slice(&reply);
            return Some(to);
        }
        while let Some(peer) = self.run_queue.current() {
            let tunnel = self.tunnels.get_mut(&peer);
            let until = match tunnel {
                None => None,
                Some(tunnel) => {
                    if let Some(Datagram { to, .. }) = tunnel.poll_transmit(now, out) {
                        self.run_queue.handle_sent();
                        return Some(to);
                    }
                    tunnel.poll_timeout()
                }
            };
            self.run_queue.park(until);
        }
        None
    }

    /// The time at which [`Server::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let ready = self.run_queue.ready();
        let ready = ready.filter_map(|peer| self.tunnels.get(&peer));
        let timeouts = ready.filter_map(Tunnel::poll_timeout);
        let proof_due = self.proofs_due.front().map(|(at, _)| *at);
        timeouts
            .chain(self.run_queue.poll_timeout())
            .chain(proof_due)
            .min()
    }

    /// Does everything that is due. Early and repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        while self.run_queue.poll_due(now).is_some() {}
        for peer in self.run_queue.ready() {
            if let Some(tunnel) = self.tunnels.get_mut(&peer) {
                tunnel.handle_timeout(now);
            }
        }
        self.drop_unproven(now);
        self.forget_revoked();
    }

    fn drop_unproven(&mut self, now: Time) {
        while let Some((_, peer)) = self
            .proofs_due
            .front()
            .copied()
            .filter(|(at, _)| *at <= now)
        {
            self.proofs_due.pop_front();
            if self.unproven.get(&peer).is_some_and(|(at, _)| *at <= now) {
                self.unproven.remove(&peer);
                self.reindex(peer);
            }
        }
    }

    /// Removes the tunnels of revoked peers that have been told.
    fn forget_revoked(&mut self) {
        let is_over = |tunnel: &Tunnel| tunnel.session().is_none();
        let listener = &self.listener;
        let mut over = Vec::new();
        self.revoked.retain(|peer| {
            let tunnel = self.tunnels.get(peer).filter(|_| !listener.serves(*peer));
            over.extend(tunnel.filter(|tunnel| is_over(tunnel)).map(|_| *peer));
            tunnel.is_some_and(|tunnel| !is_over(tunnel))
        });
        for peer in over {
            self.tunnels.remove(&peer);
            self.run_queue.remove(peer);
            self.reindex(peer);
        }
    }
}
