//! The responder's side of all handshakes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use braid_core::Time;
use braid_multipath::LinkId;
use snow::HandshakeState;

use super::attempt::session;
use super::cookie::{CookieReply, CookieSecrets};
use super::initiation::{Initiation, Payload};
use super::mac::{self, MacKey};
use super::own_keys::{Addressee, OwnKeys};
use super::rate_limit::{SourceLimiter, SourceScope, TokenBucket};
use super::reset::{EpochKey, EpochKeys};
use super::response::{self, Response};
use super::terms::Refusal;
use super::{
    Ciphers, HandshakeError, HubKeys, Identity, Options, Psk, PublicKey, RESET_TOKEN, Reset, noise,
};
use crate::proto::entropy::Entropy;
use crate::proto::erase::Erased;
use crate::proto::packet::SessionIndex;
use crate::proto::session::{Role, Session};

/// Initiations per second that are computed on without a cookie. Two Diffie–Hellmans each: about 2
/// % of a core.
const UNPROVEN_RATE: TokenBucket = TokenBucket::new(100, 200);

/// Largest lead of an initiation's time over the responder's clock. An accepted later time would
/// lock out another machine with the same key and a correct clock.
const MAX_CLOCK_AHEAD: Duration = Duration::from_secs(86_400);

/// Times from here on (the year 294,247) are refused: a later one must always exist.
const TIME_END: u64 = 1 << 63;

/// Initiations per second of one address that has proved itself by a cookie.
const PROVEN_HOST_RATE: TokenBucket = TokenBucket::new(10, 40);

/// The same for one site, all of whose addresses one attacker may control.
const PROVEN_SITE_RATE: TokenBucket = TokenBucket::new(40, 160);

/// The same for all addresses: about 6 % of a core. An attacker with many sites can use it up, but
/// not [`FAMILIAR_RATE`].
const PROVEN_TOTAL_RATE: TokenBucket = TokenBucket::new(300, 600);

/// The same for addresses from which a served peer came lately, to change keys or to reconnect.
const FAMILIAR_RATE: TokenBucket = TokenBucket::new(300, 600);

/// Familiar addresses of each peer: a client has few uplinks.
const MAX_FAMILIAR_ADDRESSES: usize = 4;

/// Resets per second: one hash and one small datagram each, about 1 % of a core.
const RESET_RATE: TokenBucket = TokenBucket::new(2_000, 2_000);

/// Resets per second to one address, which may be forged.
const RESET_RATE_PER_HOST: TokenBucket = TokenBucket::new(10, 20);

/// Counters of initiations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounters {
    /// Initiations that began a session.
    pub accepted: u64,
    /// Initiations answered by a refusal.
    pub refused: u64,
    /// Copies of an answered initiation, over another link or after a loss.
    pub repeated: u64,
    /// Malformed, or of another version.
    pub malformed: u64,
    /// With a wrong first MAC: not meant for this key.
    pub macs_wrong: u64,
    /// Answered by a cookie, under load.
    pub cookies: u64,
    /// Beyond the rate of one address.
    pub limited: u64,
    /// Not authentic.
    pub forged: u64,
    /// By a key that is not served.
    pub unknown_peers: u64,
    /// Not newer than the peer's last, or far ahead of the responder's clock.
    pub stale: u64,
    /// With no cipher in common.
    pub ciphers: u64,
    /// Resets sent for unknown sessions.
    pub resets: u64,
    /// To a key that this responder no longer has.
    pub retired: u64,
}

#[derive(Debug)]
struct PeerEntry {
    psk: Psk,
    to_peer: MacKey,
    /// Time of the newest initiation; zero if there was none.
    newest: u64,
    answered: Option<AnsweredHandshake>,
    /// The responder's key by which it last came.
    came_by: Option<PublicKey>,
    /// Source addresses of its last accepted initiations, the newest first.
    familiar: [Option<IpAddr>; MAX_FAMILIAR_ADDRESSES],
}

