//! A network in virtual time: emulated lines, servers that speak TCP behind them, and the packets between.
//!
//! The lines are those of the lab ([`braid_emulate::Link`]). A server's TCP has slow start with a delay-based exit,
//! loss recovery by selective acknowledgements, a tail probe and timeouts with backoff; every packet is acknowledged.
//! A line may lose packets towards the client at random, and carry datagrams of others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use braid_core::{Rate, Share, Time};
use braid_emulate::config::Config;
use braid_emulate::delay::Delay;
use braid_emulate::queue::Limit;
use braid_emulate::rate::Speed;
use braid_emulate::trace::Trace;
use braid_emulate::{Fate, Link};

/// Payload of a full segment.
const SEGMENT: u64 = 1448;
/// Bytes of headers from IP on.
const HEADERS: u32 = 52;
/// Bytes of an Ethernet header, which the lines carry and nobody else counts.
const ETHERNET: u32 = 14;
/// Bytes of a request.
const REQUEST: u32 = 60;
const FIRST_WINDOW: f64 = 10.0;
const MIN_TIMEOUT: Duration = Duration::from_millis(200);
const SYN_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// Transmissions acknowledged after a segment that show its loss.
const REORDERING: u64 = 3;
/// CUBIC's reduction.
const REDUCTION: f64 = 0.7;
/// Bytes of another's datagram, from the IP header on.
const DATAGRAM: u32 = 1428;

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    flow: usize,
    body: Body,
}

#[derive(Clone, Copy, Debug)]
enum Body {
    Syn {
        number: u32,
    },
    SynAck {
        number: u32,
    },
    Request {
        number: usize,
        bytes: u64,
        below: usize,
        stamp: u64,
    },
    Data {
        segment: usize,
        echo: u64,
    },
    Ack {
        below: usize,
        blocks: Blocks,
        stamp: u64,
    },
    Datagram,
}

/// Segments from one to before another that have arrived, as an acknowledgement names them (RFC 2018).
type Blocks = [(usize, usize); SACK_BLOCKS];

/// A line in both directions.
struct Line {
    links: [Link<Packet>; 2],
    rate: f64,
    /// Rate towards the client in the place of `rate`, if it is recorded.
    recorded: Option<Arc<Trace>>,
    delay: Duration,
    queue: Duration,
    /// Loss at random in each direction.
    losses: [Share; 2],
    /// True if SYNs go twice.
    sends_twice: bool,
    /// Interval between datagrams of others towards the client, and their bytes that have arrived.
    datagrams: Option<Duration>,
    datagram_bytes: u64,
    /// Time of the last segment with data.
    heard: Time,
}

impl Line {
    fn configure(&mut self, now: Time) {
        for (way, link) in self.links.iter_mut().enumerate() {
            let loss = self.losses[way];
            let config = config(self.rate, self.delay, self.queue);
            let recorded = self.recorded.clone().filter(|_| way == DOWN);
            let speed = recorded.map_or(config.speed.clone(), Speed::Trace);
            let config = Config {
                speed,
                loss,
                ..config
            };
            link.configure(now, config);
        }
    }
}

/// As many as there is room for beside time stamps.
const SACK_BLOCKS: usize = 3;
const DOWN: usize = 0;
const UP: usize = 1;

/// A line's constant properties.
#[derive(Clone, Copy, Debug)]
pub struct LineSpec {
    /// Delay each way, in milliseconds.
    pub delay_ms: u64,
    /// Longest queue, in milliseconds.
    pub queue_ms: u64,
}

/// A round trip of a connection that moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// Its growth over the connection's shortest one.
    pub growth: Duration,
    /// Time at its end for which the line was silent.
    pub silence: Duration,
}

/// Sums of the round trips over a line in an interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrips {
    growth: Duration,
    count: u32,
    /// Time of the interval and before it in which a queue stood, as far as they show it.
    pub queued: Duration,
    /// Time until which that was counted.
    shown: Time,
}

impl RoundTrips {
    pub fn note(&mut self, now: Time, round_trip: RoundTrip) {
        self.growth += round_trip.growth;
        self.count += 1;
        let waited = round_trip.growth.saturating_sub(round_trip.silence);
        if !waited.is_zero() {
            self.queued += waited.min(now.since(self.shown));
            self.shown = now;
        }
    }

