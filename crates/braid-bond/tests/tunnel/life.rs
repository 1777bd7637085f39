//! Begin, continuation and end of sessions.

use std::time::Duration;

use braid_bond::proto::frame::Reason;
use braid_bond::proto::handshake::Options;
use braid_bond::proto::handshake::terms::Refusal;
use braid_bond::proto::reject::Reject;
use braid_bond::proto::tunnel::{Event, LinkConfig};
use braid_core::{Bytes, Time};
use braid_multipath::LinkId;
use braid_multipath::liveness::Verdict;

use crate::line::Lines;
use crate::sim::{End, HUB, Pair, inner, link, number, restarted};

fn two() -> Vec<Lines> {
    vec![Lines::new(0, 50, 15), Lines::new(1, 20, 40)]
}

fn after(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn count(events: &[(Time, Event)], is: impl Fn(&Event) -> bool) -> usize {
    events.iter().filter(|(_, event)| is(event)).count()
}

#[test]
fn a_client_connects_and_packets_pass_both_ways() {
    let mut pair = Pair::new(1, two());
    pair.connect();
    assert!(pair.now < after(1), "{:?}", pair.now);
    for number in 0..100 {
        pair.inner_at_client(inner(5, number, 1500));
        pair.inner_at_hub(inner(6, number, 1500));
    }
    pair.run_for(Duration::from_secs(1));
    let numbers = |packets: &[(Time, Vec<u8>)]| -> Vec<u64> {
        packets.iter().map(|(_, packet)| number(packet).1).collect()
    };
    let all: Vec<u64> = (0..100).collect();
    assert_eq!(numbers(&pair.at_hub), all);
    assert_eq!(numbers(&pair.at_client), all);
    assert_eq!(pair.at_hub[0].1, inner(5, 0, 1500));
    assert_eq!(pair.client.rejects().total(), 0);
}

#[test]
fn a_black_hole_on_one_line_does_not_block_the_others() {
    let mut lines = two();
    lines[0].both(|line| line.hole = true);
    let mut pair = Pair::new(2, lines);
    pair.run(after(1), |_| {});
    pair.inner_at_client(inner(5, 0, 1000));
    pair.run(after(2), |_| {});
    assert_eq!(pair.at_hub.len(), 1);
    let usable = |event: &Event| matches!(event, Event::LinkUsable(_));
    assert_eq!(count(&pair.client_events, usable), 1);
    // It recovers, and is used again without a new handshake.
    pair.lines[0].both(|line| line.hole = false);
    pair.run(after(30), |_| {});
    assert_eq!(count(&pair.client_events, usable), 2);
    let established = |event: &Event| matches!(event, Event::Established { .. });
    assert_eq!(count(&pair.client_events, established), 1);
}

#[test]
fn idle_links_are_left_in_peace() {
    let mut pair = Pair::new(3, two());
    pair.connect();
    pair.run_for(Duration::from_secs(20));
    let sent = |pair: &Pair| -> Vec<u64> {
        let lines = pair.lines.iter();
        lines.flat_map(|l| [l.up.packets, l.down.packets]).collect()
    };
    let before = sent(&pair);
    pair.run_for(Duration::from_secs(600));
    for (now, before) in sent(&pair).into_iter().zip(before) {
        let per_minute = (now - before) as f64 / 10.0;
        println!("{per_minute} datagrams a minute");
        assert!((2.0..10.0).contains(&per_minute), "{per_minute} a minute");
    }
}

#[test]
fn keys_change_while_packets_flow_and_nothing_is_lost_or_reordered() {
    let mut pair = Pair::new(4, two());
    pair.connect();
    let sent = 8000;
    pair.tick(
        Duration::from_secs(400),
        Duration::from_millis(50),
        |pair, count| {
            pair.inner_at_client(inner(5, count, 500));
        },
    );
    pair.run_for(Duration::from_secs(1));
    let continued = |event: &Event| {
        matches!(
            event,
            Event::Established {
                continued: true,
                ..
            }
        )
    };
    assert_eq!(
        count(&pair.client_events, continued),
        3,
        "every two minutes"
    );
    let numbers: Vec<u64> = pair.at_hub.iter().map(|(_, p)| number(p).1).collect();
    assert_eq!(numbers.len() as u64, sent);
    assert_eq!(numbers, (0..sent).collect::<Vec<_>>());
}

#[test]
fn a_restarted_hub_is_detected_and_reconnected() {
    let mut pair = Pair::new(5, two());
    pair.connect();
    pair.run_for(Duration::from_secs(2));
    pair.server = restarted(pair.now + Duration::from_secs(1234), 0x55);
    let restart = pair.now;
    pair.tick(
        Duration::from_secs(3),
        Duration::from_millis(10),
        |pair, count| {
            pair.inner_at_client(inner(5, count, 500));
        },
    );
    let first = pair.at_hub.first().expect("it goes on").0;
    let outage = first.since(restart);
    assert!(outage < Duration::from_millis(300), "{outage:?}");
    let anew = |event: &Event| {
        matches!(
            event,
            Event::Established {
                continued: false,
                ..
            }
        )
    };
    assert_eq!(count(&pair.client_events, anew), 2);
}

#[test]
fn a_hub_that_lost_the_session_is_noticed_beside_a_link_in_quarantine() {
    let mut pair = Pair::new(5, two());
    pair.connect();
    pair.lines[1].both(|line| line.loss = 0.5);
    let load = |pair: &mut Pair, seconds| {
        let span = Duration::from_secs(seconds);
        pair.tick(span, Duration::from_millis(2), |pair, count| {
            pair.inner_at_client(inner(5, count, 500));
        });
    };
    // More than the first link carries.
    pair.tick(
        Duration::from_secs(3),
        Duration::from_millis(1),
        |pair, n| {
            (0..6).for_each(|_| pair.inner_at_client(inner(7, n, 1230)));
        },
    );
    let is_out = |event: &Event| matches!(event, Event::LinkVerdict(change) if change.verdict == Verdict::Quarantined);
    assert_eq!(count(&pair.client_events, is_out), 1);
    // It starts anew, and its resets do not arrive.
    pair.server = restarted(pair.now + Duration::from_secs(1234), 0x55);
    pair.lines.iter_mut().for_each(|line| line.down.hole = true);
    pair.recorded = Some(Vec::new());
    load(&mut pair, 8);
    let sent = pair.recorded.take().expect("it is kept");
    let begins = |(_, datagram): &&(_, Vec<u8>)| datagram[0] == 0x01;
    assert!(sent.iter().filter(begins).count() > 0);
}

#[test]
fn a_line_without_quota_carries_what_no_other_can() {
    let mut pair = Pair::new(5, two());
    pair.connect();
    let spent = LinkConfig {
        quota: Some(Bytes::new(0)),
        ..link()
    };
    pair.client.set_link(LinkId(1), spent);
    pair.run_for(Duration::from_secs(1));
    let load = |pair: &mut Pair, seconds| {
        let before = (pair.at_hub.len(), pair.at_client.len());
        let span = Duration::from_secs(seconds);
        pair.tick(span, Duration::from_millis(5), |pair, count| {
            pair.inner_at_client(inner(5, count, 500));
            pair.inner_at_hub(inner(6, count, 500));
        });
        (
            pair.at_hub.len() - before.0,
            pair.at_client.len() - before.1,
        )
    };
    let bytes = |pair: &Pair| pair.lines[1].up.bytes + pair.lines[1].down.bytes;
    let before = bytes(&pair);
    let (up, down) = load(&mut pair, 2);
    assert!(up >= 390 && down >= 390, "{up} {down}");
    assert!(bytes(&pair) - before < 50_000);
    pair.lines[0].both(|line| line.hole = true);
    let (up, down) = load(&mut pair, 4);
    assert!(up > 700 && down > 700, "{up} {down}");
    pair.lines[0].both(|line| line.hole = false);
    load(&mut pair, 4);
    let before = bytes(&pair);
    load(&mut pair, 2);
    assert!(bytes(&pair) - before < 50_000);
}

#[test]
fn a_tunnel_without_its_other_end_stays_quiet_for_hours_and_reconnects() {
    let mut pair = Pair::new(11, two());
    pair.connect();
    let holes = |pair: &mut Pair, hole| {
        let lines = pair.lines.iter_mut();
        lines.for_each(|line| line.both(|line| line.hole = hole));
    };
    pair.inner_at_client(inner(5, 0, 500));
    pair.inner_at_hub(inner(6, 0, 500));
    holes(&mut pair, true);
    // Keys expire after one hour. `Pair::run` panics if a due timeout changes nothing.
    pair.run_for(Duration::from_secs(2 * 3600));
    assert!(pair.client.session().is_none());
    assert!(pair.hub().session().is_none());
    let mut instants = 0;
    let end = pair.now + Duration::from_secs(600);
    pair.run(end, |_| instants += 1);
    assert!(instants < 1000, "{instants} in ten minutes");
    assert_eq!(pair.server.poll_timeout(), None, "nobody to speak to");
    holes(&mut pair, false);
    pair.run_for(Duration::from_secs(30));
    pair.inner_at_client(inner(5, 1, 500));
    pair.run_for(Duration::from_secs(1));
    let last = pair.at_hub.last().map(|(_, packet)| number(packet));
    assert_eq!(last, Some((5, 1)));
}

#[test]
fn a_nat_that_rebinds_is_followed_and_a_thief_is_not() {
    let mut pair = Pair::new(6, vec![Lines::new(0, 50, 15)]);
    pair.connect();
    pair.recorded = Some(Vec::new());
    pair.inner_at_client(inner(5, 0, 500));
    pair.run_for(Duration::from_secs(1));
    // An attacker on the path replays packets from its own address, before and after the originals.
    let thief = "198.51.100.7:7".parse().expect("an address");
    let recorded = pair.recorded.take().expect("recorded");
    for (_, datagram) in recorded {
        pair.inject(End::Hub, thief, datagram);
    }
    pair.run_for(Duration::from_secs(1));
    let moved = |event: &Event| matches!(event, Event::PathMigrated { .. });
    assert_eq!(count(&pair.hub_events, moved), 1, "only the client's first");
    assert!(pair.hub().rejects().of(Reject::Seen) > 0);

    pair.lines[0].client = "203.0.113.9:999".parse().expect("an address");
    let begin = pair.now;
    pair.tick(
        Duration::from_secs(2),
        Duration::from_millis(20),
        |pair, count| {
            pair.inner_at_client(inner(5, count + 1, 500));
            pair.inner_at_hub(inner(6, count, 500));
        },
    );
    assert_eq!(count(&pair.hub_events, moved), 2);
    let first = pair.at_client.first().expect("it goes on").0.since(begin);
    assert!(first < Duration::from_millis(200), "{first:?}");
    let established = |event: &Event| matches!(event, Event::Established { .. });
    assert_eq!(count(&pair.client_events, established), 1);
}

#[test]
fn a_machine_that_slept_or_was_copied_seals_nothing_by_its_old_keys() {
    let mut pair = Pair::new(24, two());
    pair.connect();
    let before = pair.client.session().expect("it is connected").peer();
    pair.inner_at_client(inner(5, 0, 500));
    pair.run_for(Duration::from_millis(500));
    let now = pair.now;
    pair.client.forget_keys(now);
    assert!(pair.client.session().is_none());
    pair.recorded = Some(Vec::new());
    for number in 1..20 {
        pair.inner_at_client(inner(5, number, 500));
    }
    pair.run_for(Duration::from_millis(500));
    let sent = pair.recorded.take().expect("it is kept");
    let old = before.to_bytes();
    let by_old =
        |(_, datagram): &&(_, Vec<u8>)| datagram[0] & 0xe0 == 0x40 && datagram[1..4] == old;
    assert_eq!(sent.iter().filter(by_old).count(), 0);
    // The session continues, and nothing is lost.
    let numbers: Vec<u64> = pair.at_hub.iter().map(|(_, p)| number(p).1).collect();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    let continued = |event: &Event| {
        matches!(
            event,
            Event::Established {
                continued: true,
                ..
            }
        )
    };
    assert_eq!(count(&pair.client_events, continued), 1);
    // After the hub has forgotten its keys, its clients reconnect by themselves.
    pair.server.forget_keys();
    pair.run_for(Duration::from_secs(12));
    pair.inner_at_client(inner(5, 20, 500));
    pair.run_for(Duration::from_secs(12));
    pair.inner_at_client(inner(5, 21, 500));
    pair.run_for(Duration::from_secs(2));
    let last = pair.at_hub.last().map(|(_, p)| number(p).1);
    assert_eq!(last, Some(21));
}

#[test]
fn a_suspend_leaves_no_queue_behind_that_was_none() {
    // Stamps of 24 bits span 67 s, so each of these is another jump for the other end.
    for secs in [3, 20, 60, 100, 600] {
        let mut pair = Pair::new(5, two());
        pair.connect();
        // 59 of 70 Mbit/s in both directions.
        let load = |pair: &mut Pair, span: u64| {
            let before = (pair.at_hub.len(), pair.at_client.len());
            let tick = Duration::from_millis(1);
            let mut sent = 0;
            pair.tick(Duration::from_secs(span), tick, |pair, _| {
                for _ in 0..6 {
                    sent += 1;
                    pair.inner_at_client(inner(5, sent, 1230));
                    if pair.server.tunnel(pair.peer).is_some() {
                        pair.inner_at_hub(inner(6, sent, 1230));
                    }
                }
            });
            let part = |came: usize| came as f64 / sent as f64;
            let (up, down) = (
                pair.at_hub.len() - before.0,
                pair.at_client.len() - before.1,
            );
            (part(up), part(down))
        };
        load(&mut pair, 10);
        // Left idle for a moment, as a lid is closed.
        pair.run_for(Duration::from_millis(200));
        pair.suspend_client(Duration::from_secs(secs));
        let after = load(&mut pair, 2);
        // Links that the hub had given up come back by signs of life.
        assert!(after.0 > 0.95 && after.1 > 0.75, "{secs} s: {after:?}");
    }
}

#[test]
fn closing_is_told_and_a_revoked_client_gets_no_new_session() {
    let mut pair = Pair::new(7, two());
    pair.connect();
    let peer = pair.peer;
    pair.server.revoke(peer);
    pair.run_for(Duration::from_secs(5));
    let revoked = |event: &Event| *event == Event::Closed(Reason::Revoked);
    assert_eq!(count(&pair.client_events, revoked), 1);
    pair.inner_at_client(inner(5, 0, 500));
    pair.run_for(Duration::from_secs(30));
    assert!(pair.at_hub.is_empty());
    assert!(pair.server.listener().counters().unknown_peers > 0);
    let unanswered = |event: &Event| *event == Event::HandshakeTimeout;
    assert!(count(&pair.client_events, unanswered) >= 2);
}

#[test]
fn a_refused_client_learns_the_reason_and_retries_slowly() {
    let mut pair = Pair::new(9, two());
    let refused = |event: &Event| *event == Event::Refused(Refusal::Used);
    let peer = pair.peer;
    pair.server.set_options(peer, Refusal::Used.to_options());
    pair.run_for(Duration::from_secs(100));
    let times: Vec<Time> = pair
        .client_events
        .iter()
        .filter(|(_, event)| refused(event))
        .map(|(at, _)| *at)
        .collect();
    assert!((3..=4).contains(&times.len()), "{times:?}");
    assert!(times[0] < after(1), "{times:?}");
    assert!(pair.client.session().is_none());
    let counters = pair.server.listener().counters();
    assert_eq!(counters.accepted, 0, "nothing is kept for it at the hub");
    assert_eq!(counters.refused, times.len() as u64);
    // The hub's operator has changed their mind.
    pair.server.set_options(peer, Options::new());
    pair.run_for(Duration::from_secs(31));
    assert!(pair.client.session().is_some());
    pair.inner_at_client(inner(5, 0, 500));
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.at_hub.len(), 1);
}

