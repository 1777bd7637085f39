//! Round trips inside flows, by TCP timestamps.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use braid_balance::RaceSettings;
use braid_packet::{build, protocol};
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

use crate::support::probe::{Probe, Verdict};
use crate::support::talk::{ACK, INNER, SERVER, SYN, answer, handshake, tcp};

/// A flow's fixed end.
type End = (IpAddr, u16);

/// A segment with timestamps: its own and the one that it echoes.
fn stamped(source: End, dest: End, stamps: [u32; 2], payload: &[u8]) -> Vec<u8> {
    let plain = build::tcp(source, dest, ACK, payload);
    let mut segment = plain[plain.len() - 20 - payload.len()..].to_vec();
    segment[12] = 8 << 4;
    segment[16..18].fill(0);
    let mut option = vec![1, 1, 8, 10];
    option.extend(stamps.map(u32::to_be_bytes).concat());
    segment.splice(20..20, option);
    build::packet(source.0, dest.0, protocol::TCP, segment, Some(16))
}

/// Keeps this thread on its processor: the programs note for each one apart when something came by an uplink.
fn stay_on_this_processor() {
    let mut processors = CpuSet::new();
    let this = sched_getcpu().expect("a processor");
    processors
        .set(this)
        .expect("a number that is not too large");
    sched_setaffinity(Pid::from_raw(0), &processors).expect("allowed");
}

#[test]
fn round_trips_of_flows_that_move_data_show_their_growth() {
    const PORT: u16 = 4000;
    stay_on_this_processor();
    let probe = Probe::new();
    let (uplink, _) = handshake(&probe, PORT);
    let outer = probe.flow((INNER, PORT)).expect("open").outer;
    let outer = (outer.ip(), outer.port());
    let send = |stamp| {
        let segment = stamped((INNER, PORT), SERVER, [stamp, 1], b"");
        probe.out(&segment).is(Verdict::Sent, "out_flow");
    };
    let echo = |stamp, segments| {
        for _ in 0..segments {
            let segment = stamped(SERVER, outer, [1, stamp], b"data");
            probe.back(uplink, &segment).is(Verdict::Passed, "in_stack");
        }
    };
    let queueing = || {
        let counters = probe.datapath.borrow().counters().expect("counters");
        let counters = counters.uplinks[uplink].1;
        let sum = Duration::from_micros(counters.queueing_us_sum);
        (counters.queueing_samples, sum)
    };
    let jitter = || {
        let counters = probe.datapath.borrow().counters().expect("counters");
        let counters = counters.uplinks[uplink].1;
        let us = [counters.flow_rtt_us_sum, counters.jitter_us_sum];
        (us.map(Duration::from_micros), counters.jitter_samples)
    };
    let began = Instant::now();
    send(100);
    echo(99, 6);
    assert_eq!(queueing().0, 0, "not yet echoed");
    echo(100, 1);
    assert_eq!(queueing(), (1, Duration::ZERO), "the shortest");
    let shortest_at_most = began.elapsed();
    let ([shortest, change], changes) = jitter();
    assert!(shortest <= shortest_at_most, "{shortest:?}");
    assert_eq!((change, changes), (Duration::ZERO, 0), "the first");
    // The wait is what is measured.
    send(200);
    send(201);
    echo(100, 6);
    sleep(shortest_at_most + Duration::from_millis(20));
    let went_on = Instant::now();
    echo(100, 1);
    echo(200, 1);
    let went_on = went_on.elapsed();
    let (samples, sum) = queueing();
    assert_eq!(samples, 2);
    assert!(
        (Duration::from_millis(15)..Duration::from_secs(2)).contains(&sum),
        "{sum:?}"
    );
    // The second is the shortest and its growth, and differs from the first by that.
    assert_eq!(jitter(), ([shortest * 2 + sum, sum], 1));
    let queued = || {
        let counters = probe.datapath.borrow().counters().expect("counters");
        let counters = counters.uplinks[uplink].1;
        [counters.queued_us, counters.queue_unseen_us].map(Duration::from_micros)
    };
    let began = Instant::now();
    let before = queued();
    // No other round trip tells of that time.
    assert!((sum.saturating_sub(went_on)..=sum).contains(&before[0]));
    sleep(Duration::from_millis(5));
    let after = queued();
    assert_eq!(after[0], before[0]);
    let unseen = after[1] - before[1];
    assert!((Duration::from_millis(5)..began.elapsed()).contains(&unseen));
    // A flow that moves nothing: the remote may delay its acknowledgement.
    send(300);
    echo(300, 1);
    assert_eq!(queueing(), (2, sum));
    // An echo that never comes is given up when a later one does.
    send(400);
    echo(401, 6);
    send(500);
    echo(401, 6);
    echo(500, 1);
    assert_eq!(queueing().0, 3);
    // The third is shorter than the second: its change counts as well.
    let ([all, changes], number) = jitter();
    let third = all - (shortest * 2 + sum);
    assert_eq!(changes, sum + (shortest + sum - third));
    assert_eq!(number, 2);
    // A sender that pauses makes no queue.
    let ([before, _], (_, sum)) = (queued(), queueing());
    let sent = Instant::now();
    send(600);
    echo(500, 6);
    let sent = sent.elapsed();
    sleep(Duration::from_millis(20));
    echo(600, 1);
    assert!(queueing().1 - sum >= Duration::from_millis(15));
    assert!(queued()[0] - before <= sent);
}

