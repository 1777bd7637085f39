//! FLUSH: how far a lane has been sent.
//!
//! ```text
//! type 0x04 · lane 8 · highest 24
//! ```
//! A sender sends it when a link falls idle. It tells the receiver that every packet up to that
//! number sent on this link has arrived or is lost, so that the receiver need not wait for the
//! deadline.
//!
//! It may only name numbers below everything that is still queued for this link: with a higher one
//! the receiver would give up packets that have not been sent.

use super::{FrameError, append_u24, kind};
use crate::proto::reader::Reader;

/// No packet of the lane up to `highest` is still to come on this link.
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