    /// Returns those of the interval, and starts the next one.
    pub fn take(&mut self) -> RoundTrips {
        let next = RoundTrips {
            shown: self.shown,
            ..RoundTrips::default()
        };
        std::mem::replace(self, next)
    }

    /// Returns the time since the last one that showed a queue.
    pub fn unseen(&self, now: Time) -> Duration {
        now.since(self.shown)
    }

    /// Returns their mean growth; `None` if there was none.
    pub fn growth(&self) -> Option<Duration> {
        self.growth.checked_div(self.count)
    }
}

/// An event for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The host's timer.
    Timer,
    /// A SYN is due to be sent: for the first time, or again.
    SynDue {
        /// The connection.
        flow: usize,
        /// Number of SYNs sent before.
        before: u32,
    },
    /// A SYN was answered.
    SynAnswered {
        /// The connection.
        flow: usize,
        /// The line that the answer came by.
        line: usize,
        /// Time since the SYN; `None` if it was sent again meanwhile, or more than once: the second one is raced, with ports of
        /// its own, and the others have the same.
        rtt: Option<Duration>,
        /// True if the connection is now open by that line.
        opens: bool,
    },
    /// The client has sent a packet.
    Sent {
        /// The connection.
        flow: usize,
        /// The line.
        line: usize,
        /// Bytes from the IP header on.
        bytes: u32,
        /// True if it has data.
        data: bool,
        /// True if it was sent before.
        repeated: bool,
    },
    /// The client has received a segment with data.
    Received {
        /// The connection.
        flow: usize,
        /// The line.
        line: usize,
        /// Bytes from the IP header on.
        bytes: u32,
        /// True if segments before it are missing.
        gap: bool,
        /// A round trip that it ended, see `bpf/flow/timestamps.h`.
        round_trip: Option<RoundTrip>,
    },
    /// An object has arrived.
    Done {
        /// The connection.
        flow: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Host,
    Syn { flow: usize, before: u32 },
    Client(usize),
    Server(usize),
    Datagram { line: usize },
}

/// The network.
pub struct Network {
    /// The time.
    pub now: Time,
    lines: Vec<Line>,
    timers: BinaryHeap<Reverse<(Time, u64, Timer)>>,
    order: u64,
    flows: Vec<Flow>,
    events: std::collections::VecDeque<Event>,
    /// Growth of a sender's window in a round trip after slow start, in segments.
    pub window_growth: f64,
}

#[derive(Default)]
struct Flow {
    line: Option<usize>,
    /// A line that alone may open it, although others are asked.
    preferred: Option<usize>,
    syns: u32,
    syn_at: Time,
    /// Lines by which its SYNs were answered.
    answered: Vec<usize>,
    closed: bool,
    client: Client,
    server: Server,
}

#[derive(Default)]
struct Client {
    requests: usize,
    bytes: u64,
    /// Time at which an unacknowledged request is sent again, and the timeout after that.
    again: Option<(Time, Duration)>,
    received: Vec<bool>,
    below: usize,
    highest: usize,
    end: usize,
    stamp: Option<(u64, Time, u64)>,
    min_rtt: Option<Duration>,
    packets: u64,
    rtt: Duration,
    /// Latest time of the client's that came back, and the round trips that those have shown, smoothed; both in
    /// milliseconds.
    echoed: u64,
    echo_rtt: Option<f64>,
}

impl Client {
    /// Returns the block that a segment is in and those before it, if they are above what has arrived without a gap.
    fn blocks(&self, segment: usize) -> Blocks {
        let mut blocks = Blocks::default();
        let mut end = segment + 1;
        while self.received.get(end) == Some(&true) {
            end += 1;
        }
        for block in &mut blocks {
            let mut first = end;
            while first > self.below && self.received[first - 1] {
                first -= 1;
            }
            if first <= self.below {
                break;
            }
            *block = (first, end);
            end = first;
            while end > self.below && !self.received[end - 1] {
                end -= 1;
            }
        }
        blocks
    }

    /// Takes a time that came back, as Linux does since 6.16: a lower round trip counts at once.
    fn note_echo(&mut self, now: Time, echo: u64) {
        if echo <= self.echoed {
            return;
        }
        self.echoed = echo;
        let rtt = (now.as_nanos() / 1_000_000).saturating_sub(echo).max(1) as f64;
        let before = self.echo_rtt.unwrap_or(rtt);
        self.echo_rtt = Some(rtt.min((7.0 * before + rtt) / 8.0));
    }
}

