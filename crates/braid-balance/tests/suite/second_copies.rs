//! Second copies of a flow's first packets, on an uplink that loses packets.

use Verdict::{Passed, Sent};
use braid_balance::LbMethod;
use braid_packet::build;

use crate::support::choose::{class, flow_of, set_classes};
use crate::support::probe::{Outcome, Verdict};
use crate::support::race::{ALWAYS, ONCE, Track, racing};
use crate::support::talk::{ACK, INNER, INNER6, SYN, answer};
use crate::support::world::{QUIC, SERVER_V4, SERVER_V6};

const DNS: u16 = 53;
const PORT: u16 = 4000;

/// Everything takes the second of three uplinks, which loses packets or does not.
fn track(lossy: bool) -> Track {
    let track = Track::new(LbMethod::Race, ONCE);
    set_classes(&track.probe, &[class(0, &[1])]);
    lose(&track, lossy);
    track
}

fn lose(track: &Track, lossy: bool) {
    track.set_up(|uplinks| uplinks[1].sends_twice = lossy);
}

/// Sends a packet that goes so many times; it as it left.
fn sent(track: &Track, packet: &[u8], times: usize, reason: &str) -> Outcome {
    let sent = track.probe.out(packet).is(Sent, reason);
    assert!(sent.read().checksums_hold());
    for copy in track.copies(times - 1) {
        assert_eq!(copy, sent.packet, "a copy is the packet itself");
    }
    sent
}

#[test]
fn a_syn_goes_twice_where_packets_are_lost_and_nothing_else_of_its_connection() {
    for (local, peer) in [(INNER, SERVER_V4), (INNER6, SERVER_V6)] {
        let track = track(true);
        let segment = |flags, payload: &[u8]| {
            build::segment((local, PORT), (peer, 80), [999, 5000], flags, payload)
        };
        let syn = sent(&track, &segment(SYN, b""), 2, "out_new");
        sent(&track, &segment(SYN, b""), 2, "out_flow");
        let (uplink, syn_ack) = answer(&syn, SYN | ACK);
        track.back(uplink, &syn_ack).is(Passed, "in_stack");
        // The copy is answered as well.
        track.back(uplink, &syn_ack).is(Passed, "in_stack");
        sent(&track, &segment(ACK, b""), 1, "out_flow");
        sent(&track, &segment(ACK, b"GET"), 1, "out_flow");
        track.back(uplink, &syn_ack).is(Passed, "in_stack");
    }
}

#[test]
fn a_copy_is_no_second_try() {
    let track = track(true);
    let segment = |flags| build::segment((INNER, PORT), (SERVER_V4, 80), [999, 1], flags, b"");
    let syn = sent(&track, &segment(SYN), 2, "out_new");
    let (uplink, syn_ack) = answer(&syn, SYN | ACK);
    track.back(uplink, &syn_ack).is(Passed, "in_stack");
    let counters = track.probe.datapath.borrow().counters().expect("counters");
    let counters = counters.uplinks[1].1;
    assert_eq!((counters.syns, counters.syn_repeats), (1, 0));
    assert_eq!(counters.rtt_samples, 1, "its answer shows the round trip");
}

#[test]
fn everything_goes_once_where_nothing_is_lost() {
    let track = track(false);
    let syn = build::tcp((INNER, PORT), (SERVER_V4, 80), SYN, b"");
    sent(&track, &syn, 1, "out_new");
    let question = build::udp((INNER, PORT), (SERVER_V4, DNS), &[0; 40]);
    sent(&track, &question, 1, "out_new");
    // The uplink begins to lose packets, and ceases to.
    lose(&track, true);
    sent(&track, &syn, 2, "out_flow");
    lose(&track, false);
    sent(&track, &syn, 1, "out_flow");
}

#[test]
fn what_quic_clients_and_resolvers_send_before_the_first_answer_goes_twice() {
    let track = track(true);
    for (local, port) in [(PORT, QUIC), (PORT + 1, DNS)] {
        let mut question = [0; 40];
        question[0] = 0xc3;
        let out = build::udp((INNER, local), (SERVER_V4, port), &question);
        sent(&track, &out, 2, "out_new");
        sent(&track, &out, 2, "out_flow");
        let flow = flow_of(&track.probe, INNER, local);
        let outer = (flow.outer.ip(), flow.outer.port());
        let back = build::udp((SERVER_V4, port), outer, &question);
        track.back(1, &back).is(Passed, "in_stack");
        sent(&track, &out, 1, "out_flow");
    }
}

#[test]
fn a_stream_that_nobody_answers_goes_once_but_for_its_beginning() {
    let track = track(true);
    let datagram = build::udp((INNER, PORT), (SERVER_V4, QUIC), &[0xc3; 40]);
    for number in 0..12 {
        let reason = if number == 0 { "out_new" } else { "out_flow" };
        sent(&track, &datagram, if number < 8 { 2 } else { 1 }, reason);
    }
}

#[test]
fn other_datagrams_and_pings_go_once() {
    let track = track(true);
    let call = build::udp((INNER, PORT), (SERVER_V4, 5060), b"INVITE");
    sent(&track, &call, 1, "out_new");
    let ping = build::icmp(INNER, SERVER_V4, 8, 0, 7, b"ping");
    sent(&track, &ping, 1, "out_new");
}

/// The last candidate's packet is the SYN itself. Copies for the others come by the hook again, which has their second ones
/// made (`tests/balance/test_lossy_lines.py`).
#[test]
fn a_raced_syn_goes_twice_by_an_uplink_that_loses_packets() {
    let track = Track::new(LbMethod::Race, ALWAYS);
    set_classes(&track.probe, &[racing(LbMethod::Race)]);
    track.set_up(|uplinks| uplinks[2].sends_twice = true);
    let syn = build::tcp((INNER, PORT), (SERVER_V4, 80), SYN, b"");
    let last = track.probe.out(&syn).is(Sent, "race_begun");
    let copies = track.copies(3);
    let same = copies.iter().filter(|copy| **copy == last.packet).count();
    assert_eq!(same, 1);
}
