//! Inner flows: their sources and their statistics.

use std::time::Duration;

use braid_core::{Bytes, Time};
use braid_multipath::ack_filter::Segment;
use braid_multipath::bond::InnerPacket;
use braid_multipath::schedule::Class;
use braid_multipath::spurious::DataSegment;
use braid_multipath::window_limit::{Acknowledgement, Syn};

use super::packet::{FULL, Packet};
use super::{End, START, World};
use crate::tcp::{Ack, TcpReceiver, TcpSender};

/// A TCP flow from end 0 to end 1.
pub struct Flow {
    pub sender: TcpSender,
    pub receiver: TcpReceiver,
}

/// Datagrams of constant size and interval from end 0 to end 1.
pub struct Stream {
    pub len: u32,
    pub every: Duration,
    pub class: Class,
    pub until: Time,
    pub(super) next: Time,
    pub(super) seq: u64,
    pub(super) last: Option<u64>,
    pub sent: u64,
    pub arrived: u64,
    pub misordered: u64,
    pub delays: Vec<Duration>,
}

impl World {
    pub fn add_tcp(&mut self) {
        self.add_flow(TcpSender::new());
    }

    pub fn add_flow(&mut self, sender: TcpSender) {
        let is_quic = sender.is_quic();
        self.flows.push(Flow {
            sender,
            receiver: TcpReceiver::default(),
        });
        let flow = self.flows.len() - 1;
        if !is_quic {
            self.handle_handshake(flow);
        }
        self.pump_flow(flow);
        self.pump(0);
    }

    fn handle_handshake(&mut self, flow: usize) {
        let ack = Ack {
            next: 0,
            sacks: Vec::new(),
            echo: self.now,
            again: false,
        };
        self.filter_segment(0, flow, Segment::Handshake, ack);
        let limits = &mut self.ends[0].window_limits;
        for (answers, is_sent) in [(false, false), (true, true)] {
            let syn = Syn {
                answers,
                window_scale: Some(7),
                sack: true,
                opaque: false,
            };
            limits.handle_syn(self.now, flow as u32, is_sent, syn);
        }
        while self.ends[0].ack_filter.poll().is_some() {}
    }

    pub fn add_stream(&mut self, len: u32, every: Duration, class: Class) {
        self.streams.push(Stream {
            len,
            every,
            class,
            until: Time::from_nanos(u64::MAX),
            next: self.now,
            seq: 0,
            last: None,
            sent: 0,
            arrived: 0,
            misordered: 0,
            delays: Vec::new(),
        });
    }

    pub(super) fn send_datagram(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        let (flow, seq) = (index, stream.seq);
        stream.seq += 1;
        stream.sent += 1;
        stream.next = stream.next + stream.every;
        if stream.next > stream.until {
            stream.next = Time::from_nanos(u64::MAX);
        }
        let inner = InnerPacket {
            flow: 1000 + index as u32,
            class: stream.class,
            len: Bytes::new(u64::from(stream.len)),
            is_stream: false,
            is_limited: false,
        };
        let sent = self.now;
        let packet = Packet::Datagram { flow, seq, sent };
        self.ends[0].sender.handle_packet(self.now, inner, packet);
    }

    pub(super) fn pump_flow(&mut self, flow: usize) {
        for seq in self.flows[flow].sender.poll_transmit(self.now) {
            let end = (seq + 1) * u64::from(FULL);
            let segment = DataSegment {
                start: (seq * u64::from(FULL)) as u32,
                end: end as u32,
                acknowledgement: 0,
                window: 0,
                is_plain: !self.flows[flow].sender.is_quic(),
            };
            let End {
                sender, spurious, ..
            } = &mut self.ends[0];
            if spurious.is_spurious(flow as u32, segment, || sender.places(flow as u32)) {
                self.spurious += 1;
                continue;
            }
            let limits = &mut self.ends[0].window_limits;
            limits.handle_sent(self.now, flow as u32, end as u32, None);
            let is_limited = limits.keeps(self.now, flow as u32);
            self.ends[0].ack_filter.handle_sent(flow as u32, end as u32);
            let inner = InnerPacket {
                flow: flow as u32,
                class: Class::Ordered,
                len: Bytes::new(u64::from(FULL)),
                is_stream: true,
                is_limited,
            };
            let packet = Packet::Segment {
                flow,
                seq,
                sent: self.now,
            };
            let End {
                sender, spurious, ..
            } = &mut self.ends[0];
            let places = sender.handle_packet(self.now, inner, packet);
            spurious.handle_sent(self.now, flow as u32, segment, places);
        }
    }

