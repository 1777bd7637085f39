//! Message 1, from the initiator.
//!
//! ```text
//! 0      1
//! 1      link
//! 2      version
//! 3..    Noise message 1: ephemeral key 32 · sealed static key 48 · sealed payload
//! −32..  mac1 16 · mac2 16 (zeros without a cookie)
//!
//! payload   time 64 (µs since 1970) · sender's session index 24 · continues 24 ·
//!           ciphers 8 · preferred cipher 8 · options, zeros
//! ```
//! Zeros pad the datagram to 256 bytes, so that no reply is larger than the request. `continues` is
//! the responder's index of a session whose state (numbers, lanes, addresses) continues under the
//! new keys; zero begins a new session.

use braid_multipath::{LinkId, MAX_LINKS};

use super::mac::MAC;
use super::{Ciphers, HandshakeError, Options, VERSION};
use crate::proto::packet::{SessionIndex, kind};
use crate::proto::reader::Reader;
use crate::proto::seal::Cipher;

/// Least length of an initiation, bytes.
pub const MIN_INITIATION_LENGTH: usize = 256;

/// Greatest length: the fixed fields and full options.
const MAX_INITIATION_LENGTH: usize = HEADER + NOISE + FIXED + super::MAX_OPTIONS_LENGTH + 2 * MAC;

pub(super) const HEADER: usize = 3;
/// Noise's own bytes: ephemeral key, static key and tag, the payload's tag.
const NOISE: usize = 32 + 48 + 16;
/// Length of the payload before the options.
const FIXED: usize = 8 + 3 + 3 + 1 + 1;

/// Unencrypted fields of message 1.
#[derive(Clone, Copy, Debug)]
pub struct Initiation<'a> {
    /// The link that it names.
    pub link: LinkId,
    /// The Noise message.
    pub noise: &'a [u8],
    /// Bytes before `mac1`.
    pub before_mac1: &'a [u8],
    /// Bytes before `mac2`.
    pub before_mac2: &'a [u8],
    /// MAC keyed by the responder's public key.
    pub mac1: &'a [u8; MAC],
    /// MAC keyed by the cookie.
    pub mac2: &'a [u8; MAC],
}

impl<'a> Initiation<'a> {
    /// Parses a datagram whose type byte has been checked.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, HandshakeError> {
        if !(MIN_INITIATION_LENGTH..=MAX_INITIATION_LENGTH).contains(&datagram.len()) {
            return Err(HandshakeError::Malformed);
        }
        if datagram[2] != VERSION {
            return Err(HandshakeError::Version(datagram[2]));
        }
        let link = datagram[1];
        if datagram[0] != kind::INITIATION || usize::from(link) >= MAX_LINKS {
            return Err(HandshakeError::Malformed);
        }
        let (before_mac2, mac2) = datagram
            .split_last_chunk()
            .ok_or(HandshakeError::Malformed)?;
        let (before_mac1, mac1) = before_mac2
            .split_last_chunk()
            .ok_or(HandshakeError::Malformed)?;
        Ok(Initiation {
            link: LinkId(link),
            noise: &before_mac1[HEADER..],
            before_mac1,
            before_mac2,
            mac1,
            mac2,
        })
    }

    /// Writes all but the MACs.
    pub(super) fn append(link: LinkId, noise: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&[kind::INITIATION, link.0, VERSION]);
        out.extend_from_slice(noise);
    }

    /// The initiator's ephemeral public key.
    pub(super) fn ephemeral(&self) -> [u8; 32] {
        *self.noise.first_chunk().expect("size was checked")
    }
}

/// Encrypted fields of message 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    pub micros: u64,
    pub sender: SessionIndex,
    pub continues: Option<SessionIndex>,
    pub ciphers: Ciphers,
    pub options: Options,
}

impl Payload {
    pub fn parse(payload: &[u8]) -> Result<Self, HandshakeError> {
        Self::read(&mut Reader::new(payload)).ok_or(HandshakeError::Malformed)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Payload {
            micros: reader.u64().ok()?,
            sender: SessionIndex::new(reader.array().ok()?)?,
            continues: SessionIndex::new(reader.array().ok()?),
            ciphers: Ciphers {
                offered: reader.u8().ok()?,
                preferred: Cipher::from_code(reader.u8().ok()?)?,
            },
            options: Options::parse(reader.take_rest())?,
        })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_INITIATION_LENGTH);
        out.extend_from_slice(&self.micros.to_be_bytes());
        out.extend_from_slice(&self.sender.to_bytes());
        out.extend_from_slice(&self.continues.map_or([0; 3], SessionIndex::to_bytes));
        out.extend_from_slice(&[self.ciphers.offered, self.ciphers.preferred.code()]);
        out.extend_from_slice(self.options.as_bytes());
        let filled = MIN_INITIATION_LENGTH - HEADER - NOISE - 2 * MAC;
        out.resize(out.len().max(filled), 0);
        out
    }
}
