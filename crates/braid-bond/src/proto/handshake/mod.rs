//! Two messages that make a session: Noise IK with a pre-shared key.
//!
//! `Noise_IKpsk2_25519_ChaChaPoly_SHA256`; who has no pre-shared key uses 32 zero bytes. Who each
//! end is, is its static key. The initiator knows the responder's; the responder looks the
//! initiator's up among those it serves.
//!
//! - One message 1 goes out on all links at once, since nobody knows which work; the same bytes but
//!   for link and MACs. The responder answers every copy with the same message 2, and computes
//!   only once.
//! - Before any Diffie–Hellman, the responder checks a MAC keyed by its own public key: who cannot
//!   know that key costs it one hash ([`mac`]).
//! - Under load it demands a cookie that proves the sender's address ([`CookieReply`]). The reply
//!   is smaller than what asked for it, as message 2 is: nothing amplifies.
//! - Message 1 has a time that must grow, so a recorded one is refused. A machine whose clock was
//!   set back, or that has none, is told the time to go beyond in a message 2: only the responder can
//!   say it ([`terms::Refusal::Clock`]).
//! - The session that message 1 begins is not used for sending until its initiator has proved by a
//!   sealed packet that it holds the keys: a replay to a restarted responder displaces nobody.
//! - A client that is not wanted is told why in a message 2 of its own ([`terms::Refusal`]): only who
//!   holds the hub's key can send it away.
//! - A responder that has forgotten a session says so by a token that only it can know
//!   ([`Reset`]), and the initiator begins anew, without waiting for a time-out.

mod attempt;
mod cookie;
mod initiation;
mod keys;
mod listener;
pub mod mac;
mod noise;
mod options;
mod rate_limit;
mod reset;
mod response;
pub mod terms;

pub use attempt::{Attempt, Established, Start};
pub use cookie::{COOKIE_LIFETIME, CookieReply};
pub use initiation::{INITIATION_MIN, Initiation};
pub use keys::{Identity, InvalidKey, Psk, PublicKey};
pub use listener::{Accepted, HandshakeAction, Listener, ListenerCounters, Offer};
pub use options::{OPTIONS_MAX, Options};
pub use reset::{RESET_TOKEN, Reset};
pub use response::Response;

use super::seal::Cipher;

/// The protocol's version; other versions are refused.
pub const VERSION: u8 = 1;

/// What both ends must have said beforehand: mixed into the Noise hash.
pub const PROLOGUE: &[u8] = b"braid bond 1";

/// Noise protocol name.
pub const NOISE: &str = "Noise_IKpsk2_25519_ChaChaPoly_SHA256";

/// Why a handshake message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Too short, too long, or a field that cannot be.
    #[error("handshake message is malformed")]
    Malformed,
    /// Another version of the protocol.
    #[error("handshake is of protocol version {0}, not {VERSION}")]
    Version(u8),
    /// The first MAC is wrong: not meant for this key, or made up.
    #[error("handshake is not meant for this key")]
    Mac,
    /// The cookie's MAC is missing or wrong, and there is load.
    #[error("handshake without cookie under load")]
    Cookie,
    /// Decryption failed, or the keys differ.
    #[error("handshake is not authentic")]
    Forged,
    /// The initiator's key is not one that is served.
    #[error("peer is not known")]
    Peer,
    /// Its time is not after the last one's, or far ahead of the responder's: replayed, or a wrong clock.
    #[error("handshake is not newer than the last, or its time is to come")]
    Stale,
    /// No cipher that both ends have.
    #[error("no common cipher")]
    Cipher,
}

/// The ciphers that an end offers, and the one it would like best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ciphers {
    /// Codes of what it can do, or-ed.
    pub offered: u8,
    /// What it would like.
    pub preferred: Cipher,
}

impl Ciphers {
    /// Both, with this one preferred: AES where the processor has instructions for it.
    #[must_use]
    pub fn preferring(preferred: Cipher) -> Self {
        Ciphers {
            offered: Cipher::Aes256Gcm.code() | Cipher::ChaCha20Poly1305.code(),
            preferred,
        }
    }

    fn has(self, cipher: Cipher) -> bool {
        self.offered & cipher.code() != 0
    }

    /// What to use with `other`: ChaCha20-Poly1305 if either end prefers it, since it then has no
    /// instructions for AES and would be the slower one by far; else AES.
    #[must_use]
    pub fn choose(self, other: Ciphers) -> Option<Cipher> {
        let wanted = match (self.preferred, other.preferred) {
            (Cipher::Aes256Gcm, Cipher::Aes256Gcm) => Cipher::Aes256Gcm,
            _ => Cipher::ChaCha20Poly1305,
        };
        [wanted, Cipher::ChaCha20Poly1305, Cipher::Aes256Gcm]
            .into_iter()
            .find(|cipher| self.has(*cipher) && other.has(*cipher))
    }
}