#[derive(Clone, Copy)]
enum Segment {
    Waiting,
    Sent { number: u64, at: Time, again: bool },
    Lost,
    Acked,
}

#[derive(Default)]
struct Server {
    requests: usize,
    lens: Vec<u32>,
    segments: Vec<Segment>,
    next: usize,
    below: usize,
    in_flight: BTreeMap<u64, usize>,
    lost: BTreeSet<usize>,
    numbers: u64,
    acked: u64,
    delivered: u64,
    growth: f64,
    recover: u64,
    window: f64,
    threshold: f64,
    min_rtt: Option<Duration>,
    srtt: Option<Duration>,
    var: Duration,
    backoff: u32,
    probed: bool,
    deadline: Option<Time>,
    armed: bool,
    echo: u64,
}

impl Server {
    fn timeout(&self) -> Duration {
        let base = self
            .srtt
            .map_or(SYN_TIMEOUT, |srtt| srtt + (4 * self.var).max(MIN_TIMEOUT));
        (base * 2_u32.pow(self.backoff.min(8))).min(MAX_TIMEOUT)
    }

    fn arm(&mut self, now: Time) {
        if self.in_flight.is_empty() && self.lost.is_empty() {
            self.deadline = None;
            return;
        }
        let mut wait = self.timeout();
        if let Some(srtt) = self.srtt.filter(|_| !self.probed && self.backoff == 0) {
            let alone = if self.in_flight.len() == 1 {
                MIN_TIMEOUT
            } else {
                Duration::ZERO
            };
            wait = wait.min((2 * srtt).max(Duration::from_millis(10)) + alone);
        }
        self.deadline = Some(now + wait);
    }

    fn note_rtt(&mut self, rtt: Duration) {
        self.min_rtt = Some(self.min_rtt.map_or(rtt, |least| least.min(rtt)));
        let Some(srtt) = self.srtt else {
            self.srtt = Some(rtt);
            self.var = rtt / 2;
            return;
        };
        let error = rtt.abs_diff(srtt);
        self.var = (3 * self.var + error) / 4;
        self.srtt = Some((7 * srtt + rtt) / 8);
        // HyStart.
        let least = self.min_rtt.unwrap_or(rtt);
        let growth = (least / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
        if self.window < self.threshold && self.window >= 16.0 && rtt > least + growth {
            self.threshold = self.window;
        }
    }

    /// Takes an acknowledgement.
    fn acknowledge(&mut self, now: Time, below: usize, blocks: Blocks) {
        let mut news = 0_u32;
        let from = self.below;
        self.below = self.below.max(below);
        let sacked = blocks.into_iter().flat_map(|(first, end)| first..end);
        for one in (from..self.below).chain(sacked) {
            match std::mem::replace(&mut self.segments[one], Segment::Acked) {
                Segment::Sent { number, at, again } => {
                    self.in_flight.remove(&number);
                    self.acked = self.acked.max(number);
                    if !again {
                        self.note_rtt(now.since(at));
                    }
                    news += 1;
                }
                Segment::Lost => {
                    self.lost.remove(&one);
                    news += 1;
                }
                Segment::Waiting | Segment::Acked => {}
            }
        }
        if news == 0 {
            return;
        }
        self.backoff = 0;
        self.probed = false;
        self.delivered += u64::from(news);
        if self.window < self.threshold {
            self.window += f64::from(news);
        } else {
            self.window += self.growth * f64::from(news) / self.window;
        }
        let mut reduce = false;
        while let Some((number, segment)) = self.in_flight.first_key_value() {
            let (number, segment) = (*number, *segment);
            if number + REORDERING > self.acked {
                break;
            }
            self.in_flight.remove(&number);
            self.segments[segment] = Segment::Lost;
            self.lost.insert(segment);
            reduce |= number >= self.recover;
        }
        if reduce {
            self.window = (self.window * REDUCTION).max(2.0);
            self.threshold = self.window;
            self.recover = self.numbers;
        }
        self.arm(now);
    }

    /// Returns the next segment to send, if the window lets one out.
    fn next(&mut self, now: Time) -> Option<usize> {
        if self.in_flight.len() as f64 >= self.window {
            return None;
        }
        let again = self.lost.pop_first();
        let segment = again.unwrap_or(self.next);
        if segment >= self.segments.len() {
            return None;
        }
        if again.is_none() {
            self.next += 1;
        }
        self.send(now, segment, again.is_some());
        Some(segment)
    }

    fn send(&mut self, now: Time, segment: usize, again: bool) {
        let idle = self.in_flight.is_empty();
        let number = self.numbers;
        self.numbers += 1;
        self.segments[segment] = Segment::Sent {
            number,
            at: now,
            again,
        };
        self.in_flight.insert(number, segment);
        if idle || self.deadline.is_none() {
            self.arm(now);
        }
    }

    /// Takes the end of the timer. Returns a segment to send as a probe.
    fn expire(&mut self, now: Time) -> Option<usize> {
        if !self.probed && self.backoff == 0 && self.srtt.is_some() {
            self.probed = true;
            let last = self.in_flight.last_key_value().map(|(n, s)| (*n, *s));
            if let Some((number, segment)) = last {
                self.in_flight.remove(&number);
                self.send(now, segment, true);
                self.deadline = Some(now + self.timeout());
                return Some(segment);
            }
        }
        for segment in std::mem::take(&mut self.in_flight).into_values() {
            self.segments[segment] = Segment::Lost;
            self.lost.insert(segment);
        }
        if self.backoff == 0 {
            self.threshold = (self.window * REDUCTION).max(2.0);
        }
        self.window = 1.0;
        self.recover = self.numbers;
        self.backoff += 1;
        self.arm(now);
        None
    }
}

impl Network {
    /// Starts with these lines, all at 50 Mbit/s.
    pub fn new(specs: &[LineSpec]) -> Network {
        Network::with_seed(specs, 0)
    }

