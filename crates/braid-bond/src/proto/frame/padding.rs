//! PADDING: bytes without meaning, to make a packet as large as the path is asked to carry.
//!
//! ```text
//! type 0x00, repeated
//! ```

use super::kind;
use crate::proto::reader::Reader;

/// A run of padding bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Padding {
    /// How many, at least one.
    pub bytes: usize,
}

impl Padding {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Self {
        let rest = reader.rest();
        let more = rest.iter().take_while(|byte| **byte == kind::PADDING);
        let more = more.count();
        reader.take(more).expect("they were counted");
        Padding { bytes: 1 + more }
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.resize(out.len() + self.bytes, kind::PADDING);
    }
}
