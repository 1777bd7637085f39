//! PARITY: a repair symbol over several packets of a lane; a few of them recover as many missing
//! packets.
//!
//! ```text
//! type 0x06 · lane 8 · first 24 · count 8 · power 8 · lengths 16 · length varint · content
//! ```
//! It covers `count` consecutive packets from `first`, none of them fragmented. Packet `i` of them
//! is multiplied by 2^(`power` · `i`) in GF(2⁸); `lengths` is the sum of their lengths, `content`
//! that of their contents, the shorter ones padded with zeros. With power 0 that is XOR. The frame
//! names the count because it can overtake the packets: decoding with the wrong number of packets
//! would yield a plausible wrong packet.

use super::{FrameError, append_u24, kind};
use crate::proto::reader::Reader;
use crate::proto::varint;

/// Repair symbol over consecutive packets of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parity<'a> {
    /// The lane.
    pub lane: u8,
    /// The lowest 24 bits of the first covered lane sequence number.
    pub first: u32,
    /// Number of covered packets, at least 2.
    pub count: u8,
    /// Packet `i` is multiplied by 2^(`power` · `i`).
    pub power: u8,
    /// Sum of their lengths.
    pub lengths: u16,
    /// Sum of their contents, as long as the longest.
    pub content: &'a [u8],
}

impl<'a> Parity<'a> {
    pub(super) fn parse(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let lane = reader.u8()?;
        let first = reader.u24()?;
        let count = reader.u8()?;
        let power = reader.u8()?;
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
            power,
            lengths,
            content,
        })
    }

    /// Header length for a content of `length` bytes.
    #[must_use]
    pub const fn header_size(length: usize) -> usize {
        9 + varint::size_of(length as u64)
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[kind::PARITY, self.lane]);
        append_u24(self.first, out);
        out.extend_from_slice(&[self.count, self.power]);
        out.extend_from_slice(&self.lengths.to_be_bytes());
        varint::append(self.content.len() as u64, out);
        out.extend_from_slice(self.content);
    }
}
