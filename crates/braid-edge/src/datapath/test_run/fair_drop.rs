//! Fair dropping when several flows fill the paths.

use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::pair_monitor::PathQueue;
use crate::shared::SLOT_BYTES;
use crate::table::EgressPath;

const FRAME: u32 = 1518;
const SECOND: u64 = 1_000_000_000;

/// Runs `braid_fair` at times that the test sets.
struct Reckoning {
    trial: Trial,
    /// bit/s of the paths.
    rate: u64,
}

impl Reckoning {
    fn new(rate: u64) -> Reckoning {
        let trial = Trial::new(Layer::Two);
        trial
            .0
            .borrow_mut()
            .load("braid_fair")
            .expect("the program");
        let path = |tag| EgressPath {
            tag,
            rate_bit_s: rate / 2,
            delay_ms: 10.0,
            latency_ms: None,
        };
        let egress = Egress {
            paths: vec![path(10), path(11)],
            ..egress(false)
        };
        let set = trial.0.borrow_mut().set_egress(&[egress]);
        set.expect("a table");
        Reckoning { trial, rate }
    }

    /// Has probes tell the queue of both paths until a second after `now`, in ns.
    fn set_queue(&self, now: u64, queue: Duration) {
        let queue = PathQueue {
            whole: queue,
            excess: Duration::ZERO,
        };
        let end = Duration::from_nanos(now + 1001 * SECOND);
        let mut datapath = self.trial.0.borrow_mut();
        let set = datapath.set_path_queues(&BTreeMap::from([(10, queue), (11, queue)]), end);
        set.expect("a map");
    }

    /// Returns true if a packet of this flow has to be dropped; `now` in ns.
    fn drops(&self, now: u64, flow: u32, bytes: u32) -> bool {
        let mut frame = vec![0; ETHERNET];
        // A machine's clock is never near 0.
        frame.extend_from_slice(&(now + 1000 * SECOND).to_ne_bytes());
        frame.extend_from_slice(&(self.rate / 8).to_ne_bytes());
        frame.extend_from_slice(&flow.to_ne_bytes());
        frame.extend_from_slice(&bytes.to_ne_bytes());
        let mut datapath = self.trial.0.borrow_mut();
        let program = datapath.program("braid_fair").expect("a program");
        let ran = program.test_run(TestRunOptions {
            data_in: Some(&frame),
            repeat: 1,
            ..TestRunOptions::new()
        });
        ran.expect("a test run").return_value == 2
    }
}

/// Flows with CUBIC's window in its Reno-friendly region (RFC 9438 §4.3), behind a line with a drop-tail
/// queue.
struct Line {
    reckoning: Option<Reckoning>,
    rate: f64,
    trip: f64,
    longest: f64,
    /// True if probes measure the queue.
    probed: bool,
    /// Window in packets, and time of the last reduction, of each flow.
    flows: Vec<(f64, f64)>,
    /// Seconds of queue, and the time of that state.
    queue: (f64, f64),
    idle: f64,
}

impl Line {
    fn new(reckoning: Option<Reckoning>, rate: u64, trip: f64, flows: usize) -> Line {
        Line {
            reckoning,
            rate: rate as f64,
            trip,
            longest: 0.1,
            probed: false,
            flows: vec![(4.0, 0.0); flows],
            queue: (0.0, 0.0),
            idle: 0.0,
        }
    }

    /// Sends a flow's next packet; returns the time of the one after, and true if it was not lost.
    fn send(&mut self, now: f64, number: usize) -> (f64, bool) {
        let (queued, at) = self.queue;
        self.idle += (now - at - queued).max(0.0);
        let queued = (queued - (now - at)).max(0.0);
        self.queue = (queued, now);
        let drops = |reckoning: &Reckoning| {
            let now = (1e9 * now) as u64;
            if self.probed {
                reckoning.set_queue(now, Duration::from_secs_f64(queued));
            }
            reckoning.drops(now, number as u32, FRAME)
        };
        let given_way = self.reckoning.as_ref().is_some_and(drops);
        let lost = given_way || queued > self.longest;
        let trip = self.trip + queued;
        let (window, slowed) = &mut self.flows[number];
        if lost && now - *slowed > trip {
            *window = (0.7 * *window).max(2.0);
            *slowed = now;
        } else if !lost {
            self.queue.0 += f64::from(8 * FRAME) / self.rate;
            *window += 0.53 / *window;
        }
        (now + trip / *window, !lost)
    }

