//! Liveness of a link: decides from its own traffic, within a round trip or three reports, if it
//! may carry data.
//!
//! - **Suspect**: packets are in flight, and no report has covered a new one for longer than max(75
//!   ms, SRTT + 4 · RTTVAR + a report interval). 75 ms are three report intervals. Reports travel
//!   over all links, so a link's silence is its own. It gets no new data, and its packets in flight
//!   are retransmitted on other links.
//! - **Probing**: a suspect link gets a small packet now and then, less often the longer it is
//!   silent. Any packet serves, since every arrival is reported.
//! - **Stall**: a silence after which every packet in flight arrives was caused by the link's
//!   scheduler or a queue. It is no failure: nothing was lost, and the link's estimates still hold.
//!   However long it was, it ends at once and entirely with the first such report, and does not
//!   count against the link.
//! - **Returning**: a short silence (a handover, a long queue) ends with the first sign of life, at
//!   half the link's share. After a long one several consecutive signs are required, more if the
//!   link keeps failing, and its share starts small and doubles: a link that is only half back must
//!   not take a second's worth of packets down with it.
//! - **Quarantine**: for TCP, a link that loses 30 % without a queue is worse than none. It is
//!   taken out and probed until it loses less than 10 % of some 16 packets. Probes that arrive make
//!   probing more frequent, so that a healed link is back soon; lost ones make it rare, since there
//!   is nothing to gain.
//! - **Receive silence**: a link may be dead while this end has nothing in flight on it: in a
//!   download, all acknowledgements may travel over another link. A link is probed once if packets
//!   used to arrive over it and for [`RX_SILENCE_TIMEOUT`] arrived over others only.
//! - **Idle**: an idle link carries one packet every [`KEEPALIVE`]. It keeps NAT mappings alive and
//!   detects a black hole that no other traffic would show.

mod failures;

use std::time::Duration;

use braid_core::Time;

use crate::PacketNumber;
use crate::estimate::{LinkEstimator, REPORT_INTERVAL};

pub use failures::FailureHistory;

/// Shortest silence that makes a link suspect: three report intervals.
const MIN_SUSPECT_SILENCE: Duration = Duration::from_millis(75);

/// Interval of packets on an idle link: three a minute, and within the 30 s after which the most
/// impatient NATs forget a UDP mapping (RFC 4787 §4.3 wants two minutes).
pub const KEEPALIVE: Duration = Duration::from_secs(20);

/// A link without arrivals for this long, while others had some, is probed.
pub const RX_SILENCE_TIMEOUT: Duration = Duration::from_millis(250);

/// Least interval of such probes, at most one per silence: a flow may alternate between links.
const MIN_RX_PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest and longest interval of probes on a suspect link.
const MIN_PROBE_INTERVAL: Duration = Duration::from_millis(50);
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Longest interval while no link is known to work: about the time after which a TCP flow tries
/// again.
const URGENT_PROBE_INTERVAL: Duration = Duration::from_millis(200);

/// After [`LONG_OUTAGE`] the longest interval is [`LONG_OUTAGE_PROBE_INTERVAL`].
const LONG_OUTAGE: Duration = Duration::from_secs(30);
const LONG_OUTAGE_PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// A silence up to this is an interruption, not a failure.
const MAX_SHORT_SILENCE: Duration = Duration::from_millis(500);

/// Signs of life required after a first failure.
const REQUIRED_SIGNS: u32 = 3;

/// Initial share of a returning link; it doubles every [`SHARE_STEP_INTERVAL`].
const SHARE_AFTER_FAILURE: f64 = 0.1;
const SHARE_AFTER_SHORT_SILENCE: f64 = 0.5;
const SHARE_STEP_INTERVAL: Duration = Duration::from_millis(100);

/// Loss without a queue that puts a link into quarantine, in consecutive rounds of this many
/// packets: rounds count packets, since a flow that suffers from loss sends few. Then the loss
/// below which it is released: a mean over some packets, older ones counting less, with a least
/// number of them.
const QUARANTINE_LOSS: f64 = 0.3;
const QUARANTINE_ROUND_PACKETS: u64 = 100;
const QUARANTINE_ROUNDS: u32 = 2;
const RELEASE_LOSS: f64 = 0.1;
const RELEASE_LOSS_PACKETS: f64 = 16.0;
const MIN_RELEASE_PACKETS: u64 = 30;

