//! Contents of packets: inner packets, and messages between the two ends.

use braid_core::Time;
use braid_multipath::estimate::LinkReport;
use braid_multipath::fec::{Group, Rebuild, field};
use braid_multipath::retransmit::Nack;
use braid_multipath::schedule::Class;
use braid_multipath::{LaneId, LaneSeq, PacketNumber, Stamp};

use crate::tcp::Ack;

/// Outer IP and UDP, 16 bytes of header, 16 of tag.
pub const OVERHEAD: u32 = 60;

/// An inner packet of a bulk flow.
pub const FULL: u32 = 1500;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    Segment {
        flow: usize,
        seq: u64,
        sent: Time,
    },
    Ack {
        flow: usize,
        ack: Ack,
    },
    Datagram {
        flow: usize,
        seq: u64,
        sent: Time,
    },
    /// Packets and their factors.
    Sum(Vec<(u8, Packet)>),
}

#[derive(Debug, Clone)]
pub enum Body {
    Data {
        lane: LaneId,
        seq: LaneSeq,
        class: Class,
        packet: Packet,
    },
    Parity {
        group: Group,
        sum: Packet,
    },
    Reports(Vec<LinkReport>),
    Nack(Nack),
    Control {
        elicits: bool,
    },
}

#[derive(Debug, Clone)]
pub struct Frame {
    pub number: PacketNumber,
    pub stamp: Stamp,
    pub body: Body,
}

pub fn len_of(packet: &Packet, streams: &[u32]) -> u32 {
    match packet {
        Packet::Segment { .. } => FULL,
        Packet::Datagram { flow, .. } => streams[*flow],
        Packet::Ack { .. } | Packet::Sum(_) => 60,
    }
}

/// Has the effect of arithmetic on the bytes: all but one of the packets cancel each other out.
pub fn rebuilt_packet(rebuild: &Rebuild<Packet, Packet>) -> Packet {
    let mut left: Vec<(u8, Packet)> = Vec::new();
    let mut add =
        |factor: u8, packet: &Packet| match left.iter_mut().find(|(_, other)| other == packet) {
            Some((sum, _)) => *sum ^= factor,
            None => left.push((factor, packet.clone())),
        };
    for (factor, sum) in &rebuild.symbols {
        let Packet::Sum(all) = sum else {
            panic!("not a sum: {sum:?}");
        };
        for (inner, packet) in all {
            add(field::times(*factor, *inner), packet);
        }
    }
    for (factor, other) in &rebuild.packets {
        add(*factor, other);
    }
    left.retain(|(factor, _)| *factor > 0);
    assert_eq!(left.len(), 1, "one is missing: {left:?}");
    let (factor, packet) = left.remove(0);
    assert_eq!(factor, 1);
    packet
}