impl PeerEntry {
    /// Records the source address of an accepted initiation. Returns the address that is no longer
    /// familiar for this peer.
    fn handle_from(&mut self, from: IpAddr) -> Option<IpAddr> {
        let known = self.familiar.iter().position(|known| *known == Some(from));
        let last = known.unwrap_or(MAX_FAMILIAR_ADDRESSES - 1);
        self.familiar[..=last].rotate_right(1);
        self.familiar[0].replace(from).filter(|old| *old != from)
    }
}

/// An answered handshake: copies of its message 1 get the same reply.
#[derive(Debug)]
struct AnsweredHandshake {
    /// SHA-256 of its Noise message 1.
    hash: [u8; 32],
    ephemeral: [u8; 32],
    receiver: SessionIndex,
    /// Noise message 2.
    message: Vec<u8>,
}

impl AnsweredHandshake {
    fn datagram(&self, link: LinkId, to_peer: &MacKey) -> Vec<u8> {
        let mut datagram = Vec::with_capacity(super::MIN_INITIATION_LENGTH);
        Response::append(link, self.receiver, &self.message, &mut datagram);
        let mac1 = to_peer.sign(&[&datagram, &self.ephemeral]);
        datagram.extend_from_slice(&mac1);
        datagram
    }
}

/// Answers the initiations of its peers. Its memory is bounded by their number, whatever arrives.
#[derive(Debug)]
pub struct Listener {
    own: OwnKeys,
    epochs: EpochKeys,
    entropy: Entropy,
    cookie_secrets: CookieSecrets,
    unproven: TokenBucket,
    sources: SourceLimiter,
    sites: SourceLimiter,
    all: TokenBucket,
    familiar: TokenBucket,
    /// Familiar addresses and their peers.
    familiar_from: BTreeSet<(IpAddr, PublicKey)>,
    resets: TokenBucket,
    reset_sources: SourceLimiter,
    peers: BTreeMap<PublicKey, PeerEntry>,
    /// Peers by the hash of their last answered message 1.
    answered: BTreeMap<[u8; 32], PublicKey>,
    offers_unknown_peers: bool,
    /// µs since 1970 at [`Time::ZERO`], if it is known.
    unix_micros: Option<u64>,
    counters: ListenerCounters,
}

/// Result of handling an initiation.
#[derive(Debug)]
pub enum HandshakeAction {
    /// Send this reply to the source address.
    Reply(Vec<u8>),
    /// A served peer asks for a session: [`Listener::accept`] it, or drop it.
    Offer(Box<Offer>),
    /// An unknown peer asks for a session; only after [`Listener::offer_unknown_peers`].
    /// [`Listener::insert`] it first, or drop it.
    UnknownPeer(Box<Offer>),
}

/// An authentic initiation.
pub struct Offer {
    noise: Erased<HandshakeState>,
    from: IpAddr,
    link: LinkId,
    hash: [u8; 32],
    ephemeral: [u8; 32],
    payload: Payload,
    peer: PublicKey,
    /// The responder's key to which it is addressed.
    to: PublicKey,
}

impl std::fmt::Debug for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offer")
            .field("peer", &self.peer)
            .field("payload", &self.payload)
            .finish()
    }
}

impl Offer {
    /// The peer's public key.
    #[must_use]
    pub fn peer(&self) -> PublicKey {
        self.peer
    }

    /// The responder's index of the session that it asks to continue.
    #[must_use]
    pub fn continues(&self) -> Option<SessionIndex> {
        self.payload.continues
    }

