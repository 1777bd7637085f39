//! PADDING: bytes without meaning, which give a packet the size that a probe needs.
//!
//! ```text
//! type 0x00, repeated
//! ```

use super::kind;
use crate::proto::reader::Reader;

/// A run of padding bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Padding {
    /// Length of the run, at least one.
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
