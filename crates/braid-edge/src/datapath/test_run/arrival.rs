//! The choice of the path on which a packet arrives first, at times that the test sets.

use super::*;
use crate::pair_monitor::PathQueue;
use crate::table::EgressPath;

const FRAME: u32 = 1514;
const MS: u64 = 1_000_000;
const TAGS: [u16; 2] = [10, 11];

/// An edge with two paths, and the time.
struct Splitter {
    trial: Trial,
    /// ns.
    now: u64,
    next: u32,
}

impl Splitter {
    /// Creates it with the rate, in Mbit/s, and the delay, in ms, of both paths.
    fn new(paths: [(u64, f64); 2]) -> Splitter {
        let trial = Trial::new(Layer::Two);
        let load = trial.0.borrow_mut().load("braid_arrival");
        load.expect("the program");
        let mut splitter = Splitter {
            trial,
            // A machine's clock is never near 0.
            now: 1_000_000 * MS,
            next: 0,
        };
        splitter.set(paths);
        splitter
    }

    fn set(&mut self, paths: [(u64, f64); 2]) {
        self.set_with(paths, None);
    }

    fn set_with(&mut self, paths: [(u64, f64); 2], latency_ms: Option<f64>) {
        let paths = TAGS.iter().zip(paths);
        let egress = Egress {
            paths: paths
                .map(|(&tag, (mbit, delay_ms))| EgressPath {
                    tag,
                    rate_bit_s: 1_000_000 * mbit,
                    delay_ms,
                    latency_ms,
                })
                .collect(),
            ..egress(false)
        };
        let set = self.trial.0.borrow_mut().set_egress(&[egress]);
        set.expect("a table");
    }

    /// Sets the queue in front of path 11 that the estimate does not have, for a second.
    fn set_excess(&mut self, ms: u64) {
        let queue = |ms| PathQueue {
            whole: Duration::ZERO,
            excess: Duration::from_millis(ms),
        };
        let queues = [(10, queue(0)), (11, queue(ms))];
        let end = Duration::from_nanos(self.now + 1000 * MS);
        let mut datapath = self.trial.0.borrow_mut();
        let set = datapath.set_path_queues(&BTreeMap::from(queues), end);
        set.expect("a map");
    }

    /// Sends a segment; returns its path.
    fn send_segment(&self, seq: u32) -> u16 {
        let before = self.trial.sent(TAGS);
        let mut frame = vec![0; ETHERNET];
        frame.extend_from_slice(&self.now.to_ne_bytes());
        for word in [7, seq, FRAME, 0] {
            frame.extend_from_slice(&word.to_ne_bytes());
        }
        let out = self.trial.run("braid_arrival", &frame);
        out.is(Verdict::Sent, "split");
        let after = self.trial.sent(TAGS);
        TAGS[usize::from(after[1] > before[1])]
    }

    /// Sends the next segment; returns its path.
    fn send(&mut self) -> u16 {
        self.next += FRAME;
        self.send_segment(self.next)
    }

    /// Sends full frames at this rate for some time; returns how many each path got.
    fn send_at(&mut self, mbit: u64, ms: u64) -> [u64; 2] {
        let before = self.trial.sent(TAGS);
        let end = self.now + ms * MS;
        while self.now < end {
            self.send();
            self.now += u64::from(FRAME) * 8000 / mbit;
        }
        let after = self.trial.sent(TAGS);
        [after[0] - before[0], after[1] - before[1]]
    }
}

#[test]
fn a_short_flow_takes_the_quick_path_alone() {
    let mut splitter = Splitter::new([(10, 75.0), (10, 10.0)]);
    // Three quarters of 65 ms of 10 Mbit/s are 61 kB.
    for segment in 0..40 {
        assert_eq!(splitter.send(), 11, "segment {segment}");
    }
    assert!((0..4).any(|_| splitter.send() == 10));
}

#[test]
fn a_flow_that_the_quick_path_carries_stays_there() {
    let mut splitter = Splitter::new([(10, 10.0), (10, 20.0)]);
    assert_eq!(splitter.send_at(9, 2000)[1], 0);
}

#[test]
fn busy_paths_get_their_shares_by_rate() {
    for (rates, mbit) in [([10, 10], 20), ([10, 50], 60), ([2, 8], 30)] {
        let mut splitter = Splitter::new([(rates[0], 10.0), (rates[1], 60.0)]);
        splitter.send_at(mbit, 1000);
        let [one, other] = splitter.send_at(mbit, 1000);
        let share = one as f64 / (one + other) as f64;
        let wanted = rates[0] as f64 / (rates[0] + rates[1]) as f64;
        assert!((share - wanted).abs() < 0.02, "{share} and not {wanted}");
    }
}

