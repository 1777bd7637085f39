//! Page loads over two lines in virtual time, by each policy: on the walk of [host] Fig. 15 (§6.1) and on two steady
//! lines. Seconds of computing judge what takes hours of packets.
//!
//! The lines, TCP and the browser are models. The estimates, the detection of stalls and the predictions are the
//! product's; the averages of `Loads` and the counts of the datapath's `forecasts` are repeated here.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::app_limited::{AppLimitedFlows, FlowTotal, LineState, MIN_AGE};
use braid_core::capacity::{StallInterval, StallMonitor, UplinkCapacity, UplinkInterval};
use braid_core::forecast::{
    FULL_DIVISOR, PacketCounts, PathStats, UplinkLoad, UplinkLosses, in_turn, kilobytes_per_sec,
    ppm,
};
use braid_core::{Bytes, Rate, Share, Time, UplinkId};

use crate::support::Noise;
use crate::support::network::{Event, LineSpec, Network, RoundTrips};

const MBIT: f64 = 1e6;
const TICK: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(350);
const TIMEOUT: Duration = Duration::from_secs(40);
/// Objects of a page by host, and of a small one.
const OBJECTS: [usize; 8] = [34, 20, 12, 9, 7, 5, 4, 3];
const FEW_OBJECTS: [usize; 8] = [10, 6, 3, 2, 2, 1, 1, 1];
/// Those of a page over HTTP/3, which has one connection to each of its hosts.
const HTTP3_OBJECTS: [usize; 20] = [10, 5, 4, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
const GAP: f64 = 0.05;
const LOAD_AVERAGING_S: f64 = 2.0;
const MEMORY: Duration = Duration::from_secs(120);
const SEGMENT: Duration = Duration::from_secs(2);
/// Playing time that a player keeps ahead at most, as dash.js 5 does.
const FULL_BUFFER: Duration = Duration::from_secs(30);
/// Playing time ahead from which it chooses the quality by that alone, as dash.js 5 does.
const STABLE_BUFFER: Duration = Duration::from_secs(18);
const QUALITIES: [f64; 3] = [0.4e6, 0.7e6, 1.0e6];
const RTT_RISE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Policy {
    Only(usize),
    Rr,
    True,
    Wrr,
    Fastest,
}

#[derive(Default)]
struct Counters {
    tx: u64,
    rx: u64,
    tx_packets: u64,
    rx_packets: u64,
    repeats: u64,
}

#[derive(Default)]
struct Path {
    rtt: Option<(Time, Duration)>,
    /// End of the time for which a SYN that was left unanswered counts.
    silent: Option<Time>,
    packets: u32,
    lost: u32,
}

struct Uplink {
    interval: Counters,
    round_trips: RoundTrips,
    second: (u64, u64),
    capacity: UplinkCapacity,
    stalls: StallMonitor,
    used: Option<f64>,
    known: Option<f64>,
    load: UplinkLoad,
    active: u32,
    tick: u32,
    path: Path,
    losses: UplinkLosses,
    /// Packets of the last second, and those lost.
    lately: PacketCounts,
    queued: bool,
    credit: f64,
    share: f64,
}

struct Conn {
    host: usize,
    line: Option<usize>,
    opened: Time,
    open: bool,
    seen: u32,
    lost: u32,
    tick: Option<u32>,
    bytes: u64,
}

/// A player as dash.js is: with little ahead it asks for the best quality that the last segments had the rate for, with more for
/// the one that BOLA finds (Spiteri, Urgaonkar and Sitaraman, INFOCOM 2016).
#[derive(Default)]
struct Video {
    flow: usize,
    /// Time of the request for the segment under way, and its bytes.
    asked: Option<(Time, u64)>,
    plays_until: Time,
    /// Rates of the last segments, in bits per second.
    rates: VecDeque<f64>,
    by_buffer: bool,
    /// True once it had as much ahead as it wants.
    full: bool,
    stalled: Duration,
}

impl Video {
    fn quality(&mut self, ahead: Duration) -> f64 {
        let least = if self.by_buffer {
            STABLE_BUFFER / 2
        } else {
            STABLE_BUFFER
        };
        self.by_buffer = ahead > least;
        if self.by_buffer {
            return bola(ahead.as_secs_f64());
        }
        let mean = self.rates.iter().sum::<f64>() / self.rates.len().max(1) as f64;
        let fits = |quality: &&f64| **quality <= 0.9 * mean;
        *QUALITIES.iter().rev().find(fits).unwrap_or(&QUALITIES[0])
    }
}

/// Returns the quality of the highest utility for its size, with so many seconds ahead.
fn bola(ahead: f64) -> f64 {
    let utility = |quality: f64| 1.0 + (quality / QUALITIES[0]).ln();
    let gain = (utility(QUALITIES[2]) - 1.0) / (STABLE_BUFFER.as_secs_f64() / 10.0 - 1.0);
    let score = |quality: &f64| (10.0 / gain * (utility(*quality) + gain) - ahead) / quality;
    *QUALITIES
        .iter()
        .max_by(|one, other| score(one).total_cmp(&score(other)))
        .expect("there are qualities")
}

struct Browser {
    policy: Policy,
    network: Network,
    uplinks: Vec<Uplink>,
    conns: Vec<Conn>,
    queues: Vec<VecDeque<u64>>,
    left: usize,
    began: Time,
    origin: Option<usize>,
    seconds: Vec<f64>,
    page: u64,
    noise: Noise,
    peak: f64,
    ticks: u64,
    idle_until: Option<Time>,
    over: bool,
    rates: Vec<f64>,
    turn: usize,
    seed: u64,
    objects: &'static [usize],
    /// Connections to each host at most.
    connections: usize,
    app_limited: AppLimitedFlows<usize>,
    /// True if SYNs go twice by lines that lose packets.
    copies: bool,
    video: Option<Video>,
}

/// Normal numbers of a page, whatever the policy.
fn page(objects: &[usize], seed: u64, number: u64) -> Vec<VecDeque<u64>> {
    let mut noise = Noise(seed.wrapping_mul(7_919) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for _ in 0..16 {
        noise.next();
    }
    let mut hosts: Vec<VecDeque<u64>> = objects
        .iter()
        .map(|count| {
            (0..*count)
                .map(|_| ((30_000.0 * (1.3 * noise.normal()).exp()) as u64).clamp(200, 5_000_000))
                .collect()
        })
        .collect();
    hosts[0][0] = 60_000;
    hosts
}

impl Browser {
    fn new(policy: Policy, specs: &[LineSpec], seed: u64) -> Browser {
        let mut network = Network::new(specs);
        network.set_timer(Time::ZERO + TICK);
        Browser {
            policy,
            network,
            uplinks: specs
                .iter()
                .map(|_| Uplink {
                    interval: Counters::default(),
                    round_trips: RoundTrips::default(),
                    second: (0, 0),
                    capacity: UplinkCapacity::default(),
                    stalls: StallMonitor::default(),
                    used: None,
                    known: None,
                    load: UplinkLoad::default(),
                    active: 0,
                    tick: 0,
                    path: Path::default(),
                    losses: UplinkLosses::default(),
                    lately: PacketCounts::default(),
                    queued: false,
                    credit: 0.0,
                    share: 0.5,
                })
                .collect(),
            conns: Vec::new(),
            queues: Vec::new(),
            left: 0,
            began: Time::ZERO,
            origin: None,
            seconds: Vec::new(),
            page: 0,
            noise: Noise(seed.wrapping_add(99)),
            peak: 0.0,
            ticks: 0,
            idle_until: Some(Time::ZERO),
            over: false,
            rates: vec![50.0; specs.len()],
            turn: 0,
            seed,
            objects: &OBJECTS,
            connections: 6,
            app_limited: AppLimitedFlows::default(),
            copies: true,
            video: None,
        }
    }

    fn set(&mut self, line: usize, mbit: f64) {
        self.rates[line] = mbit;
        self.network.set_rate(line, mbit * MBIT);
    }

    /// Runs until a time, or until the page that is under way has ended.
    fn run_until(&mut self, until: Time) {
        loop {
            if self.over && self.left == 0 && self.origin.is_none() {
                return;
            }
            if self.network.now >= until && !self.over {
                return;
            }
            match self.network.next() {
                Event::Timer => self.tick(),
                event => self.handle(event),
            }
        }
    }

    fn start_video(&mut self) {
        let flow = self.connect(0, Duration::ZERO);
        self.video = Some(Video {
            flow,
            ..Video::default()
        });
    }

    fn video_bytes(&self) -> u64 {
        self.conns[self.video.as_ref().expect("a video").flow].bytes
    }

    /// Asks for the next segment if there is room for it.
    fn fetch_segment(&mut self) {
        let now = self.network.now;
        let Some(video) = self.video.as_mut().filter(|video| video.asked.is_none()) else {
            return;
        };
        let ahead = video.plays_until.since(now);
        video.full |= ahead >= FULL_BUFFER;
        if ahead >= FULL_BUFFER || self.conns[video.flow].line.is_none() {
            return;
        }
        let bytes = (video.quality(ahead) * SEGMENT.as_secs_f64() / 8.0) as u64;
        video.asked = Some((now, bytes));
        self.network.request(video.flow, bytes);
    }

    fn segment_arrived(&mut self) {
        let now = self.network.now;
        let video = self.video.as_mut().expect("a video");
        let Some((asked, bytes)) = video.asked.take() else {
            return;
        };
        if !video.rates.is_empty() {
            video.stalled += now.since(video.plays_until);
        }
        let rate = bytes as f64 * 8.0 / now.since(asked).as_secs_f64();
        video.rates.push_back(rate);
        if video.rates.len() > 4 {
            video.rates.pop_front();
        }
        video.plays_until = video.plays_until.max(now) + SEGMENT;
    }

    fn start_page(&mut self) {
        self.idle_until = None;
        self.queues = page(self.objects, self.seed, self.page);
        self.page += 1;
        self.began = self.network.now;
        let flow = self.connect(0, Duration::ZERO);
        self.origin = Some(flow);
        self.left = 1;
    }

    /// Takes what an earlier path cache holds of a line.
    fn remember(&mut self, line: usize, earlier: PacketCounts) {
        let uplink = &mut self.uplinks[line];
        uplink.path.packets = u32::try_from(earlier.packets).expect("some thousands");
        uplink.path.lost = u32::try_from(earlier.lost).expect("fewer");
        uplink.losses.note_earlier(earlier);
        uplink.load.load_loss_ppm = ppm(uplink.losses.load_share());
    }

    fn connect(&mut self, host: usize, after: Duration) -> usize {
        let flow = self.network.connect(after);
        assert_eq!(flow, self.conns.len());
        self.conns.push(Conn {
            host,
            line: None,
            opened: self.network.now + after,
            open: true,
            seen: 0,
            lost: 0,
            tick: None,
            bytes: 0,
        });
        flow
    }

    fn end_page(&mut self) {
        let now = self.network.now;
        let took = now.since(self.began).as_secs_f64();
        self.seconds.push(took);
        self.left = 0;
        self.origin = None;
        self.idle_until = Some(now + PAUSE);
    }

    fn close(&mut self, flow: usize) {
        self.flush(flow);
        let conn = &mut self.conns[flow];
        conn.open = false;
        if let Some(line) = conn
            .line
            .filter(|_| self.network.now.since(conn.opened) < Duration::from_secs(2))
        {
            let uplink = &mut self.uplinks[line];
            uplink.load.opened = uplink.load.opened.saturating_sub(1);
        }
        if let (Some(line), Some(tick)) = (conn.line, conn.tick) {
            let uplink = &mut self.uplinks[line];
            if tick == uplink.tick {
                uplink.active = uplink.active.saturating_sub(1);
                uplink.load.busy = uplink.load.busy.saturating_sub(1);
            } else if tick + 1 == uplink.tick {
                uplink.load.busy = uplink.load.busy.saturating_sub(1);
            }
        }
        self.network.close(flow);
        self.left -= 1;
        if self.left == 0 {
            self.end_page();
        }
    }

    /// Adds what a connection has seen to its path.
    fn flush(&mut self, flow: usize) {
        let conn = &mut self.conns[flow];
        let Some(line) = conn.line else { return };
        let uplink = &mut self.uplinks[line];
        let seen = std::mem::take(&mut conn.seen);
        let lost = std::mem::take(&mut conn.lost);
        uplink.path.packets += seen;
        uplink.path.lost += lost;
        uplink.lately.packets += u64::from(seen);
        uplink.lately.lost += u64::from(lost);
        if uplink.path.packets >= 32_768 {
            uplink.path.packets /= 2;
            uplink.path.lost /= 2;
        }
        if seen >= 64 && conn.tick != Some(uplink.tick) {
            uplink.active += 1;
            conn.tick = Some(uplink.tick);
        }
    }

    fn next_object(&mut self, flow: usize) {
        if self.video.as_ref().is_some_and(|video| video.flow == flow) {
            self.segment_arrived();
            self.fetch_segment();
            return;
        }
        let host = self.conns[flow].host;
        match self.queues[host].pop_front() {
            Some(bytes) => self.network.request(flow, bytes),
            None => self.close(flow),
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.network.now;
        match event {
            Event::SynDue { flow, before } => self.place(flow, before > 0),
            Event::SynAnswered {
                flow,
                line,
                rtt,
                opens,
            } => {
                if let Some(rtt) = rtt {
                    let path = &mut self.uplinks[line].path;
                    path.silent = None;
                    let known = path
                        .rtt
                        .filter(|(at, old)| *old < rtt && now.since(*at) <= MEMORY);
                    path.rtt = Some(match known {
                        Some((at, old)) if now.since(at) >= RTT_RISE => (now, (3 * old + rtt) / 4),
                        Some(known) => known,
                        None => (now, rtt),
                    });
                }
                if !opens || !self.conns[flow].open {
                    return;
                }
                if self.conns[flow].line.is_none() {
                    self.count_opened(line);
                }
                self.conns[flow].line = Some(line);
                self.next_object(flow);
            }
            Event::Sent {
                flow,
                line,
                bytes,
                data,
                repeated,
            } => {
                let counters = &mut self.uplinks[line].interval;
                counters.tx += u64::from(bytes);
                counters.tx_packets += 1;
                if data {
                    self.conns[flow].seen += 1;
                    if repeated {
                        self.uplinks[line].interval.repeats += 1;
                        self.conns[flow].lost += 1;
                    }
                }
            }
            Event::Received {
                flow,
                line,
                bytes,
                gap,
                round_trip,
            } => {
                let uplink = &mut self.uplinks[line];
                let counters = &mut uplink.interval;
                counters.rx += u64::from(bytes);
                counters.rx_packets += 1;
                if let Some(round_trip) = round_trip {
                    uplink.round_trips.note(self.network.now, round_trip);
                }
                let conn = &mut self.conns[flow];
                conn.seen += 1;
                conn.lost += u32::from(gap);
                conn.bytes += u64::from(bytes);
                if conn.seen >= 64 {
                    self.flush(flow);
                }
            }
            Event::Done { flow } => {
                if !self.conns[flow].open {
                    return;
                }
                if self.origin == Some(flow) {
                    self.origin = None;
                    let mut after = Duration::ZERO;
                    for host in 0..self.queues.len() {
                        let wanted = self.queues[host].len() + usize::from(host == 0);
                        let connections = wanted.min(self.connections);
                        for slot in 0..connections {
                            if host == 0 && slot == 0 {
                                continue;
                            }
                            after += Duration::from_micros(150);
                            self.connect(host, after);
                            self.left += 1;
                        }
                    }
                }
                self.next_object(flow);
            }
            Event::Timer => {}
        }
    }

    fn place(&mut self, flow: usize, again: bool) {
        let now = self.network.now;
        if !self.conns[flow].open {
            return;
        }
        let all: Vec<usize> = (0..self.uplinks.len()).collect();
        let line = match self.policy {
            Policy::Only(line) => line,
            _ if again && self.policy != Policy::Fastest => self.conns[flow].line.expect("placed"),
            Policy::Rr => {
                self.turn += 1;
                (self.turn - 1) % self.uplinks.len()
            }
            Policy::True | Policy::Wrr => {
                for uplink in &mut self.uplinks {
                    uplink.credit += uplink.share;
                }
                let best = (0..self.uplinks.len())
                    .max_by(|a, b| self.uplinks[*a].credit.total_cmp(&self.uplinks[*b].credit))
                    .unwrap();
                self.uplinks[best].credit -= 1.0;
                best
            }
            Policy::Fastest => {
                if again {
                    if let Some(line) = self.conns[flow].line.take() {
                        self.uplinks[line].path.silent = Some(now + Duration::from_secs(30));
                    }
                    self.network.send_syn(flow, &all, None);
                    return;
                }
                let fresh = |uplink: &Uplink| {
                    uplink.path.silent.is_some_and(|until| until > now)
                        || uplink
                            .path
                            .rtt
                            .is_some_and(|(at, _)| now.since(at) <= MEMORY)
                };
                if !self.uplinks.iter().all(fresh) {
                    self.network.send_syn(flow, &all, None);
                    return;
                }
                let best = self.best();
                if self.noise.next() < 1.0 / 16.0 {
                    self.conns[flow].line = Some(best);
                    self.count_opened(best);
                    self.network.send_syn(flow, &all, Some(best));
                    return;
                }
                best
            }
        };
        if !again {
            self.count_opened(line);
        }
        self.conns[flow].line = Some(line);
        self.network.send_syn(flow, &[line], None);
    }

    /// Returns the line that the path cache chooses.
    fn best(&self) -> usize {
        let candidate = |line| (self.score(line), self.uplinks[line].load.last_opened);
        let candidates: Vec<(u128, u64)> = (0..self.uplinks.len()).map(candidate).collect();
        in_turn(&candidates).expect("there are lines")
    }

    fn count_opened(&mut self, line: usize) {
        let load = &mut self.uplinks[line].load;
        load.opened += 1;
        load.last_opened = self.network.now.as_nanos();
    }

    fn score(&self, line: usize) -> u128 {
        let uplink = &self.uplinks[line];
        let now = self.network.now;
        let silent = uplink.path.silent.is_some_and(|until| until > now);
        let rtt = match silent {
            true => Duration::from_secs(2),
            false => uplink.path.rtt.unwrap().1,
        };
        let path = PathStats {
            rtt,
            packets: uplink.path.packets,
            lost: uplink.path.lost,
        };
        uplink.load.predict(&path).score()
    }

    fn tick(&mut self) {
        let now = self.network.now;
        self.network.set_timer(now + TICK);
        self.ticks += 1;
        let mut stalled = false;
        for uplink in &mut self.uplinks {
            let counters = std::mem::take(&mut uplink.interval);
            uplink.second.0 += counters.tx;
            uplink.second.1 += counters.rx;
            let repeated =
                counters.repeats * counters.tx.checked_div(counters.tx_packets).unwrap_or(0);
            let round_trips = uplink.round_trips.take();
            uplink.capacity.note(&UplinkInterval {
                end: now,
                span: TICK,
                tx: Bytes::new(counters.tx),
                rx: Bytes::new(counters.rx),
                repeated: Bytes::new(repeated),
                queueing: round_trips.growth(),
                queued: round_trips.queued,
                unseen: round_trips.unseen(now),
            });
            let sent = counters.tx.saturating_sub(repeated);
            let queue = uplink.capacity.queueing().unwrap_or_default() >= Duration::from_millis(4);
            uplink.queued |= queue;
            stalled |= uplink.stalls.note(&StallInterval {
                end: now,
                span: TICK,
                carried: Bytes::new(sent.max(counters.rx)),
                rx_packets: counters.rx_packets,
                rx: Bytes::new(counters.rx),
                repeats: counters.repeats,
                queue,
                capacity: uplink.capacity.rx(now).map(|found| found.rate),
            });
        }
        let second = self.ticks.is_multiple_of(5);
        if second || stalled {
            self.follow(second);
        }
        for (line, uplink) in self.uplinks.iter().enumerate() {
            if second && uplink.stalls.disruption(now).is_some() {
                self.network.indicate_disruption(line);
            }
        }
        if self.idle_until.is_some_and(|at| at <= now && !self.over) {
            self.start_page();
        }
        self.fetch_segment();
        if self.left > 0 && now.since(self.began) > TIMEOUT {
            let video = self.video.as_ref().map(|video| video.flow);
            let open: Vec<usize> = (0..self.conns.len())
                .filter(|flow| self.conns[*flow].open && Some(*flow) != video)
                .collect();
            for flow in open {
                self.close(flow);
            }
        }
    }

    fn follow(&mut self, second: bool) {
        let seconds = if second { 1.0 } else { 0.4 };
        let now = self.network.now;
        let rates: Vec<f64> = self
            .uplinks
            .iter()
            .map(|uplink| uplink.second.0.max(uplink.second.1) as f64 * 8.0)
            .collect();
        let assumed: Vec<Option<f64>> = self
            .uplinks
            .iter()
            .map(|uplink| uplink.capacity.assumed(now))
            .map(|rate| rate.map(|rate| rate.bits_per_sec() as f64))
            .collect();
        let uplinks = self.uplinks.iter_mut().enumerate();
        for (((line, uplink), rate), assumed) in uplinks.zip(rates).zip(assumed) {
            let kept = (-seconds / LOAD_AVERAGING_S).exp();
            let used = uplink.used.unwrap_or(rate);
            let used = match second {
                true => used * kept + rate * (1.0 - kept),
                false => used,
            };
            uplink.used = Some(used);
            let stall = uplink.stalls.rate().map(|rate| rate.bits_per_sec() as f64);
            uplink.known = assumed.into_iter().chain(stall).reduce(f64::min);
            if second {
                let full = f64::from(u8::from(std::mem::take(&mut uplink.queued)));
                let load = uplink.known.map_or(full, |known| rate / known);
                let counts = std::mem::take(&mut uplink.lately);
                uplink.losses.note(Duration::from_secs(1), counts, load);
                let twice = self.copies && uplink.losses.is_lossy();
                self.network.send_twice(line, twice);
                uplink.load.loss_ppm = ppm(uplink.losses.share());
                uplink.load.load_loss_ppm = ppm(uplink.losses.load_share());
            }
            let least = [uplink.capacity.rx(now), uplink.capacity.tx(now)];
            let least = least.into_iter().flatten().map(|found| found.rate).max();
            let least = least.map_or(0.0, |rate| rate.bits_per_sec() as f64);
            self.peak = self.peak.max(used).max(least);
            if second {
                uplink.second = (0, 0);
            }
        }
        self.peak *= (-seconds / 600.0_f64).exp();
        let peak = self.peak;
        let old = |(_, conn): &(usize, &Conn)| conn.open && now.since(conn.opened) >= MIN_AGE;
        let total = |(flow, conn): (usize, &Conn)| {
            let uplink = UplinkId(u8::try_from(conn.line?).expect("few lines"));
            let bytes = Bytes::new(conn.bytes);
            Some((flow, FlowTotal { uplink, bytes }))
        };
        let totals: Vec<_> = self
            .conns
            .iter()
            .enumerate()
            .filter(old)
            .filter_map(total)
            .collect();
        let line = |id: UplinkId| {
            let uplink = &self.uplinks[id.index()];
            let load = &uplink.load;
            // Of one whose capacity is not known the daemon does not say that it has room.
            match load.capacity == 0 || load.spare < load.capacity / FULL_DIVISOR {
                _ if uplink.stalls.rate().is_some() => LineState::Stalled,
                true => LineState::Full,
                false => LineState::Room,
            }
        };
        self.app_limited.note(now, totals, line);
        for (line, uplink) in (0..).zip(&mut self.uplinks) {
            let capacity = uplink.known.or((peak >= 5e6).then_some(peak));
            let rate = |bits: f64| kilobytes_per_sec(Rate::from_bits_per_sec(bits as u64));
            let reserved = self.app_limited.demand(UplinkId(line)).bits_per_sec() as f64;
            let left = capacity.map(|capacity| capacity - reserved.min(0.75 * capacity));
            uplink.load.capacity = left.map_or(0, rate);
            uplink.load.spare = capacity.map_or(0, |capacity| {
                rate((capacity - uplink.used.unwrap()).max(0.0))
            });
            uplink.load.spare = uplink.load.spare.min(uplink.load.capacity);
            uplink.load.busy = std::mem::take(&mut uplink.active);
            uplink.load.opened /= 2;
            uplink.tick += 1;
        }
        let weights: Vec<f64> = match self.policy {
            Policy::True => self.rates.clone(),
            _ => self
                .uplinks
                .iter()
                .map(|uplink| uplink.known.unwrap_or(peak.max(1e6)))
                .collect(),
        };
        let sum: f64 = weights.iter().sum();
        let changed = self
            .uplinks
            .iter()
            .zip(&weights)
            .any(|(uplink, weight)| (uplink.share - weight / sum).abs() >= 0.05);
        if changed {
            for (uplink, weight) in self.uplinks.iter_mut().zip(&weights) {
                uplink.share = weight / sum;
            }
        }
    }
}

/// The walk of [host] Fig. 15, in Mbit/s: WiFi and LTE.
fn campus(seed: u64, seconds: usize) -> Vec<[f64; 2]> {
    let mut draw = Noise(seed.wrapping_mul(104_729).wrapping_add(17));
    for _ in 0..16 {
        draw.next();
    }
    let indoors = seconds * 120 / 400;
    let (mut level, mut outdoors, mut gap) = (80.0_f64, 12.0_f64, 0_u32);
    (0..seconds)
        .map(|second| {
            if second < indoors {
                level = (level * (0.45 * draw.normal()).exp()).clamp(15.0, 160.0);
                return [level, (5.0 + 1.8 * draw.normal()).clamp(1.0, 9.0)];
            }
            if gap == 0 && draw.next() < 0.06 {
                gap = 2 + (draw.next() * 7.0) as u32;
            }
            outdoors = (outdoors * (12.0 / outdoors).powf(0.15) * (0.4 * draw.normal()).exp())
                .clamp(1.0, 45.0);
            let wifi = if gap > 0 { GAP } else { outdoors };
            gap = gap.saturating_sub(1);
            [wifi, (30.0 + 2.0 * draw.normal()).clamp(22.0, 36.0)]
        })
        .collect()
}

const CAMPUS: [LineSpec; 2] = [
    LineSpec {
        delay_ms: 5,
        queue_ms: 250,
    },
    LineSpec {
        delay_ms: 25,
        queue_ms: 250,
    },
];

fn walk(policy: Policy, seed: u64, seconds: usize) -> Vec<f64> {
    let mut browser = Browser::new(policy, &CAMPUS, seed);
    for (second, rates) in campus(seed, seconds).iter().enumerate() {
        for (line, rate) in rates.iter().enumerate() {
            browser.set(line, *rate);
        }
        if policy == Policy::True {
            let sum: f64 = rates.iter().sum();
            for (uplink, rate) in browser.uplinks.iter_mut().zip(rates) {
                uplink.share = rate / sum;
            }
        }
        browser.run_until(Time::ZERO + Duration::from_secs(second as u64 + 1));
    }
    browser.over = true;
    browser.set(0, 50.0);
    browser.set(1, 50.0);
    browser.run_until(Time::ZERO);
    browser.seconds
}

const DEMO: [LineSpec; 2] = [
    LineSpec {
        delay_ms: 15,
        queue_ms: 250,
    },
    LineSpec {
        delay_ms: 40,
        queue_ms: 250,
    },
];

/// Returns the load times of pages over two lines of so many Mbit/s.
fn steady(browser: &mut Browser, rates: [f64; 2], pages: usize) -> Vec<f64> {
    for (line, rate) in rates.into_iter().enumerate() {
        browser.set(line, rate);
    }
    while browser.seconds.len() < pages {
        let until = browser.network.now + Duration::from_secs(1);
        browser.run_until(until);
    }
    browser.seconds.clone()
}

const SLOW: [LineSpec; 2] = [LineSpec {
    delay_ms: 20,
    queue_ms: 250,
}; 2];

/// Those of `pages/video`.
const LAB: [LineSpec; 2] = [LineSpec {
    delay_ms: 20,
    queue_ms: 1000,
}; 2];

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len() as f64
}

/// Returns the standard deviation of what these are samples of.
fn deviation(of: &[f64]) -> f64 {
    let mean = mean(of);
    let squares: f64 = of.iter().map(|each| (each - mean).powi(2)).sum();
    (squares / (of.len() as f64 - 1.0)).sqrt()
}

/// Returns the mean page load time of each policy over some seeds of the walk, each as much as any other.
fn walks<const POLICIES: usize>(policies: [Policy; POLICIES], seeds: u64) -> [f64; POLICIES] {
    policies.map(|policy| {
        let means: Vec<f64> = (1..=seeds)
            .map(|seed| mean(&walk(policy, seed, 60)))
            .collect();
        mean(&means)
    })
}

/// "`reduction_vs_lte_fastest` at least 0.20"; here all are close to 0.30. "`measured_vs_true` at most 1.02" is a miss:
/// true weights know each second's rates at once, and of a line that was never used.
#[test]
fn pages_load_faster_than_on_the_better_line_alone_while_rates_change() {
    let policies = [Policy::Only(1), Policy::True, Policy::Wrr, Policy::Fastest];
    let [lte, told, weighted, fastest] = walks(policies, 16);
    let of = |mean: f64| mean / lte;
    println!(
        "LTE alone {lte:.2} s; of it wrr with true weights {:.2}, wrr {:.2}, fastest {:.2}",
        of(told),
        of(weighted),
        of(fastest)
    );
    assert!(of(weighted) < 0.70, "{weighted} of {lte}");
    assert!(of(fastest) < 0.66, "{fastest} of {lte}");
}

/// Prints what `balance/dynamic` comes to in full, for each of `BRAID_SEEDS` walks of 400 s, with the mean of
/// `measured_vs_true` (geometric), its deviation from walk to walk, and the standard error.
#[test]
#[ignore = "a survey"]
fn survey_of_whole_walks() {
    let seeds = std::env::var("BRAID_SEEDS").map_or(20, |text| text.parse().expect("a number"));
    let policies = [Policy::Only(1), Policy::True, Policy::Wrr, Policy::Fastest];
    let mut logs: [Vec<f64>; 2] = Default::default();
    for seed in 1..=seeds {
        let [lte, told, weighted, fastest] = policies.map(|policy| mean(&walk(policy, seed, 400)));
        println!(
            "{seed}: LTE alone {lte:.2} s, wrr with true weights {told:.2}, wrr {weighted:.2}, fastest {fastest:.2}"
        );
        for (log, found) in logs.iter_mut().zip([weighted, fastest]) {
            log.push((found / told).ln());
        }
    }
    for (name, log) in ["wrr", "fastest"].iter().zip(&logs) {
        let deviation = deviation(log);
        println!(
            "{name} of wrr with true weights: {:.3}, deviation {deviation:.3}, standard error {:.3}",
            mean(log).exp(),
            deviation / (log.len() as f64).sqrt()
        );
    }
}

/// Returns the mean page load times of `fastest`, of turns and of weights, as shares of those on the second line alone. The
/// path cache begins with what was counted on the first one earlier.
fn of_one_line(
    lines: &[LineSpec; 2],
    rates: [f64; 2],
    objects: &'static [usize],
    earlier: PacketCounts,
) -> [f64; 3] {
    let policies = [Policy::Only(1), Policy::Fastest, Policy::Rr, Policy::Wrr];
    let [alone, others @ ..] = policies.map(|policy| -> Vec<f64> {
        let load = |seed| {
            let mut browser = Browser::new(policy, lines, seed);
            browser.objects = objects;
            browser.remember(0, earlier);
            steady(&mut browser, rates, 20)
        };
        (1..=8).flat_map(load).collect()
    });
    others.map(|found| {
        let pages = found.iter().zip(&alone);
        mean(&pages.map(|(one, alone)| one / alone).collect::<Vec<_>>())
    })
}

/// "`page_load_ratio_fastest` at most that of every other policy in the same run (within 0.02)": on the demo's lines, also
/// after pages that took the nearer line alone, as under `race`, and lost packets there.
#[test]
fn no_policy_loads_a_page_over_two_steady_lines_faster_than_fastest() {
    for lost in [0, 375] {
        let earlier = PacketCounts {
            packets: 15_000,
            lost,
        };
        let [fastest, turns, weighted] = of_one_line(&DEMO, [20.0, 30.0], &OBJECTS, earlier);
        println!(
            "{lost} lost: of LTE alone: fastest {fastest:.3}, rr {turns:.3}, wrr {weighted:.3}"
        );
        assert!(fastest <= turns.min(weighted) + 0.01);
    }
}

/// Mean page load times by some policies over two lines, of which the nearer one loses packets in both directions, as shares of
/// those on the other line alone, and their standard errors.
fn beside_a_lossy_line<const POLICIES: usize>(
    lost: Share,
    copies: bool,
    policies: [Policy; POLICIES],
) -> [(f64, f64); POLICIES] {
    let lines = [15, 30].map(|delay_ms| LineSpec {
        delay_ms,
        queue_ms: 250,
    });
    let taken = |policy| {
        let load = |seed| {
            let mut browser = Browser::new(policy, &lines, seed);
            browser.copies = copies;
            browser.network.set_losses(0, [lost; 2]);
            steady(&mut browser, [25.0, 25.0], 20)
        };
        (1..=32).flat_map(load).collect::<Vec<_>>()
    };
    let alone = mean(&taken(Policy::Only(1)));
    policies.map(|policy| {
        let of_alone: Vec<f64> = taken(policy).iter().map(|s| s / alone).collect();
        let error = deviation(&of_alone) / (of_alone.len() as f64).sqrt();
        (mean(&of_alone), error)
    })
}

#[test]
#[ignore = "minutes"]
fn survey_of_lossy_lines() {
    for permille in [1, 2, 3, 5, 10, 20, 30, 40, 60] {
        for copies in [false, true] {
            let policies = [Policy::Fastest, Policy::Wrr, Policy::Rr];
            let found = beside_a_lossy_line(Share::of(permille, 1_000), copies, policies);
            let found = found.map(|(mean, error)| format!("{mean:.3} ± {error:.3}"));
            let found = found.join(", ");
            println!("{permille} of 1,000 lost, copies {copies}: fastest, wrr, rr {found}");
        }
    }
}

/// A client waits a second for a lost SYN or SYN/ACK.
#[test]
fn a_lost_syn_does_not_hold_a_page_up() {
    let turns = |copies| beside_a_lossy_line(Share::of(3, 100), copies, [Policy::Rr])[0].0;
    let (once, twice) = (turns(false), turns(true));
    println!("rr {once:.3} of the other line alone, {twice:.3} with copies of SYNs");
    assert!(twice < 0.95 * once);
}

/// Losses of 6 % in either direction: each connection over that line may wait for one timeout after the other.
#[test]
fn a_line_that_loses_much_gets_few_of_a_pages_connections() {
    let [(fastest, _)] = beside_a_lossy_line(Share::of(6, 100), true, [Policy::Fastest]);
    println!("fastest {fastest:.3} of the other line alone");
    assert!(fastest < 1.1);
}

/// Small pages over slow lines, as in [host] Fig. 9: the handshakes of a page's connections see a queue that is gone
/// before the next page.
#[test]
fn the_queue_of_one_page_does_not_decide_the_next() {
    let nothing = PacketCounts::default();
    let [fastest, turns, weighted] = of_one_line(&SLOW, [2.0, 2.0], &FEW_OBJECTS, nothing);
    println!("of one line: fastest {fastest:.3}, rr {turns:.3}, wrr {weighted:.3}");
    assert!(fastest <= turns.min(weighted) + 0.02);
}

/// Pages beside a video: their mean load time, the video's throughput over that of a video alone, and the time for which it
/// stood still.
#[derive(Clone, Copy, Debug)]
struct Beside {
    page: f64,
    video: f64,
    stalled: Duration,
}

/// Loads pages one after the other on two slow lines while a video plays, from the moment at which its player has as much
/// ahead as it wants.
fn beside_a_video(
    policy: Policy,
    (objects, connections): (&'static [usize], usize),
    seeds: u64,
) -> Beside {
    let mut pages = Vec::new();
    let (mut carried, mut reference, mut stalled) = (0, 0, Duration::ZERO);
    for seed in 1..=seeds {
        let mut browser = playing(policy, seed);
        (browser.objects, browser.connections) = (objects, connections);
        let before = browser.video_bytes();
        let began = browser.network.now;
        browser.idle_until = Some(began);
        pages.extend(steady(&mut browser, [2.0, 2.0], 20));
        carried += browser.video_bytes() - before;
        stalled += browser.video.as_ref().expect("a video").stalled;
        let took = browser.network.now.since(began);
        let mut browser = playing(Policy::Only(0), seed);
        let before = browser.video_bytes();
        browser.run_until(browser.network.now + took);
        reference += browser.video_bytes() - before;
    }
    Beside {
        page: mean(&pages),
        video: carried as f64 / reference as f64,
        stalled,
    }
}

/// Returns a host whose video has just as much ahead as it wants.
fn playing(policy: Policy, seed: u64) -> Browser {
    let mut browser = Browser::new(policy, &LAB, seed);
    browser.idle_until = None;
    for line in 0..LAB.len() {
        browser.set(line, 2.0);
    }
    browser.start_video();
    while !browser.video.as_ref().expect("a video").full {
        let until = browser.network.now + TICK;
        browser.run_until(until);
    }
    browser
}

/// "Around 22%" and an "increasing video quality" by turns ([host] §5.2.2, Figs. 12 and 13): here at least 0.28, and 0.97 of the
/// throughput of a video alone under `fastest`. Large pages crowd a line for 20 s; with those the second is a miss.
#[test]
fn a_video_keeps_its_line_beside_pages() {
    let small: (&[usize], usize) = (&FEW_OBJECTS, 6);
    let cases = [
        (small, 0.97),
        ((&HTTP3_OBJECTS, 1), 0.97),
        ((&OBJECTS, 6), 0.85),
    ];
    for (objects, least) in cases {
        let policies = [Policy::Only(0), Policy::Rr, Policy::Fastest];
        let [alone, turns, fastest] = policies.map(|policy| beside_a_video(policy, objects, 8));
        let reduction = |found: Beside| 1.0 - found.page / alone.page;
        println!(
            "one line {alone:?}; rr {turns:?}, reduction {:.3}; fastest {fastest:?}, reduction {:.3}",
            reduction(turns),
            reduction(fastest)
        );
        assert!(fastest.video > least, "{fastest:?}");
        assert!(fastest.video >= turns.video && 20 * fastest.stalled <= turns.stalled);
        assert!(reduction(fastest) > 0.28 && reduction(turns) > 0.28);
    }
}
