//! Two ends of a bond over emulated links, in virtual time: nothing here sleeps or reads a clock.

use std::time::Duration;

use braid_core::{Bytes, Time};
use braid_emulate::{Fate, Link};
use braid_multipath::ack_filter::AckFilter;
use braid_multipath::bond::{
    ControlKind, LinkSettings, Receiver, ReceiverSettings, Sender, SenderSettings, TRAIN_PACKETS,
};
use braid_multipath::estimate::{Arrival, LinkReport};
use braid_multipath::schedule::Scheduler;
use braid_multipath::spurious::SpuriousFilter;
use braid_multipath::window_limit::WindowLimits;
use braid_multipath::{Incoming, LaneSeq, LinkId, RelativeDelay};

mod inner;
mod link_spec;
mod measure;
mod packet;

pub use inner::{Flow, Stream};
pub use link_spec::{LinkSpec, line, rate};
pub use measure::quantile;
pub use packet::{FULL, OVERHEAD, Packet};

use packet::{Body, Frame, len_of, rebuilt_packet};

struct End {
    sender: Sender<Packet>,
    receiver: Receiver<Packet>,
    ack_filter: AckFilter<Packet>,
    window_limits: WindowLimits,
    spurious: SpuriousFilter,
    pub packets_sent: Vec<u64>,
    /// When each link last carried data in either direction, and last got a report.
    carried: Vec<Time>,
    reported: Vec<Time>,
}

pub struct World {
    pub now: Time,
    links: Vec<[Link<Frame>; 2]>,
    lines: Vec<LinkSpec>,
    ends: [End; 2],
    pub flows: Vec<Flow>,
    pub streams: Vec<Stream>,
    /// Bytes that end 1 had from each flow in order and once, and from each stream, by tenth of a second.
    pub delivered: Vec<u64>,
    pub dropped_on_links: u64,
    /// Retransmissions dropped because their originals wait.
    pub spurious: u64,
    /// If true, reports go over busy links and now and then over others, as in the tunnel; not over
    /// all.
    pub sparing: bool,
    pub changes: Vec<(Time, usize, braid_multipath::bond::LinkChange)>,
}

/// Each end has a clock of its own, and tells delays from a zero of its own.
const FAR_CLOCK: Duration = Duration::from_secs(1_234);
const FAR_ZERO: i64 = 10_000;
/// A link without data for this long gets a report only at this interval.
const REPORT_IDLE: Duration = Duration::from_millis(500);

/// Traffic begins half a second after the handshake.
pub const START: Time = Time::from_nanos(1_000_000_000);

