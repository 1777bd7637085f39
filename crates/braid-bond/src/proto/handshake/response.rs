//! Message 2, from the responder.
//!
//! ```text
//! 0      2
//! 1      link
//! 2..4   receiver's session index
//! 5..    Noise message 2: ephemeral key 32 · sealed payload
//! −16..  mac1 16
//!
//! payload   sender's session index 24 · cipher 8 · flags 8 (1: continued) · reset token 128 · options
//! ```

use braid_multipath::{LinkId, MAX_LINKS};

use super::mac::MAC;
use super::{HandshakeError, Options, RESET_TOKEN};
use crate::proto::packet::{SessionIndex, kind};
use crate::proto::reader::Reader;
use crate::proto::seal::Cipher;

const HEADER: usize = 5;
/// Noise's own bytes: ephemeral key and the payload's tag.
const NOISE: usize = 32 + 16;
const CONTINUED: u8 = 1;

/// Unencrypted fields of message 2.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The link that it names.
    pub link: LinkId,
    /// The initiator's session index.
    pub receiver: SessionIndex,
    /// The Noise message.
    pub noise: &'a [u8],
    /// Bytes before `mac1`.
    pub before_mac1: &'a [u8],
    /// MAC keyed by the initiator's public key.
    pub mac1: &'a [u8; MAC],
}

impl<'a> Response<'a> {
    /// Parses a datagram whose type byte has been checked.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, HandshakeError> {
        Self::split(datagram).ok_or(HandshakeError::Malformed)
    }

    fn split(datagram: &'a [u8]) -> Option<Self> {
        if datagram.len() < HEADER + NOISE + MAC {
            return None;
        }
        let (before_mac1, mac1) = datagram.split_last_chunk()?;
        let ([first, link, a, b, c], noise) = before_mac1.split_first_chunk()?;
        if *first != kind::RESPONSE || usize::from(*link) >= MAX_LINKS {
            return None;
        }
        Some(Response {
            link: LinkId(*link),
            receiver: SessionIndex::new([*a, *b, *c])?,
            noise,
            before_mac1,
            mac1,
        })
    }

    /// Writes all but the MAC.
    pub(super) fn append(link: LinkId, receiver: SessionIndex, noise: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&[kind::RESPONSE, link.0]);
        out.extend_from_slice(&receiver.to_bytes());
        out.extend_from_slice(noise);
    }
}

/// Encrypted fields of message 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    pub sender: SessionIndex,
    pub cipher: Cipher,
    pub continued: bool,
    pub reset: [u8; RESET_TOKEN],
    pub options: Options,
}

impl Payload {
    pub fn parse(payload: &[u8]) -> Result<Self, HandshakeError> {
        Self::read(&mut Reader::new(payload)).ok_or(HandshakeError::Malformed)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Payload {
            sender: SessionIndex::new(reader.array().ok()?)?,
            cipher: Cipher::from_code(reader.u8().ok()?)?,
            continued: match reader.u8().ok()? {
                0 => false,
                CONTINUED => true,
                _ => return None,
            },
            reset: reader.array().ok()?,
            options: Options::parse(reader.take_rest())?,
        })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.sender.to_bytes().to_vec();
        let flags = if self.continued { CONTINUED } else { 0 };
        out.extend_from_slice(&[self.cipher.code(), flags]);
        out.extend_from_slice(&self.reset);
        out.extend_from_slice(self.options.as_bytes());
        out
    }
}
