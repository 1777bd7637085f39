//! BBR, version 1 (Cardwell and others, *BBR: congestion-based congestion control*, ACM Queue
//! 14(5), 2016), counted in segments: start-up, drain, the cycle of eight gains, and the probe for
//! the lowest round trip.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

const HIGH_GAIN: f64 = 2.885;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const CWND_GAIN: f64 = 2.0;
/// The bandwidth filter's length in round trips.
const ROUNDS: u64 = 10;
/// Window of the lowest round trip, and duration of its probe.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);
const PROBE_RTT: Duration = Duration::from_millis(200);
const LEAST: f64 = 4.0;
/// Acknowledgements that came together enlarge the window: the most of them in five to ten round trips, and no more
/// than come in a tenth of a second (Linux since 5.1).
const AGGREGATION_ROUNDS: u64 = 5;
const MAX_AGGREGATION_S: f64 = 0.1;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Startup,
    Drain,
    ProbeBw { phase: usize, since: Time },
    ProbeRtt { until: Time },
}

/// State of delivery when a segment was sent.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot {
    pub delivered: u64,
    pub at: Time,
}

#[derive(Debug)]
pub struct Bbr {
    mode: Mode,
    delivered: u64,
    delivered_at: Time,
    round: u64,
    round_ends: u64,
    /// Highest rates in segments per second, by round, in falling order.
    rates: VecDeque<(u64, f64)>,
    min_rtt: Duration,
    min_rtt_at: Time,
    full: (f64, u32),
    /// Segments acknowledged since a time, and the most beyond those expected, in this span of rounds and the one
    /// before.
    epoch: (f64, Time),
    extra_acked: [f64; 2],
    extra_since: u64,
    /// When the next segment may go.
    next: Time,
}

impl Bbr {
    pub fn new() -> Bbr {
        Bbr {
            mode: Mode::Startup,
            delivered: 0,
            delivered_at: Time::ZERO,
            round: 0,
            round_ends: 0,
            rates: VecDeque::new(),
            min_rtt: Duration::MAX,
            min_rtt_at: Time::ZERO,
            full: (0.0, 0),
            epoch: (0.0, Time::ZERO),
            extra_acked: [0.0; 2],
            extra_since: 0,
            next: Time::ZERO,
        }
    }

    pub fn snapshot(&mut self, now: Time, idle: bool) -> Snapshot {
        if idle {
            self.delivered_at = now;
        }
        Snapshot {
            delivered: self.delivered,
            at: self.delivered_at,
        }
    }

    fn rate(&self) -> f64 {
        self.rates.front().map_or(0.0, |(_, rate)| *rate)
    }

    fn bdp(&self) -> f64 {
        self.rate() * self.min_rtt.as_secs_f64()
    }

    /// Takes an acknowledgement. `newest` is the state noted when the newest acknowledged segment
    /// was sent, and that time.
    pub fn handle_ack(
        &mut self,
        now: Time,
        rtt: Duration,
        delivered: u32,
        newest: Option<(Snapshot, Time)>,
        pipe: usize,
    ) {
        self.delivered += u64::from(delivered);
        self.delivered_at = now;
        let expired = now.since(self.min_rtt_at) > MIN_RTT_WINDOW;
        if rtt <= self.min_rtt || expired {
            (self.min_rtt, self.min_rtt_at) = (rtt, now);
        }
        let mut new_round = false;
        if let Some((then, sent)) = newest {
            if then.delivered >= self.round_ends {
                self.round_ends = self.delivered;
                self.round += 1;
                new_round = true;
            }
            let span = now.since(then.at).max(sent.since(then.at));
            if span >= self.min_rtt && !span.is_zero() {
                let rate = (self.delivered - then.delivered) as f64 / span.as_secs_f64();
                self.filter(rate);
            }
        }
        self.update_aggregation(now, delivered);
        self.advance(now, new_round, expired, pipe);
    }

    fn update_aggregation(&mut self, now: Time, acked: u32) {
        if self.round >= self.extra_since + AGGREGATION_ROUNDS {
            self.extra_since = self.round;
            self.extra_acked = [0.0, self.extra_acked[0]];
        }
        let (mut count, mut since) = self.epoch;
        if count <= self.rate() * now.since(since).as_secs_f64() {
            (count, since) = (0.0, now);
        }
        count += f64::from(acked);
        self.epoch = (count, since);
        let extra = count - self.rate() * now.since(since).as_secs_f64();
        self.extra_acked[0] = self.extra_acked[0].max(extra.min(self.cwnd()));
    }

    fn filter(&mut self, rate: f64) {
        while self.rates.back().is_some_and(|(_, other)| *other <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.round, rate));
        while self
            .rates
            .front()
            .is_some_and(|(round, _)| round + ROUNDS < self.round)
        {
            self.rates.pop_front();
        }
    }

    fn advance(&mut self, now: Time, new_round: bool, expired: bool, pipe: usize) {
        let probe_bw = Mode::ProbeBw {
            phase: 2,
            since: now,
        };
        match self.mode {
            Mode::Startup if new_round => {
                if self.rate() >= 1.25 * self.full.0 {
                    self.full = (self.rate(), 0);
                } else {
                    self.full.1 += 1;
                }
                if self.full.1 >= 3 {
                    self.mode = Mode::Drain;
                }
            }
            Mode::Drain if pipe as f64 <= self.bdp() => self.mode = probe_bw,
            Mode::ProbeBw { phase, since } => {
                let over = now.since(since) >= self.min_rtt;
                let done = match CYCLE[phase] {
                    gain if gain > 1.0 => over && pipe as f64 >= gain * self.bdp(),
                    gain if gain < 1.0 => over || pipe as f64 <= self.bdp(),
                    _ => over,
                };
                if done {
                    self.mode = Mode::ProbeBw {
                        phase: (phase + 1) % CYCLE.len(),
                        since: now,
                    };
                }
                if expired {
                    self.mode = Mode::ProbeRtt {
                        until: now + PROBE_RTT,
                    };
                }
            }
            Mode::ProbeRtt { until } if now >= until => self.mode = probe_bw,
            _ => {}
        }
    }

    fn pacing(&self) -> f64 {
        let gain = match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => 1.0 / HIGH_GAIN,
            Mode::ProbeBw { phase, .. } => CYCLE[phase],
            Mode::ProbeRtt { .. } => 1.0,
        };
        gain * self.rate()
    }

    pub fn cwnd(&self) -> f64 {
        let gain = match self.mode {
            Mode::Startup | Mode::Drain => HIGH_GAIN,
            Mode::ProbeBw { .. } => CWND_GAIN,
            Mode::ProbeRtt { .. } => return LEAST,
        };
        let bdp = self.bdp();
        if bdp <= 0.0 {
            return 10.0;
        }
        let extra = match self.full.1 >= 3 {
            true => self.extra_acked[0]
                .max(self.extra_acked[1])
                .min(self.rate() * MAX_AGGREGATION_S),
            false => 0.0,
        };
        (gain * bdp + extra + 3.0).max(if gain > 2.0 { 10.0 } else { LEAST })
    }

    pub fn is_ready(&self, now: Time) -> bool {
        self.next <= now
    }

    pub fn ready(&self) -> Time {
        self.next
    }

    pub fn handle_sent(&mut self, now: Time) {
        let rate = self.pacing();
        if rate > 0.0 {
            let from = self.next.max(now.before(Duration::from_millis(1)));
            self.next = from + Duration::from_secs_f64(1.0 / rate);
        }
    }
}
