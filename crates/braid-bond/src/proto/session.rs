//! The keys of a tunnel: current, previous, and unconfirmed.
//!
//! Packet numbers belong to links and continue over a change of keys; so do replay windows, loss
//! detection and reports. A packet names its key by the session index, so packets in flight during
//! a change are opened by the old key.
//!
//! - The initiator sends with the new keys as soon as it has them. The responder does so once a
//!   packet sealed by them has arrived; before that the initiator may not have them.
//! - Keys are changed every [`REKEY_AFTER`] while inner packets are carried, every [`REKEY_IDLE`]
//!   otherwise, and before they have sealed [`REKEY_PACKETS`].
//! - The previous keys open packets for another [`PREVIOUS_KEY_LIFETIME`].

use std::time::Duration;

use braid_core::Time;
use braid_multipath::{LinkId, MAX_LINKS, PacketNumber};

use super::handshake::RESET_TOKEN;
use super::packet::SessionIndex;
use super::seal::{Cipher, Forged, Key};

/// Interval of key changes while inner packets are carried. It bounds what a stolen machine can
/// decrypt.
pub const REKEY_AFTER: Duration = Duration::from_secs(120);

/// Interval of key changes otherwise. Idle links should stay idle.
pub const REKEY_IDLE: Duration = Duration::from_secs(1800);

/// Longest use of a key.
pub const KEY_LIFETIME: Duration = Duration::from_secs(3600);

/// Time for which the previous keys open packets: longer than any packet is in flight.
pub const PREVIOUS_KEY_LIFETIME: Duration = Duration::from_secs(30);

/// Packets after which a key is changed. RFC 9001 §B.1.1 has 2²⁸ as the limit for AES-GCM and
/// packets of up to 2¹¹ bytes.
pub const REKEY_PACKETS: u64 = 1 << 27;

/// Most packets that a key seals.
pub const KEY_PACKETS: u64 = 1 << 28;

/// Forgeries after which a key opens nothing more: RFC 9001 §6.6 has 2³⁶ for ChaCha20-Poly1305, the
/// lower of the two.
pub const KEY_FORGERIES: u64 = 1 << 36;

/// The end that began the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This end.
    Initiator,
    /// The other.
    Responder,
}

/// The keys of one handshake.
#[derive(Debug)]
pub struct Session {
    role: Role,
    own: SessionIndex,
    peer: SessionIndex,
    cipher: Cipher,
    send: Key,
    receive: Key,
    reset: [u8; RESET_TOKEN],
    made: Time,
    sealed: u64,
    forged: u64,
    /// The lowest number that may be sealed next, per link.
    next: [u64; MAX_LINKS],
}

impl Session {
    /// A session. `indices` are this end's and the other end's; `secrets` are the handshake's for
    /// sending and for receiving.
    #[must_use]
    pub fn new(
        now: Time,
        role: Role,
        indices: (SessionIndex, SessionIndex),
        cipher: Cipher,
        secrets: (&[u8; 32], &[u8; 32]),
        reset: [u8; RESET_TOKEN],
    ) -> Self {
        Session {
            role,
            own: indices.0,
            peer: indices.1,
            cipher,
            send: Key::new(cipher, secrets.0),
            receive: Key::new(cipher, secrets.1),
            reset,
            made: now,
            sealed: 0,
            forged: 0,
            next: [0; MAX_LINKS],
        }
    }

    /// The role of this end.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// This end's session index.
    #[must_use]
    pub fn own(&self) -> SessionIndex {
        self.own
    }

    /// The other end's session index.
    #[must_use]
    pub fn peer(&self) -> SessionIndex {
        self.peer
    }

    /// The cipher of its packets.
    #[must_use]
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// The token that proves a genuine reset of this session.
    #[must_use]
    pub fn reset_token(&self) -> &[u8; RESET_TOKEN] {
        &self.reset
    }

    /// Seals a packet: header, stamp and frames; the tag is appended.
    ///
    /// # Panics
    /// If the number is not above all earlier ones on this link: two packets under one nonce would
    /// reveal the key, so a caller that numbers packets wrongly must not continue.
    pub fn seal(&mut self, link: LinkId, number: PacketNumber, packet: &mut Vec<u8>) {
        let next = &mut self.next[link.index()];
        assert!(number.0 >= *next, "packet number {} was used", number.0);
        *next = number.0 + 1;
        self.sealed += 1;
        self.send.seal(link, number, packet);
    }

