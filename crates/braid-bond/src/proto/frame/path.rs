//! PATH_CHALLENGE and PATH_RESPONSE: validation of an address.
//!
//! ```text
//! type 0x07 (challenge), 0x08 (response) · token 64
//! ```
//! As in RFC 9000 §8.2: the token is unpredictable, so an end that returns it from the challenged
//! address over the challenged link has received it there.

use super::{FrameError, kind};
use crate::proto::reader::Reader;

/// Bytes of a token.
pub const TOKEN: usize = 8;

/// Request to return the token from this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Unpredictable.
    pub token: [u8; TOKEN],
}

/// The answer to a [`Challenge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathResponse {
    /// The challenge's token.
    pub token: [u8; TOKEN],
}

impl Challenge {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let token = reader.array()?;
        Ok(Challenge { token })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.push(kind::PATH_CHALLENGE);
        out.extend_from_slice(&self.token);
    }
}

impl PathResponse {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let token = reader.array()?;
        Ok(PathResponse { token })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.push(kind::PATH_RESPONSE);
        out.extend_from_slice(&self.token);
    }
}
