//! Fate of flows whose uplink dies, packet by packet.

use std::net::IpAddr;

use Verdict::{Dropped, Passed, Sent};
use braid_balance::{Choice, FlowState};
use braid_packet::build::{self, flags::*};

use crate::support::probe::{Outcome, Probe, Verdict};
use crate::support::talk::{CLIENT, CLIENT6, INNER, INNER6};
use crate::support::world::{OUTSIDE, QUIC, SERVER_V4, SERVER_V6};

const PORT: u16 = 4000;
const FAMILIES: [(IpAddr, IpAddr, IpAddr); 2] =
    [(INNER, CLIENT, SERVER_V4), (INNER6, CLIENT6, SERVER_V6)];

/// The uplink that a packet has left by.
fn uplink(sent: &Outcome) -> usize {
    let outer = sent.read().ip.source;
    let found = OUTSIDE.iter().position(|ends| ends.contains(&outer));
    found.expect("an uplink's address")
}

/// Says which uplinks are dead, and that their connections are to be told.
fn dead(probe: &Probe, ids: &[usize]) {
    let mut uplinks = probe.world.uplinks();
    for &id in ids {
        uplinks[id].accepts_new = false;
        uplinks[id].resets_tcp = true;
    }
    let mut datapath = probe.datapath.borrow_mut();
    datapath.set_uplinks(&uplinks).expect("uplinks");
}

/// Opens a connection and returns its uplink. Sequence numbers: inside from 1000, outside from 5000.
fn connect(probe: &Probe, local: IpAddr, peer: IpAddr, lan: bool) -> usize {
    let (local, peer) = ((local, PORT), (peer, 80));
    let out = |packet: &[u8]| {
        if lan {
            probe.forwarded(packet)
        } else {
            probe.out(packet)
        }
    };
    let sent = out(&build::segment(local, peer, [999, 0], SYN, b"")).is(Sent, "out_new");
    let uplink = uplink(&sent);
    let outer = (sent.read().ip.source, PORT);
    let answer = build::segment(peer, outer, [4999, 1000], SYN | ACK, b"");
    assert_ne!(probe.back(uplink, &answer).verdict, Dropped);
    out(&build::segment(local, peer, [1000, 5000], ACK, b"")).is(Sent, "out_flow");
    uplink
}

#[track_caller]
fn is_reset(told: &Outcome, numbers: [u32; 2], flags: u8) {
    let packet = told.read();
    let segment = packet.segment();
    let word = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().expect("four bytes"));
    assert_eq!([word(4), word(8)], numbers, "sequence numbers");
    assert_eq!(
        (segment[12] >> 4, segment[13], segment.len()),
        (5, flags, 20)
    );
    let header = if packet.ip.source.is_ipv4() { 20 } else { 40 };
    assert_eq!((told.packet.len(), packet.ip.hops), (header + 20, 64));
}

/// RFC 9293 §3.10.7.1: "If the incoming segment has an ACK field, the reset takes its sequence
/// number from the ACK field of the segment; otherwise, the reset has sequence number zero and the
/// ACK field is set to the sum of the sequence number and segment length of the incoming segment."
#[test]
fn a_dead_connection_s_segment_becomes_the_reset_that_answers_it() {
    for (inner, client, server) in FAMILIES {
        for lan in [false, true] {
            let probe = Probe::new();
            let local = (if lan { client } else { inner }, PORT);
            let peer = (server, 80);
            let dying = connect(&probe, local.0, server, lan);
            dead(&probe, &[dying]);
            let send = |packet: &[u8]| {
                if lan {
                    probe.lan(packet).is(Sent, "lan_reset")
                } else {
                    probe.out(packet).is(Sent, "out_reset")
                }
            };
            let data = build::segment(local, peer, [1000, 5000], ACK, &[7; 1301]);
            let told = send(&data);
            is_reset(&told, [5000, 0], RST);
            assert_eq!(
                (told.read().ip.source, told.read().ip.dest),
                (peer.0, local.0)
            );
            let bare = build::segment(local, peer, [1000, 0], FIN, &[7; 10]);
            is_reset(&send(&bare), [0, 1011], RST | ACK);
            let flow = probe.flow(local).expect("not forgotten");
            assert_eq!(flow.state, FlowState::Closing);
            // Told once, told for good: the client knows of no connection any more.
            dead(&probe, &[]);
            is_reset(&send(&data), [5000, 0], RST);
            // Both ends may still say that it is over, and the client may open a new one.
            let over = build::segment(local, peer, [1000, 0], RST, b"");
            let syn = build::segment(local, peer, [7000, 0], SYN, b"");
            let out = |packet: &[u8]| {
                if lan {
                    probe.forwarded(packet)
                } else {
                    probe.out(packet)
                }
            };
            out(&over).is(Sent, "out_flow");
            assert_eq!(out(&syn).is(Sent, "out_new").events, ["flow_replaced"]);
        }
    }
}

