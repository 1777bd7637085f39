//! "I do not know that session": from a responder that has lost it, by a restart say.
//!
//! ```text
//! 0      4
//! 1..3   the session index of the packet that it answers
//! 4..19  token
//! ```
//! The token is a MAC over the index by a key that is derived from the responder's private key, so a
//! restarted one makes the same, and it was told to the initiator under seal when the session
//! began: nobody else can send it. It only has the initiator begin a new handshake. Smaller than
//! any data packet, so two ends that have lost everything do not answer each other for ever.

use super::mac::{self, MAC, MacKey};
use super::{HandshakeError, Identity};
use crate::proto::packet::{OVERHEAD, SessionIndex, kind};

/// Bytes of a reset token.
pub const RESET_TOKEN: usize = MAC;

const SIZE: usize = 4 + RESET_TOKEN;

const _: () = assert!(SIZE < OVERHEAD);

/// A session is not known any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The responder's index of the session.
    pub index: SessionIndex,
    /// Shows that it is the responder who says so.
    pub token: [u8; RESET_TOKEN],
}

impl Reset {
    /// Takes a datagram apart; none if it is not one.
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let datagram: &[u8; SIZE] = datagram.try_into().ok()?;
        let (head, token) = datagram.split_first_chunk::<4>()?;
        if head[0] != kind::RESET {
            return None;
        }
        Some(Reset {
            index: SessionIndex::new([head[1], head[2], head[3]])?,
            token: token.try_into().ok()?,
        })
    }

    /// Writes the datagram.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.push(kind::RESET);
        out.extend_from_slice(&self.index.to_bytes());
        out.extend_from_slice(&self.token);
    }

    /// Whether it is genuine: `token` is what the handshake told.
    ///
    /// # Errors
    /// [`HandshakeError::Forged`] if not.
    pub fn verify(&self, token: &[u8; RESET_TOKEN]) -> Result<(), HandshakeError> {
        if mac::same(&self.token, token) {
            Ok(())
        } else {
            Err(HandshakeError::Forged)
        }
    }
}

/// Makes the tokens of one responder.
#[derive(Clone, Debug)]
pub(super) struct Tokens(MacKey);

impl Tokens {
    pub fn of(own: &Identity) -> Self {
        let derive = MacKey::secret(own.private());
        Tokens(MacKey::secret(&derive.sign_whole(&[b"braid reset"])))
    }

    pub fn token(&self, index: SessionIndex) -> [u8; RESET_TOKEN] {
        self.0.sign(&[&index.to_bytes()])
    }
}
