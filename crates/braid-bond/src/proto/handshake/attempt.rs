//! The initiator's side of one handshake.

use braid_core::Time;
use braid_multipath::{LinkId, MAX_LINKS};
use snow::HandshakeState;
use zeroize::Zeroizing;

use super::cookie::CookieReply;
use super::initiation::{Initiation, Payload};
use super::mac::{MAC, MacKey};
use super::response::{self, Response};
use super::{
    Ciphers, HandshakeError, Identity, Options, Psk, PublicKey, RESET_TOKEN, noise, retired,
};
use crate::proto::entropy::Entropy;
use crate::proto::erase::Erased;
use crate::proto::packet::SessionIndex;
use crate::proto::seal::Cipher;
use crate::proto::session::{Role, Session};

/// Forged responses after which this attempt ignores further ones: it bounds the work that an
/// observer can cause.
const MAX_FORGED_RESPONSES: u32 = 16;

/// Contents of the initiator's message 1.
#[derive(Clone, Debug)]
pub struct Start {
    /// The initiator's session index.
    pub index: SessionIndex,
    /// The responder's index of the session to continue; none for a new one.
    pub continues: Option<SessionIndex>,
    /// µs since 1970; must exceed every earlier value of this identity.
    pub micros: u64,
    /// Ciphers for data.
    pub ciphers: Ciphers,
    /// Further options.
    pub options: Options,
}

/// A handshake in progress: message 1 is written, message 2 awaited.
pub struct Attempt {
    noise: Erased<HandshakeState>,
    /// Noise message 1, the same on all links and in all repetitions.
    message: Vec<u8>,
    ephemeral: [u8; 32],
    peer: PublicKey,
    to_peer: MacKey,
    to_us: MacKey,
    start: Start,
    cookies: [Option<[u8; MAC]>; MAX_LINKS],
    forgeries: u32,
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attempt")
            .field("start", &self.start)
            .finish()
    }
}

/// A handshake that succeeded.
#[derive(Debug)]
pub struct Established {
    /// The session.
    pub session: Session,
    /// True if the responder continues the session that [`Start::continues`] named. If not, numbers
    /// and lanes begin at zero.
    pub continued: bool,
    /// The responder's options.
    pub options: Options,
}

impl Attempt {
    /// Begins a handshake with the end that has the key `peer`.
    #[must_use]
    pub fn new(
        own: &Identity,
        peer: PublicKey,
        psk: &Psk,
        start: Start,
        entropy: &mut Entropy,
    ) -> Self {
        let mut noise = noise::initiate(own, peer, entropy.bytes());
        noise
            .set_psk(2, &*psk.0)
            .expect("the pattern has a pre-shared key");
        let payload = Payload {
            micros: start.micros,
            sender: start.index,
            continues: start.continues,
            ciphers: start.ciphers,
            options: start.options.clone(),
        };
        let payload = payload.to_bytes();
        let mut message = vec![0; payload.len() + 96];
        let size = noise
            .write_message(&payload, &mut message)
            .expect("the message fits its buffer");
        message.truncate(size);
        let ephemeral = *message.first_chunk().expect("it begins with the key");
        Attempt {
            noise,
            message,
            ephemeral,
            peer,
            to_peer: MacKey::of(peer),
            to_us: MacKey::of(own.public()),
            start,
            cookies: [None; MAX_LINKS],
            forgeries: 0,
        }
    }

    /// Contents of message 1.
    #[must_use]
    pub fn start(&self) -> &Start {
        &self.start
    }

    /// Writes message 1 as it is sent on `link`.
    pub fn append(&self, link: LinkId, out: &mut Vec<u8>) {
        let from = out.len();
        Initiation::append(link, &self.message, out);
        let mac1 = self.to_peer.sign(&[&out[from..]]);
        out.extend_from_slice(&mac1);
        let mac2 = self.cookies[link.index()].map_or([0; MAC], |cookie| {
            MacKey::secret(&cookie).sign(&[&out[from..]])
        });
        out.extend_from_slice(&mac2);
    }

    fn mac1(&self, link: LinkId) -> [u8; MAC] {
        let mut datagram = Vec::with_capacity(self.message.len() + 3);
        Initiation::append(link, &self.message, &mut datagram);
        self.to_peer.sign(&[&datagram])
    }

    /// Handles a cookie reply. Message 1 carries the cookie from now on; the caller sends it again
    /// on the returned link. Anybody who knows the responder's public key and sees message 1 can
    /// have made the reply.
    ///
    /// # Errors
    /// It does not answer this attempt's message.
    pub fn handle_cookie(&mut self, datagram: &[u8]) -> Result<LinkId, HandshakeError> {
        let link = CookieReply::link_of(datagram).ok_or(HandshakeError::Malformed)?;
        let reply = CookieReply::open(datagram, self.peer, &self.mac1(link))?;
        self.cookies[link.index()] = Some(reply.cookie);
        Ok(link)
    }

    /// Returns true if a datagram is a notice that the responder no longer has the key to which
    /// message 1 is addressed. Anybody who knows the responder's public key and sees message 1 can
    /// have made it.
    #[must_use]
    pub fn is_notice_of_retired_key(&self, datagram: &[u8]) -> bool {
        retired::read(datagram, self.peer, |link| self.mac1(link)).is_some()
    }

    /// Handles message 2. On success the attempt is over.
    ///
    /// # Errors
    /// It does not answer this attempt, or is not authentic. The attempt continues then.
    pub fn handle_response(
        &mut self,
        now: Time,
        datagram: &[u8],
    ) -> Result<Established, HandshakeError> {
        let response = Response::parse(datagram)?;
        let parts = [response.before_mac1, &self.ephemeral];
        if response.receiver != self.start.index || !self.to_us.verify(&parts, response.mac1) {
            return Err(HandshakeError::Mac);
        }
        if self.forgeries == MAX_FORGED_RESPONSES {
            return Err(HandshakeError::Forged);
        }
        let mut payload = vec![0; response.noise.len()];
        let size = self
            .noise
            .read_message(response.noise, &mut payload)
            .map_err(|_| {
                self.forgeries += 1;
                HandshakeError::Forged
            })?;
        let payload = response::Payload::parse(&payload[..size])?;
        if self.start.ciphers.offered & payload.cipher.code() == 0 {
            return Err(HandshakeError::Cipher);
        }
        let session = session(
            now,
            Role::Initiator,
            (self.start.index, payload.sender),
            payload.cipher,
            &mut self.noise,
            payload.reset,
        );
        Ok(Established {
            session,
            continued: payload.continued,
            options: payload.options,
        })
    }
}

/// The session of a finished handshake. `indices` are this end's and the other end's.
pub(super) fn session(
    now: Time,
    role: Role,
    indices: (SessionIndex, SessionIndex),
    cipher: Cipher,
    noise: &mut HandshakeState,
    reset: [u8; RESET_TOKEN],
) -> Session {
    let (forth, back) = noise.dangerously_get_raw_split();
    let (forth, back) = (Zeroizing::new(forth), Zeroizing::new(back));
    let (send, receive) = match role {
        Role::Initiator => (forth, back),
        Role::Responder => (back, forth),
    };
    Session::new(now, role, indices, cipher, (&send, &receive), reset)
}
