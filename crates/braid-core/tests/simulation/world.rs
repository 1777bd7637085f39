//! Two ends of a bond over emulated links, in virtual time: nothing here sleeps or reads a clock.

use std::time::Duration;

use braid_core::bond::{
    ControlKind, Inner, LinkSettings, Receiver, ReceiverSettings, Sender, SenderSettings, TRAIN,
};
use braid_core::estimate::{Arrival, LinkReport};
use braid_core::parity::{Group, Rebuild, field};
use braid_core::repair::Nack;
use braid_core::schedule::{Class, Scheduler};
use braid_core::{Bytes, LaneId, LaneSeq, LinkId, PacketNumber, Rate, Share, Stamp, Time};
use braid_emulate::delay::Delay;
use braid_emulate::queue::Limit;
use braid_emulate::rate::Speed;
use braid_emulate::{Config, Fate, Link};

use crate::tcp::{Ack, TcpReceiver, TcpSender};

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
    /// Packets and what each is multiplied by.
    Sum(Vec<(u8, Packet)>),
}

#[derive(Debug, Clone)]
enum Body {
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
struct Frame {
    number: PacketNumber,
    stamp: Stamp,
    body: Body,
}

/// One link, both directions alike.
#[derive(Debug, Clone)]
pub struct Line {
    pub mbit: f64,
    pub delay_ms: u64,
    pub jitter_us: u64,
    pub reorder: bool,
    pub loss_percent: u32,
    pub queue_ms: u64,
    pub tier: u8,
}

pub fn line(mbit: f64, delay_ms: u64) -> Line {
    Line {
        mbit,
        delay_ms,
        jitter_us: 0,
        reorder: false,
        loss_percent: 0,
        queue_ms: 100,
        tier: 0,
    }
}

impl Line {
    pub fn config(&self) -> Config {
        Config {
            speed: Speed::Fixed(Rate::from_bits_per_sec((self.mbit * 1e6) as u64)),
            delay: Delay {
                base: Duration::from_millis(self.delay_ms),
                jitter: Duration::from_micros(self.jitter_us),
                reorder: self.reorder,
                ..Delay::default()
            },
            loss: Share::of(self.loss_percent, 100),
            queue: Limit::Time(Duration::from_millis(self.queue_ms)),
            ..Config::default()
        }
    }
}

struct End {
    sender: Sender<Packet>,
    receiver: Receiver<Packet>,
    pub packets_sent: Vec<u64>,
}

/// A TCP flow from end 0 to end 1.
pub struct Flow {
    pub sender: TcpSender,
    pub receiver: TcpReceiver,
}

/// Datagrams of constant size at a constant distance from end 0 to end 1.
pub struct Stream {
    pub len: u32,
    pub every: Duration,
    pub class: Class,
    pub until: Time,
    next: Time,
    seq: u64,
    last: Option<u64>,
    pub sent: u64,
    pub arrived: u64,
    pub misordered: u64,
    pub delays: Vec<Duration>,
}

pub struct World {
    pub now: Time,
    links: Vec<[Link<Frame>; 2]>,
    lines: Vec<Line>,
    ends: [End; 2],
    pub flows: Vec<Flow>,
    pub streams: Vec<Stream>,
    /// Inner bytes delivered to end 1, by tenth of a second.
    pub delivered: Vec<u64>,
    pub dropped_on_links: u64,
    pub changes: Vec<(Time, usize, braid_core::bond::Change)>,
}

/// Traffic begins half a second after the handshake.
pub const START: Time = Time::from_nanos(1_000_000_000);

pub fn ms(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

impl World {
    pub fn new(lines: &[Line], seed: u64, scheduler: impl Fn() -> Box<dyn Scheduler>) -> World {
        let now = ms(500);
        let end = |_| {
            let mut sender = Sender::new(scheduler(), SenderSettings::default());
            sender.set_parity(Some(Bytes::new(u64::from(FULL))));
            for (id, line) in lines.iter().enumerate() {
                let settings = LinkSettings {
                    tier: line.tier,
                    overhead: Bytes::new(u64::from(OVERHEAD)),
                    train: TRAIN,
                    ..LinkSettings::default()
                };
                sender.add_link(now, LinkId(id as u8), settings);
            }
            End {
                sender,
                receiver: Receiver::new(ReceiverSettings::default()),
                packets_sent: vec![0; lines.len()],
            }
        };
        let link = |(index, line): (usize, &Line)| {
            [0, 1].map(|dir| Link::new(line.config(), seed * 100 + index as u64 * 2 + dir))
        };
        World {
            now,
            links: lines.iter().enumerate().map(link).collect(),
            lines: lines.to_vec(),
            ends: [end(0), end(1)],
            flows: Vec::new(),
            streams: Vec::new(),
            delivered: Vec::new(),
            dropped_on_links: 0,
            changes: Vec::new(),
        }
        .after_handshake()
    }

    /// The trains that begin a session go out, and come back as reports.
    fn after_handshake(mut self) -> World {
        self.pump(0);
        self.pump(1);
        self.run_until(START);
        self
    }

    pub fn add_tcp(&mut self) {
        self.flows.push(Flow {
            sender: TcpSender::new(),
            receiver: TcpReceiver::default(),
        });
        self.pump_flow(self.flows.len() - 1);
        self.pump(0);
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

    pub fn sender(&self, end: usize) -> &Sender<Packet> {
        &self.ends[end].sender
    }

    pub fn receiver(&self, end: usize) -> &Receiver<Packet> {
        &self.ends[end].receiver
    }

    pub fn packets_sent(&self, end: usize, link: usize) -> u64 {
        self.ends[end].packets_sent[link]
    }

    pub fn set_line(&mut self, index: usize, line: Line) {
        for link in &mut self.links[index] {
            link.configure(self.now, line.config());
        }
        self.lines[index] = line;
    }

    pub fn line(&self, index: usize) -> Line {
        self.lines[index].clone()
    }

    pub fn set_black_hole(&mut self, index: usize, on: bool) {
        self.links[index]
            .iter_mut()
            .for_each(|link| link.set_black_hole(on));
    }

    pub fn run_until(&mut self, end: Time) {
        let mut still = 0;
        while let Some(next) = self.next_event().filter(|next| *next <= end) {
            still = if next > self.now { 0 } else { still + 1 };
            assert!(still < 100_000, "time stands still at {:?}", self.now);
            self.now = next.max(self.now);
            self.step();
        }
        self.now = end;
    }

    fn next_event(&self) -> Option<Time> {
        let links = self.links.iter().flatten().filter_map(Link::poll_timeout);
        let ends = self.ends.iter().flat_map(|end| {
            let receiver = end.receiver.poll_timeout();
            [
                end.sender.poll_timeout(),
                receiver,
                end.receiver.next_report(),
            ]
        });
        let flows = self
            .flows
            .iter()
            .filter_map(|flow| flow.sender.poll_timeout());
        let streams = self
            .streams
            .iter()
            .map(|s| s.next)
            .filter(|t| *t != Time::from_nanos(u64::MAX));
        links
            .chain(ends.flatten())
            .chain(flows)
            .chain(streams)
            .min()
    }

    fn step(&mut self) {
        for index in 0..self.links.len() {
            for from in 0..2 {
                while let Some(out) = self.links[index][from].poll_output(self.now) {
                    match out.fate {
                        Fate::Delivered => self.arrive(1 - from, index, out.len, out.packet),
                        _ => self.dropped_on_links += 1,
                    }
                }
            }
        }
        for index in 0..self.flows.len() {
            if self.flows[index]
                .sender
                .poll_timeout()
                .is_some_and(|at| at <= self.now)
            {
                self.flows[index].sender.handle_timeout(self.now);
                self.pump_flow(index);
            }
        }
        for index in 0..self.streams.len() {
            while self.streams[index].next <= self.now {
                self.send_datagram(index);
            }
        }
        self.pump(0);
        self.pump(1);
    }

    fn send_datagram(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        let (flow, seq) = (index, stream.seq);
        stream.seq += 1;
        stream.sent += 1;
        stream.next = stream.next + stream.every;
        if stream.next > stream.until {
            stream.next = Time::from_nanos(u64::MAX);
        }
        let inner = Inner {
            flow: 1000 + index as u32,
            class: stream.class,
            len: Bytes::new(u64::from(stream.len)),
        };
        let sent = self.now;
        let packet = Packet::Datagram { flow, seq, sent };
        self.ends[0].sender.handle_packet(self.now, inner, packet);
    }

    fn pump_flow(&mut self, flow: usize) {
        for seq in self.flows[flow].sender.poll_transmit(self.now) {
            let inner = Inner {
                flow: flow as u32,
                class: Class::Ordered,
                len: Bytes::new(u64::from(FULL)),
            };
            let packet = Packet::Segment {
                flow,
                seq,
                sent: self.now,
            };
            self.ends[0].sender.handle_packet(self.now, inner, packet);
        }
    }

    fn arrive(&mut self, at: usize, link: usize, len: u32, frame: Frame) {
        let (now, id) = (self.now, LinkId(link as u8));
        let end = &mut self.ends[at];
        let elicits = match &frame.body {
            Body::Reports(_) => false,
            Body::Control { elicits } => *elicits,
            _ => true,
        };
        let size = Bytes::new(u64::from(len));
        let numbered = (frame.number, frame.stamp);
        let arrival = end
            .receiver
            .handle_datagram(now, id, numbered, size, elicits);
        assert_ne!(arrival, Arrival::Duplicate, "no link of ours duplicates");
        match frame.body {
            Body::Data {
                lane,
                seq,
                class,
                packet,
            } => {
                let place = (lane, seq, class);
                end.receiver
                    .handle_data(now, id, frame.stamp, place, packet);
            }
            Body::Parity { group, sum } => {
                end.receiver.handle_parity(now, id, frame.stamp, group, sum);
            }
            Body::Reports(reports) => {
                for report in &reports {
                    end.sender.handle_report(now, report);
                }
                let answer = end.sender.answer();
                end.receiver.set_answer(answer);
            }
            Body::Nack(nack) => end.sender.handle_nack(now, nack),
            Body::Control { .. } => {}
        }
        end.receiver.handle_end(now);
        self.rebuild(at);
        self.deliver(at);
    }

    fn rebuild(&mut self, at: usize) {
        let receiver = &mut self.ends[at].receiver;
        while let Some(rebuild) = receiver.poll_rebuild() {
            let item = taken_apart(&rebuild);
            receiver.handle_rebuilt(self.now, rebuild, Some(item));
        }
    }

    fn deliver(&mut self, at: usize) {
        while let Some(delivery) = self.ends[at].receiver.poll_delivery() {
            match delivery.item {
                Packet::Segment { flow, seq, sent } => {
                    self.count(FULL);
                    if let Some(ack) = self.flows[flow].receiver.handle_segment(seq, sent) {
                        let inner = Inner {
                            flow: flow as u32,
                            class: Class::Ordered,
                            len: Bytes::new(60),
                        };
                        let packet = Packet::Ack { flow, ack };
                        self.ends[at].sender.handle_packet(self.now, inner, packet);
                    }
                }
                Packet::Ack { flow, ack } => {
                    self.flows[flow].sender.handle_ack(self.now, &ack);
                    self.pump_flow(flow);
                }
                Packet::Sum(_) => panic!("a sum is no packet"),
                Packet::Datagram { flow, seq, sent } => {
                    let len = self.streams[flow].len;
                    self.count(len);
                    let stream = &mut self.streams[flow];
                    stream.arrived += 1;
                    stream.misordered += u64::from(stream.last.is_some_and(|last| seq < last));
                    stream.last = stream.last.max(Some(seq));
                    stream.delays.push(self.now.since(sent));
                }
            }
        }
    }

    fn count(&mut self, bytes: u32) {
        let slot = (self.now.since(START).as_millis() / 100) as usize;
        if self.delivered.len() <= slot {
            self.delivered.resize(slot + 1, 0);
        }
        self.delivered[slot] += u64::from(bytes);
    }

    fn pump(&mut self, at: usize) {
        let now = self.now;
        self.ends[at].sender.handle_timeout(now);
        self.ends[at].receiver.handle_timeout(now);
        self.rebuild(at);
        self.deliver(at);
        while let Some(change) = self.ends[at].sender.poll_change() {
            self.changes.push((now, at, change));
        }
        while let Some(nack) = self.ends[at].receiver.poll_nack() {
            self.everywhere(at, 24, true, Body::Nack(nack));
        }
        if self.ends[at].receiver.is_report_due(now) {
            let mut reports = Vec::new();
            self.ends[at]
                .receiver
                .poll_reports(now, |report| reports.push(report));
            let len = 30 * reports.len() as u32;
            self.everywhere(at, len, false, Body::Reports(reports));
        }
        while let Some(control) = self.ends[at].sender.poll_control(now) {
            let elicits = control.kind != ControlKind::Close;
            let full = control.kind == ControlKind::Train;
            let (link, len) = (control.link.index(), if full { 1400 } else { 4 });
            self.send_control(at, link, len, elicits, Body::Control { elicits });
        }
        while self.send_next(at) {}
    }

    fn send_next(&mut self, at: usize) -> bool {
        let now = self.now;
        let mut items = Vec::new();
        let lens: Vec<u32> = self.streams.iter().map(|stream| stream.len).collect();
        let longest = |items: &[Packet]| {
            let longest = items.iter().map(|item| len_of(item, &lens)).max();
            Bytes::new(u64::from(longest.unwrap_or_default()))
        };
        let sender = &mut self.ends[at].sender;
        if let Some(parity) = sender.poll_parity(now, &mut items, longest) {
            let len = longest(&items).get() as u32 + OVERHEAD;
            let group = parity.group;
            let numbers = (group.first.0..).map(LaneSeq);
            let scaled = items
                .into_iter()
                .zip(numbers)
                .map(|(item, seq)| (group.factor(seq).expect("it is covered"), item));
            let sum = Packet::Sum(scaled.collect());
            let frame = Frame {
                number: parity.number,
                stamp: parity.stamp,
                body: Body::Parity { group, sum },
            };
            self.put(at, parity.link.index(), len, frame);
            return true;
        }
        if let Some(transmit) = self.ends[at].sender.poll_transmit(now) {
            let piece = transmit.piece;
            let body = Body::Data {
                lane: piece.lane,
                seq: piece.seq,
                class: piece.class,
                packet: piece.item,
            };
            let frame = Frame {
                number: transmit.number,
                stamp: transmit.stamp,
                body,
            };
            let len = piece.len.get() as u32 + OVERHEAD;
            self.put(at, transmit.link.index(), len, frame);
            return true;
        }
        false
    }

    fn everywhere(&mut self, at: usize, len: u32, elicits: bool, body: Body) {
        for link in 0..self.links.len() {
            self.send_control(at, link, len, elicits, body.clone());
        }
    }

    fn send_control(&mut self, at: usize, link: usize, len: u32, elicits: bool, body: Body) {
        let size = len + OVERHEAD;
        let bytes = Bytes::new(u64::from(size));
        let sender = &mut self.ends[at].sender;
        let id = LinkId(link as u8);
        if let Some((number, stamp)) = sender.number_control(self.now, id, bytes, elicits) {
            self.put(
                at,
                link,
                size,
                Frame {
                    number,
                    stamp,
                    body,
                },
            );
        }
    }

    fn put(&mut self, at: usize, link: usize, len: u32, frame: Frame) {
        self.ends[at].packets_sent[link] += 1;
        self.links[link][at].handle_packet(self.now, len, frame);
    }

    /// Mean goodput in Mbit/s between two times after the start, in seconds.
    pub fn goodput(&self, from: f64, to: f64) -> f64 {
        let (from, to) = ((from * 10.0) as usize, (to * 10.0) as usize);
        let slots = self.delivered.iter().take(to).skip(from);
        slots.sum::<u64>() as f64 * 8.0 / 1e6 / ((to - from) as f64 / 10.0)
    }

    /// Seconds from the start to the end of the first half-second that has 90 % of the ceiling.
    pub fn t90(&self) -> Option<f64> {
        let tenths = 5..=self.delivered.len();
        let full = |end: &usize| {
            let end = *end as f64 / 10.0;
            self.goodput(end - 0.5, end) >= 0.9 * self.ceiling()
        };
        let mut tenths = tenths;
        tenths.find(full).map(|end| end as f64 / 10.0)
    }

    /// What headers leave of the links' rates, in Mbit/s.
    pub fn ceiling(&self) -> f64 {
        let sum: f64 = self.lines.iter().map(|line| line.mbit).sum();
        sum * f64::from(FULL) / f64::from(FULL + OVERHEAD)
    }
}

fn len_of(packet: &Packet, streams: &[u32]) -> u32 {
    match packet {
        Packet::Segment { .. } => FULL,
        Packet::Datagram { flow, .. } => streams[*flow],
        Packet::Ack { .. } | Packet::Sum(_) => 60,
    }
}

/// What arithmetic on their bytes would do: all but one of the packets cancel each other out.
fn taken_apart(rebuild: &Rebuild<Packet, Packet>) -> Packet {
    let mut left: Vec<(u8, Packet)> = Vec::new();
    let mut add =
        |factor: u8, packet: &Packet| match left.iter_mut().find(|(_, other)| other == packet) {
            Some((sum, _)) => *sum ^= factor,
            None => left.push((factor, packet.clone())),
        };
    for (factor, sum) in &rebuild.sums {
        let Packet::Sum(all) = sum else {
            panic!("not a sum: {sum:?}");
        };
        for (inner, packet) in all {
            add(field::times(*factor, *inner), packet);
        }
    }
    for (factor, other) in &rebuild.others {
        add(*factor, other);
    }
    left.retain(|(factor, _)| *factor > 0);
    assert_eq!(left.len(), 1, "one is missing: {left:?}");
    let (factor, packet) = left.remove(0);
    assert_eq!(factor, 1);
    packet
}

/// The given quantile, 0 to 1, in ms.
pub fn quantile(delays: &[Duration], q: f64) -> f64 {
    let mut sorted: Vec<_> = delays.to_vec();
    sorted.sort_unstable();
    let index = ((sorted.len() as f64 - 1.0) * q).round() as usize;
    sorted.get(index).map_or(0.0, |d| d.as_secs_f64() * 1e3)
}