    /// Opens a packet in place and returns the plaintext.
    ///
    /// # Errors
    /// [`Forged`] if it is not authentic; its bytes are undefined then.
    pub fn open<'a>(
        &mut self,
        link: LinkId,
        number: PacketNumber,
        packet: &'a mut [u8],
    ) -> Result<&'a mut [u8], Forged> {
        if self.forged >= KEY_FORGERIES {
            return Err(Forged);
        }
        self.receive
            .open(link, number, packet)
            .inspect_err(|_| self.forged += 1)
    }

    /// Time of its handshake.
    #[must_use]
    pub fn made(&self) -> Time {
        self.made
    }

    /// Returns true if it may still seal packets.
    #[must_use]
    pub fn is_alive(&self, now: Time) -> bool {
        now.since(self.made) < KEY_LIFETIME && self.sealed < KEY_PACKETS
    }

    /// Returns true if new keys are due. `busy`: inner packets are being carried.
    #[must_use]
    pub fn is_rekey_due(&self, now: Time, busy: bool) -> bool {
        now >= self.rekey_at(busy)
            || self.sealed >= REKEY_PACKETS
            || self.forged >= KEY_FORGERIES / 2
    }

    /// The time at which new keys are due by age alone.
    #[must_use]
    pub fn rekey_at(&self, busy: bool) -> Time {
        self.made + if busy { REKEY_AFTER } else { REKEY_IDLE }
    }
}

/// The keys that opened a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStatus {
    /// The current or the previous keys.
    Known,
    /// New keys, which the packet confirmed: they are current now.
    Confirmed,
}

/// The sessions of one tunnel.
#[derive(Debug, Default)]
pub struct Keyring {
    current: Option<Session>,
    previous: Option<(Session, Time)>,
    next: Option<Session>,
}

impl Keyring {
    /// The session to send with; none before the first handshake, or if it has expired.
    pub fn current(&mut self, now: Time) -> Option<&mut Session> {
        self.current
            .as_mut()
            .filter(|session| session.is_alive(now))
    }

    /// The current session, expired or not.
    #[must_use]
    pub fn peek(&self) -> Option<&Session> {
        self.current.as_ref()
    }

    /// Returns true if the index belongs to this tunnel.
    #[must_use]
    pub fn has(&self, index: SessionIndex) -> bool {
        self.indices().any(|own| own == index)
    }

    /// Session indices of this tunnel: three at most.
    pub fn indices(&self) -> impl Iterator<Item = SessionIndex> {
        let previous = self.previous.as_ref().map(|(session, _)| session);
        [self.current.as_ref(), previous, self.next.as_ref()]
            .into_iter()
            .flatten()
            .map(Session::own)
    }

    /// Installs a session that this end began, and sends with it from now on.
    pub fn install(&mut self, now: Time, session: Session) {
        self.promote(now, session);
    }

    /// Stores a session that the other end began: it becomes current once a packet has arrived in
    /// it. An earlier unconfirmed one is dropped.
    pub fn offer(&mut self, session: Session) {
        self.next = Some(session);
    }

    fn promote(&mut self, now: Time, session: Session) {
        if let Some(old) = self.current.replace(session) {
            self.previous = Some((old, now));
        }
    }

    /// The session of an index, if it can still open packets.
    pub fn receiving(&mut self, now: Time, index: SessionIndex) -> Option<&mut Session> {
        let previous = self.previous.as_mut();
        let previous = previous.filter(|(_, until)| now.since(*until) < PREVIOUS_KEY_LIFETIME);
        let previous = previous.map(|(session, _)| session);
        [self.current.as_mut(), previous, self.next.as_mut()]
            .into_iter()
            .flatten()
            .find(|session| session.own == index && session.is_alive(now))
    }

    /// An authentic packet has arrived in the session `index`.
    pub fn handle_authentic(&mut self, now: Time, index: SessionIndex) -> KeyStatus {
        match self.next.take_if(|next| next.own == index) {
            Some(session) => {
                self.promote(now, session);
                KeyStatus::Confirmed
            }
            None => KeyStatus::Known,
        }
    }

    /// Removes expired keys. Without current keys nothing can be sent, so a tunnel that has lost
    /// the other end has no more timers.
    pub fn handle_timeout(&mut self, now: Time) {
        self.current.take_if(|session| !session.is_alive(now));
        self.previous
            .take_if(|(_, until)| now.since(*until) >= PREVIOUS_KEY_LIFETIME);
        self.next.take_if(|session| !session.is_alive(now));
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Keyring::default();
    }
}
