//! Reset: the reply of a responder that has lost a session, for example by a restart.
//!
//! ```text
//! 0      4
//! 1..3   session index of the packet that it answers
//! 4..19  token
//! ```
//! The token is a MAC over the index by the key of an epoch. An epoch is one run of the responder:
//! it has lost the sessions of earlier epochs. The initiator received the token under seal when the
//! session began, so nobody else can send it. A reset only makes the initiator begin a new
//! handshake. It is smaller than any data packet, so two ends that have lost everything do not
//! answer each other for ever.
//!
//! Any packet of an unknown session elicits a token, even if that session never existed. So a
//! responder only issues tokens of earlier epochs: they end nothing that is alive (RFC 9000
//! §21.11). Each epoch's key is drawn at random and stored for later runs. A key that could not be
//! stored, or that a restored backup lacks, costs its sessions the reset. A number in its place
//! would begin again, and tokens that were given away would be those of living sessions.

use std::collections::VecDeque;

use super::mac::{self, MAC, MacKey};
use super::{HandshakeError, KeyBytes};
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
const RESET_EPOCHS: usize = 4;
/// Keys of the present run that are kept: one for each key of the responder that it began with.
const MAX_LIVING: usize = 8;

/// Key of the reset tokens of one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochKey(KeyBytes);

impl EpochKey {
    /// A key of bytes that nobody can guess.
    #[must_use]
    pub fn new(bytes: impl Into<KeyBytes>) -> Self {
        EpochKey(bytes.into())
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &KeyBytes {
        &self.0
    }

    fn token(&self, index: SessionIndex) -> [u8; RESET_TOKEN] {
        MacKey::secret(&*self.0).sign(&[&index.to_bytes()])
    }
}

/// The keys of a responder's epochs, of which the present one has begun.
#[derive(Clone, Debug)]
pub struct EpochKeys {
    /// Newest first; never empty.
    keys: VecDeque<EpochKey>,
    /// Number of those of the present epoch: their sessions may be alive.
    living: usize,
}

impl EpochKeys {
    /// The present epoch, and `earlier` ones, newest first.
    #[must_use]
    pub fn new(current: EpochKey, earlier: impl IntoIterator<Item = EpochKey>) -> Self {
        let keys = std::iter::once(current).chain(earlier.into_iter().take(RESET_EPOCHS));
        EpochKeys {
            keys: keys.collect(),
            living: 1,
        }
    }

    /// All of them, newest first, as a later run needs them.
    pub fn iter(&self) -> impl Iterator<Item = &EpochKey> {
        self.keys.iter()
    }

    /// Begins another epoch: all sessions so far are lost.
    pub(super) fn begin(&mut self, key: EpochKey) {
        self.keys.push_front(key);
        self.living = 1;
        self.keys.truncate(self.living + RESET_EPOCHS);
    }

    /// Gives later sessions of this epoch another key, since somebody may know the one before it.
    pub(super) fn renew(&mut self, key: EpochKey) {
        self.keys.push_front(key);
        self.living += 1;
        if self.living > MAX_LIVING {
            self.living = MAX_LIVING;
            self.keys.remove(MAX_LIVING);
        }
    }

    /// The token that will end a session of this epoch in a later one.
    pub(super) fn token(&self, index: SessionIndex) -> [u8; RESET_TOKEN] {
        self.keys[0].token(index)
    }

    /// A token for a session of one of the last few epochs, which `random` picks; none in the first
    /// epoch.
    pub(super) fn earlier(&self, index: SessionIndex, random: u64) -> Option<[u8; RESET_TOKEN]> {
        let earlier = self.keys.len() - self.living;
        let back = random.checked_rem(earlier as u64)? as usize;
        Some(self.keys[self.living + back].token(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> EpochKey {
        EpochKey::new([byte; 32])
    }

    fn index() -> SessionIndex {
        SessionIndex::new([0, 0, 7]).expect("not zero")
    }

    /// Every token that a responder with these keys gives away for the index.
    fn given_away(keys: &EpochKeys) -> Vec<[u8; RESET_TOKEN]> {
        let tokens = (0..64).filter_map(|random| keys.earlier(index(), random));
        let mut tokens: Vec<_> = tokens.collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    #[test]
    fn tokens_are_of_the_last_few_epochs() {
        let mut keys = EpochKeys::new(key(0), []);
        assert_eq!(given_away(&keys), [[0; 16]; 0], "there is none before");
        for epoch in 1..=9 {
            let ended = keys.token(index());
            keys.begin(key(epoch));
            assert_ne!(keys.token(index()), ended);
            let given = given_away(&keys);
            assert!(given.contains(&ended));
            assert_eq!(given.len(), usize::from(epoch).min(RESET_EPOCHS));
        }
    }

    #[test]
    fn a_session_that_is_alive_is_of_no_token_that_was_given_away() {
        let mut keys = EpochKeys::new(key(0), [key(100)]);
        let mut alive = vec![keys.token(index())];
        for renewed in 1..=20 {
            keys.renew(key(renewed));
            alive.push(keys.token(index()));
            assert!(given_away(&keys).iter().all(|token| !alive.contains(token)));
        }
        assert_eq!(keys.iter().count(), MAX_LIVING + 1);
        // A later run resets the latest of them.
        keys.begin(key(200));
        assert!(given_away(&keys).contains(alive.last().expect("it is not empty")));
    }

    /// A hub that is suspended twice and then starts again from what was stored before, as a backup is:
    /// epochs that were counted began again, and the tokens that it had given away were those of its
    /// next sessions.
    #[test]
    fn no_run_from_an_old_store_has_tokens_that_were_given_away() {
        let stored = EpochKeys::new(key(1), [key(0)]);
        let mut first = stored.clone();
        first.begin(key(2));
        first.begin(key(3));
        let given = given_away(&first);
        let again = EpochKeys::new(key(4), stored.iter().cloned());
        assert!(!given.contains(&again.token(index())));
    }
}