#[test]
fn a_path_that_loses_segments_gets_what_the_other_cannot_take() {
    let mut splitter = Splitter::new([(10, 20.0), (10, 20.0)]);
    let healthy = splitter.send_at(19, 1000);
    assert!(healthy[0].abs_diff(healthy[1]) < 4, "{healthy:?}");
    splitter.now += 1000 * MS;
    // Of those that take path 11 each 200th is sent again.
    let mut taken = 0;
    while taken < 2000 {
        if splitter.send() == 11 {
            taken += 1;
            if taken % 200 == 0 {
                splitter.send_segment(splitter.next);
            }
        }
        splitter.now += MS * 4 / 5;
    }
    splitter.now += 500 * MS;
    let lossy = splitter.send_at(9, 1000);
    assert!(lossy[1] * 20 < lossy[0], "{lossy:?}");
    // Its queue is longer than the other path is worse: both are used.
    let full = splitter.send_at(19, 1000);
    assert!(full[1] * 2 > full[0], "{full:?}");
    let resent = splitter.trial.0.borrow_mut().resent(11);
    assert_eq!(resent.expect("a counter"), 10);
}

#[test]
fn a_path_that_others_fill_gets_what_the_other_cannot_take() {
    let mut splitter = Splitter::new([(10, 20.0), (10, 20.0)]);
    splitter.set_excess(80);
    // A flow that opens its window: 80 ms of 10 Mbit/s are 100 kB.
    for segment in 0..60 {
        assert_eq!(splitter.send(), 10, "segment {segment}");
    }
    assert!((0..8).any(|_| splitter.send() == 11));
    splitter.now += 200 * MS;
    splitter.set_excess(80);
    assert_eq!(splitter.send_at(9, 500)[1], 0);
    splitter.set_excess(80);
    let full = splitter.send_at(19, 1000);
    assert!(full[1] * 2 > full[0], "{full:?}");
    // Nobody tells the queue any more.
    splitter.now += 2000 * MS;
    let later = splitter.send_at(19, 500);
    assert!(later[0].abs_diff(later[1]) < 4, "{later:?}");
}

/// The line drains a little slower than it was said to, so the estimate loses sight of a queue that stands.
#[test]
fn a_queue_that_the_estimate_has_lost_counts() {
    let mut splitter = Splitter::new([(10, 20.0), (10, 10.0)]);
    assert_eq!(splitter.send_at(9, 500)[0], 0);
    splitter.set_excess(60);
    let sent = splitter.send_at(9, 500);
    assert!(sent[1] == 0, "{sent:?}");
}

#[test]
fn while_probes_tell_the_queue_others_part_of_it_counts_once() {
    let mut splitter = Splitter::new([(10, 20.0), (10, 20.0)]);
    splitter.set_with([(10, 20.0), (10, 90.0)], Some(20.0));
    let told = splitter.send_at(9, 500);
    assert_eq!(told[1], 0);
    splitter.now += 500 * MS;
    splitter.set_excess(0);
    let seen = splitter.send_at(19, 500);
    assert!(seen[0].abs_diff(seen[1]) < 4, "{seen:?}");
}

#[test]
fn the_estimated_queue_of_each_path_can_be_read() {
    let mut splitter = Splitter::new([(10, 20.0), (10, 20.0)]);
    let read = |splitter: &Splitter| {
        let queues = splitter.trial.0.borrow_mut().estimated_queues("hb");
        queues.expect("a map")
    };
    assert!(read(&splitter).is_empty());
    splitter.now = monotonic_time().expect("a clock").as_nanos() as u64;
    splitter.send_at(1000, 5);
    let queues = read(&splitter);
    assert_eq!(queues.keys().copied().collect::<Vec<u16>>(), TAGS);
    // 5 ms of 1 Gbit/s are 250 ms of each.
    for queue in queues.values() {
        let bounds = Duration::from_millis(100)..Duration::from_millis(260);
        assert!(bounds.contains(queue), "{queue:?}");
    }
    let other = splitter.trial.0.borrow_mut().estimated_queues("hc");
    assert!(other.expect("a map").is_empty());
}

/// The queue of a path overflows, and many segments are lost at once.
#[test]
fn a_burst_of_losses_is_one_loss() {
    let mut splitter = Splitter::new([(10, 20.0), (10, 20.0)]);
    splitter.send_at(19, 2000);
    splitter.now += 100 * MS;
    let mut lost = 0;
    while lost < 40 {
        if splitter.send() == 11 {
            splitter.send_segment(splitter.next);
            lost += 1;
        }
        splitter.now += MS / 2;
    }
    splitter.now += 1000 * MS;
    let after = splitter.send_at(15, 500);
    assert!(after[1] * 3 > after[0], "{after:?}");
}

#[test]
fn what_is_lost_in_a_queue_of_the_flow_itself_says_nothing_of_the_path() {
    let mut splitter = Splitter::new([(10, 20.0), (10, 20.0)]);
    splitter.send_at(19, 2000);
    splitter.send_at(40, 100);
    let mut taken = 0;
    while taken < 500 {
        if splitter.send() == 11 {
            taken += 1;
            if taken % 100 == 0 {
                splitter.send_segment(splitter.next);
            }
        }
        splitter.now += MS * 3 / 5;
    }
    let resent = splitter.trial.0.borrow_mut().resent(11);
    assert_eq!(resent.expect("a counter"), 5);
    splitter.now += 500 * MS;
    let after = splitter.send_at(19, 500);
    assert!(after[0].abs_diff(after[1]) < 4, "{after:?}");
}

