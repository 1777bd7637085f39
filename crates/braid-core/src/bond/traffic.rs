//! What goes through a sender: inner packets in, packets to be sealed and sent out.

use crate::fec::Group;
use crate::liveness::Verdict;
use crate::schedule::Class;
use crate::{Bytes, LaneId, LaneSeq, LinkId, PacketNumber, Stamp};

/// What the sender must know of an inner packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InnerPacket {
    /// A hash of its flow: its lane, and its turn in the queue.
    pub flow: u32,
    /// What it asks for.
    pub class: Class,
    /// Its size.
    pub len: Bytes,
}

/// An inner packet with its place in its lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanePacket<T> {
    /// Its lane.
    pub lane: LaneId,
    /// Its number there.
    pub seq: LaneSeq,
    /// What it asked for.
    pub class: Class,
    /// Its size.
    pub len: Bytes,
    /// The packet.
    pub item: T,
}

/// A packet to be sealed and sent now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit<T> {
    /// On this link,
    pub link: LinkId,
    /// under this number,
    pub number: PacketNumber,
    /// with this stamp.
    pub stamp: Stamp,
    /// What it carries.
    pub packet: LanePacket<T>,
    /// Whether it was sent before.
    pub copy: bool,
}

/// A sum of inner packets to be made, sealed and sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransmitRepair {
    /// On this link,
    pub link: LinkId,
    /// under this number,
    pub number: PacketNumber,
    /// with this stamp.
    pub stamp: Stamp,
    /// What it covers.
    pub group: Group,
}

/// Why a packet without data should be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlKind {
    /// To see whether the link works, or to be told what has arrived. It elicits a report.
    Probe,
    /// One of a few that show the link's rate: padded to the size of a full packet and sent at once.
    /// It elicits a report.
    Train,
    /// To say that nothing follows for now: the far end sees losses at the end of a burst, and how
    /// far the link has come. It elicits nothing.
    Close,
}

/// A small packet that should be sent on a link; number it by [`Sender::number_control`](super::Sender::number_control).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// The link.
    pub link: LinkId,
    /// What for.
    pub kind: ControlKind,
}

/// A link has become more or less usable.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkChange {
    /// The link.
    pub link: LinkId,
    /// What it is now.
    pub verdict: Verdict,
}
