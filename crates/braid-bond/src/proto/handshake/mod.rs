//! Handshake of two messages: Noise IK with a pre-shared key.
//!
//! The pattern is `Noise_IKpsk2_25519_ChaChaPoly_SHA256`; without a pre-shared key it uses 32 zero
//! bytes. An end's static key is its identity. The initiator knows the responder's; the responder
//! looks the initiator's up among its peers.
//!
//! - Message 1 goes out on all links at once, since it is not known yet which of them work; the
//!   copies differ only in link and MACs. The responder answers every copy with the same message 2,
//!   and computes only once.
//! - Before any Diffie–Hellman, the responder checks a MAC keyed by its own public key: a sender
//!   that does not know that key costs it one hash ([`mac`]).
//! - Under load it demands a cookie that proves the sender's address ([`CookieReply`]). The reply
//!   is smaller than the request, as message 2 is: nothing amplifies.
//! - Message 1 carries a time that must grow, so a recorded one is refused. A machine whose clock
//!   was set back, or that has none, learns the time to exceed from a message 2, which only the
//!   responder can write ([`terms::Refusal::Clock`]).
//! - The responder does not send in a new session until its initiator has proved by a sealed packet
//!   that it holds the keys: a replay to a restarted responder displaces nobody.
//! - A client that is not welcome learns the reason from a message 2 ([`terms::Refusal`]): only the
//!   holder of the hub's key can send it away.
//! - A responder that has lost a session answers its packets by a token that only the responder can
//!   know ([`Reset`]); the initiator begins a new handshake without waiting for a time-out.
//! - A responder can have two keys for a while ([`HubKeys`]): an initiator that comes by the previous
//!   one learns the current one from message 2 ([`terms::current_key`]).

mod attempt;
mod cookie;
mod initiation;
mod keys;
mod listener;
pub mod mac;
mod noise;
mod options;
mod own_keys;
mod rate_limit;
mod reset;
mod response;
mod retired;
pub mod terms;

pub use attempt::{Attempt, Established, Start};
pub use cookie::{COOKIE_LIFETIME, CookieReply};
pub use initiation::{Initiation, MIN_INITIATION_LENGTH};
pub use keys::{HubKeys, Identity, InvalidKey, KeyBytes, Psk, PublicKey};
pub use listener::{Accepted, HandshakeAction, Listener, ListenerCounters, Offer};
pub use options::{MAX_OPTIONS_LENGTH, Options};
pub use reset::{EpochKey, EpochKeys, RESET_TOKEN, Reset};
pub use response::Response;

use super::seal::Cipher;

/// The protocol's version; other versions are refused.
pub const VERSION: u8 = 1;

/// Prologue, mixed into the Noise hash.
pub const PROLOGUE: &[u8] = b"braid bond 1";

/// Noise protocol name.
pub const NOISE: &str = "Noise_IKpsk2_25519_ChaChaPoly_SHA256";

/// Reason for refusing a handshake message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Too short, too long, or with an invalid field.
    #[error("handshake message is malformed")]
    Malformed,
    /// Another version of the protocol.
    #[error("handshake of protocol version {0}; this end speaks version {VERSION}")]
    Version(u8),
    /// The first MAC is wrong: not meant for this key, or forged.
    #[error("handshake was made for another key, or forged")]
    Mac,
    /// The cookie's MAC is missing or wrong, under load.
    #[error("handshake lacks the cookie that is required under load")]
    Cookie,
    /// Decryption failed, or the keys differ.
    #[error("handshake cannot be authenticated")]
    Forged,
    /// The initiator's key is not served.
    #[error("the peer's key is unknown")]
    Peer,
    /// Its time is not after the last one's, or far ahead of the responder's: a replay, or a wrong
    /// clock.
    #[error("handshake's timestamp is not after the last one, or lies in the future")]
    Stale,
    /// No common cipher.
    #[error("the two ends have no cipher in common")]
    Cipher,
    /// Meant for a key that this end no longer has.
    #[error("handshake is meant for a key that was replaced")]
    Retired,
}

/// The ciphers that an end offers, and the one that it prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ciphers {
    /// Codes of the supported ciphers, or-ed.
    pub offered: u8,
    /// The preferred one.
    pub preferred: Cipher,
}

impl Ciphers {
    /// Both ciphers, with a preferred one: AES for processors with AES instructions.
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

    /// The cipher to use with `other`: ChaCha20-Poly1305 if either end prefers it, since AES would
    /// be slow without instructions for it; otherwise AES.
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