    /// Starts with these lines, all at 50 Mbit/s, which lose other packets with another seed.
    pub fn with_seed(specs: &[LineSpec], seed: u64) -> Network {
        let line = |(place, spec): (usize, &LineSpec)| {
            let (rate, delay, queue) = (
                50e6,
                Duration::from_millis(spec.delay_ms),
                Duration::from_millis(spec.queue_ms),
            );
            let link = |way: u64| {
                let number = 2 * (seed * specs.len() as u64 + place as u64) + way;
                Link::new(config(rate, delay, queue), number)
            };
            Line {
                links: [link(0), link(1)],
                rate,
                recorded: None,
                heard: Time::ZERO,
                delay,
                queue,
                losses: [Share::NONE; 2],
                sends_twice: false,
                datagrams: None,
                datagram_bytes: 0,
            }
        };
        Network {
            now: Time::ZERO,
            lines: specs.iter().enumerate().map(line).collect(),
            timers: BinaryHeap::new(),
            order: 0,
            flows: Vec::new(),
            events: std::collections::VecDeque::new(),
            window_growth: 1.0,
        }
    }

    /// Sets a line's rate in both directions, in bits per second.
    pub fn set_rate(&mut self, line: usize, rate: f64) {
        let line = &mut self.lines[line];
        line.rate = rate;
        line.recorded = None;
        line.configure(self.now);
    }

    /// Plays a recording as a line's rate towards the client from now on; the other way has its mean.
    pub fn play(&mut self, line: usize, recording: &Arc<Trace>) {
        let line = &mut self.lines[line];
        line.rate = recording.mean().bits_per_sec() as f64;
        line.recorded = Some(Arc::clone(recording));
        line.configure(self.now);
    }

    /// Sets a line's loss at random towards the client.
    pub fn set_loss(&mut self, line: usize, loss: Share) {
        self.set_losses(line, [loss, Share::NONE]);
    }

    /// Sets whether SYNs go twice by a line.
    pub fn send_twice(&mut self, line: usize, twice: bool) {
        self.lines[line].sends_twice = twice;
    }

    /// Sets a line's losses at random towards the client, and from it.
    pub fn set_losses(&mut self, line: usize, [down, up]: [Share; 2]) {
        let line = &mut self.lines[line];
        line.losses[DOWN] = down;
        line.losses[UP] = up;
        line.configure(self.now);
    }

