//! Round trips of QUIC handshakes and inside connections, and the uplinks that new QUIC connections try.

use std::thread::sleep;
use std::time::{Duration, Instant};

use Verdict::{Passed, Sent};
use braid_balance::{CachedPath, Choice, ClassEntry, LbMethod, UplinkCounters};
use braid_core::UplinkId;
use braid_packet::build;

use crate::support::choose::{flow_of, set_classes};
use crate::support::probe::Verdict;
use crate::support::race::{ONCE, RACING_UPLINKS, Track, racing};
use crate::support::talk::{INNER, SYN};
use crate::support::world::{QUIC, SERVER_V4};

const INITIAL: u8 = 0xc3;
const ZERO_RTT: u8 = 0xd1;
const SHORT: u8 = 0x41;
const DTLS: u8 = 0x16;
const PEER: (std::net::IpAddr, u16) = (SERVER_V4, QUIC);

/// Sends a datagram to the server whose first byte says what it is; the uplink of its flow.
fn send(track: &Track, port: u16, first: u8, reason: &str) -> UplinkId {
    let datagram = build::udp((INNER, port), PEER, &[first, 0, 0, 0, 1]);
    track.probe.out(&datagram).is(Sent, reason);
    flow_of(&track.probe, INNER, port).uplink
}

/// Has the server answer a flow.
fn answer(track: &Track, port: u16) {
    receive(track, port, INITIAL);
}

/// Has the server send a datagram whose first byte says what it is.
fn receive(track: &Track, port: u16, first: u8) {
    let flow = flow_of(&track.probe, INNER, port);
    let outer = (flow.outer.ip(), flow.outer.port());
    let datagram = build::udp(PEER, outer, &[first]);
    track
        .back(flow.uplink.index(), &datagram)
        .is(Passed, "in_stack");
}

fn counters(track: &Track, uplink: UplinkId) -> UplinkCounters {
    let counters = track.probe.datapath.borrow().counters();
    counters.expect("counters").uplinks[uplink.index()].1
}

fn path(track: &Track, uplink: UplinkId) -> Option<CachedPath> {
    let datapath = track.probe.datapath.borrow();
    let memory = datapath.path_cache_entry(SERVER_V4).expect("memory")?;
    let mut paths = memory.paths.into_iter();
    paths.find(|path| path.uplink == uplink)
}

fn round_trip(track: &Track, uplink: UplinkId) -> Option<Duration> {
    path(track, uplink)?.rtt
}

#[test]
fn the_first_answer_to_an_initial_gives_the_round_trip() {
    let track = Track::new(LbMethod::Fastest, ONCE);
    let began = Instant::now();
    let uplink = send(&track, 4000, INITIAL, "out_new");
    assert_eq!(round_trip(&track, uplink), None);
    sleep(Duration::from_millis(20));
    answer(&track, 4000);
    let most = began.elapsed();
    answer(&track, 4000);
    let counted = counters(&track, uplink);
    assert_eq!((counted.rtt_samples, counted.syn_answers), (1, 0));
    let rtt = Duration::from_micros(counted.rtt_us_sum);
    assert!((Duration::from_millis(20)..=most).contains(&rtt), "{rtt:?}");
    assert_eq!(round_trip(&track, uplink), Some(rtt));
}

#[test]
fn the_parts_of_a_first_flight_are_one_and_what_comes_later_is_sent_again() {
    let track = Track::new(LbMethod::RoundRobin, ONCE);
    let samples = |uplink| counters(&track, uplink).rtt_samples;
    // On a busy machine a flight may take longer than one does.
    let flight = (4000..4020).find_map(|port| {
        let began = Instant::now();
        let uplink = send(&track, port, INITIAL, "out_new");
        send(&track, port, ZERO_RTT, "out_flow");
        let is_one = began.elapsed() < Duration::from_millis(9);
        let before = samples(uplink);
        answer(&track, port);
        is_one.then(|| samples(uplink) - before)
    });
    assert_eq!(flight, Some(1));

    let uplink = send(&track, 4100, INITIAL, "out_new");
    let before = samples(uplink);
    sleep(Duration::from_millis(12));
    send(&track, 4100, INITIAL, "out_flow");
    answer(&track, 4100);
    assert_eq!(samples(uplink), before, "which of the two was answered?");
}