#[test]
fn nobody_is_told_while_no_other_uplink_takes_flows() {
    let probe = Probe::new();
    connect(&probe, INNER, SERVER_V4, false);
    dead(&probe, &[0, 1]);
    let data = build::segment((INNER, PORT), (SERVER_V4, 80), [1000, 5000], ACK, b"x");
    probe.out(&data).is(Sent, "out_flow");
    let ask = build::udp((INNER, 5000), (SERVER_V4, QUIC), b"x");
    assert!(
        probe.out(&ask).verdict == Dropped,
        "nor does anything begin"
    );
}

#[test]
fn a_syn_is_repeated_elsewhere() {
    let probe = Probe::new();
    let syn = build::segment((INNER, PORT), (SERVER_V4, 80), [9, 0], SYN, b"");
    let first = uplink(&probe.out(&syn).is(Sent, "out_new"));
    dead(&probe, &[first]);
    let again = probe.out(&syn).is(Sent, "out_new");
    assert_eq!(again.events, ["flow_moved"]);
    assert_ne!(uplink(&again), first);
    let flow = probe.flow((INNER, PORT)).expect("a flow");
    assert_eq!(flow.choice, Choice::Moved);
    assert_eq!(flow.came_from.map(|id| id.index()), Some(first));
}

/// RFC 9000 §9.3 lets a server follow a client to another address; what it has sent to the one
/// before is not lost.
#[test]
fn quic_moves_and_late_answers_still_find_it() {
    for (inner, client, server) in FAMILIES {
        for lan in [false, true] {
            let probe = Probe::new();
            let local = (if lan { client } else { inner }, PORT);
            let peer = (server, QUIC);
            let delivered = if lan {
                (Sent, "in_lan")
            } else {
                (Passed, "in_stack")
            };
            let packet = build::udp(local, peer, b"short header");
            let out = || {
                if lan {
                    probe.forwarded(&packet)
                } else {
                    probe.out(&packet)
                }
            };
            let before = out().is(Sent, "out_new");
            let old = uplink(&before);
            let answer =
                |sent: &Outcome| build::udp(peer, (sent.read().ip.source, PORT), b"answer");
            let back = probe.back(old, &answer(&before));
            assert_eq!(back.is(delivered.0, delivered.1).events, ["flow_promoted"]);

            dead(&probe, &[old]);
            if lan {
                probe.lan(&packet).is(Passed, "lan_not_fast");
            }
            // As the daemon repeats it: out of the host itself, whoever's it is.
            let after = probe.out(&packet).is(Sent, "out_new");
            assert_eq!(after.events, ["flow_moved"]);
            assert_ne!(uplink(&after), old);
            let late = probe.back(old, &answer(&before));
            assert_eq!(late.read().ip.dest, local.0);
            assert_eq!(late.is(delivered.0, delivered.1).events, ["in_late_reply"]);
            let flow = probe.flow(local).expect("a flow");
            assert_eq!(flow.came_from.map(|id| id.index()), Some(old));
            assert_eq!(flow.state, FlowState::New, "a late answer proves nothing");
            assert_eq!(flow.fast, lan, "the way back is inherited");
            let answered = probe.back(1 - old, &answer(&after));
            assert_eq!(
                answered.is(delivered.0, delivered.1).events,
                ["flow_promoted"]
            );
        }
    }
}

#[test]
fn an_uplink_s_counters_tell_whether_anybody_answers() {
    let probe = Probe::new();
    let counters = |uplink: usize| {
        let counters = probe.datapath.borrow().counters().expect("counters");
        counters.uplinks[uplink].1
    };
    let (local, peer) = ((INNER, PORT), (SERVER_V4, 80));
    let syn = build::segment(local, peer, [999, 0], SYN, b"");
    let sent = probe.out(&syn).is(Sent, "out_new");
    let uplink = uplink(&sent);
    probe.out(&syn).is(Sent, "out_flow");
    let asked = counters(uplink);
    assert_eq!(
        (asked.syns, asked.syn_repeats, asked.syn_answers),
        (1, 1, 0)
    );
    let outer = (sent.read().ip.source, PORT);
    let answer = build::segment(peer, outer, [4999, 1000], SYN | ACK, b"");
    probe.back(uplink, &answer).is(Passed, "in_stack");
    probe.back(uplink, &answer).is(Passed, "in_stack");
    let answered = counters(uplink);
    assert_eq!((answered.syn_answers, answered.repeats), (1, 0));
    assert_eq!(answered.rtt_samples, 0, "which of the two was answered?");
    for (from, length, repeats) in [
        (1000, 0, 0),  // confirms
        (1000, 10, 0), // is new
        (1010, 10, 0), // is new
        (1010, 10, 1), // is not
        (1000, 20, 2), // is not
        (1000, 21, 2), // is, in part
        (1021, 0, 2),  // acknowledges
    ] {
        let data = build::segment(local, peer, [from, 5000], ACK, &vec![0; length]);
        probe.out(&data).is(Sent, "out_flow");
        assert_eq!(counters(uplink).repeats, repeats, "{from} + {length}");
    }
    // A handshake without repetitions is measured.
    let other = connect(&probe, INNER6, SERVER_V6, false);
    let measured = counters(other);
    assert_eq!(measured.rtt_samples, 1);
    assert!(
        measured.rtt_us_sum < 1_000_000,
        "{} us",
        measured.rtt_us_sum
    );
}
