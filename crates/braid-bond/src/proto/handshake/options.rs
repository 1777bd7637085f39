//! Optional fields of handshake messages.
//!
//! ```text
//! options × (type 8 · length 8 · value), then zeros
//! ```
//! Type 0 ends the list. Unknown types are skipped.

/// Most bytes of options in a message; it keeps message 2 no larger than message 1.
pub const MAX_OPTIONS_LENGTH: usize = 128;

/// A list of options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    bytes: Vec<u8>,
}

impl Options {
    /// No options.
    #[must_use]
    pub const fn new() -> Self {
        Options { bytes: Vec::new() }
    }

    /// Adds an option of a type that is not zero. Returns true if there was room.
    #[must_use]
    pub fn push(&mut self, kind: u8, value: &[u8]) -> bool {
        let Ok(length) = u8::try_from(value.len()) else {
            return false;
        };
        if kind == 0 || self.bytes.len() + 2 + value.len() > MAX_OPTIONS_LENGTH {
            return false;
        }
        self.bytes.extend_from_slice(&[kind, length]);
        self.bytes.extend_from_slice(value);
        true
    }

    /// Types and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let mut rest = self.bytes.as_slice();
        std::iter::from_fn(move || {
            let (kind, value, after) = split(rest)?;
            rest = after;
            Some((kind, value))
        })
    }

    /// The wire form, without the zeros.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Parses a list up to its end; none if an option is truncated, if anything but zeros follows,
    /// or if the list is longer than [`MAX_OPTIONS_LENGTH`].
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        while let Some((_, _, after)) = split(rest) {
            rest = after;
        }
        let size = bytes.len() - rest.len();
        let complete = rest.iter().all(|byte| *byte == 0) && size <= MAX_OPTIONS_LENGTH;
        complete.then(|| Options {
            bytes: bytes[..size].to_vec(),
        })
    }
}

fn split(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let ([kind, length], rest) = bytes.split_first_chunk()?;
    if *kind == 0 {
        return None;
    }
    let (value, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((*kind, value, rest))
}