/// The uplink works, but the answer says nothing of its round trip.
#[test]
fn what_was_answered_is_not_taken_for_silent() {
    let track = Track::new(LbMethod::Race, ONCE);
    let repeated = send(&track, 4000, INITIAL, "out_new");
    assert!(path(&track, repeated).is_some_and(|path| path.tried));
    sleep(Duration::from_millis(12));
    send(&track, 4000, INITIAL, "out_flow");
    let other = send(&track, 4001, DTLS, "out_new");
    assert_ne!(repeated, other);
    for (port, uplink) in [(4000, repeated), (4001, other)] {
        answer(&track, port);
        assert!(path(&track, uplink).is_none_or(|path| !path.tried));
        assert_eq!(round_trip(&track, uplink), None);
    }
}

/// A client that keeps to an uplink would be kept on one that was a guess.
#[test]
fn a_client_that_keeps_to_an_uplink_takes_the_one_that_is_known() {
    let track = Track::new(LbMethod::Race, ONCE);
    let known = send(&track, 4000, INITIAL, "out_new");
    answer(&track, 4000);
    let keeps = ClassEntry {
        sticky: Some(Duration::from_secs(600)),
        ..racing(LbMethod::Race)
    };
    set_classes(&track.probe, &[keeps]);
    assert_eq!(send(&track, 4001, INITIAL, "out_new"), known);
    assert_eq!(
        flow_of(&track.probe, INNER, 4001).choice,
        Choice::Remembered
    );
}

/// The server's answer comes from another uplink than the first Initial's.
#[test]
fn a_connection_that_has_moved_shows_no_round_trip() {
    let track = Track::new(LbMethod::RoundRobin, ONCE);
    let left = send(&track, 4000, INITIAL, "out_new");
    track.set_up(|uplinks| {
        uplinks[left.index()].accepts_new = false;
        uplinks[left.index()].v4 = None;
    });
    let moved = send(&track, 4000, INITIAL, "out_new");
    assert_ne!(moved, left);
    answer(&track, 4000);
    assert_eq!(counters(&track, moved).rtt_samples, 0);
}

/// Nobody else takes an uplink because QUIC tries it, or leaves it out.
#[test]
fn a_trial_says_nothing_to_others() {
    let track = Track::new(LbMethod::Race, ONCE);
    send(&track, 4000, INITIAL, "out_new");
    let ping = build::icmp(INNER, SERVER_V4, 8, 0, 77, b"ping");
    track.probe.out(&ping).is(Sent, "out_new");
    assert_eq!(flow_of(&track.probe, INNER, 77).choice, Choice::NextSlot);
    let syn = build::tcp((INNER, 4001), (SERVER_V4, 80), SYN, b"");
    assert_eq!(track.probe.out(&syn).reason, "race_begun");
}

#[test]
fn other_datagrams_are_no_handshakes() {
    let track = Track::new(LbMethod::RoundRobin, ONCE);
    for (port, first) in [(4000, SHORT), (4001, 0xf3), (4002, DTLS), (4003, 1)] {
        let uplink = send(&track, port, first, "out_new");
        answer(&track, port);
        assert_eq!(counters(&track, uplink).rtt_samples, 0, "{first:#x}");
    }
    let empty = build::udp((INNER, 4004), PEER, b"");
    track.probe.out(&empty).is(Sent, "out_new");
    answer(&track, 4004);
    let uplink = flow_of(&track.probe, INNER, 4004).uplink;
    assert_eq!(counters(&track, uplink).rtt_samples, 0);
}

/// As QUIC is not raced, all of it would stay on the first uplink whose round trip is known.
#[test]
fn every_uplink_is_tried_and_then_the_quickest_taken() {
    let track = Track::new(LbMethod::Race, ONCE);
    let tried = [4000, 4001, 4002].map(|port| {
        let uplink = send(&track, port, INITIAL, "out_new");
        assert_eq!(flow_of(&track.probe, INNER, port).choice, Choice::NextSlot);
        (uplink, port)
    });
    let mut uplinks = tried.map(|(uplink, _)| uplink.index());
    uplinks.sort_unstable();
    assert!(uplinks.iter().copied().eq(0..RACING_UPLINKS), "{tried:?}");
    answer(&track, 4002);
    sleep(Duration::from_millis(5));
    answer(&track, 4000);
    // The one that has not answered is not tried again for now.
    for port in 4003..4008 {
        assert_eq!(send(&track, port, INITIAL, "out_new"), tried[2].0);
        let flow = flow_of(&track.probe, INNER, port);
        assert_eq!(flow.choice, Choice::Remembered);
    }
}

/// The spin bit of a short header.
const SPIN: u8 = 0x20;
const HANDSHAKE: Duration = Duration::from_millis(20);

/// A connection after its handshake.
struct Connection {
    track: Track,
    port: u16,
    uplink: UplinkId,
}