    /// Has others send datagrams to the client at this rate, in bits per second from the IP header on. To be called
    /// once for a line.
    pub fn start_datagrams(&mut self, line: usize, rate: f64) {
        let interval = Duration::from_secs_f64(f64::from(DATAGRAM) * 8.0 / rate);
        self.lines[line].datagrams = Some(interval);
        self.start(self.now, Timer::Datagram { line });
    }

    /// Returns the bytes of datagrams that have arrived, from the IP header on.
    pub fn datagram_bytes(&self, line: usize) -> u64 {
        self.lines[line].datagram_bytes
    }

    /// Returns the round trip that data shows to a connection's client; `None` before the first.
    pub fn received_rtt(&self, flow: usize) -> Option<Duration> {
        let shown = self.flows[flow].client.echo_rtt;
        shown.map(|ms| Duration::from_secs_f64(ms / 1e3))
    }

    /// Returns the round trip that acknowledgements show to a connection's server; `None` before the first.
    pub fn sent_rtt(&self, flow: usize) -> Option<Duration> {
        self.flows[flow].server.srtt
    }

    /// Returns the bytes of acknowledged segments, from the IP header on, if all are full.
    pub fn delivered_bytes(&self, flow: usize) -> u64 {
        self.flows[flow].server.delivered * (SEGMENT + u64::from(HEADERS))
    }

    /// Sets the host's timer.
    pub fn set_timer(&mut self, at: Time) {
        self.start(at, Timer::Host);
    }

    /// Begins a connection `after` some time; an event tells when its SYN is due.
    pub fn connect(&mut self, after: Duration) -> usize {
        let flow = self.flows.len();
        self.flows.push(Flow::default());
        self.start(self.now + after, Timer::Syn { flow, before: 0 });
        flow
    }

    /// Sends a connection's SYN by these lines. The first answer opens it, or that of `preferred`.
    pub fn send_syn(&mut self, flow: usize, lines: &[usize], preferred: Option<usize>) {
        let state = &mut self.flows[flow];
        state.preferred = preferred;
        state.syns += 1;
        state.syn_at = self.now;
        let wait = SYN_TIMEOUT * 2_u32.pow((state.syns - 1).min(6));
        let before = state.syns;
        for line in lines {
            let copies = 1 + u32::from(self.lines[*line].sends_twice);
            for copy in 0..copies {
                let repeated = before > 1 || copy > 0;
                let body = Body::Syn { number: before };
                self.send_up(flow, *line, HEADERS, body, false, repeated);
            }
        }
        self.start(self.now + wait, Timer::Syn { flow, before });
    }

    /// Requests an object by an open connection.
    pub fn request(&mut self, flow: usize, bytes: u64) {
        let client = &mut self.flows[flow].client;
        client.requests += 1;
        client.bytes = bytes;
        client.end += bytes.div_ceil(SEGMENT) as usize;
        client.received.resize(client.end, false);
        let timeout = client.rtt + MIN_TIMEOUT;
        client.again = Some((self.now + timeout, timeout));
        self.start(self.now + timeout, Timer::Client(flow));
        self.send_request(flow, false);
    }

    /// Closes a connection.
    pub fn close(&mut self, flow: usize) {
        self.flows[flow] = Flow {
            line: self.flows[flow].line,
            closed: true,
            ..Flow::default()
        };
    }

