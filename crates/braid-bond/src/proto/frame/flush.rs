//! FLUSH: how far a lane has been sent.
//!
//! ```text
//! type 0x04 · lane 8 · highest 24
//! ```
//! A link that falls idle sends it: who receives it knows that all that was sent on this link up to
//! that number has arrived or never will, and need not wait for the deadline.
//!
//! It may only name numbers below everything that is still queued for this link: a higher one
//! would have the receiver give up packets that have not been sent.

use super::{FrameError, append_u24, kind};
use crate::proto::reader::Reader;

/// Nothing of the lane up to `highest` is still to come on this link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// The lane.
    pub lane: u8,
    /// The lowest 24 bits of the highest lane sequence number sent so far on any link.
    pub highest: u32,
}

impl Flush {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(Flush {
            lane: reader.u8()?,
            highest: reader.u24()?,
        })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[kind::FLUSH, self.lane]);
        append_u24(self.highest, out);
    }
}
