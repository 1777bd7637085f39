//! The end of slow start in Linux's CUBIC (`hystart_update` in `net/ipv4/tcp_cubic.c`, 6.x, for senders without pacing), by two signs of a
//! full link: a round trip that has grown, and a train of acknowledgements that lasts for half a round trip.

use std::time::Duration;

use braid_core::Time;

/// Below this window neither sign counts.
const LOW_WINDOW: f64 = 16.0;
/// Samples of a round trip beside which a further one counts.
const MIN_SAMPLES: u32 = 8;
const MIN_RISE: Duration = Duration::from_millis(4);
const MAX_RISE: Duration = Duration::from_millis(16);
/// Longest time between two acknowledgements of a train.
const TRAIN_GAP: Duration = Duration::from_millis(2);
/// Linux adds this for super-packets: four of 64 kB at the pacing rate, 1 ms at most. That is 1 ms below 2.1 Gbit/s.
const AGGREGATION: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Delay,
    Train,
}

/// The flow as an acknowledgement finds it.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The number below which all is acknowledged, this acknowledgement included, and the next one to be sent.
    pub una: u64,
    pub next: u64,
    /// Window in segments, before it grows.
    pub cwnd: f64,
    pub rtt: Duration,
    pub min_rtt: Duration,
}

/// One flow's slow start.
#[derive(Debug)]
pub struct HyStart {
    /// A round trip ends with the first acknowledgement above this number.
    end: u64,
    began: Time,
    /// Newest acknowledgement of the train with which the round trip began.
    train: Time,
    lowest: Duration,
    samples: u32,
}

impl HyStart {
    pub fn new() -> HyStart {
        HyStart {
            end: 0,
            began: Time::ZERO,
            train: Time::ZERO,
            lowest: Duration::MAX,
            samples: 0,
        }
    }

    /// Takes an acknowledgement in slow start. Returns the sign that ends it.
    pub fn handle_ack(&mut self, now: Time, flow: &View) -> Option<Sign> {
        if flow.una > self.end {
            *self = HyStart {
                end: flow.next,
                began: now,
                train: now,
                ..HyStart::new()
            };
        }
        if flow.cwnd < LOW_WINDOW {
            return None;
        }
        let mut sign = None;
        if now.since(self.train) <= TRAIN_GAP {
            self.train = now;
            let longest = (flow.min_rtt + AGGREGATION) / 2;
            sign = (now.since(self.began) > longest).then_some(Sign::Train);
        }
        self.lowest = self.lowest.min(flow.rtt);
        let rise = (flow.min_rtt / 8).clamp(MIN_RISE, MAX_RISE);
        if self.samples < MIN_SAMPLES {
            self.samples += 1;
        } else if self.lowest > flow.min_rtt + rise {
            sign = Some(Sign::Delay);
        }
        sign
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes acknowledgements of two segments each at these times, in µs, with round trips of 20 ms and a window of 100 segments before,
    /// whose end is never reached. Returns the sign and the time of the one that ends slow start.
    fn ends(times: impl IntoIterator<Item = u64>, rtt_ms: u64, cwnd: f64) -> Option<(u64, Sign)> {
        let mut hystart = HyStart::new();
        let mut una = 0;
        times.into_iter().find_map(|at| {
            una += 2;
            let flow = View {
                una,
                next: 1_000,
                cwnd,
                rtt: Duration::from_millis(rtt_ms),
                min_rtt: Duration::from_millis(20),
            };
            let now = Time::from_nanos(at * 1_000);
            hystart.handle_ack(now, &flow).map(|sign| (at, sign))
        })
    }

    #[test]
    fn a_train_of_half_a_round_trip_ends_slow_start() {
        let train = |gap: u64| (0..).map(move |number| number * gap).take(40);
        assert_eq!(ends(train(500), 20, 100.0), Some((11_000, Sign::Train)));
        assert_eq!(ends(train(2_000), 20, 100.0), Some((12_000, Sign::Train)));
        assert_eq!(ends(train(2_001), 20, 100.0), None);
        assert_eq!(ends(train(500), 20, 15.0), None);
    }

    /// The rest of a round trip counts for no train, however near to each other its acknowledgements are.
    #[test]
    fn one_gap_ends_a_train() {
        let gap = |number: u64| number * 500 + if number > 3 { 1_501 } else { 0 };
        assert_eq!(ends((0..40).map(gap), 20, 100.0), None);
    }

    #[test]
    fn the_ninth_sample_of_a_longer_round_trip_ends_slow_start() {
        let times = || (0..20).map(|number| number * 3_000);
        assert_eq!(ends(times(), 25, 100.0), Some((24_000, Sign::Delay)));
        assert_eq!(ends(times(), 24, 100.0), None);
    }
}