    /// Returns the next event, up to which the time goes on.
    pub fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            let timer = self.timers.peek().map(|Reverse((at, _, _))| *at);
            let links = self.lines.iter().flat_map(|line| &line.links);
            let link = links.filter_map(Link::poll_timeout).min();
            let at = timer
                .into_iter()
                .chain(link)
                .min()
                .expect("the host has a timer");
            self.now = self.now.max(at);
            if link == Some(at) {
                self.poll_links();
                continue;
            }
            let Some(Reverse((_, _, timer))) = self.timers.pop() else {
                continue;
            };
            self.handle_timer(timer);
        }
    }

    fn start(&mut self, at: Time, timer: Timer) {
        self.order += 1;
        self.timers.push(Reverse((at, self.order, timer)));
    }

    fn poll_links(&mut self) {
        for line in 0..self.lines.len() {
            for way in [DOWN, UP] {
                while let Some(output) = self.lines[line].links[way].poll_output(self.now) {
                    if output.fate == Fate::Delivered {
                        self.deliver(line, output.packet, output.len - ETHERNET);
                    }
                }
            }
        }
    }

    fn handle_timer(&mut self, timer: Timer) {
        let now = self.now;
        match timer {
            Timer::Host => self.events.push_back(Event::Timer),
            Timer::Syn { flow, before } => {
                let state = &self.flows[flow];
                if !state.closed && state.line.is_none() && state.syns == before {
                    self.events.push_back(Event::SynDue { flow, before });
                }
            }
            Timer::Client(flow) => {
                let client = &mut self.flows[flow].client;
                if let Some((at, timeout)) = client.again {
                    if at <= now {
                        client.again = Some((now + 2 * timeout, 2 * timeout));
                        self.start(now + 2 * timeout, Timer::Client(flow));
                        self.send_request(flow, true);
                    } else {
                        self.start(at, Timer::Client(flow));
                    }
                }
            }
            Timer::Datagram { line } => {
                let (flow, body) = (usize::MAX, Body::Datagram);
                let packet = Packet { flow, body };
                let of = &mut self.lines[line];
                of.links[DOWN].handle_packet(now, DATAGRAM + ETHERNET, packet);
                if let Some(interval) = of.datagrams {
                    self.start(now + interval, timer);
                }
            }
            Timer::Server(flow) => {
                let server = &mut self.flows[flow].server;
                server.armed = false;
                if server.deadline.is_some_and(|at| at <= now) {
                    if let Some(segment) = server.expire(now) {
                        self.send_data(flow, segment);
                    }
                    self.send_segments(flow);
                }
                self.arm_server(flow);
            }
        }
    }

    /// Has the servers of a line's flows take one doubling of their timeouts back (RFC 6069, section 4).
    pub fn indicate_disruption(&mut self, line: usize) {
        for flow in 0..self.flows.len() {
            let state = &mut self.flows[flow];
            if state.closed || state.line != Some(line) || state.server.backoff == 0 {
                continue;
            }
            let server = &mut state.server;
            let doubled = server.timeout();
            server.backoff -= 1;
            let less = doubled - server.timeout();
            let left = server.deadline.map(|at| at.since(self.now));
            server.deadline = left.map(|left| self.now + left.saturating_sub(less));
            // A timer that ends later than the deadline finds none any more.
            server.armed = false;
            self.arm_server(flow);
        }
    }

    fn arm_server(&mut self, flow: usize) {
        let server = &mut self.flows[flow].server;
        if let Some(at) = server.deadline.filter(|_| !server.armed) {
            server.armed = true;
            self.start(at, Timer::Server(flow));
        }
    }

    fn stamp(&mut self, flow: usize) -> u64 {
        let now = self.now;
        let client = &mut self.flows[flow].client;
        client.packets += 1;
        let stamp = now.as_nanos() / 1_000_000;
        if client
            .stamp
            .is_none_or(|(_, at, _)| now.since(at) > Duration::from_secs(2))
        {
            client.stamp = Some((stamp, now, client.packets));
        }
        stamp
    }

    fn send_request(&mut self, flow: usize, repeated: bool) {
        let stamp = self.stamp(flow);
        let state = &self.flows[flow];
        let body = Body::Request {
            number: state.client.requests,
            bytes: state.client.bytes,
            below: state.client.below,
            stamp,
        };
        let line = state.line.expect("open");
        self.send_up(flow, line, HEADERS + REQUEST, body, true, repeated);
    }

    fn send_up(
        &mut self,
        flow: usize,
        line: usize,
        bytes: u32,
        body: Body,
        data: bool,
        repeated: bool,
    ) {
        let packet = Packet { flow, body };
        self.lines[line].links[UP].handle_packet(self.now, bytes + ETHERNET, packet);
        self.events.push_back(Event::Sent {
            flow,
            line,
            bytes,
            data,
            repeated,
        });
    }

    fn send_segments(&mut self, flow: usize) {
        while let Some(segment) = self.flows[flow].server.next(self.now) {
            self.send_data(flow, segment);
        }
        self.arm_server(flow);
    }

    fn send_data(&mut self, flow: usize, segment: usize) {
        let state = &self.flows[flow];
        let len = state.server.lens[segment] + HEADERS + ETHERNET;
        let body = Body::Data {
            segment,
            echo: state.server.echo,
        };
        let line = state.line.expect("open");
        let packet = Packet { flow, body };
        self.lines[line].links[DOWN].handle_packet(self.now, len, packet);
    }

    fn deliver(&mut self, line: usize, packet: Packet, bytes: u32) {
        let (now, flow) = (self.now, packet.flow);
        if let Body::Datagram = packet.body {
            self.lines[line].datagram_bytes += u64::from(bytes);
            return;
        }
        let state = &mut self.flows[flow];
        if state.closed {
            return;
        }
        match packet.body {
            Body::Syn { number } => {
                let packet = Packet {
                    flow,
                    body: Body::SynAck { number },
                };
                self.lines[line].links[DOWN].handle_packet(now, HEADERS + ETHERNET, packet);
            }
            Body::SynAck { number } => {
                let is_known =
                    number == state.syns && number <= 2 && !state.answered.contains(&line);
                let rtt = is_known.then(|| now.since(state.syn_at));
                state.answered.push(line);
                let opens = state.line.is_none() && state.preferred.is_none_or(|id| id == line);
                if opens {
                    state.line = Some(line);
                    state.client.rtt = now.since(state.syn_at);
                    state.server.window = FIRST_WINDOW;
                    state.server.growth = self.window_growth;
                    state.server.threshold = f64::INFINITY;
                }
                self.events.push_back(Event::SynAnswered {
                    flow,
                    line,
                    rtt,
                    opens,
                });
            }
            Body::Request {
                number,
                bytes,
                below,
                stamp,
            } => {
                let server = &mut state.server;
                server.echo = server.echo.max(stamp);
                server.acknowledge(now, below, Blocks::default());
                if number == server.requests + 1 {
                    server.requests = number;
                    let mut left = bytes;
                    while left > 0 {
                        let len = left.min(SEGMENT);
                        server.lens.push(len as u32);
                        server.segments.push(Segment::Waiting);
                        left -= len;
                    }
                    self.send_segments(flow);
                }
            }
            Body::Ack {
                below,
                blocks,
                stamp,
            } => {
                state.server.echo = state.server.echo.max(stamp);
                state.server.acknowledge(now, below, blocks);
                self.send_segments(flow);
            }
            Body::Data { segment, echo } => self.receive(flow, line, segment, echo, bytes),
            // Counted above.
            Body::Datagram => {}
        }
    }

    fn receive(&mut self, flow: usize, line: usize, segment: usize, echo: u64, bytes: u32) {
        let now = self.now;
        let silence = now.since(std::mem::replace(&mut self.lines[line].heard, now));
        let client = &mut self.flows[flow].client;
        client.again = None;
        client.packets += 1;
        client.note_echo(now, echo);
        let gap = segment > client.highest;
        client.highest = client.highest.max(segment + 1);
        let mut round_trip = None;
        if let Some((stamp, at, packets)) = client.stamp {
            if echo >= stamp {
                client.stamp = None;
            }
            if echo == stamp {
                let rtt = now.since(at);
                let least = client.min_rtt.map_or(rtt, |least| least.min(rtt));
                client.min_rtt = Some(least);
                if client.packets - packets >= 6 {
                    round_trip = Some(RoundTrip {
                        growth: rtt - least,
                        silence,
                    });
                }
            }
        }
        client.received[segment] = true;
        let before = client.below;
        while client.received.get(client.below) == Some(&true) {
            client.below += 1;
        }
        let (below, blocks) = (client.below, client.blocks(segment));
        let done = before < client.end && below == client.end;
        self.events.push_back(Event::Received {
            flow,
            line,
            bytes,
            gap,
            round_trip,
        });
        let stamp = self.stamp(flow);
        let body = Body::Ack {
            below,
            blocks,
            stamp,
        };
        self.send_up(flow, line, HEADERS, body, false, false);
        if done {
            self.events.push_back(Event::Done { flow });
        }
    }
}

fn config(rate: f64, delay: Duration, queue: Duration) -> Config {
    Config {
        speed: Speed::Fixed(Rate::from_bits_per_sec(rate as u64)),
        delay: Delay {
            base: delay,
            ..Delay::default()
        },
        queue: Limit::Time(queue),
        ..Config::default()
    }
}