    /// Sends for `seconds`; returns each flow's throughput, second by second, after `opening`.
    fn run(&mut self, seconds: u64, opening: u64) -> Vec<Vec<f64>> {
        let mut brought = vec![vec![0.0; self.flows.len()]; (seconds - opening) as usize];
        let mut due = BinaryHeap::new();
        for number in 0..self.flows.len() {
            // The earliest first.
            due.push((std::cmp::Reverse(number as u64 * 1_000_000), number));
        }
        while let Some((std::cmp::Reverse(at), number)) = due.pop() {
            let now = at as f64 / 1e9;
            if at >= seconds * SECOND {
                break;
            }
            if at < opening * SECOND {
                self.idle = 0.0;
            }
            let (next, came) = self.send(now, number);
            if came && at >= opening * SECOND {
                brought[(at / SECOND - opening) as usize][number] += 1.0;
            }
            due.push((std::cmp::Reverse((1e9 * next) as u64), number));
        }
        brought
    }
}

/// Jain's index, second by second, in the mean.
fn fairness(brought: &[Vec<f64>]) -> f64 {
    let index = |rates: &Vec<f64>| {
        let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
        rates.iter().sum::<f64>().powi(2) / (rates.len() as f64 * squares)
    };
    brought.iter().map(index).sum::<f64>() / brought.len() as f64
}

#[test]
fn flows_alike_get_alike_second_by_second_and_the_line_stays_full() {
    for (mbit, trip, flows) in [(20, 0.04, 10), (20, 0.19, 4), (8, 0.02, 6), (50, 0.08, 20)] {
        let rate = mbit * 1_000_000;
        let mut left = Line::new(None, rate, trip, flows);
        let without = fairness(&left.run(20, 8));
        let mut line = Line::new(Some(Reckoning::new(rate)), rate, trip, flows);
        let brought = line.run(20, 8);
        let with = fairness(&brought);
        let what = format!("{flows} flows, {mbit} Mbit/s, {trip} s: {with:.3}, was {without:.3}");
        println!(
            "{what}, idle {:.3} of 12 s, was {:.3}",
            line.idle, left.idle
        );
        assert!(with >= 0.96, "{what}");
        assert!(
            line.idle <= left.idle + 0.12,
            "{what}: idle {} s",
            line.idle
        );
    }
}

/// Others take a hundredth of it, and the estimate alone loses sight of a standing queue.
#[test]
fn flows_alike_get_alike_over_a_line_that_carries_less_than_told() {
    let (told, carried) = (20_000_000, 19_800_000);
    let [(without, _), (with, idle)] = [false, true].map(|probed| {
        let mut line = Line::new(Some(Reckoning::new(told)), carried, 0.04, 10);
        line.probed = probed;
        (fairness(&line.run(40, 20)), line.idle)
    });
    println!("{with:.3}, idle {idle:.3} of 20 s; {without:.3} without probes");
    assert!(without < 0.97, "nothing to mend: {without}");
    assert!(with >= 0.98, "{with}");
    assert!(idle <= 0.12, "idle {idle} s");
}

/// Four flows send this share of 20 Mbit/s for 30 s into a queue that probes tell until the 20th second. Returns the drops until the 25th,
/// when the estimate has drained by what is not sent, and after it.
fn drops_at(share: f64, told: Duration) -> [usize; 2] {
    let reckoning = Reckoning::new(20_000_000);
    let gap = (f64::from(8 * FRAME) / 20e6 / share * 1e9) as u64;
    reckoning.set_queue(19 * SECOND, told);
    let mut drops = [0; 2];
    for number in 0..30 * SECOND / gap {
        let (now, flow) = (number * gap, (number % 4) as u32);
        if reckoning.drops(now, flow, FRAME) {
            drops[usize::from(now > 25 * SECOND)] += 1;
        }
    }
    drops
}

#[test]
fn nobody_gives_way_to_a_queue_of_others() {
    let told = Duration::from_millis(200);
    let own = drops_at(0.95, told);
    assert!(own[0] >= 20, "{own:?}");
    assert_eq!(own[1], 0, "what probes told has expired");
    assert_eq!(drops_at(0.92, told), [0, 0]);
    assert_eq!(drops_at(0.95, Duration::from_millis(10)), [0, 0]);
}