/// Path 11 has lost ten segments, and is avoided.
fn losing() -> Splitter {
    let mut splitter = Splitter::new([(10, 20.0), (10, 20.0)]);
    let mut lost = 0;
    while lost < 10 {
        if splitter.send() == 11 {
            splitter.now += 60 * MS;
            splitter.send_segment(splitter.next);
            lost += 1;
        }
        splitter.now += MS;
    }
    let after = splitter.send_at(5, 500);
    assert!(after[1] * 20 < after[0], "{after:?}");
    splitter
}

#[test]
fn losses_before_copies_are_kept_count_no_more() {
    let mut splitter = losing();
    let path = CopiedPath {
        by: 10,
        token: 0,
        is_clear: true,
    };
    let repairs = Repairs {
        copied: BTreeMap::from([(11, path)]),
        ..Repairs::default()
    };
    let set = splitter.trial.0.borrow_mut().set_repairs(&repairs);
    set.expect("maps");
    let after = splitter.send_at(19, 500);
    assert!(after[0].abs_diff(after[1]) < 4, "{after:?}");
}

#[test]
fn losses_are_forgotten() {
    let mut splitter = losing();
    splitter.now += 10_000 * MS;
    let later = splitter.send_at(19, 500);
    assert!(later[0].abs_diff(later[1]) < 4, "{later:?}");
}

#[test]
fn what_both_paths_lose_counts_for_neither() {
    let mut splitter = Splitter::new([(10, 20.0), (10, 20.0)]);
    let mut lost = [0, 0];
    while lost != [10, 10] {
        let tag = splitter.send();
        let place = usize::from(tag == 11);
        if lost[place] < 10 {
            lost[place] += 1;
            splitter.now += 60 * MS;
            splitter.send_segment(splitter.next);
        }
    }
    splitter.now += 500 * MS;
    let after = splitter.send_at(19, 500);
    assert!(after[0].abs_diff(after[1]) < after[0] / 4, "{after:?}");
}

/// Segments that are lost behind the far edge hit each path now more and now less often than the other.
#[test]
fn losses_that_hit_paths_by_chance_bring_no_queue_to_one_of_them() {
    let mut chance = 1_u64;
    let mut splitter = Splitter::new([(10, 20.0), (10, 20.0)]);
    let mut worst = 0_f64;
    for _ in 0..40 {
        let before = splitter.trial.sent(TAGS);
        let end = splitter.now + 500 * MS;
        while splitter.now < end {
            splitter.send();
            chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1);
            if (chance >> 33).is_multiple_of(50) {
                splitter.send_segment(splitter.next);
            }
            splitter.now += MS * 4 / 5;
        }
        let after = splitter.trial.sent(TAGS);
        let sent = [after[0] - before[0], after[1] - before[1]];
        let share = sent[0] as f64 / (sent[0] + sent[1]) as f64;
        worst = worst.max((share - 0.5).abs());
    }
    assert!(worst < 0.2, "a share of {}", 0.5 + worst);
}

#[test]
fn paths_without_rates_take_turns() {
    let trial = split(false);
    let path = |tag| EgressPath {
        tag,
        rate_bit_s: u64::from(tag == 10),
        delay_ms: 1.0,
        latency_ms: None,
    };
    let egress = Egress {
        paths: TAGS.map(path).to_vec(),
        ..egress(false)
    };
    let set = trial.0.borrow_mut().set_egress(&[egress]);
    set.expect("a table");
    for _ in 0..6 {
        trial
            .run("braid_split", &framed(&data(1460)))
            .is(Verdict::Sent, "split");
    }
    assert_eq!(trial.sent(TAGS), [3, 3]);
}

#[test]
fn a_segment_that_is_sent_again_is_counted_for_its_path() {
    let trial = split(false);
    let path = |tag| EgressPath {
        tag,
        rate_bit_s: 10_000_000,
        delay_ms: if tag == 10 { 5.0 } else { 50.0 },
        latency_ms: None,
    };
    let egress = Egress {
        paths: TAGS.map(path).to_vec(),
        ..egress(false)
    };
    let set = trial.0.borrow_mut().set_egress(&[egress]);
    set.expect("a table");
    let frame = framed(&data(1460));
    for sent in 1..=3 {
        trial.run("braid_split", &frame).is(Verdict::Sent, "split");
        let resent = trial.0.borrow_mut().resent(10).expect("a counter");
        assert_eq!(resent, sent - 1);
    }
    // A small segment, such as a keepalive, may be sent again without a loss.
    for _ in 0..2 {
        trial
            .run("braid_split", &framed(&data(1)))
            .is(Verdict::Sent, "split");
    }
    assert_eq!(trial.0.borrow_mut().resent(10).expect("a counter"), 2);
}
