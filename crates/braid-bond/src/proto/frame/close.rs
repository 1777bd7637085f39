//! CLOSE: ends the session.
//!
//! ```text
//! type 0x09 · reason 8
//! ```

use super::{FrameError, kind};
use crate::proto::reader::Reader;

/// Reason for the end of a session. A code that this version does not know is read as
/// [`Reason::Other`], which keeps the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The program was stopped (0).
    Stopped,
    /// The peer's key was revoked (1).
    Revoked,
    /// The hub has no free address or session (2).
    Full,
    /// Something else, by its code.
    Other(u8),
}

/// The session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// The reason.
    pub reason: Reason,
}

impl Close {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let reason = match reader.u8()? {
            0 => Reason::Stopped,
            1 => Reason::Revoked,
            2 => Reason::Full,
            code => Reason::Other(code),
        };
        Ok(Close { reason })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        let code = match self.reason {
            Reason::Stopped => 0,
            Reason::Revoked => 1,
            Reason::Full => 2,
            Reason::Other(code) => code,
        };
        out.extend_from_slice(&[kind::CLOSE, code]);
    }
}
