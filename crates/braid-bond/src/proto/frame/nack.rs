//! NACK: missing packets of a link.
//!
//! ```text
//! type 0x05 · link 8 · ranges 8 · first varint · count varint · (skip varint · count varint) …
//! ```
//! `first` is the first missing link packet number, `count` the number of further missing ones
//! after it. Each further range begins `skip` + 2 numbers after the end of the one before: adjacent
//! ranges would be one, so the least distance is two. It names packet numbers of a *link*, since
//! their loss is detected first and with certainty; the sender knows the contents.

use braid_multipath::{LinkId, MAX_LINKS};

use super::{FrameError, kind};
use crate::proto::reader::Reader;
use crate::proto::varint;

/// Missing numbers, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub first: u64,
    /// The last, not before the first.
    pub last: u64,
}

/// Packets of one link that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nack<'a> {
    /// The link that they were sent on.
    pub link: LinkId,
    /// Their numbers, ascending; at least one range.
    pub ranges: Ranges<'a>,
}

impl<'a> Nack<'a> {
    pub(super) fn parse(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let link = reader.u8()?;
        let count = reader.u8()?;
        if usize::from(link) >= MAX_LINKS || count == 0 {
            return Err(FrameError::Range);
        }
        let start = reader.rest();
        let mut before = None;
        for _ in 0..count {
            before = Some(next(reader, before)?.last);
        }
        let bytes = &start[..start.len() - reader.rest().len()];
        Ok(Nack {
            link: LinkId(link),
            ranges: Ranges {
                count,
                before: None,
                reader: Reader::new(bytes),
            },
        })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[kind::NACK, self.link.0, self.ranges.count]);
        out.extend_from_slice(self.ranges.reader.rest());
    }

    /// Writes a frame of these ranges: at least one, at most 255, ascending, with at least one
    /// number that is not missing between two.
    pub fn write(link: LinkId, ranges: &[Range], out: &mut Vec<u8>) {
        out.extend_from_slice(&[kind::NACK, link.0, ranges.len() as u8]);
        let mut before: Option<u64> = None;
        for range in ranges {
            let skip = match before {
                None => range.first,
                Some(before) => range.first - before - 2,
            };
            varint::append(skip, out);
            varint::append(range.last - range.first, out);
            before = Some(range.last);
        }
    }
}

fn next(reader: &mut Reader<'_>, before: Option<u64>) -> Result<Range, FrameError> {
    let skip = varint::parse(reader)?;
    let more = varint::parse(reader)?;
    let first = before.map_or(skip, |before| before + 2 + skip);
    let last = first + more;
    if last > varint::MAX {
        return Err(FrameError::Range);
    }
    Ok(Range { first, last })
}

/// Ranges of a frame, parsed lazily.
#[derive(Clone, Copy, Debug)]
pub struct Ranges<'a> {
    count: u8,
    before: Option<u64>,
    reader: Reader<'a>,
}

impl PartialEq for Ranges<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.count == other.count
            && self.before == other.before
            && self.reader.rest() == other.reader.rest()
    }
}

impl Eq for Ranges<'_> {}

impl Iterator for Ranges<'_> {
    type Item = Range;

    fn next(&mut self) -> Option<Range> {
        self.count = self.count.checked_sub(1)?;
        let range = next(&mut self.reader, self.before).ok()?;
        self.before = Some(range.last);
        Some(range)
    }
}