/// Initial, shortest and longest interval of probes in quarantine.
const INITIAL_QUARANTINE_INTERVAL: Duration = Duration::from_millis(100);
const MIN_QUARANTINE_INTERVAL: Duration = Duration::from_millis(50);
const MAX_QUARANTINE_INTERVAL: Duration = Duration::from_secs(1);

/// Each probe and each lost packet multiply the interval by their factor, and each arrival divides
/// it: on links that lose a quarter or more it becomes the longest.
const INTERVAL_FACTOR_SENT: f64 = 1.25;
const INTERVAL_FACTOR_LOST: f64 = 8.0;
const INTERVAL_DIVISOR_ARRIVED: f64 = 3.0;

/// Highest exponent for these factors: the other end reports the counts, and the ratio of two
/// infinities is undefined.
const MAX_EXPONENT: u64 = 300;

/// Verdict on a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// The link may carry data at its full rate.
    Active,
    /// The link fell silent and may carry no data.
    Suspect,
    /// The link is returning and may use this share of its rate, 0 to 1.
    Returning(f64),
    /// The link loses too much and may carry no data.
    Quarantined,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Active,
    Suspect {
        since: Time,
        signs: u32,
        last_sign: Time,
        /// The arrivals reported before the silence.
        arrivals: ReportedArrivals,
        /// Failure history without this one.
        failures: FailureHistory,
    },
    Returning {
        share: f64,
        next: Time,
    },
    Quarantined {
        probe_interval: Duration,
        /// Totals of the last report; then packets that arrived or were lost in quarantine.
        packets: u64,
        lost: u64,
        seen: u64,
        /// Recent loss, 0 to 1.
        loss: f64,
    },
}

/// A highest packet number, and the packets that had arrived when it was reported.
#[derive(Debug, Clone, Copy, Default)]
struct ReportedArrivals {
    highest: Option<PacketNumber>,
    packets: u64,
}

impl ReportedArrivals {
    /// Returns true if there are numbers from here to `now`, and all of them arrived.
    fn is_followed_by(self, now: ReportedArrivals) -> bool {
        let next = |highest: Option<PacketNumber>| highest.map_or(0, |highest| highest.0 + 1);
        let numbers = next(now.highest).saturating_sub(next(self.highest));
        numbers > 0 && now.packets.saturating_sub(self.packets) >= numbers
    }
}

/// Judges one link.
#[derive(Debug, Clone)]
pub struct Liveness {
    state: State,
    failures: FailureHistory,
    /// Send time of the last packet that the other end must report.
    sent: Time,
    /// Arrival time of the last packet over the link.
    received: Option<Time>,
    /// Time of the last probe because of receive silence.
    rx_probed_at: Option<Time>,
    /// Time of the last other probe, or of the start of a silence.
    probed: Time,
    probe_interval: Duration,
    changed: Option<Verdict>,
    arrivals: ReportedArrivals,
    /// Packets that had arrived and been lost at random when the present round of measuring loss began.
    round: (u64, u64),
    /// Consecutive rounds with too much loss.
    bad_rounds: u32,
}

impl Liveness {
    /// Returns an active link: its handshake has just passed.
    #[must_use]
    pub fn new(now: Time) -> Liveness {
        Liveness {
            state: State::Active,
            failures: FailureHistory::default(),
            sent: now,
            received: None,
            rx_probed_at: None,
            probed: now,
            probe_interval: MIN_PROBE_INTERVAL,
            changed: None,
            arrivals: ReportedArrivals::default(),
            round: (0, 0),
            bad_rounds: 0,
        }
    }

    /// Notes that a packet that elicits a report was sent on the link.
    pub fn handle_sent(&mut self, now: Time) {
        self.sent = now;
    }

    /// Notes that a packet of any kind arrived over the link.
    pub fn handle_received(&mut self, now: Time) {
        self.received = Some(now);
    }

    /// Returns when the last packet arrived over the link.
    #[must_use]
    pub fn received(&self) -> Option<Time> {
        self.received
    }