    pub(super) fn deliver(&mut self, at: usize) {
        while let Some(delivery) = self.ends[at].receiver.poll_delivery() {
            match delivery.item {
                Packet::Segment { flow, seq, sent } => {
                    let receiver = &mut self.flows[flow].receiver;
                    let before = receiver.next;
                    let ack = receiver.handle_segment(seq, sent);
                    let segments = receiver.next - before;
                    self.count(segments * u64::from(FULL));
                    if let Some(ack) = ack {
                        self.filter_ack(at, flow, ack);
                    }
                }
                Packet::Ack { flow, ack } => {
                    self.filter_ack(at, flow, ack);
                }
                Packet::Sum(_) => panic!("a sum is no packet"),
                Packet::Datagram { flow, seq, sent } => {
                    let len = self.streams[flow].len;
                    self.count(u64::from(len));
                    let stream = &mut self.streams[flow];
                    stream.arrived += 1;
                    stream.misordered += u64::from(stream.last.is_some_and(|last| seq < last));
                    stream.last = stream.last.max(Some(seq));
                    stream.delays.push(self.now.since(sent));
                }
            }
        }
        self.acknowledge(at);
    }

    fn filter_ack(&mut self, at: usize, flow: usize, ack: Ack) {
        let segment = match ack.sacks.is_empty() {
            true => Segment::Ack((ack.next * u64::from(FULL)) as u32),
            false => Segment::Signal,
        };
        self.filter_segment(at, flow, segment, ack);
    }

    /// Acknowledgements are filtered where they begin, at end 1, and where they arrive.
    fn filter_segment(&mut self, at: usize, flow: usize, segment: Segment, ack: Ack) {
        let end = &mut self.ends[at];
        let spacing = match at {
            0 if end.window_limits.limits(flow as u32) => None,
            0 => end.sender.ack_spacing(self.now),
            _ => end.sender.bulk_ack_spacing(self.now),
        };
        let packet = Packet::Ack { flow, ack };
        (end.ack_filter).handle(self.now, flow as u32, segment, spacing, packet);
    }

    /// Sends on the acknowledgements that have passed the filter, or hands them over.
    fn acknowledge(&mut self, at: usize) {
        while let Some(packet) = self.ends[at].ack_filter.poll() {
            let Packet::Ack { flow, ack } = packet else {
                panic!("only acknowledgements are filtered");
            };
            if at == 0 {
                self.limit(flow, ack.next);
                self.flows[flow].sender.handle_ack(self.now, &ack);
                self.pump_flow(flow);
                continue;
            }
            let inner = InnerPacket {
                flow: flow as u32,
                class: Class::Ordered,
                len: Bytes::new(60),
                is_stream: true,
                is_limited: false,
            };
            let packet = Packet::Ack { flow, ack };
            self.ends[at].sender.handle_packet(self.now, inner, packet);
        }
    }

    /// Tells the sender of a flow how far its window goes.
    fn limit(&mut self, flow: usize, acked: u64) {
        let End {
            sender,
            window_limits,
            ..
        } = &mut self.ends[0];
        let number = (acked * u64::from(FULL)) as u32;
        let (queued, room) = (sender.queued(flow as u32), sender.queue_room(self.now));
        let ack = Acknowledgement {
            number,
            timestamp: None,
        };
        let limit = window_limits.handle_ack(self.now, flow as u32, ack, queued, room);
        let more = limit.map(|limit| u64::from(limit.end.wrapping_sub(number) / FULL));
        self.flows[flow]
            .sender
            .set_limit(more.map(|more| acked + more));
    }

    pub(super) fn count(&mut self, bytes: u64) {
        let slot = (self.now.since(START).as_millis() / 100) as usize;
        if self.delivered.len() <= slot {
            self.delivered.resize(slot + 1, 0);
        }
        self.delivered[slot] += bytes;
    }
}