#[test]
fn links_come_and_go_and_numbers_never_repeat() {
    // `Session::seal` panics if a number is used twice.
    let mut pair = Pair::new(8, two());
    pair.connect();
    for round in 0..5u64 {
        for number in 0..50 {
            pair.inner_at_client(inner(5, round * 50 + number, 1400));
        }
        if round % 2 == 0 {
            pair.client.remove_link(pair.now, LinkId(0));
        }
        pair.run_for(Duration::from_millis(700));
        let now = pair.now;
        pair.client.add_link(now, LinkId(0), link());
        pair.run_for(Duration::from_millis(700));
    }
    pair.run_for(Duration::from_secs(2));
    let mut numbers: Vec<u64> = pair.at_hub.iter().map(|(_, p)| number(p).1).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), pair.at_hub.len(), "nothing twice");
    assert!(numbers.len() >= 245, "{} of 250", numbers.len());
}

#[test]
fn a_small_path_carries_whole_packets_in_parts() {
    let mut lines = two();
    lines[0].both(|line| line.payload = 1300);
    lines[1].both(|line| line.payload = 1452);
    let mut pair = Pair::new(9, lines);
    pair.connect();
    pair.run_for(Duration::from_secs(30));
    assert_eq!(pair.client.max_payload(LinkId(0)), Some(1232));
    assert_eq!(pair.client.max_payload(LinkId(1)), Some(1452));
    for number in 0..200 {
        pair.inner_at_client(inner(5, number, 1500));
    }
    pair.run_for(Duration::from_secs(2));
    println!("{:?}", pair.hub().receiver().counters());
    println!(
        "{:?} {:?}",
        pair.client.sender().drops(),
        pair.client.sender().backlog()
    );
    let numbers: Vec<u64> = pair.at_hub.iter().map(|(_, p)| number(p).1).collect();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
    assert!(pair.at_hub.iter().all(|(_, packet)| packet.len() == 1500));
}