    /// Takes a report that covers new packets, a sign of life. `packets` and `lost` are its totals.
    pub fn handle_progress(&mut self, now: Time, link: &LinkEstimator, packets: u64, lost: u64) {
        let arrivals = ReportedArrivals {
            highest: link.highest(),
            packets,
        };
        let before = std::mem::replace(&mut self.arrivals, arrivals);
        match &mut self.state {
            State::Suspect {
                signs: 0,
                arrivals: last,
                failures,
                ..
            } if last.is_followed_by(arrivals) => {
                self.failures = *failures;
                self.enter(State::Active);
            }
            State::Suspect {
                since,
                signs,
                last_sign,
                ..
            } => {
                // Reports arrive over every link: the same sign counts once.
                if *signs > 0 && now.since(*last_sign) < REPORT_INTERVAL / 2 {
                    return;
                }
                // One that is missing before it begins the row anew.
                *signs = match before.is_followed_by(arrivals) {
                    true => *signs + 1,
                    false => 1,
                };
                *last_sign = now;
                self.probe_interval = MIN_PROBE_INTERVAL;
                let (short, signs) = (now.since(*since) <= MAX_SHORT_SILENCE, *signs);
                if short {
                    self.enter_returning(now, SHARE_AFTER_SHORT_SILENCE);
                } else if signs >= self.failures.required_signs(now, REQUIRED_SIGNS) {
                    self.enter_returning(now, SHARE_AFTER_FAILURE);
                }
            }
            State::Active | State::Returning { .. } => {
                if self.loses_too_much(packets, link.loss().random()) {
                    self.enter(State::Quarantined {
                        probe_interval: INITIAL_QUARANTINE_INTERVAL,
                        packets,
                        lost,
                        seen: 0,
                        loss: QUARANTINE_LOSS,
                    });
                }
            }
            State::Quarantined {
                probe_interval,
                packets: packets_then,
                lost: lost_then,
                seen,
                loss,
            } => {
                let gone = lost.saturating_sub(*lost_then);
                let came = packets.saturating_sub(*packets_then);
                (*packets_then, *lost_then) = (packets, lost);
                let all = gone.saturating_add(came);
                *seen = seen.saturating_add(all);
                let keeps = (1.0 - 1.0 / RELEASE_LOSS_PACKETS).powf(all as f64);
                let fresh = gone as f64 / all.max(1) as f64;
                *loss = *loss * keeps + fresh * (1.0 - keeps);
                let power = |base: f64, count: u64| base.powf(count.min(MAX_EXPONENT) as f64);
                let times =
                    power(INTERVAL_FACTOR_LOST, gone) / power(INTERVAL_DIVISOR_ARRIVED, came);
                *probe_interval = scaled_interval(*probe_interval, times);
                if *seen >= MIN_RELEASE_PACKETS && *loss < RELEASE_LOSS {
                    self.enter_returning(now, SHARE_AFTER_FAILURE);
                }
            }
        }
    }

    fn loses_too_much(&mut self, packets: u64, random: u64) -> bool {
        let lost = random.saturating_sub(self.round.1);
        let all = lost + packets.saturating_sub(self.round.0);
        if all < QUARANTINE_ROUND_PACKETS {
            return false;
        }
        self.round = (packets, random);
        let bad = lost as f64 >= QUARANTINE_LOSS * all as f64;
        self.bad_rounds = if bad { self.bad_rounds + 1 } else { 0 };
        let out = self.bad_rounds >= QUARANTINE_ROUNDS;
        self.bad_rounds = if out { 0 } else { self.bad_rounds };
        out
    }

    /// Checks the link for silence. Early and repeated calls do no harm.
    pub fn handle_timeout(&mut self, now: Time, link: &LinkEstimator) {
        match &mut self.state {
            State::Active | State::Returning { .. }
                if silent_until(link).is_some_and(|until| now >= until) =>
            {
                let failures = self.failures;
                self.failures.add(now);
                self.probe_interval = MIN_PROBE_INTERVAL;
                self.probed = now;
                self.enter(State::Suspect {
                    since: now,
                    signs: 0,
                    last_sign: now,
                    arrivals: self.arrivals,
                    failures,
                });
            }
            State::Returning { share, next } if now >= *next => {
                *share *= 2.0;
                *next = now + SHARE_STEP_INTERVAL.max(link.rtt().smoothed());
                if *share >= 1.0 {
                    self.enter(State::Active);
                }
            }
            _ => {}
        }
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout) or to probe next.
    #[must_use]
    pub fn poll_timeout(&self, link: &LinkEstimator) -> Time {
        let probe = self.probe_at();
        let judge = match self.state {
            State::Active => silent_until(link),
            State::Returning { next, .. } => silent_until(link).into_iter().chain([next]).min(),
            State::Suspect { .. } | State::Quarantined { .. } => None,
        };
        judge.map_or(probe, |judge| judge.min(probe))
    }

