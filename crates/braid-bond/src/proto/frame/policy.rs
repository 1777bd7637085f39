//! POLICY: treatment of packets that the hub sends to this client. POLICY_ACK: its acknowledgement.
//!
//! ```text
//! POLICY      type 0x0b · version varint · fragment 8 · last 8 · length varint · content
//! POLICY_ACK  type 0x0c · version varint · status 8     0 applied, 1 not understood
//! ```
//! Only the initiator sends POLICY, and repeats it until the acknowledgement of that version comes.
//! The contents of the fragments 0 to `last`, joined, are a
//! [`Policy`](crate::proto::policy::Policy). A higher version replaces a lower one.

use super::{FrameError, kind};
use crate::proto::reader::Reader;
use crate::proto::varint;

/// A fragment of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyFragment<'a> {
    /// Version of the policy; at least 1.
    pub version: u64,
    /// Number of this fragment.
    pub fragment: u8,
    /// Number of the last fragment.
    pub last: u8,
    /// Its bytes, at least one.
    pub content: &'a [u8],
}

impl<'a> PolicyFragment<'a> {
    pub(super) fn parse(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let version = varint::parse(reader)?;
        let (fragment, last) = (reader.u8()?, reader.u8()?);
        let length = varint::parse_u32(reader)?;
        let content = reader.take(length as usize)?;
        if version == 0 || fragment > last || content.is_empty() {
            return Err(FrameError::Range);
        }
        Ok(PolicyFragment {
            version,
            fragment,
            last,
            content,
        })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.push(kind::POLICY);
        varint::append(self.version, out);
        out.extend_from_slice(&[self.fragment, self.last]);
        varint::append(self.content.len() as u64, out);
        out.extend_from_slice(self.content);
    }
}

/// Acknowledgement of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyAck {
    /// Version of the policy.
    pub version: u64,
    /// True if the hub applies it; otherwise the policy is of a later protocol version.
    pub applied: bool,
}

impl PolicyAck {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let version = varint::parse(reader)?;
        let applied = match reader.u8()? {
            0 => true,
            1 => false,
            _ => return Err(FrameError::Range),
        };
        Ok(PolicyAck { version, applied })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.push(kind::POLICY_ACK);
        varint::append(self.version, out);
        out.push(u8::from(!self.applied));
    }
}