/// Opens a connection from the host whose SYN is answered after a while; returns the uplink it takes.
fn begin(probe: &Probe, port: u16, after: Duration) -> usize {
    let sent = probe.out(&tcp(port, SYN)).is(Verdict::Sent, "out_new");
    let (uplink, syn_ack) = answer(&sent, SYN | ACK);
    sleep(after);
    probe.back(uplink, &syn_ack).is(Verdict::Passed, "in_stack");
    let confirmed = probe.out(&tcp(port, ACK));
    confirmed.is(Verdict::Sent, "out_flow");
    uplink
}

/// All connections of a page begin at once, behind the queue that they make.
#[test]
fn a_flow_that_begins_behind_a_queue_is_compared_with_what_its_path_has_shown() {
    const QUEUE: Duration = Duration::from_millis(60);
    let probe = Probe::new();
    // Without a time to remember it, what a path has shown is forgotten with its second.
    let race = RaceSettings {
        cache_ttl: Duration::from_secs(60),
        explore_one_in: 0,
        per_prefix: 0,
        total: 0,
    };
    probe.datapath.borrow_mut().set_race(race).expect("set");
    // The path has shown how short it is only by a handshake that the machine did not hold up.
    let uplink = (3000..4000)
        .find_map(|port| {
            let began = Instant::now();
            let (uplink, _) = handshake(&probe, port);
            (began.elapsed() < Duration::from_millis(5)).then_some(uplink)
        })
        .expect("one handshake of a thousand takes less than 5 ms");
    let port = (4001..4100)
        .find(|port| begin(&probe, *port, QUEUE) == uplink)
        .expect("flows take turns");
    let outer = probe.flow((INNER, port)).expect("open").outer;
    let outer = (outer.ip(), outer.port());
    let segment = stamped((INNER, port), SERVER, [100, 1], b"");
    probe.out(&segment).is(Verdict::Sent, "out_flow");
    sleep(QUEUE);
    let began = Instant::now();
    for echo in [99, 99, 99, 99, 99, 99, 100] {
        let segment = stamped(SERVER, outer, [1, echo], b"data");
        probe.back(uplink, &segment).is(Verdict::Passed, "in_stack");
    }
    let counters = probe.datapath.borrow().counters().expect("counters");
    let counters = counters.uplinks[uplink].1;
    assert_eq!(counters.queueing_samples, 1);
    // A full packet may take 20 ms longer than a SYN on a slow line. If a second has passed, what the path has shown rises by
    // a quarter of the difference.
    let growth = Duration::from_micros(counters.queueing_us_sum);
    let least = QUEUE * 3 / 4 - Duration::from_millis(25);
    assert!(growth >= least, "{growth:?} in {:?}", began.elapsed());
}