impl Connection {
    /// One whose handshake took so long.
    fn after(handshake: Duration) -> Connection {
        let track = Track::new(LbMethod::RoundRobin, ONCE);
        let uplink = send(&track, 4000, INITIAL, "out_new");
        sleep(handshake);
        answer(&track, 4000);
        Connection {
            track,
            port: 4000,
            uplink,
        }
    }

    fn send(&self, spin: bool) {
        let first = SHORT | if spin { SPIN } else { 0 };
        send(&self.track, self.port, first, "out_flow");
    }

    fn receive(&self, spin: bool, packets: u32) {
        let first = SHORT | if spin { SPIN } else { 0 };
        (0..packets).for_each(|_| receive(&self.track, self.port, first));
    }

    /// Round trips that were taken, their growth over the shortest, and their sum.
    fn taken(&self) -> (u64, Duration, Duration) {
        let counted = counters(&self.track, self.uplink);
        let [growth, sum] =
            [counted.queueing_us_sum, counted.flow_rtt_us_sum].map(Duration::from_micros);
        (counted.queueing_samples, growth, sum)
    }

    /// The client turns the bit, and the server repeats it after a while.
    fn turn(&self, spin: bool, after: Duration) {
        self.send(spin);
        self.receive(!spin, 6);
        sleep(after);
        self.receive(spin, 1);
    }
}

#[test]
fn the_spin_bit_shows_the_growth_of_round_trips() {
    let connection = Connection::after(HANDSHAKE);
    connection.send(false);
    connection.receive(false, 6);
    assert_eq!(connection.taken().0, 0, "nothing has been turned");
    let began = Instant::now();
    connection.turn(true, Duration::from_millis(15));
    let most = began.elapsed();
    let (number, _, first) = connection.taken();
    assert_eq!(number, 1);
    assert!(
        (Duration::from_millis(15)..=most).contains(&first),
        "{first:?}"
    );
    // Further packets with the bit are of the same turn.
    connection.send(true);
    connection.receive(true, 9);
    assert_eq!(connection.taken().0, 1);
    let began = Instant::now();
    connection.turn(false, Duration::from_millis(60));
    let most = began.elapsed();
    let (number, growth, sum) = connection.taken();
    assert_eq!(number, 2);
    let second = sum - first;
    assert!(
        (Duration::from_millis(60)..=most).contains(&second),
        "{second:?}"
    );
    // The shortest is the first, or the handshake if that was shorter.
    assert!(growth >= second - first, "{growth:?}");
    // A flow that moves nothing: the server may answer when it pleases.
    connection.send(true);
    sleep(Duration::from_millis(15));
    connection.receive(true, 1);
    assert_eq!(connection.taken().0, 2);
    connection.turn(false, Duration::from_millis(15));
    assert_eq!(connection.taken().0, 3);
}

/// Half of all ends have no spin bit: theirs is always the same, or drawn for each packet.
#[test]
fn a_bit_that_does_not_spin_shows_nothing() {
    let constant = Connection::after(HANDSHAKE);
    for _ in 0..9 {
        constant.send(false);
        sleep(Duration::from_millis(2));
        constant.receive(true, 6);
    }
    assert_eq!(constant.taken().0, 0);

    // The client draws: it turns the bit before any answer.
    let drawn = Connection::after(HANDSHAKE);
    for spin in [false, true, false] {
        drawn.send(spin);
    }
    for round in 0..9 {
        drawn.turn(round % 2 == 1, Duration::from_millis(15));
    }
    assert_eq!(drawn.taken().0, 0);

    // The server draws, and the client turns what it gets: an answer comes at once.
    let answered = Connection::after(10 * HANDSHAKE);
    for round in 0..9 {
        answered.turn(round % 2 == 1, Duration::ZERO);
    }
    assert_eq!(answered.taken().0, 0);
    for round in 9..15 {
        answered.turn(round % 2 == 1, 5 * HANDSHAKE);
    }
    assert_eq!(answered.taken().0, 0, "for good");
}

#[test]
fn no_spin_bit_counts_before_the_handshake_has_shown_a_round_trip() {
    let track = Track::new(LbMethod::RoundRobin, ONCE);
    // As a connection that moved, or one from before the daemon's start, begins.
    let uplink = send(&track, 4000, SHORT, "out_new");
    answer(&track, 4000);
    let connection = Connection {
        track,
        port: 4000,
        uplink,
    };
    for round in 0..6 {
        connection.turn(round % 2 == 1, Duration::from_millis(15));
    }
    assert_eq!(connection.taken().0, 0);
}
