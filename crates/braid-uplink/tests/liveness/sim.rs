//! A machine with uplinks in virtual time: lines that delay, lose and fall silent, traffic over
//! them, and a lookout that is driven as the daemon drives it. The same seed, the same story.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

use braid_core::UplinkId;
use braid_uplink::liveness::{
    HealthMonitor, MonitoredUplink, ProbeId, ProbeOutcome, ProbeRequest, ProbeResult, Rules,
    Sample, Target, Verdict, VerdictChange,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// Interval at which the daemon reads the counters while something moves.
const TICK: Duration = Duration::from_millis(50);

/// Distribution of delays, as in the lab's emulator; the jitter is its scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scatter {
    /// From nothing to the jitter more.
    Above,
    /// Evenly around the mean, or normally with the jitter as standard deviation.
    Uniform,
    Normal,
    /// Pareto with shape 3 and the jitter as mean: mostly little, now and then much.
    Pareto,
}

impl Scatter {
    fn draw(self, dice: &mut SmallRng) -> f64 {
        let unit: f64 = dice.random();
        match self {
            Scatter::Above => unit,
            Scatter::Uniform => 2.0 * unit - 1.0,
            Scatter::Normal => {
                let radius = (-2.0 * (1.0 - unit).ln()).sqrt();
                let angle = std::f64::consts::TAU * dice.random::<f64>();
                (radius * angle.cos()).clamp(-3.0, 3.0)
            }
            Scatter::Pareto => (2.0 * ((1.0 - unit).powf(-1.0 / 3.0) - 1.0)).min(20.0),
        }
    }
}

/// One uplink's line to the internet.
pub struct Line {
    /// Round trip without jitter.
    pub rtt: Duration,
    /// The scale by which delays scatter, each way, and how they do.
    pub jitter: Duration,
    pub scatter: Scatter,
    /// Share lost, each way.
    pub loss: f64,
    /// Packets do not overtake each other.
    pub in_order: bool,
    /// Nothing gets out, and nothing gets in.
    pub dead_out: bool,
    pub dead_in: bool,
    /// Whoever is asked over HTTP, a portal answers, and nobody else does.
    pub portal: bool,
    /// Targets that do not answer.
    pub silent: BTreeSet<Target>,
    /// From one packet of the host to the next; `None` for no traffic.
    pub traffic: Option<Duration>,
    /// Nobody answers the traffic.
    pub one_way: bool,
    /// The machine does not keep up with what is sent.
    pub local_drops: bool,
    /// It only comes in, as a download does whose acknowledgements do not count.
    pub download: bool,
    latest: [Instant; 2],
    sample: Sample,
    traffic_at: Instant,
    /// Probes that were sent.
    pub probes: u64,
}

impl Line {
    fn new(now: Instant) -> Line {
        Line {
            rtt: 20 * MS,
            jitter: Duration::ZERO,
            scatter: Scatter::Above,
            loss: 0.0,
            in_order: true,
            dead_out: false,
            dead_in: false,
            portal: false,
            silent: BTreeSet::new(),
            traffic: None,
            one_way: false,
            local_drops: false,
            download: false,
            latest: [now; 2],
            sample: Sample::default(),
            traffic_at: now,
            probes: 0,
        }
    }

    pub fn dead(&mut self, dead: bool) {
        (self.dead_out, self.dead_in) = (dead, dead);
    }

