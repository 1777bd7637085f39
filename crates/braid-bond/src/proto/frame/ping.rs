//! PING and PONG: liveness, round-trip time and path MTU of a link.
//!
//! ```text
//! type 0x01 (ping), 0x02 (pong) · token varint
//! ```
//! A ping with token 0 elicits a report, and no pong. A ping with another token elicits a pong,
//! over the same link and at once, and no report: in a padded packet it is the path MTU probe of
//! RFC 8899, whose loss says nothing about the link.

use super::{FrameError, kind};
use crate::proto::reader::Reader;
use crate::proto::varint;

/// Request for a reply on this link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// Returned in the pong.
    pub token: u32,
}

/// The answer to a [`Ping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pong {
    /// The ping's token.
    pub token: u32,
}

impl Ping {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let token = varint::parse_u32(reader)?;
        Ok(Ping { token })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.push(kind::PING);
        varint::append(self.token.into(), out);
    }
}

impl Pong {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let token = varint::parse_u32(reader)?;
        Ok(Pong { token })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.push(kind::PONG);
        varint::append(self.token.into(), out);
    }
}
