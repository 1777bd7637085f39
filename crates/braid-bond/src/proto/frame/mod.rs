//! Contents of a data packet: frames, one file each.
//!
//! Every frame has `parse` and `append`, which are inverses: a frame has exactly one encoding, and
//! any other is refused. Parsing borrows from the packet and allocates nothing; appending writes
//! into a buffer that its owner reuses.
//!
//! The first byte of a frame is its type. 0x80 and above is [`Data`], whose flags are in the type
//! byte itself, because every packet pays for its header. 0x00–0x3f are the frames of this version.
//! 0x40–0x7f are reserved for later versions: those frames carry their length, and an older
//! receiver skips them.

mod close;
mod data;
mod flush;
mod header;
mod link_params;
mod nack;
mod padding;
mod parity;
mod path;
mod ping;
mod policy;
mod report;

pub use close::{Close, Reason};
pub use data::{Class, Data, Fragment};
pub use flush::Flush;
pub use header::{HeaderAck, HeaderContext};
pub use link_params::LinkParams;
pub use nack::{Nack, Range, Ranges};
pub use padding::Padding;
pub use parity::Parity;
pub use path::{Challenge, PathResponse, TOKEN};
pub use ping::{Ping, Pong};
pub use policy::{PolicyAck, PolicyFragment};
pub use report::{Entries, Entry, Report};

use super::reader::Reader;
use super::varint;

/// Error of a frame that cannot be parsed. The packet is authentic, so its sender is faulty or of
/// another version; the rest of the packet is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The packet ends before the frame does.
    #[error("frame is truncated")]
    Truncated,
    /// A number has an overlong encoding.
    #[error("number has an overlong encoding")]
    Overlong,
    /// A number or flag is out of range.
    #[error("value is out of range")]
    Range,
    /// The type is unknown, and so is its length.
    #[error("unknown frame type {0:#04x}")]
    Type(u8),
}

/// Type bytes below those of [`Data`].
pub(crate) mod kind {
    pub const PADDING: u8 = 0x00;
    pub const PING: u8 = 0x01;
    pub const PONG: u8 = 0x02;
    pub const REPORT: u8 = 0x03;
    pub const FLUSH: u8 = 0x04;
    pub const NACK: u8 = 0x05;
    pub const PARITY: u8 = 0x06;
    pub const PATH_CHALLENGE: u8 = 0x07;
    pub const PATH_RESPONSE: u8 = 0x08;
    pub const CLOSE: u8 = 0x09;
    pub const LINK_PARAMS: u8 = 0x0a;
    pub const POLICY: u8 = 0x0b;
    pub const POLICY_ACK: u8 = 0x0c;
    pub const HEADER: u8 = 0x0d;
    pub const HEADER_ACK: u8 = 0x0e;
    /// First of the frames that carry their length, so that older versions can skip them.
    pub const SKIPPABLE: u8 = 0x40;
    /// First of the data frames' type bytes.
    pub const DATA: u8 = 0x80;
}