pub fn ms(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

impl World {
    pub fn new(lines: &[LinkSpec], seed: u64, scheduler: impl Fn() -> Box<dyn Scheduler>) -> World {
        let mut world = World::at_handshake(lines, seed, scheduler);
        (1..lines.len()).for_each(|link| world.add_link(link));
        world.run_until(START);
        world
    }

    /// Returns the world at the moment of the handshake: the trains that begin a session are on their way over the first link, and the
    /// others have not joined.
    pub fn at_handshake(
        lines: &[LinkSpec],
        seed: u64,
        scheduler: impl Fn() -> Box<dyn Scheduler>,
    ) -> World {
        let now = ms(500);
        let end = |at| {
            let mut sender = Sender::new(scheduler(), SenderSettings::default());
            sender.set_fec(Some(Bytes::new(u64::from(FULL))));
            End {
                sender,
                receiver: Receiver::new(ReceiverSettings::default()),
                ack_filter: match at {
                    0 => AckFilter::for_new_flows(),
                    _ => AckFilter::for_bulk_flows(),
                },
                window_limits: WindowLimits::default(),
                spurious: SpuriousFilter::default(),
                packets_sent: vec![0; lines.len()],
                carried: vec![Time::ZERO; lines.len()],
                reported: vec![Time::ZERO; lines.len()],
            }
        };
        let link = |(index, line): (usize, &LinkSpec)| {
            [0, 1]
                .map(|dir| Link::new(line.config(dir), seed * 100 + index as u64 * 2 + dir as u64))
        };
        let mut world = World {
            now,
            links: lines.iter().enumerate().map(link).collect(),
            lines: lines.to_vec(),
            ends: [end(0), end(1)],
            flows: Vec::new(),
            streams: Vec::new(),
            delivered: Vec::new(),
            dropped_on_links: 0,
            spurious: 0,
            sparing: false,
            changes: Vec::new(),
        };
        world.add_link(0);
        world
    }

    /// Adds a link at both ends, and sends the trains with which it begins.
    pub fn add_link(&mut self, index: usize) {
        let line = &self.lines[index];
        let settings = LinkSettings {
            tier: line.tier,
            overhead: Bytes::new(u64::from(OVERHEAD)),
            initial: line.initial.map(rate),
            train: if line.initial.is_some() {
                0
            } else {
                TRAIN_PACKETS
            },
            ..LinkSettings::default()
        };
        for at in [0, 1] {
            (self.ends[at].sender).add_link(self.now, LinkId(index as u8), settings);
            self.pump(at);
        }
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

    pub fn set_line(&mut self, index: usize, line: LinkSpec) {
        for (from, link) in self.links[index].iter_mut().enumerate() {
            link.configure(self.now, line.config(from));
        }
        self.lines[index] = line;
    }

    pub fn line(&self, index: usize) -> LinkSpec {
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
                end.ack_filter.poll_timeout(),
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

    fn arrive(&mut self, at: usize, link: usize, len: u32, frame: Frame) {
        let (now, id) = (self.now, LinkId(link as u8));
        let end = &mut self.ends[at];
        let elicits = match &frame.body {
            Body::Reports(_) => false,
            Body::Control { elicits } => *elicits,
            _ => true,
        };
        let packet = Incoming {
            number: frame.number,
            stamp: frame.stamp,
            arrived: now,
            len: Bytes::new(u64::from(len)),
            elicits,
        };
        let arrival = end.receiver.handle_datagram(now, id, &packet);
        assert_ne!(arrival, Arrival::Duplicate, "no link of ours duplicates");
        match frame.body {
            Body::Data {
                lane,
                seq,
                class,
                packet,
            } => {
                end.carried[link] = now;
                let place = (lane, seq, class);
                end.receiver
                    .handle_data(now, id, frame.stamp, place, packet);
            }
            Body::Parity { group, sum } => {
                end.receiver.handle_repair(now, id, frame.stamp, group, sum);
            }
            Body::Reports(reports) => {
                for report in &reports {
                    let report = LinkReport {
                        received_at: report.received_at + FAR_CLOCK,
                        delay: RelativeDelay(report.delay.0 - FAR_ZERO),
                        ..*report
                    };
                    end.sender.handle_report(now, &report);
                }
                let answer = end.sender.retransmit_delay();
                end.receiver.set_retransmit_delay(answer);
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
            let item = rebuilt_packet(&rebuild);
            receiver.handle_rebuilt(self.now, rebuild, Some(item));
        }
    }

    fn pump(&mut self, at: usize) {
        let now = self.now;
        self.ends[at].sender.handle_timeout(now);
        self.ends[at].receiver.handle_timeout(now);
        self.ends[at].ack_filter.handle_timeout(now);
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
            self.report(at, len, &Body::Reports(reports));
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
        if let Some(parity) = sender.poll_repair(now, &mut items, longest) {
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
            let packet = transmit.packet;
            let body = Body::Data {
                lane: packet.lane,
                seq: packet.seq,
                class: packet.class,
                packet: packet.item,
            };
            let frame = Frame {
                number: transmit.number,
                stamp: transmit.stamp,
                body,
            };
            let len = packet.len.get() as u32 + OVERHEAD;
            self.ends[at].carried[transmit.link.index()] = now;
            self.put(at, transmit.link.index(), len, frame);
            return true;
        }
        false
    }

    fn report(&mut self, at: usize, len: u32, body: &Body) {
        for link in 0..self.links.len() {
            let end = &self.ends[at];
            let recent = |since: Time| self.now.since(since) < REPORT_IDLE;
            if !self.sparing || recent(end.carried[link]) || !recent(end.reported[link]) {
                self.ends[at].reported[link] = self.now;
                self.send_control(at, link, len, false, body.clone());
            }
        }
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
}
