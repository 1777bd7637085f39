//! Inputs and outputs of a sender: inner packets, and packets to be sealed and sent.

use braid_core::Bytes;

use crate::fec::Group;
use crate::liveness::Verdict;
use crate::schedule::Class;
use crate::{LaneId, LaneSeq, LinkId, PacketNumber, Stamp};

/// Properties of an inner packet that the sender needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InnerPacket {
    /// Hash of its flow: selects its lane and its queue.
    pub flow: u32,
    /// Delivery class.
    pub class: Class,
    /// Size.
    pub len: Bytes,
    /// True if its flow is a stream of TCP or QUIC, whose sender adapts to drops and delay: it may use far links.
    pub is_stream: bool,
    /// True if its flow keeps to a limit of its window ([`WindowLimits`](crate::window_limit::WindowLimits)): nothing of it is dropped.
    pub is_limited: bool,
}

/// An inner packet numbered in its lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanePacket<T> {
    /// Lane.
    pub lane: LaneId,
    /// Number in the lane.
    pub seq: LaneSeq,
    /// Delivery class.
    pub class: Class,
    /// Size.
    pub len: Bytes,
    /// The packet.
    pub item: T,
}

/// A packet to be sealed and sent now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit<T> {
    /// Link to send on.
    pub link: LinkId,
    /// Packet number on that link.
    pub number: PacketNumber,
    /// Send timestamp.
    pub stamp: Stamp,
    /// The inner packet.
    pub packet: LanePacket<T>,
    /// True if it was sent before.
    pub copy: bool,
}

/// A repair symbol to be made, sealed and sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransmitRepair {
    /// Link to send on.
    pub link: LinkId,
    /// Packet number on that link.
    pub number: PacketNumber,
    /// Send timestamp.
    pub stamp: Stamp,
    /// The packets that the symbol covers.
    pub group: Group,
}

/// Purpose of a packet without data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlKind {
    /// Tests if the link works, or asks which packets have arrived. It elicits a report.
    Probe,
    /// One packet of a train that measures the link's rate: padded to full size and sent back to
    /// back. It elicits a report.
    Train,
    /// Ends a burst: the far end sees losses at its end, and how far the link has come. It elicits
    /// nothing.
    Close,
}

/// A small packet to send on a link. [`Sender::number_control`](super::Sender::number_control)
/// numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// Link to send on.
    pub link: LinkId,
    /// Purpose.
    pub kind: ControlKind,
}

/// A change of a link's verdict.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkChange {
    /// The link.
    pub link: LinkId,
    /// The new verdict.
    pub verdict: Verdict,
}
