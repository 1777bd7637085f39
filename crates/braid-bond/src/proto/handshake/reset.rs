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
    /// Key of the epochs before `since`; none if the responder has forgotten it.
    previous: Option<MacKey>,
    /// First epoch of `key`.
    since: u64,
    epoch: u64,
}

impl ResetTokens {
    /// The tokens of a responder that has always had this key.
    pub fn of(own: &Identity) -> Self {
        ResetTokens {
            key: token_key(own),
            previous: None,
            since: 0,
            epoch: 0,
        }
    }

    /// Replaces the keys: sessions of the epochs before `since` have tokens of the previous one.
    pub fn set_keys(&mut self, own: &Identity, previous: Option<&Identity>, since: u64) {
        self.key = token_key(own);
        self.previous = previous.map(token_key);
        self.since = since;
        self.epoch = self.epoch.max(since);
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
        sign(&self.key, self.epoch, index)
    }

    /// A token for a session of one of the last few epochs, which `random` picks; none in the first
    /// epoch.
    pub fn earlier(&self, index: SessionIndex, random: u64) -> Option<[u8; RESET_TOKEN]> {
        let back = random.checked_rem(self.epoch.min(RESET_EPOCHS))? + 1;
        let epoch = self.epoch - back;
        let key = match epoch < self.since {
            true => self.previous.as_ref()?,
            false => &self.key,
        };
        Some(sign(key, epoch, index))
    }
}

fn token_key(own: &Identity) -> MacKey {
    let derive = MacKey::secret(own.private());
    MacKey::secret(&derive.sign_whole(&[b"braid reset"]))
}

fn sign(key: &MacKey, epoch: u64, index: SessionIndex) -> [u8; RESET_TOKEN] {
    key.sign(&[&epoch.to_be_bytes(), &index.to_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_earlier_epochs_are_of_the_key_that_they_had() {
        let index = SessionIndex::new([0, 0, 7]).expect("not zero");
        let (old, new) = (Identity::new([1; 32]), Identity::new([2; 32]));
        let mut tokens = ResetTokens::of(&old);
        tokens.set_epoch(5);
        let before = tokens.token(index);
        tokens.set_keys(&new, Some(&old), 6);
        let after = tokens.token(index);
        assert_ne!(after, before);
        // The session of before has been lost: the new key has begun an epoch.
        assert_eq!(tokens.earlier(index, 0), Some(before));
        // After a restart sessions of either key may have been lost.
        tokens.set_epoch(7);
        assert_eq!(tokens.earlier(index, 0), Some(after));
        assert_eq!(tokens.earlier(index, 1), Some(before));
        // The previous key is forgotten.
        tokens.set_keys(&new, None, 6);
        assert_eq!(tokens.earlier(index, 0), Some(after));
        assert_eq!(tokens.earlier(index, 1), None);
    }
}
