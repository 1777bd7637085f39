//! Reset: the reply of a responder that has lost a session, for example by a restart.
//!
//! ```text
//! 0      4
//! 1..3   session index of the packet that it answers
//! 4..19  token
//! ```
//! The token is a MAC over epoch and index by a key that is derived from the responder's private
//! key. An epoch is one run of the responder: it has lost the sessions of earlier epochs. The
//! initiator received the token under seal when the session began, so nobody else can send it. A
//! reset only makes the initiator begin a new handshake. It is smaller than any data packet, so two
//! ends that have lost everything do not answer each other for ever.
//!
//! Any packet of an unknown session elicits a token, even if that session never existed. So a
//! responder only issues tokens of earlier epochs: they end nothing that is alive (RFC 9000
//! §21.11).

use super::mac::{self, MAC, MacKey};
use super::{HandshakeError, Identity};
use crate::proto::packet::{OVERHEAD, SessionIndex, kind};

/// Bytes of a reset token.
pub const RESET_TOKEN: usize = MAC;

const SIZE: usize = 4 + RESET_TOKEN;

const _: () = assert!(SIZE < OVERHEAD);

/// A session is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The responder's index of the session.
    pub index: SessionIndex,
    /// Proof that the responder sent it.
    pub token: [u8; RESET_TOKEN],
}

impl Reset {
    /// Parses a datagram; none if it is not a reset.
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

    /// Verifies the reset against `token`, which the handshake brought.
    ///
    /// # Errors
    /// [`HandshakeError::Forged`] if they differ.
    pub fn verify(&self, token: &[u8; RESET_TOKEN]) -> Result<(), HandshakeError> {
        if mac::same(&self.token, token) {
            Ok(())
        } else {
            Err(HandshakeError::Forged)
        }
    }
}

/// Earlier epochs whose sessions can be reset. The index does not reveal the epoch, so the token is
/// of one chosen at random.
const RESET_EPOCHS: u64 = 4;

/// Computes the tokens of a responder.
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

    /// The token that will end a session of this epoch in a later one.
    pub fn token(&self, index: SessionIndex) -> [u8; RESET_TOKEN] {
        self.sign(self.epoch, index)
    }

    /// A token for a session of one of the last few epochs, which `random` picks; none in the first
    /// epoch.
    pub fn earlier(&self, index: SessionIndex, random: u64) -> Option<[u8; RESET_TOKEN]> {
        let back = random.checked_rem(self.epoch.min(RESET_EPOCHS))? + 1;
        Some(self.sign(self.epoch - back, index))
    }

    fn sign(&self, epoch: u64, index: SessionIndex) -> [u8; RESET_TOKEN] {
        self.key.sign(&[&epoch.to_be_bytes(), &index.to_bytes()])
    }
}