    /// When a packet that is sent now arrives; `None` if it does not.
    fn pass(&mut self, now: Instant, inwards: bool, dice: &mut SmallRng) -> Option<Instant> {
        let dead = if inwards { self.dead_in } else { self.dead_out };
        if dead || dice.random_bool(self.loss) {
            return None;
        }
        let scattered = self.jitter.as_secs_f64() * self.scatter.draw(dice);
        let delay = (self.rtt / 2).as_secs_f64() + scattered;
        let arrives = now + Duration::from_secs_f64(delay.max(0.0));
        let latest = &mut self.latest[usize::from(inwards)];
        if !self.in_order {
            return Some(arrives);
        }
        *latest = arrives.max(*latest);
        Some(*latest)
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A packet of the host's flows, or its answer, reaches the other end.
    Flow {
        inwards: bool,
        syn: bool,
        sent: Instant,
    },
    /// A probe reaches its target, or its answer comes back.
    Probe {
        inwards: bool,
        id: u64,
        sent: Instant,
        wrong: bool,
    },
    /// A probe's time is over.
    Over { id: u64 },
}

/// The machine.
pub struct Sim {
    pub now: Instant,
    start: Instant,
    pub monitor: HealthMonitor,
    pub lines: BTreeMap<UplinkId, Line>,
    pub changes: Vec<VerdictChange>,
    /// The daemon does not run until then.
    pub stalled: Instant,
    dice: SmallRng,
    tick_at: Instant,
    under_way: BinaryHeap<Reverse<(Instant, u64, UplinkId, What)>>,
    waiting: Vec<ProbeResult>,
    asked: BTreeMap<u64, ProbeRequest>,
    next: u64,
}

pub fn id(index: u8) -> UplinkId {
    UplinkId(index)
}

pub fn watched(rules: &Rules) -> MonitoredUplink {
    MonitoredUplink {
        v4: true,
        v6: true,
        usable: true,
        self_reported: false,
        rules: rules.clone(),
    }
}

impl Sim {
    /// So many uplinks with lines of 20 ms, watched by these rules.
    pub fn new(seed: u64, uplinks: u8, rules: &Rules) -> Sim {
        let now = Instant::now();
        let mut dice = SmallRng::seed_from_u64(seed);
        let mut sim = Sim {
            now,
            start: now,
            monitor: HealthMonitor::new(now),
            lines: (0..uplinks).map(|i| (id(i), Line::new(now))).collect(),
            changes: Vec::new(),
            stalled: now,
            tick_at: now + TICK.mul_f64(dice.random()),
            dice,
            under_way: BinaryHeap::new(),
            waiting: Vec::new(),
            asked: BTreeMap::new(),
            next: 0,
        };
        let all: Vec<_> = (0..uplinks).map(|i| (id(i), watched(rules))).collect();
        sim.monitor.set_uplinks(now, &all);
        sim.drain();
        sim
    }

    pub fn line(&mut self, index: u8) -> &mut Line {
        self.lines.get_mut(&id(index)).unwrap()
    }

    pub fn verdict(&self, index: u8) -> Verdict {
        self.monitor.snapshot(id(index)).unwrap().verdict
    }

    pub fn deaths(&self) -> usize {
        let deaths = |c: &&VerdictChange| c.to == Verdict::Dead && c.from != Verdict::Dead;
        self.changes.iter().filter(deaths).count()
    }

    pub fn chance(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.dice.random())
    }

    /// Returns the verdicts' changes, one a line.
    pub fn story(&self) -> String {
        let line = |c: &VerdictChange| {
            let at = c.at.duration_since(self.start).as_millis();
            format!(
                "{at} ms: {} {} -> {}: {}\n",
                c.uplink, c.from, c.to, c.evidence
            )
        };
        self.changes.iter().map(line).collect()
    }

    pub fn run(&mut self, time: Duration) {
        self.run_until(self.now + time, |_| false);
    }

    /// Runs until something is the case, at most so long; returns when it was.
    pub fn wait(&mut self, time: Duration, until: impl Fn(&Sim) -> bool) -> Option<Duration> {
        let began = self.now;
        self.run_until(began + time, &until);
        until(self).then(|| self.now.duration_since(began))
    }

    fn run_until(&mut self, end: Instant, until: impl Fn(&Sim) -> bool) {
        let (mut still, mut calls) = (self.now, 0);
        while !until(self) {
            let flow = self.lines.values().filter(|l| l.traffic.is_some());
            let flow = flow.map(|l| l.traffic_at).min();
            let arrival = self.under_way.peek().map(|r| r.0.0);
            let daemon = self
                .monitor
                .poll_timeout()
                .map_or(self.tick_at, |at| at.min(self.tick_at));
            let next = daemon.max(self.stalled);
            let next = [flow, arrival]
                .into_iter()
                .flatten()
                .fold(next, Instant::min);
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            calls = if self.now == still { calls + 1 } else { 0 };
            still = self.now;
            assert!(calls < 2000, "no progress at {:?}", self.now - self.start);
            self.step();
        }
        if !until(self) {
            self.now = end;
        }
    }

    fn step(&mut self) {
        self.send_flows();
        while self.under_way.peek().is_some_and(|r| r.0.0 <= self.now) {
            let Some(Reverse((_, _, uplink, what))) = self.under_way.pop() else {
                break;
            };
            self.arrive(uplink, what);
        }
        if self.now < self.stalled {
            return;
        }
        for answer in std::mem::take(&mut self.waiting) {
            self.monitor.handle_probe(self.now, answer);
            self.drain();
        }
        if self.tick_at <= self.now {
            let samples: Vec<_> = self.lines.iter().map(|(id, l)| (*id, l.sample)).collect();
            self.monitor.handle_traffic(self.now, &samples);
            self.tick_at = self.now + TICK;
            self.drain();
        }
        if self.monitor.poll_timeout().is_some_and(|at| at <= self.now) {
            self.monitor.handle_timeout(self.now);
            self.drain();
        }
    }

