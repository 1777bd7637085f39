//! Virtual queues: packets above the rate that an uplink is shaped to.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use braid_balance::{Attachments, Datapath, HookKind, ShapeCounters, ShapeEntry};
use braid_core::{Rate, UplinkId};
use braid_packet::build;

use crate::support::net::PATIENCE;
use crate::support::probe::{Probe, Verdict};
use crate::support::talk::SERVER;
use crate::support::world::{OUTSIDE, World};

const TARGET: Duration = Duration::from_millis(5);
/// Time for which a queue has to stand before CoDel acts.
const CODEL_INTERVAL: Duration = Duration::from_millis(100);
/// One byte takes 1 us.
const RATE: Rate = Rate::from_bits_per_sec(8_000_000);
/// A packet of 1,000 bytes takes 10 ms, far longer than a test on a busy machine takes to send one.
const SLOW: Rate = Rate::from_bits_per_sec(800_000);
/// The outside address of the first uplink, and a port without flow.
const OUTER: (IpAddr, u16) = (OUTSIDE[0][0], 999);
/// Sends for every direction: packets of 1,000 bytes, and what becomes of one.
const DIRECTIONS: [fn(&Probe, &[u8]) -> Fate; 2] = [send, receive];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passed,
    Marked,
    Dropped,
}

fn shape(probe: &Probe, rate: Option<Rate>) {
    let entry = ShapeEntry {
        id: UplinkId(0),
        tx: rate,
        rx: rate,
        target: TARGET,
    };
    set_shaping(probe, &[entry]);
}

/// Shapes in the host's namespace, where the devices are.
fn set_shaping(probe: &Probe, entries: &[ShapeEntry]) {
    let datapath: &mut Datapath = &mut probe.datapath.borrow_mut();
    let shaped = probe.world.host.enter(|| datapath.set_shaping(entries));
    shaped.expect("rates");
}

fn counters(probe: &Probe) -> [ShapeCounters; 2] {
    let counters = probe.datapath.borrow().shape_counters().expect("counters");
    counters[0].1
}

/// A datagram of `size` bytes with the IP header, whose sender understands marks if `ect`.
fn datagram(source: (IpAddr, u16), dest: (IpAddr, u16), size: usize, ect: bool) -> Vec<u8> {
    let mut packet = build::udp(source, dest, &vec![7; size - 28]);
    if ect {
        packet[1] |= 2;
        // RFC 1624: the checksum follows the word.
        let sum = u16::from_be_bytes([packet[10], packet[11]]);
        let (sum, borrow) = sum.overflowing_sub(2);
        packet[10..12].copy_from_slice(&(sum - u16::from(borrow)).to_be_bytes());
    }
    packet
}

fn fate(dropped: bool, packet: &[u8]) -> Fate {
    match (dropped, packet[1] & 3) {
        (true, _) => Fate::Dropped,
        (false, 3) => Fate::Marked,
        (false, _) => Fate::Passed,
    }
}

/// Sends by the first uplink. The headers of `kind` are those of a packet that is received.
fn send(probe: &Probe, kind: &[u8]) -> Fate {
    let packet = datagram(OUTER, SERVER, kind.len(), kind[1] & 3 != 0);
    let (verdict, packet) = probe.shaped(0, &packet);
    fate(verdict == Verdict::Dropped, &packet)
}

fn receive(probe: &Probe, kind: &[u8]) -> Fate {
    let packet = datagram(SERVER, OUTER, kind.len(), kind[1] & 3 != 0);
    let outcome = probe.back(0, &packet);
    if outcome.verdict == Verdict::Dropped {
        assert_eq!(outcome.reason, "in_over_rate");
    }
    fate(outcome.verdict == Verdict::Dropped, &outcome.packet)
}

fn packet(size: usize, ect: bool) -> Vec<u8> {
    datagram(SERVER, OUTER, size, ect)
}

#[test]
fn packets_are_counted_only_where_an_uplink_is_shaped() {
    let probe = Probe::new();
    for pass in DIRECTIONS {
        assert_eq!(pass(&probe, &packet(1000, false)), Fate::Passed);
    }
    let off = probe.datapath.borrow().shape_counters().expect("counters");
    assert_eq!(off, []);
    shape(&probe, None);
    assert_eq!(counters(&probe), [ShapeCounters::default(); 2]);
    for pass in DIRECTIONS {
        for _ in 0..500 {
            assert_eq!(pass(&probe, &packet(1000, false)), Fate::Passed, "no rate");
        }
    }
    for counters in counters(&probe) {
        assert_eq!(
            (counters.passed.packets, counters.passed.bytes),
            (500, 500_000)
        );
    }
    set_shaping(&probe, &[]);
    let off = probe.datapath.borrow().shape_counters().expect("counters");
    assert_eq!(off, []);
}

#[test]
fn a_burst_passes_and_a_flood_is_held_to_the_rate() {
    for (direction, pass) in DIRECTIONS.into_iter().enumerate() {
        let probe = Probe::new();
        shape(&probe, Some(RATE));
        let start = Instant::now();
        // A millisecond each, so that a hundred are the limit; far more than pass meanwhile.
        let passed = (0..1_000).filter(|_| pass(&probe, &packet(1000, false)) == Fate::Passed);
        let passed = passed.count();
        let meanwhile = start.elapsed().as_millis() as usize;
        assert!(
            (98..=104 + meanwhile).contains(&passed),
            "{passed} in {meanwhile} ms"
        );
        // A call has room beside it.
        assert_eq!(pass(&probe, &packet(200, false)), Fate::Passed);
        let counters = counters(&probe)[direction];
        assert_eq!(counters.passed.packets, passed as u64 + 1);
        assert_eq!(counters.dropped.packets, 1_000 - passed as u64);
        assert_eq!(counters.dropped.bytes, 1_000 * counters.dropped.packets);
    }
}

