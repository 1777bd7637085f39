//! HEADER: a header context for packets of a lane. HEADER_ACK: its acknowledgement.
//!
//! ```text
//! HEADER      type 0x0d · lane 8 · number 8 · length varint · content
//! HEADER_ACK  type 0x0e · lane 8 · number 8 · status 8     0 known, 1 not known
//! ```
//! The content is an inner packet up to its payload; its lengths and checksums are ignored. The
//! receiver answers a HEADER by HEADER_ACK 0, and a packet that refers to an unknown context by
//! HEADER_ACK 1.

use super::{FrameError, kind};
use crate::proto::reader::Reader;
use crate::proto::varint;

/// A header context for packets of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderContext<'a> {
    /// The lane.
    pub lane: u8,
    /// Its number, by which packets refer to it.
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

/// Acknowledgement of a header context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderAck {
    /// Its lane.
    pub lane: u8,
    /// Number of the context.
    pub number: u8,
    /// True if packets may refer to it.
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
