//! HEADER: a header that packets of a lane may refer to; HEADER_ACK: whether it is known.
//!
//! ```text
//! HEADER        type 0x0d · lane 8 · number 8 · length varint · content
//! HEADER_ACK  type 0x0e · lane 8 · number 8 · status 8     0 known, 1 not known
//! ```
//! The content is an inner packet up to its payload; lengths and checksums in it mean nothing. Who gets a
//! HEADER answers; who gets a packet that refers to a header that is not known says so.

use super::{FrameError, kind};
use crate::proto::reader::Reader;
use crate::proto::varint;

/// A header that packets of a lane may refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderContext<'a> {
    /// The lane.
    pub lane: u8,
    /// What they call it.
    pub number: u8,
    /// The header, at least one byte.
    pub content: &'a [u8],
}

impl<'a> HeaderContext<'a> {
    pub(super) fn parse(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let (lane, number) = (reader.u8()?, reader.u8()?);
        let length = varint::parse_u32(reader)?;
        let content = reader.take(length as usize)?;
        if content.is_empty() {
            return Err(FrameError::Range);
        }
        Ok(HeaderContext {
            lane,
            number,
            content,
        })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[kind::HEADER, self.lane, self.number]);
        varint::append(self.content.len() as u64, out);
        out.extend_from_slice(self.content);
    }
}

/// Whether a header is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderAck {
    /// Its lane.
    pub lane: u8,
    /// What packets call it.
    pub number: u8,
    /// Packets may refer to it; else they must not.
    pub known: bool,
}

impl HeaderAck {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let (lane, number) = (reader.u8()?, reader.u8()?);
        let known = match reader.u8()? {
            0 => true,
            1 => false,
            _ => return Err(FrameError::Range),
        };
        Ok(HeaderAck {
            lane,
            number,
            known,
        })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        let status = u8::from(!self.known);
        out.extend_from_slice(&[kind::HEADER_ACK, self.lane, self.number, status]);
    }
}