    /// The peer's options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.payload.options
    }

    /// The responder's key to which it is addressed.
    #[must_use]
    pub fn to(&self) -> PublicKey {
        self.to
    }

    /// Writes a message 2 that begins no session; `refusal` gives the reason. Like any other it is
    /// sealed by keys that only the responder and this initiator can have.
    fn refuse(&mut self, peer: &PeerEntry, refusal: &Options) -> AnsweredHandshake {
        // A refusal's fields other than the options mean nothing.
        let payload = response::Payload {
            sender: self.payload.sender,
            cipher: self.payload.ciphers.preferred,
            continued: false,
            reset: [0; RESET_TOKEN],
            options: refusal.clone(),
        };
        self.answer(peer, &payload)
    }

    /// Writes message 2.
    fn answer(&mut self, peer: &PeerEntry, payload: &response::Payload) -> AnsweredHandshake {
        self.noise
            .set_psk(2, &*peer.psk.0)
            .expect("the pattern has a pre-shared key");
        let payload = payload.to_bytes();
        let mut message = vec![0; payload.len() + 48];
        let size = self
            .noise
            .write_message(&payload, &mut message)
            .expect("the message fits its buffer");
        message.truncate(size);
        AnsweredHandshake {
            hash: self.hash,
            ephemeral: self.ephemeral,
            receiver: self.payload.sender,
            message,
        }
    }
}

/// An offer that was accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The session. Nothing may be sent in it before an authentic packet has arrived in it.
    pub session: Session,
    /// The reply to send to the source address.
    pub reply: Vec<u8>,
}

impl Listener {
    /// A responder without peers.
    #[must_use]
    pub fn new(now: Time, own: Identity, mut entropy: Entropy) -> Self {
        let cookie_secrets = CookieSecrets::new(now, &mut entropy);
        let sources = SourceLimiter::new(SourceScope::Host, PROVEN_HOST_RATE, &mut entropy);
        let sites = SourceLimiter::new(SourceScope::Site, PROVEN_SITE_RATE, &mut entropy);
        let reset_sources =
            SourceLimiter::new(SourceScope::Host, RESET_RATE_PER_HOST, &mut entropy);
        Listener {
            epochs: EpochKeys::new(EpochKey::new(entropy.bytes::<32>()), []),
            own: HubKeys::from(own).into(),
            entropy,
            cookie_secrets,
            unproven: UNPROVEN_RATE,
            sources,
            sites,
            all: PROVEN_TOTAL_RATE,
            familiar: FAMILIAR_RATE,
            familiar_from: BTreeSet::new(),
            resets: RESET_RATE,
            reset_sources,
            peers: BTreeMap::new(),
            answered: BTreeMap::new(),
            offers_unknown_peers: false,
            unix_micros: None,
            counters: ListenerCounters::default(),
        }
    }

    /// Serves a peer. A peer that is served already, with the same pre-shared key, keeps its state:
    /// a recorded handshake stays old.
    pub fn insert(&mut self, peer: PublicKey, psk: Psk) {
        if self
            .peers
            .get(&peer)
            .is_some_and(|known| known.psk.0 == psk.0)
        {
            return;
        }
        self.remove(peer);
        let peer_state = PeerEntry {
            psk,
            to_peer: MacKey::of(peer),
            newest: 0,
            answered: None,
            came_by: None,
            familiar: [None; MAX_FAMILIAR_ADDRESSES],
        };
        self.peers.insert(peer, peer_state);
    }

    /// Replaces this responder's keys. Sessions go on.
    pub fn set_keys(&mut self, keys: HubKeys) {
        self.own = keys.into();
    }

