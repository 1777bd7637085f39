//! PARITY: the exclusive or of several packets of a lane; it stands in for any one of them.
//!
//! ```text
//! type 0x06 · lane 8 · first 24 · count 8 · folded 8 · folded length 16 · length varint · content
//! ```
//! Covered are `count` consecutive packets from `first`. `folded` is the XOR of their DATA type
//! bytes with flags L, P, E and K cleared, `folded length` of their lengths, `content` of their contents, the
//! shorter ones taken as if zeros followed. The frame says how many it covers, because it can
//! overtake them: XOR over the wrong number of packets yields a plausible wrong one.

use super::{FrameError, append_u24, kind};
use crate::proto::reader::Reader;
use crate::proto::varint;

/// Redundancy over consecutive packets of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parity<'a> {
    /// The lane.
    pub lane: u8,
    /// The lowest 24 bits of the first covered lane sequence number.
    pub first: u32,
    /// How many packets are covered, at least 2.
    pub count: u8,
    /// XOR of their type bytes, L, P, E and K cleared.
    pub kinds: u8,
    /// XOR of their lengths.
    pub lengths: u16,
    /// XOR of their contents, as long as the longest.
    pub content: &'a [u8],
}

impl<'a> Parity<'a> {
    pub(super) fn parse(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let lane = reader.u8()?;
        let first = reader.u24()?;
        let count = reader.u8()?;
        let kinds = reader.u8()?;
        let lengths = reader.u16()?;
        let length = varint::parse_u32(reader)?;
        let content = reader.take(length as usize)?;
        if count < 2 || content.is_empty() {
            return Err(FrameError::Range);
        }
        Ok(Parity {
            lane,
            first,
            count,
            kinds,
            lengths,
            content,
        })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[kind::PARITY, self.lane]);
        append_u24(self.first, out);
        out.extend_from_slice(&[self.count, self.kinds]);
        out.extend_from_slice(&self.lengths.to_be_bytes());
        varint::append(self.content.len() as u64, out);
        out.extend_from_slice(self.content);
    }
}
