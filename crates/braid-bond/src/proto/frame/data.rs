//! DATA: an inner packet, or a fragment of one.
//!
//! ```text
//! type    1 L P E cc K 0     L length present · P a fragment · E the last fragment · cc class ·
//!                            K this is a copy
//! lane    8
//! number  24                 lane sequence number, lowest 24 bits
//! offset  16                 if P: where in the packet the content begins
//! length  varint             if L; without it the frame ends with the packet
//! content
//! ```
//! The header of a full packet takes five bytes. The fragments of a packet share its number: losses
//! and repairs are of packets. A fragment names its offset instead of an index, since a copy over
//! another link may be cut elsewhere.

use braid_multipath::schedule;

use super::{FrameError, append_u24, kind};
use crate::proto::reader::Reader;
use crate::proto::varint;

const LENGTH: u8 = 0x40;
const FRAGMENT: u8 = 0x20;
const LAST: u8 = 0x10;
const CLASS_SHIFT: u8 = 2;
const COPY: u8 = 0x02;
const RESERVED: u8 = 0x01;

/// Treatment class of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// In order within its lane, over all links: the default.
    Ordered = 0,
    /// On arrival, by the link of least delay: real-time flows that tolerate reordering.
    Unordered = 1,
    /// A copy over each of two links; the first to arrive counts.
    Redundant = 2,
    /// In order, on one link while that suffices: small flows.
    Pinned = 3,
}

impl Class {
    /// Every class, in the order of their codes.
    pub const ALL: [Class; 4] = [
        Class::Ordered,
        Class::Unordered,
        Class::Redundant,
        Class::Pinned,
    ];
}

impl From<schedule::Class> for Class {
    fn from(class: schedule::Class) -> Self {
        match class {
            schedule::Class::Ordered => Class::Ordered,
            schedule::Class::Unordered => Class::Unordered,
            schedule::Class::Redundant => Class::Redundant,
            schedule::Class::Pinned => Class::Pinned,
        }
    }
}

impl From<Class> for schedule::Class {
    fn from(class: Class) -> Self {
        match class {
            Class::Ordered => schedule::Class::Ordered,
            Class::Unordered => schedule::Class::Unordered,
            Class::Redundant => schedule::Class::Redundant,
            Class::Pinned => schedule::Class::Pinned,
        }
    }
}

/// Position of a fragment in its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of its first byte.
    pub offset: u16,
    /// True if none follows.
    pub last: bool,
}

/// An inner packet, or a fragment of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// Treatment class of the flow.
    pub class: Class,
    /// True if it was sent before: a repair, or the second of a redundant pair.
    pub copy: bool,
    /// True if the frame carries its length; otherwise it is the last of its packet.
    pub has_length: bool,
    /// The lane that the flow is hashed onto.
    pub lane: u8,
    /// The lowest 24 bits of the lane sequence number; the upper eight are zero.
    pub number: u32,
    /// Position of the fragment; none if the packet is whole.
    pub fragment: Option<Fragment>,
    /// The bytes, at least one.
    pub content: &'a [u8],
}

impl<'a> Data<'a> {
    /// Parses the fields after the type byte `kind`.
    pub(super) fn parse(kind: u8, reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        if kind & RESERVED != 0 || kind & (FRAGMENT | LAST) == LAST {
            return Err(FrameError::Range);
        }
        let lane = reader.u8()?;
        let number = reader.u24()?;
        let fragment = match kind & FRAGMENT {
            0 => None,
            _ => Some(reader.u16()?),
        };
        let has_length = kind & LENGTH != 0;
        let content = if has_length {
            let length = varint::parse_u32(reader)?;
            reader.take(length as usize)?
        } else {
            reader.take_rest()
        };
        if content.is_empty() {
            return Err(FrameError::Truncated);
        }
        Ok(Data {
            class: Class::ALL[usize::from(kind >> CLASS_SHIFT & 3)],
            copy: kind & COPY != 0,
            has_length,
            lane,
            number,
            fragment: fragment.map(|offset| Fragment {
                offset,
                last: kind & LAST != 0,
            }),
            content,
        })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        let mut kind = kind::DATA | (self.class as u8) << CLASS_SHIFT;
        kind |= if self.has_length { LENGTH } else { 0 };
        kind |= if self.fragment.is_some() { FRAGMENT } else { 0 };
        kind |= if self.fragment.is_some_and(|fragment| fragment.last) {
            LAST
        } else {
            0
        };
        kind |= if self.copy { COPY } else { 0 };
        out.extend_from_slice(&[kind, self.lane]);
        append_u24(self.number, out);
        if let Some(fragment) = self.fragment {
            out.extend_from_slice(&fragment.offset.to_be_bytes());
        }
        if self.has_length {
            varint::append(self.content.len() as u64, out);
        }
        out.extend_from_slice(self.content);
    }

    /// Header length for a content of `length` bytes.
    #[must_use]
    pub const fn header_size(has_length: bool, is_fragment: bool, length: usize) -> usize {
        let length = if has_length {
            varint::size_of(length as u64)
        } else {
            0
        };
        5 + 2 * is_fragment as usize + length
    }
}
