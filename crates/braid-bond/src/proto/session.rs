//! The keys of a tunnel: the current ones, those before, and those that are not confirmed yet.
//!
//! Packet numbers belong to links and go on over a change of keys; so do replay windows, loss
//! detection and reports, which never notice it. A packet names by its session index the key that
//! sealed it, so what is under way when keys change is opened by the old one.
//!
//! - The initiator sends by the new keys as soon as it has them. The responder does once something
//!   sealed by them has arrived; before, the initiator may not have them.
//! - Keys are changed every [`REKEY_AFTER`] while inner packets are carried, every
//!   [`REKEY_IDLE`] otherwise, and before they have sealed [`REKEY_PACKETS`].
//! - The keys before open packets for [`PREVIOUS_KEY_LIFETIME`] more.

use std::time::Duration;

use super::handshake::RESET_TOKEN;
use super::packet::SessionIndex;
use super::seal::{Cipher, Forged, Key};
use braid_core::{LinkId, MAX_LINKS, PacketNumber, Time};

/// Keys that carry inner packets are changed after this: what a stolen machine can still decrypt.
pub const REKEY_AFTER: Duration = Duration::from_secs(120);

/// Keys that carry nothing are changed after this. Idle links are to be left in peace.
pub const REKEY_IDLE: Duration = Duration::from_secs(1800);

/// Keys are not used for longer than this, come what may.
pub const KEY_LIFETIME: Duration = Duration::from_secs(3600);

/// How long the keys before open packets: more than any packet is under way.
pub const PREVIOUS_KEY_LIFETIME: Duration = Duration::from_secs(30);

/// Keys are changed when they have sealed so many packets. RFC 9001 §B.1.1 has 2²⁸ as the limit
/// for AES-GCM and packets of up to 2¹¹ bytes.
pub const REKEY_PACKETS: u64 = 1 << 27;

/// Keys are not used any more after so many packets.
pub const KEY_PACKETS: u64 = 1 << 28;

/// Keys open nothing any more after so many forgeries: RFC 9001 §6.6 has 2³⁶ for
/// ChaCha20-Poly1305, the lower of the two.
pub const KEY_FORGERIES: u64 = 1 << 36;

/// Which end began the handshake.
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
    /// A session. `indices` are what we are addressed by and what the other end is; `secrets` are
    /// the handshake's for sending and for receiving.
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

    /// Which end began it.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// By what we are addressed.
    #[must_use]
    pub fn own(&self) -> SessionIndex {
        self.own
    }

    /// By what the other end is addressed.
    #[must_use]
    pub fn peer(&self) -> SessionIndex {
        self.peer
    }

    /// What seals its packets.
    #[must_use]
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// What a genuine reset of this session has.
    #[must_use]
    pub fn reset_token(&self) -> &[u8; RESET_TOKEN] {
        &self.reset
    }

    /// Seals a packet: header, stamp and frames; the tag is appended.
    ///
    /// # Panics
    /// If the number is not above all before it on this link: two packets under one nonce would
    /// give the key away, so whoever numbers packets wrongly must not go on.
    pub fn seal(&mut self, link: LinkId, number: PacketNumber, packet: &mut Vec<u8>) {
        let next = &mut self.next[link.index()];
        assert!(number.0 >= *next, "packet number {} was used", number.0);
        *next = number.0 + 1;
        self.sealed += 1;
        self.send.seal(link, number, packet);
    }

    /// Opens a packet in place and returns what was sealed.
    ///
    /// # Errors
    /// [`Forged`] if it is not authentic; its bytes are then undefined.
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

    /// When it was made.
    #[must_use]
    pub fn made(&self) -> Time {
        self.made
    }

    /// Whether it may still be used.
    #[must_use]
    pub fn is_alive(&self, now: Time) -> bool {
        now.since(self.made) < KEY_LIFETIME && self.sealed < KEY_PACKETS
    }

    /// Whether new keys are due. `busy` says that inner packets are carried.
    #[must_use]
    pub fn is_rekey_due(&self, now: Time, busy: bool) -> bool {
        now >= self.rekey_at(busy)
            || self.sealed >= REKEY_PACKETS
            || self.forged >= KEY_FORGERIES / 2
    }

    /// When new keys will be due by time alone.
    #[must_use]
    pub fn rekey_at(&self, busy: bool) -> Time {
        self.made + if busy { REKEY_AFTER } else { REKEY_IDLE }
    }
}

/// Whether a packet came by the keys that it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStatus {
    /// By the current keys, or those before.
    Known,
    /// By keys that it thereby confirmed: they are the current ones now.
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
    /// What to send with; none before the first handshake, or if it is too old.
    pub fn current(&mut self, now: Time) -> Option<&mut Session> {
        self.current
            .as_mut()
            .filter(|session| session.is_alive(now))
    }

    /// What is sent with, alive or not.
    #[must_use]
    pub fn peek(&self) -> Option<&Session> {
        self.current.as_ref()
    }

    /// Whether an index is one of this tunnel's.
    #[must_use]
    pub fn has(&self, index: SessionIndex) -> bool {
        self.indices().any(|own| own == index)
    }

    /// By what this tunnel can be addressed at the moment: three at most.
    pub fn indices(&self) -> impl Iterator<Item = SessionIndex> {
        let previous = self.previous.as_ref().map(|(session, _)| session);
        [self.current.as_ref(), previous, self.next.as_ref()]
            .into_iter()
            .flatten()
            .map(Session::own)
    }

    /// Takes a session that we began, and sends with it from now on.
    pub fn install(&mut self, now: Time, session: Session) {
        self.promote(now, session);
    }

    /// Takes a session that the other end began: it is used for sending once a packet has arrived
    /// in it. One that was not confirmed until now is given up.
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

    /// Something authentic has arrived in the session `index`.
    pub fn handle_authentic(&mut self, now: Time, index: SessionIndex) -> KeyStatus {
        match self.next.take_if(|next| next.own == index) {
            Some(session) => {
                self.promote(now, session);
                KeyStatus::Confirmed
            }
            None => KeyStatus::Known,
        }
    }

    /// Forgets keys that are not needed any more. With those that are sent with, once they are too old,
    /// all goes that waits to be sent by them: whoever is left without the other end waits in peace.
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