/// Parts of a microsecond between packets are not rounded away.
#[test]
fn a_load_is_the_same_at_any_packet_rate() {
    for mbit in [20_u64, 1_000] {
        let reckoning = Reckoning::new(1_000_000 * mbit);
        let gap = u64::from(8 * FRAME) * 1000 / mbit * 100 / 92;
        reckoning.set_queue(0, Duration::from_millis(200));
        let packets = 0..2 * SECOND / gap;
        let drops =
            packets.filter(|number| reckoning.drops(number * gap, (number % 4) as u32, FRAME));
        assert_eq!(drops.count(), 0, "{mbit} Mbit/s");
    }
}

#[test]
fn who_carries_nearly_everything_never_gives_way() {
    for beside in [0, 1] {
        let rate = 20_000_000;
        let reckoning = Reckoning::new(rate);
        // Twice the rate, for ten seconds: whatever its queue.
        for number in 0..33_000_u64 {
            let flow = u32::from(beside > 0 && number % 5 == 0);
            assert!(!reckoning.drops(number * 300_000, flow, FRAME), "{number}");
        }
    }
}

#[test]
fn only_the_heaviest_of_a_queue_gives_way_and_not_often() {
    let steps = (0..2_000_000_u64, 0..12_u32, 700..=FRAME);
    let mut runner = TestRunner::new(Config::with_cases(24));
    runner
        .run(
            &(1..100_u64, proptest::collection::vec(steps, 50..800)),
            |(mbit, steps)| {
                let rate = mbit * 1_000_000;
                let reckoning = Reckoning::new(rate);
                let (mut now, mut queue, mut dropped) = (0, 0.0_f64, None);
                let mut carried = [0.0; 12];
                for (gap, flow, bytes) in steps {
                    now += gap;
                    // Squared, so that some carry more.
                    let flow = flow * flow / 12;
                    queue = (queue - rate as f64 / 8e9 * gap as f64).max(0.0);
                    let fades = (-(gap as f64) / SECOND as f64).exp();
                    carried.iter_mut().for_each(|bytes| *bytes *= fades);
                    carried[flow as usize] += f64::from(bytes);
                    if reckoning.drops(now, flow, bytes) {
                        let most = carried.iter().copied().fold(0.0, f64::max);
                        prop_assert!(carried[flow as usize] >= 0.8 * most, "not the heaviest");
                        prop_assert!(queue >= f64::from(7 * SLOT_BYTES), "no queue: {queue}");
                        let share = most / carried.iter().sum::<f64>();
                        let pace = 0.9 * 3e9 * share / 4.0 * 0.8;
                        let since = dropped.map_or(f64::MAX, |at: u64| (now - at) as f64);
                        prop_assert!(since >= pace, "{since} ns after the last one, {pace}");
                        carried[flow as usize] *= 0.7;
                        dropped = Some(now);
                    } else {
                        queue += f64::from(bytes);
                    }
                }
                Ok(())
            },
        )
        .expect("a rule kept");
}

/// Three flows, the first of which sends as much as the others.
fn several(trial: &Trial, rounds: u16) -> Vec<(u16, &'static str)> {
    let mut seen = Vec::new();
    for round in 0..rounds {
        for flow in [1, 2, 1, 3] {
            let (from, to) = ((ip("10.1.0.7"), 4000 + flow), (ip("10.2.0.9"), 443));
            let packet = build::tcp(from, to, ACK, &vec![0; 1460]);
            let out = trial.run("braid_split", &framed(&packet));
            seen.push((flow, out.reason));
        }
        // Neither what has no data, nor what is no TCP, nor the end of a connection.
        for packet in [
            data(0),
            datagram(1200),
            build::tcp(ends().0, ends().1, ACK | 1, &[]),
        ] {
            let out = trial.run("braid_split", &framed(&packet));
            assert_eq!(out.verdict, Verdict::Sent, "{round}");
        }
    }
    seen
}

#[test]
fn packets_of_the_heaviest_are_dropped_where_the_lines_rate_is_known() {
    let told = |max_rate_bit_s| {
        let trial = split(false);
        let egress = Egress {
            max_rate_bit_s,
            ..egress(false)
        };
        let split = trial.0.borrow_mut().set_egress(&[egress]);
        split.expect("tables");
        trial
    };
    let seen = several(&told(1_000_000), 40);
    let gone: Vec<u16> = seen
        .iter()
        .filter(|(_, reason)| *reason == "fair_drop")
        .map(|(flow, _)| *flow)
        .collect();
    assert_eq!(gone.first(), Some(&1), "{seen:?}");
    for trial in [told(0), split(false)] {
        let seen = several(&trial, 40);
        assert!(seen.iter().all(|(_, reason)| *reason == "split"));
    }
}