#[test]
fn noise_is_refused_and_counted_and_disturbs_nobody() {
    let mut pair = Pair::new(10, two());
    pair.recorded = Some(Vec::new());
    pair.connect();
    for round in 0..200u64 {
        pair.inner_at_client(inner(5, round, 800));
        pair.inner_at_hub(inner(6, round, 800));
        let recorded = pair
            .recorded
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default();
        for (from, datagram) in recorded.into_iter().filter(|(_, d)| d[0] & 0xe0 == 0x40) {
            let mut forged = datagram.clone();
            // An unused number, or it would be refused for that.
            forged[5] ^= 0x80;
            let short = datagram[..datagram.len() - 1].to_vec();
            for bad in [datagram.clone(), forged, short] {
                pair.inject(End::Hub, from, bad);
            }
            // Reflected to its sender.
            pair.inject(End::Client, HUB, datagram);
        }
        pair.run_for(Duration::from_millis(5));
    }
    pair.run_for(Duration::from_secs(1));
    assert_eq!((pair.at_hub.len(), pair.at_client.len()), (200, 200));
    let hub = *pair.hub().rejects();
    assert!(
        hub.of(Reject::Seen) > 400 && hub.of(Reject::Forged) > 200,
        "{hub:?}"
    );
    assert!(pair.client.rejects().of(Reject::Session) > 200);
    let established = |event: &Event| matches!(event, Event::Established { .. });
    assert_eq!(count(&pair.client_events, established), 1);
}