/// Keeps the virtual queue of a line of `SLOW` at a delay of 60 ms, far from that at which all is dropped, until a packet
/// meets another fate than to pass. Returns that, and the time that it took.
fn fill(probe: &Probe, pass: fn(&Probe, &[u8]) -> Fate, ect: bool) -> (Fate, Duration) {
    let start = Instant::now();
    // When the queue would be empty, as time since the start.
    let mut empty = Duration::ZERO;
    while start.elapsed() < PATIENCE {
        empty = empty.max(start.elapsed());
        if empty > start.elapsed() + Duration::from_millis(60) {
            continue;
        }
        let fate = pass(probe, &packet(1000, ect));
        if fate != Fate::Passed {
            return (fate, start.elapsed());
        }
        empty += Duration::from_millis(10);
    }
    panic!("nothing is dropped")
}

#[test]
fn a_persistent_queue_is_dropped_or_marked() {
    for (direction, pass) in DIRECTIONS.into_iter().enumerate() {
        for ect in [false, true] {
            let probe = Probe::new();
            shape(&probe, Some(SLOW));
            let (fate, after) = fill(&probe, pass, ect);
            assert_eq!(fate, if ect { Fate::Marked } else { Fate::Dropped });
            assert!(after > CODEL_INTERVAL, "{after:?}");
            let counters = counters(&probe)[direction];
            assert_eq!(counters.marked_packets, u64::from(ect));
            assert_eq!(counters.dropped.packets, u64::from(!ect));
        }
    }
}

#[test]
fn below_the_rate_nothing_is_dropped() {
    for pass in DIRECTIONS {
        let probe = Probe::new();
        shape(&probe, Some(RATE));
        let start = Instant::now();
        let mut last = start;
        while start.elapsed() < Duration::from_millis(400) {
            // No burst makes up for a time in which this program did not run.
            while last.elapsed() < Duration::from_micros(1_100) {
                std::hint::spin_loop();
            }
            last = Instant::now();
            assert_eq!(pass(&probe, &packet(1000, false)), Fate::Passed);
        }
    }
}

#[test]
fn the_program_is_on_the_devices_that_are_shaped_alone() {
    for hook in [HookKind::Auto, HookKind::Clsact] {
        let world = World::new();
        let (mut datapath, _) = world.start(&world.options(hook));
        let off = world.attachments();
        let on = Attachments {
            shaped: vec![off.uplinks[0]],
            ..off.clone()
        };
        for (wanted, programs) in [(&on, 5), (&off, 4)] {
            for _ in 0..2 {
                let attached = world.host.enter(|| datapath.attach(wanted));
                attached.expect("attaching");
                assert_eq!(world.run_ids().len(), programs, "{hook:?}");
            }
        }
    }
}

/// The queues of the first uplink's device.
fn queues(probe: &Probe) -> String {
    probe.world.host.run("tc qdisc show dev wan0 root")
}

#[test]
fn what_is_sent_waits_in_a_queue_of_the_rate_and_small_packets_go_first() {
    let probe = Probe::new();
    let before = queues(&probe);
    shape(&probe, None);
    assert_eq!(queues(&probe), before, "no rate is known");
    for rate in [RATE, Rate::from_bits_per_sec(16_000_000)] {
        shape(&probe, Some(rate));
        assert!(counters(&probe)[0].queued);
        let classes = probe.world.host.run("tc class show dev wan0");
        // Frames of full size are longer than packets by 14 of 1,500 bytes.
        let frames = rate.bits_per_sec() * 1514 / 1500 / 1000;
        let first = format!(
            "htb b1d:2 parent b1d:1 prio 0 rate {}Kbit ceil {frames}Kbit",
            frames / 2
        );
        assert!(classes.contains(&first), "{classes}");
        assert!(
            classes.contains("htb b1d:3 parent b1d:1 prio 1"),
            "{classes}"
        );
    }
    set_shaping(&probe, &[]);
    assert_eq!(queues(&probe), before);
}

#[test]
fn somebody_elses_queue_stays() {
    let probe = Probe::new();
    let host = &probe.world.host;
    host.run("tc qdisc add dev wan0 root handle 77: tbf rate 1mbit burst 3000 latency 50ms");
    let foreign = queues(&probe);
    for rate in [RATE, SLOW] {
        shape(&probe, Some(rate));
        assert!(!counters(&probe)[0].queued);
        assert_eq!(queues(&probe), foreign);
    }
    // Set up while Braid's queue is there, it takes its place.
    host.run("tc qdisc del dev wan0 root");
    shape(&probe, Some(RATE));
    assert!(counters(&probe)[0].queued);
    host.run("tc qdisc replace dev wan0 root handle 77: tbf rate 1mbit burst 3000 latency 50ms");
    shape(&probe, Some(SLOW));
    assert!(!counters(&probe)[0].queued);
    set_shaping(&probe, &[]);
    assert_eq!(queues(&probe), foreign);
}