    fn send_flows(&mut self) {
        let (now, mut sent) = (self.now, Vec::new());
        for (uplink, line) in &mut self.lines {
            let Some(pause) = line.traffic else {
                line.traffic_at = now;
                continue;
            };
            while line.traffic_at <= now {
                line.traffic_at += pause;
                let takes = self
                    .monitor
                    .snapshot(*uplink)
                    .unwrap()
                    .verdict
                    .takes_new_flows();
                // Light traffic is new connections, which go where new flows may go.
                if line.download {
                    sent.push((*uplink, true));
                } else if takes {
                    line.sample.sent += 1;
                    line.sample.local_drops += u64::from(line.local_drops);
                    line.sample.syns += u64::from(!line.one_way);
                    sent.push((*uplink, false));
                }
            }
        }
        for (uplink, inwards) in sent {
            let what = What::Flow {
                inwards,
                syn: !inwards,
                sent: now,
            };
            self.launch(uplink, inwards, what);
        }
    }

    fn launch(&mut self, uplink: UplinkId, inwards: bool, what: What) {
        let line = self.lines.get_mut(&uplink).unwrap();
        if let Some(at) = line.pass(self.now, inwards, &mut self.dice) {
            self.next += 1;
            self.under_way.push(Reverse((at, self.next, uplink, what)));
        }
    }

    fn arrive(&mut self, uplink: UplinkId, what: What) {
        let line = self.lines.get_mut(&uplink).unwrap();
        match what {
            What::Flow {
                inwards: true,
                syn,
                sent,
            } => {
                line.sample.received += 1;
                line.sample.syn_answers += u64::from(syn);
                line.sample.rtt_samples += u64::from(syn);
                line.sample.rtt_us_sum +=
                    u64::from(syn) * self.now.duration_since(sent).as_micros() as u64;
            }
            What::Flow { syn, sent, .. } if !line.one_way && !line.portal => {
                self.launch(
                    uplink,
                    true,
                    What::Flow {
                        inwards: true,
                        syn,
                        sent,
                    },
                );
            }
            What::Flow { .. } => {}
            What::Probe {
                inwards: true,
                id,
                sent,
                wrong,
            } => {
                let rtt = self.now.duration_since(sent);
                let outcome = if wrong {
                    ProbeOutcome::Wrong {
                        rtt,
                        what: "status 302 instead of 204".into(),
                    }
                } else {
                    ProbeOutcome::Answered { rtt }
                };
                self.answer(id, outcome);
            }
            What::Probe { id, sent, .. } => {
                let Some(order) = self.asked.get(&id) else {
                    return;
                };
                let is_http = matches!(*order.target, Target::Http { .. });
                let answers = if line.portal {
                    is_http
                } else {
                    !line.silent.contains(&order.target)
                };
                if answers {
                    let wrong = line.portal;
                    self.launch(
                        uplink,
                        true,
                        What::Probe {
                            inwards: true,
                            id,
                            sent,
                            wrong,
                        },
                    );
                }
            }
            What::Over { id } => self.answer(id, ProbeOutcome::Silent),
        }
    }

    fn answer(&mut self, id: u64, outcome: ProbeOutcome) {
        if let Some(order) = self.asked.remove(&id) {
            let (uplink, id) = (order.uplink, ProbeId(id));
            self.waiting.push(ProbeResult {
                uplink,
                id,
                outcome,
            });
        }
    }

    /// Does what the lookout asks for.
    pub fn drain(&mut self) {
        while let Some(order) = self.monitor.poll_transmit(self.now) {
            let (uplink, id, sent) = (order.uplink, order.id.0, self.now);
            self.next += 1;
            let over = Reverse((sent + order.timeout, self.next, uplink, What::Over { id }));
            self.under_way.push(over);
            self.asked.insert(id, order);
            self.lines.get_mut(&uplink).unwrap().probes += 1;
            self.launch(
                uplink,
                false,
                What::Probe {
                    inwards: false,
                    id,
                    sent,
                    wrong: false,
                },
            );
        }
        while let Some(change) = self.monitor.poll_event() {
            self.changes.push(change);
        }
    }
}