    /// Returns true if a probe is due on the link; it counts as sent.
    pub fn poll_probe(&mut self, now: Time) -> bool {
        if now < self.probe_at() {
            return false;
        }
        if let State::Suspect { since, .. } = self.state {
            let most = if now.since(since) > LONG_OUTAGE {
                LONG_OUTAGE_PROBE_INTERVAL
            } else {
                MAX_PROBE_INTERVAL
            };
            self.probe_interval = (self.probe_interval * 2).min(most);
        }
        if let State::Quarantined { probe_interval, .. } = &mut self.state {
            *probe_interval = scaled_interval(*probe_interval, INTERVAL_FACTOR_SENT);
        }
        self.probed = now;
        true
    }

    /// Returns true if a probe is due because this link has gone silent while another received a
    /// packet, last at `elsewhere`; the probe counts as sent. It becomes due only when another link
    /// receives a packet.
    pub fn poll_rx_probe(&mut self, now: Time, elsewhere: Time) -> bool {
        let carries = matches!(self.state, State::Active | State::Returning { .. });
        let due = self.received.is_some_and(|received| {
            elsewhere.since(received) > RX_SILENCE_TIMEOUT
                && self.rx_probed_at.is_none_or(|rx_probed_at| {
                    rx_probed_at < received && now.since(rx_probed_at) > MIN_RX_PROBE_INTERVAL
                })
        });
        if carries && due {
            self.rx_probed_at = Some(now);
        }
        carries && due
    }

    /// Returns true if a probe is due because no link is known to work; it counts as sent.
    pub fn poll_urgent_probe(&mut self, now: Time) -> bool {
        let due = matches!(self.state, State::Suspect { .. }) && now >= self.urgent_probe_at();
        if due {
            self.probed = now;
        }
        due
    }

    /// Returns when [`poll_urgent_probe`](Self::poll_urgent_probe) is due.
    #[must_use]
    pub fn urgent_probe_at(&self) -> Time {
        self.probed + URGENT_PROBE_INTERVAL
    }

    fn probe_at(&self) -> Time {
        match self.state {
            State::Active | State::Returning { .. } => self.sent.max(self.probed) + KEEPALIVE,
            State::Suspect { .. } => self.probed + self.probe_interval,
            State::Quarantined { probe_interval, .. } => self.probed + probe_interval,
        }
    }

    /// Returns the verdict, once for each change.
    pub fn poll_change(&mut self) -> Option<Verdict> {
        self.changed.take()
    }

    /// Returns the current verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self.state {
            State::Active => Verdict::Active,
            State::Suspect { .. } => Verdict::Suspect,
            State::Returning { share, .. } => Verdict::Returning(share),
            State::Quarantined { .. } => Verdict::Quarantined,
        }
    }

    /// Returns the share of the link's rate that may be used, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        match self.verdict() {
            Verdict::Active => 1.0,
            Verdict::Returning(share) => share,
            Verdict::Suspect | Verdict::Quarantined => 0.0,
        }
    }

    fn enter_returning(&mut self, now: Time, share: f64) {
        self.enter(State::Returning {
            share,
            next: now + SHARE_STEP_INTERVAL,
        });
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.changed = Some(self.verdict());
    }
}

/// Multiplies the interval of probes in quarantine, within its bounds.
fn scaled_interval(probe_interval: Duration, times: f64) -> Duration {
    let most = MAX_QUARANTINE_INTERVAL.as_secs_f64();
    let seconds = (probe_interval.as_secs_f64() * times).min(most);
    Duration::from_secs_f64(seconds).max(MIN_QUARANTINE_INTERVAL)
}

/// Returns when the link's silence becomes suspicious; none while nothing is in flight.
fn silent_until(link: &LinkEstimator) -> Option<Time> {
    let waiting = link.waiting_since()?;
    let since = link.progressed().map_or(waiting, |told| told.max(waiting));
    Some(since + MIN_SUSPECT_SILENCE.max(link.rtt().rto() + REPORT_INTERVAL))
}