/// One frame of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// An inner packet or a fragment of one.
    Data(Data<'a>),
    /// Reception statistics, per link.
    Report(Report<'a>),
    /// Request for a report or a [`Pong`].
    Ping(Ping),
    /// Reply to a [`Ping`].
    Pong(Pong),
    /// Highest number sent in a lane.
    Flush(Flush),
    /// Missing packets.
    Nack(Nack<'a>),
    /// Repair symbol over several data frames.
    Parity(Parity<'a>),
    /// Address validation: request.
    PathChallenge(Challenge),
    /// Address validation: response.
    PathResponse(PathResponse),
    /// Bytes without meaning.
    Padding(Padding),
    /// The session ends.
    Close(Close),
    /// Parameters of this link.
    LinkParams(LinkParams),
    /// Treatment of packets to the client.
    Policy(PolicyFragment<'a>),
    /// Acknowledgement of a policy.
    PolicyAck(PolicyAck),
    /// Header context that packets may refer to.
    Header(HeaderContext<'a>),
    /// Acknowledgement of a header context.
    HeaderAck(HeaderAck),
    /// A frame of a later version.
    Unknown {
        /// Its type byte, 0x40–0x7f.
        kind: u8,
        /// Its content.
        content: &'a [u8],
    },
}

impl<'a> Frame<'a> {
    /// Returns true if its packet elicits a report. Pure replies do not, or two idle ends would
    /// answer each other for ever.
    #[must_use]
    pub fn elicits(&self) -> bool {
        match self {
            Frame::Data(_) | Frame::Parity(_) | Frame::PathChallenge(_) => true,
            Frame::Ping(ping) => ping.token == 0,
            Frame::Report(_)
            | Frame::Pong(_)
            | Frame::Flush(_)
            | Frame::Nack(_)
            | Frame::PathResponse(_)
            | Frame::Padding(_)
            | Frame::Close(_)
            | Frame::LinkParams(_)
            | Frame::Policy(_)
            | Frame::PolicyAck(_)
            | Frame::Header(_)
            | Frame::HeaderAck(_)
            | Frame::Unknown { .. } => false,
        }
    }

    /// Parses the frame at the cursor.
    ///
    /// # Errors
    /// Any [`FrameError`]; the cursor is then somewhere inside the frame.
    pub fn parse(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let kind = reader.u8()?;
        Ok(match kind {
            kind::PADDING => Frame::Padding(Padding::parse(reader)),
            kind::PING => Frame::Ping(Ping::parse(reader)?),
            kind::PONG => Frame::Pong(Pong::parse(reader)?),
            kind::REPORT => Frame::Report(Report::parse(reader)?),
            kind::FLUSH => Frame::Flush(Flush::parse(reader)?),
            kind::NACK => Frame::Nack(Nack::parse(reader)?),
            kind::PARITY => Frame::Parity(Parity::parse(reader)?),
            kind::PATH_CHALLENGE => Frame::PathChallenge(Challenge::parse(reader)?),
            kind::PATH_RESPONSE => Frame::PathResponse(PathResponse::parse(reader)?),
            kind::CLOSE => Frame::Close(Close::parse(reader)?),
            kind::LINK_PARAMS => Frame::LinkParams(LinkParams::parse(reader)?),
            kind::POLICY => Frame::Policy(PolicyFragment::parse(reader)?),
            kind::POLICY_ACK => Frame::PolicyAck(PolicyAck::parse(reader)?),
            kind::HEADER => Frame::Header(HeaderContext::parse(reader)?),
            kind::HEADER_ACK => Frame::HeaderAck(HeaderAck::parse(reader)?),
            kind::DATA.. => Frame::Data(Data::parse(kind, reader)?),
            kind::SKIPPABLE.. => {
                let size = varint::parse_u32(reader)?;
                let content = reader.take(size as usize)?;
                Frame::Unknown { kind, content }
            }
            _ => return Err(FrameError::Type(kind)),
        })
    }

    /// Writes the frame at the end of `out`. A [`Data`] frame without length must be the last.
    pub fn append(&self, out: &mut Vec<u8>) {
        match self {
            Frame::Data(frame) => frame.append(out),
            Frame::Report(frame) => frame.append(out),
            Frame::Ping(frame) => frame.append(out),
            Frame::Pong(frame) => frame.append(out),
            Frame::Flush(frame) => frame.append(out),
            Frame::Nack(frame) => frame.append(out),
            Frame::Parity(frame) => frame.append(out),
            Frame::PathChallenge(frame) => frame.append(out),
            Frame::PathResponse(frame) => frame.append(out),
            Frame::Padding(frame) => frame.append(out),
            Frame::Close(frame) => frame.append(out),
            Frame::LinkParams(frame) => frame.append(out),
            Frame::Policy(frame) => frame.append(out),
            Frame::PolicyAck(frame) => frame.append(out),
            Frame::Header(frame) => frame.append(out),
            Frame::HeaderAck(frame) => frame.append(out),
            Frame::Unknown { kind, content } => {
                out.push(*kind);
                varint::append(content.len() as u64, out);
                out.extend_from_slice(content);
            }
        }
    }
}

/// Frames of an opened packet, in order; ends after the first error.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    reader: Reader<'a>,
}

impl<'a> Frames<'a> {
    /// The frames in `plain`, the decrypted contents of a data packet.
    #[must_use]
    pub fn new(plain: &'a [u8]) -> Self {
        Frames {
            reader: Reader::new(plain),
        }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let frame = Frame::parse(&mut self.reader);
        if frame.is_err() {
            self.reader.take_rest();
        }
        Some(frame)
    }
}

/// Writes a number's lowest three bytes, big endian.
pub(crate) fn append_u24(value: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_be_bytes()[1..]);
}