/// Sends a full packet and a small one every 2 ms for a time; returns how many full ones came to the hub.
fn full_beside_small(pair: &mut Pair, time: Duration, first: u64) -> usize {
    let begin = pair.at_hub.len();
    pair.tick(time, Duration::from_millis(2), |pair, n| {
        pair.inner_at_client(inner(5, first + n, 1430));
        pair.inner_at_client(inner(7, first + n, 100));
    });
    let came = pair.at_hub[begin..].iter();
    came.filter(|(_, packet)| number(packet).0 == 5).count()
}

/// As when a router fails over to a line with PPPoE: nothing but full packets is lost, and small ones go on.
#[test]
fn a_path_that_becomes_narrower_carries_full_packets_soon_again() {
    for links in [1, 2] {
        let mut pair = Pair::new(2, two()[..links].to_vec());
        pair.connect();
        pair.run_for(Duration::from_secs(3));
        pair.lines[0].both(|line| line.payload = 1412);
        full_beside_small(&mut pair, Duration::from_secs(10), 0);
        let came = full_beside_small(&mut pair, Duration::from_secs(10), 10_000);
        assert!(came >= 4_990, "{links} links: {came} of 5,000");
    }
}

#[test]
fn a_link_that_was_silent_has_its_packet_size_again_at_once() {
    for silent in [5, 30, 90] {
        let mut pair = Pair::new(1, two());
        pair.connect();
        pair.run_for(Duration::from_secs(3));
        for (hole, seconds) in [(false, 1), (true, silent), (false, 5)] {
            pair.lines[0].both(|line| line.hole = hole);
            full_beside_small(&mut pair, Duration::from_secs(seconds), 0);
        }
        let payloads = [
            pair.client.max_payload(LinkId(0)),
            pair.hub().max_payload(LinkId(0)),
        ];
        assert_eq!(payloads, [Some(1472); 2], "after {silent} s");
    }
}

#[test]
fn lines_that_lose_much_carry_what_they_can_where_there_is_no_other() {
    // Two links of which one carries nothing, and one alone.
    for (losses, least) in [(&[1.0, 0.4][..], 1_000), (&[0.4], 1_000), (&[0.33], 1_200)] {
        let mut pair = Pair::new(2, two()[..losses.len()].to_vec());
        pair.connect();
        pair.run_for(Duration::from_secs(3));
        for (lines, loss) in pair.lines.iter_mut().zip(losses) {
            lines.both(|line| line.loss = *loss);
        }
        let mut send = |first: u64| {
            let begin = pair.at_hub.len();
            pair.tick(
                Duration::from_secs(20),
                Duration::from_millis(10),
                |pair, n| {
                    pair.inner_at_client(inner(7, first + n, 200));
                },
            );
            pair.at_hub.len() - begin
        };
        send(0);
        let came = send(10_000);
        assert!(came >= least, "{losses:?}: {came} of 2,000");
    }
}
