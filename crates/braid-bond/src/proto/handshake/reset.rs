//! "I do not know that session": from a responder that has lost it, by a restart say.
//!
//! ```text
//! 0      4
//! 1..3   the session index of the packet that it answers
//! 4..19  token
//! ```
//! The token is a MAC over epoch and index by a key that is derived from the responder's private key. An
//! epoch is one life of the responder: the sessions of one epoch are forgotten in the next. It was told
//! to the initiator under seal when the session began: nobody else can send it. It only has the
//! initiator begin a new handshake. Smaller than any data packet, so two ends that have lost
//! everything do not answer each other for ever.
//!
//! Whoever sends a packet of an unknown session gets a token, be it for a session that never was. So a
//! responder gives tokens of earlier epochs alone: they end nothing but what is over
//! (RFC 9000 §21.11).

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

/// So many epochs back sessions are told that they are over. Which of them a session is of, its index does
/// not say: a token of each is given in turn by chance.
const RESET_EPOCHS: u64 = 4;

/// Makes the tokens of one responder.
#[derive(Clone, Debug)]
pub(super) struct ResetTokens {
    key: MacKey,
    epoch: u64,
}

impl ResetTokens {
    pub fn of(own: &Identity) -> Self {
        let derive = MacKey::secret(own.private());
        ResetTokens {
            key: MacKey::secret(&derive.sign_whole(&[b"braid reset"])),
            epoch: 0,
        }
    }

    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Begins another epoch.
    pub fn begin_epoch(&mut self) {
        self.epoch += 1;
    }

    /// What a session of this epoch is ended by, in a later one.
    pub fn token(&self, index: SessionIndex) -> [u8; RESET_TOKEN] {
        self.sign(self.epoch, index)
    }

    /// What a session of an earlier epoch is ended by, of one of the last few that `random` picks; none in the
    /// first epoch.
    pub fn earlier(&self, index: SessionIndex, random: u64) -> Option<[u8; RESET_TOKEN]> {
        let back = random.checked_rem(self.epoch.min(RESET_EPOCHS))? + 1;
        Some(self.sign(self.epoch - back, index))
    }

    fn sign(&self, epoch: u64, index: SessionIndex) -> [u8; RESET_TOKEN] {
        self.key.sign(&[&epoch.to_be_bytes(), &index.to_bytes()])
    }
}