    /// The current public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.own.public()
    }

    /// The public key of this responder to which the peer's last accepted initiation was addressed.
    #[must_use]
    pub fn came_by(&self, peer: PublicKey) -> Option<PublicKey> {
        self.peers.get(&peer)?.came_by
    }

    /// Sets if unknown keys are offered to the caller, or refused.
    pub fn offer_unknown_peers(&mut self, hear: bool) {
        self.offers_unknown_peers = hear;
    }

    /// Sets the clock: µs since 1970 at [`Time::ZERO`]. From now on initiations more than a day
    /// ahead of it are refused.
    pub fn set_clock(&mut self, unix_micros: u64) {
        self.unix_micros = Some(unix_micros);
    }

    /// Current time, µs since 1970; zero if it is not known.
    fn micros(&self, now: Time) -> u64 {
        let since = now.as_nanos() / 1000;
        self.unix_micros
            .map_or(0, |start| start.saturating_add(since))
    }

    /// The least time of an initiation that is too far ahead.
    fn time_end(&self, now: Time) -> u64 {
        let ahead = u64::try_from(MAX_CLOCK_AHEAD.as_micros()).unwrap_or(u64::MAX);
        match self.unix_micros {
            None => TIME_END,
            Some(_) => self.micros(now).saturating_add(ahead).min(TIME_END),
        }
    }

    /// Returns true if a peer is served.
    #[must_use]
    pub fn serves(&self, peer: PublicKey) -> bool {
        self.peers.contains_key(&peer)
    }

    /// Sets the keys of its epochs, for one that has run before. Resets end sessions of earlier
    /// epochs, never those of this one.
    pub fn set_epochs(&mut self, epochs: EpochKeys) {
        self.epochs = epochs;
    }

    /// The keys of its epochs: in a later run they are the earlier ones.
    #[must_use]
    pub fn epochs(&self) -> &EpochKeys {
        &self.epochs
    }

    /// Gives resets of later sessions another key, because somebody may know the present one.
    pub fn renew_epoch(&mut self) {
        self.epochs.renew(EpochKey::new(self.entropy.bytes::<32>()));
    }

    /// Forgets the answered handshakes and begins another epoch, because others may have the keys
    /// of those sessions.
    pub fn forget_answers(&mut self) {
        self.epochs.begin(EpochKey::new(self.entropy.bytes::<32>()));
        self.answered.clear();
        self.peers
            .values_mut()
            .for_each(|peer| peer.answered = None);
    }

    /// Stops serving a peer. The caller closes its session.
    pub fn remove(&mut self, peer: PublicKey) {
        let Some(removed) = self.peers.remove(&peer) else {
            return;
        };
        if let Some(answered) = removed.answered {
            self.answered.remove(&answered.hash);
        }
        for from in removed.familiar.into_iter().flatten() {
            self.familiar_from.remove(&(from, peer));
        }
    }

    /// Counters so far.
    #[must_use]
    pub fn counters(&self) -> ListenerCounters {
        self.counters
    }

    /// Handles message 1.
    ///
    /// # Errors
    /// The reason if there is no reply. The cost grows with what the sender has proved: a malformed
    /// message costs nothing, one without knowledge of this key one hash, one without a cookie
    /// under load two.
    pub fn handle_initiation(
        &mut self,
        now: Time,
        from: SocketAddr,
        datagram: &[u8],
    ) -> Result<HandshakeAction, HandshakeError> {
        let answer = self.evaluate(now, from, datagram);
        match &answer {
            Err(HandshakeError::Malformed | HandshakeError::Version(_)) => {
                self.counters.malformed += 1;
            }
            Err(HandshakeError::Mac) => self.counters.macs_wrong += 1,
            Err(HandshakeError::Cookie) => self.counters.limited += 1,
            Err(HandshakeError::Forged) => self.counters.forged += 1,
            Err(HandshakeError::Peer) | Ok(HandshakeAction::UnknownPeer(_)) => {
                self.counters.unknown_peers += 1
            }
            Err(HandshakeError::Stale) => self.counters.stale += 1,
            Err(HandshakeError::Cipher) => self.counters.ciphers += 1,
            Err(HandshakeError::Retired) | Ok(_) => {}
        }
        answer
    }

    fn evaluate(
        &mut self,
        now: Time,
        from: SocketAddr,
        datagram: &[u8],
    ) -> Result<HandshakeAction, HandshakeError> {
        let initiation = Initiation::parse(datagram)?;
        let to = match self.own.addressee(&initiation) {
            Addressee::Own(to) => to,
            Addressee::Retired(notice) => return self.send_notice(now, from, notice),
            Addressee::Nobody => return Err(HandshakeError::Mac),
        };
        let hash = mac::hash(initiation.noise);
        if let Some(reply) = self.repeat(&hash, initiation.link) {
            self.counters.repeated += 1;
            return Ok(HandshakeAction::Reply(reply));
        }
        self.cookie_secrets.rotate(now, &mut self.entropy);
        if !self.unproven.take(now) {
            let proven = self
                .cookie_secrets
                .verify(from, initiation.before_mac2, initiation.mac2);
            if !proven {
                self.counters.cookies += 1;
                let reply = self.cookie_reply(from, to.public(), &initiation);
                return Ok(HandshakeAction::Reply(reply));
            }
            if !self.may_ask(now, from.ip()) {
                return Err(HandshakeError::Cookie);
            }
        }
        self.compute(now, from, &to, &initiation, hash)
    }

    /// Replies by a notice, within the rates of resets.
    fn send_notice(
        &mut self,
        now: Time,
        from: SocketAddr,
        notice: Vec<u8>,
    ) -> Result<HandshakeAction, HandshakeError> {
        self.counters.retired += 1;
        match self.reset_sources.take(now, from.ip()) && self.resets.take(now) {
            true => Ok(HandshakeAction::Reply(notice)),
            false => Err(HandshakeError::Retired),
        }
    }

    /// Returns true if an address with a valid cookie may cause a computation. A bucket is only
    /// tried if those before it permit, so nobody uses up the share of others.
    fn may_ask(&mut self, now: Time, from: IpAddr) -> bool {
        if !self.sources.take(now, from) {
            return false;
        }
        let mut familiar = self.familiar_from.range((from, PublicKey([0; 32]))..);
        if familiar.next().is_some_and(|(known, _)| *known == from) {
            return self.familiar.take(now);
        }
        self.sites.take(now, from) && self.all.take(now)
    }

    fn repeat(&self, hash: &[u8; 32], link: LinkId) -> Option<Vec<u8>> {
        let peer = self.peers.get(self.answered.get(hash)?)?;
        let answered = peer.answered.as_ref()?;
        Some(answered.datagram(link, &peer.to_peer))
    }

    fn compute(
        &mut self,
        now: Time,
        from: SocketAddr,
        to: &Identity,
        initiation: &Initiation<'_>,
        hash: [u8; 32],
    ) -> Result<HandshakeAction, HandshakeError> {
        let mut noise = noise::respond(to, self.entropy.bytes());
        let mut payload = vec![0; initiation.noise.len()];
        let size = noise
            .read_message(initiation.noise, &mut payload)
            .map_err(|_| HandshakeError::Forged)?;
        let peer = noise.get_remote_static().and_then(<[u8]>::first_chunk);
        let peer = PublicKey(*peer.ok_or(HandshakeError::Forged)?);
        let payload = Payload::parse(&payload[..size])?;
        let known = self.peers.get(&peer);
        if known.is_none() && !self.offers_unknown_peers {
            return Err(HandshakeError::Peer);
        }
        let newest = known.map(|peer| peer.newest);
        let mut offer = Box::new(Offer {
            noise,
            from: from.ip(),
            link: initiation.link,
            hash,
            ephemeral: initiation.ephemeral(),
            payload,
            peer,
            to: to.public(),
        });
        let Some(newest) = newest else {
            return Ok(HandshakeAction::UnknownPeer(offer));
        };
        let micros = offer.payload.micros;
        if micros > newest && micros < self.time_end(now) {
            return Ok(HandshakeAction::Offer(offer));
        }
        self.counters.stale += 1;
        let refusal = Refusal::Clock(newest.max(self.micros(now)));
        let known = self.peers.get(&peer).ok_or(HandshakeError::Peer)?;
        let refused = offer.refuse(known, &refusal.to_options());
        let reply = refused.datagram(offer.link, &known.to_peer);
        Ok(HandshakeAction::Reply(reply))
    }

    /// Refuses an offer. Copies of it get the same reply.
    ///
    /// # Errors
    /// Same as [`Listener::accept`].
    pub fn refuse(
        &mut self,
        now: Time,
        mut offer: Offer,
        refusal: &Options,
    ) -> Result<Vec<u8>, HandshakeError> {
        let time_end = self.time_end(now);
        let peer = self
            .peers
            .get_mut(&offer.peer)
            .ok_or(HandshakeError::Peer)?;
        if offer.payload.micros <= peer.newest || offer.payload.micros >= time_end {
            return Err(HandshakeError::Stale);
        }
        let answered = offer.refuse(peer, refusal);
        let reply = answered.datagram(offer.link, &peer.to_peer);
        self.counters.refused += 1;
        self.remember(&offer, answered);
        Ok(reply)
    }

    /// Records the reply to an offer.
    fn remember(&mut self, offer: &Offer, answered: AnsweredHandshake) {
        let Some(peer) = self.peers.get_mut(&offer.peer) else {
            return;
        };
        peer.newest = offer.payload.micros;
        peer.came_by = Some(offer.to);
        if let Some(old) = peer.handle_from(offer.from) {
            self.familiar_from.remove(&(old, offer.peer));
        }
        self.familiar_from.insert((offer.from, offer.peer));
        if let Some(old) = peer.answered.replace(answered) {
            self.answered.remove(&old.hash);
        }
        self.answered.insert(offer.hash, offer.peer);
    }

    fn cookie_reply(
        &mut self,
        from: SocketAddr,
        to: PublicKey,
        initiation: &Initiation<'_>,
    ) -> Vec<u8> {
        let reply = CookieReply {
            link: initiation.link,
            cookie: self.cookie_secrets.cookie(from),
        };
        let mut datagram = Vec::new();
        let salt = self.entropy.bytes();
        reply.append(to, initiation.mac1, salt, &mut datagram);
        datagram
    }

    /// Accepts an offer. `index` is the responder's index for the session, not in use by any other;
    /// `continued`: the session that the offer names continues.
    ///
    /// # Errors
    /// [`HandshakeError::Cipher`], or [`HandshakeError::Peer`] or [`HandshakeError::Stale`] if the
    /// peer was removed, or another of its offers was accepted, in the meantime.
    pub fn accept(
        &mut self,
        now: Time,
        mut offer: Offer,
        index: SessionIndex,
        continued: bool,
        ciphers: Ciphers,
        options: &Options,
    ) -> Result<Accepted, HandshakeError> {
        let time_end = self.time_end(now);
        let peer = self
            .peers
            .get_mut(&offer.peer)
            .ok_or(HandshakeError::Peer)?;
        if offer.payload.micros <= peer.newest || offer.payload.micros >= time_end {
            return Err(HandshakeError::Stale);
        }
        let cipher = ciphers.choose(offer.payload.ciphers);
        let cipher = cipher.ok_or(HandshakeError::Cipher)?;
        let payload = response::Payload {
            sender: index,
            cipher,
            continued,
            reset: self.epochs.token(index),
            options: options.clone(),
        };
        let answered = offer.answer(peer, &payload);
        let reply = answered.datagram(offer.link, &peer.to_peer);
        self.remember(&offer, answered);
        self.counters.accepted += 1;
        let session = session(
            now,
            Role::Responder,
            (index, offer.payload.sender),
            cipher,
            &mut offer.noise,
            payload.reset,
        );
        Ok(Accepted { session, reply })
    }

    /// The reset for a data packet of an unknown session; none in the first epoch, or beyond the
    /// rate.
    pub fn reset(&mut self, now: Time, from: SocketAddr, index: SessionIndex) -> Option<Vec<u8>> {
        let token = self.epochs.earlier(index, self.entropy.u64())?;
        if !self.reset_sources.take(now, from.ip()) || !self.resets.take(now) {
            return None;
        }
        self.counters.resets += 1;
        let mut datagram = Vec::new();
        Reset { index, token }.append(&mut datagram);
        Some(datagram)
    }
}
