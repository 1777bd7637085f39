//! Races, by packet tables, and against their twin in every order of events.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use Verdict::{Dropped, Passed, Sent};
use braid_balance::{
    CachedPath, Choice, KernelTime, LbMethod, PathCacheEntry, RaceSettings, UplinkForecast,
    prefix_of,
};
use braid_core::UplinkId;
use braid_packet::{Packet, Transport, build};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support;
use crate::support::choose::{flow_of, set_classes};
use crate::support::probe::{Outcome, Verdict};
use crate::support::race::{ALWAYS, ONCE, RACING_UPLINKS, Track, forecast, racing, uplink_at};
use crate::support::race_twin::{Event, Twin};
use crate::support::talk::{ACK, CLIENT, CLIENT6, FIN, INNER, INNER6, RST, SYN};
use crate::support::world::{SERVER_V4, SERVER_V6};

const PORT: u16 = 4000;
const SEQUENCE: u32 = 999;

/// A connection: who asks whom.
#[derive(Clone, Copy)]
struct Ends {
    local: (IpAddr, u16),
    peer: (IpAddr, u16),
}

const V4: Ends = Ends {
    local: (INNER, PORT),
    peer: (SERVER_V4, 80),
};

impl Ends {
    fn out(self, numbers: [u32; 2], flags: u8) -> Vec<u8> {
        build::segment(self.local, self.peer, numbers, flags, b"")
    }

    fn syn(self) -> Vec<u8> {
        self.out([SEQUENCE, 0], SYN)
    }
}

/// Outer source address and port of each copy of a SYN, by uplink.
type SynCopies = BTreeMap<usize, (IpAddr, u16)>;

/// All that a raced SYN became: the packet itself, and its copies.
fn syn_copies(track: &Track, sent: &Outcome, count: usize) -> SynCopies {
    let mut all = track.copies(count - 1);
    all.push(sent.packet.clone());
    all.iter()
        .map(|bytes| {
            let packet = Packet::parse(bytes).expect("a packet");
            assert!(packet.checksums_hold(), "wrong checksum in {packet:x?}");
            let Transport::Tcp { source, .. } = packet.transport else {
                panic!("not tcp")
            };
            (uplink_at(packet.ip.source), (packet.ip.source, source))
        })
        .collect()
}

/// Builds the server's answer to an attempt.
fn answer(ends: Ends, copy: (IpAddr, u16), numbers: [u32; 2], flags: u8) -> Vec<u8> {
    build::segment(ends.peer, copy, numbers, flags, b"")
}

fn is_reset(outcome: &Outcome, from: (IpAddr, u16), to: (IpAddr, u16), sequence: u32) {
    let packet = outcome.read();
    let segment = packet.segment();
    assert_eq!((packet.ip.source, packet.ip.dest), (from.0, to.0));
    let word = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().expect("four bytes"));
    assert_eq!((word(4), segment[13]), (sequence, RST));
}

#[test]
fn the_first_answer_wins_and_the_others_are_reset() {
    for (local, peer, lan) in [
        (INNER, SERVER_V4, false),
        (INNER6, SERVER_V6, false),
        (CLIENT, SERVER_V4, true),
        (CLIENT6, SERVER_V6, true),
    ] {
        let track = Track::new(LbMethod::Race, ALWAYS);
        let ends = Ends {
            local: (local, PORT),
            peer: (peer, 80),
        };
        let out = |packet: &[u8]| match lan {
            true => track.probe.forwarded(packet),
            false => track.probe.out(packet),
        };
        let sent = out(&ends.syn()).is(Sent, "race_begun");
        let copies = syn_copies(&track, &sent, RACING_UPLINKS);
        assert_eq!(copies.len(), RACING_UPLINKS);
        assert!(track.probe.flow(ends.local).is_none(), "nobody has won");

        let won = track.back(1, &answer(ends, copies[&1], [5000, 1000], SYN | ACK));
        // A LAN's client is reached the short way.
        let way = if lan {
            (Sent, "in_lan")
        } else {
            (Passed, "in_stack")
        };
        assert_eq!((won.verdict, won.reason), way);
        assert_eq!(won.read().ip.dest, local);
        let flow = flow_of(&track.probe, local, PORT);
        assert_eq!((flow.uplink, flow.choice), (UplinkId(1), Choice::Raced));

        // Ports and sequence numbers differ from uplink to uplink, as servers do not know that
        // they speak to one client.
        for loser in [0, 2] {
            let late = answer(ends, copies[&loser], [7000, 1000], SYN | ACK);
            let reset = track.back(loser, &late).is(Sent, "race_lost");
            is_reset(&reset, copies[&loser], ends.peer, 1000);
        }
        let confirmed = out(&ends.out([1000, 5001], ACK)).is(Sent, "out_flow");
        assert_eq!(confirmed.events, ["flow_promoted"]);
        assert_eq!(confirmed.read().ip.source, copies[&1].0);
        // The loser's reset was lost: its server says it again, and hears it again.
        let late = answer(ends, copies[&0], [7000, 1000], SYN | ACK);
        track.back(0, &late).is(Sent, "race_lost");
    }
}

#[test]
fn every_order_of_events_is_as_the_twin_says() {
    let uplink = || 0..RACING_UPLINKS;
    let right = || prop::bool::weighted(0.9);
    let event = prop_oneof![
        3 => prop_oneof![9 => Just(SEQUENCE), 1 => Just(77)].prop_map(|sequence| Event::Syn { sequence }),
        2 => Just(Event::Ack),
        5 => (uplink(), right()).prop_map(|(uplink, right)| Event::SynAck { uplink, right }),
        5 => (uplink(), right()).prop_map(|(uplink, right)| Event::Reset { uplink, right }),
        3 => uplink().prop_map(|uplink| Event::Error { uplink }),
        1 => uplink().prop_map(|uplink| Event::Data { uplink }),
        1 => Just(Event::Pause),
    ];
    let track = Track::new(LbMethod::Race, ALWAYS);
    let port = std::cell::Cell::new(20_000_u16);
    let config = Config {
        cases: 400,
        failure_persistence: None,
        ..Config::default()
    };
    let test = |(family, events): (bool, Vec<Event>)| {
        port.set(port.get() + 1);
        let ends = match family {
            true => Ends {
                local: (INNER6, port.get()),
                peer: (SERVER_V6, 80),
            },
            false => Ends {
                local: (INNER, port.get()),
                ..V4
            },
        };
        play(&track, ends, &events)
    };
    let events = prop::collection::vec(event, 1..24);
    TestRunner::new(config)
        .run(&(any::<bool>(), events), test)
        .unwrap_or_else(|error| panic!("{error}"));
}

/// The sweep reads one table after another while races begin. One that begins in between has outer ends that belong to
/// no flow yet, and keeps them: otherwise its answers would find nobody, however often the SYN is repeated.
#[test]
fn a_race_that_begins_during_a_sweep_is_answered() {
    let track = Track::new(LbMethod::Race, ALWAYS);
    let mut sweeper = track.probe.another_datapath();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                sweeper.sweep(KernelTime::now()).expect("a sweep");
            }
        });
        for port in 10_000..10_200 {
            let ends = Ends {
                local: (INNER, port),
                ..V4
            };
            let sent = track.probe.out(&ends.syn()).is(Sent, "race_begun");
            let copies = syn_copies(&track, &sent, RACING_UPLINKS);
            let syn_ack = answer(ends, copies[&1], [5000, SEQUENCE + 1], SYN | ACK);
            let got = track.back(1, &syn_ack);
            if got.reason != "in_stack" {
                over.store(true, Ordering::Relaxed);
                panic!("port {port}: {}", got.reason);
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// Plays a connection's events to programs and twin.
fn play(track: &Track, ends: Ends, events: &[Event]) -> Result<(), TestCaseError> {
    track.drain();
    let mut twin = Twin::default();
    let mut known = SynCopies::new();
    let mut last = SEQUENCE;
    for (step, &event) in events.iter().enumerate() {
        if matches!(event, Event::Ack) && !twin.may_talk() {
            continue;
        }
        let Some(expected) = twin.handle(event, RACING_UPLINKS) else {
            let later = KernelTime::now().after(Duration::from_secs(80));
            track
                .probe
                .datapath
                .borrow_mut()
                .sweep(later)
                .expect("a sweep");
            continue;
        };
        last = twin.sequence().unwrap_or(last);
        // Before anything was sent, nobody can answer.
        let copy = |uplink: usize| known.get(&uplink).copied();
        let from_outside = |uplink: usize, ack: u32, flags: u8| {
            let packet = answer(ends, copy(uplink)?, [5000, ack], flags);
            Some(track.back(uplink, &packet))
        };
        let ack = |right: bool| if right { last + 1 } else { last + (1 << 30) };
        let outcome = match event {
            Event::Syn { sequence } => Some(track.probe.out(&ends.out([sequence, 0], SYN))),
            Event::Ack => Some(track.probe.out(&ends.out([last + 1, 5001], ACK))),
            Event::SynAck { uplink, right } => from_outside(uplink, ack(right), SYN | ACK),
            Event::Reset { uplink, right } => from_outside(uplink, ack(right), RST | ACK),
            Event::Data { uplink } => from_outside(uplink, last + 1, ACK),
            Event::Error { uplink } => copy(uplink).map(|copy| {
                let quote = build::segment(copy, ends.peer, [last, 0], SYN, b"");
                let error = build::port_unreachable(ends.peer.0, copy.0, &quote);
                track.back(uplink, &error)
            }),
            Event::Pause => unreachable!("handled above"),
        };
        let Some(outcome) = outcome else { continue };
        prop_assert_eq!(
            (outcome.verdict, outcome.reason),
            (expected.verdict, expected.reason),
            "step {} of {:?}: {:?}",
            step,
            events,
            twin
        );
        prop_assert!(outcome.read().checksums_hold());
        if !expected.by.is_empty() {
            let sent = syn_copies(track, &outcome, expected.by.len());
            let by: Vec<usize> = sent.keys().copied().collect();
            prop_assert_eq!(by, expected.by);
            known.extend(sent);
        }
    }
    Ok(())
}

#[test]
fn what_is_not_to_be_raced_goes_by_one_uplink() {
    let track = Track::new(LbMethod::Race, ALWAYS);
    let private: IpAddr = "192.168.7.7".parse().expect("an address");
    let unique: IpAddr = "fd12::7".parse().expect("an address");
    let with_data = build::segment(V4.local, V4.peer, [SEQUENCE, 0], SYN, b"early");
    track.probe.out(&with_data).is(Sent, "out_new");
    for (local, peer) in [(INNER, private), (INNER6, unique)] {
        let syn = build::tcp((local, 4001), (peer, 80), SYN, b"");
        track.probe.out(&syn).is(Sent, "out_new");
    }
    let datagram = build::udp((INNER, 4002), (SERVER_V4, 443), b"hello");
    track.probe.out(&datagram).is(Sent, "out_new");
    // Nobody else takes flows.
    track.set_up(|uplinks| {
        uplinks[0].accepts_new = false;
        uplinks[2].v4 = None;
    });
    let syn = build::tcp((INNER, 4003), V4.peer, SYN, b"");
    track.probe.out(&syn).is(Sent, "out_new");
    // A class with a single uplink that races.
    track.set_up(|_| {});
    let mut class = racing(LbMethod::Race);
    class.candidates.truncate(1);
    set_classes(&track.probe, &[class]);
    let syn = build::tcp((INNER, 4004), V4.peer, SYN, b"");
    track.probe.out(&syn).is(Sent, "out_new");
    track.copies(0);
}

#[test]
fn races_are_rationed_by_prefix_and_in_all() {
    let race = RaceSettings {
        per_prefix: 2,
        total: 3,
        ..ALWAYS
    };
    let track = Track::new(LbMethod::Race, race);
    let other: IpAddr = "198.18.1.1".parse().expect("an address");
    let counts = |peer: IpAddr, ports: std::ops::Range<u16>| {
        let raced = ports.filter(|port| {
            let syn = build::tcp((INNER, *port), (peer, 80), SYN, b"");
            let sent = track.probe.out(&syn);
            assert_eq!(sent.verdict, Sent);
            if sent.reason == "out_new" {
                assert!(sent.events.contains(&"race_over_rate"));
            }
            sent.reason == "race_begun"
        });
        raced.count()
    };
    // All within one second of the kernel's clock, or it is tried again by connections that are new.
    for ports in (4000..).step_by(10) {
        let second = || KernelTime::now().since(KernelTime::from_nanos(0)).as_secs();
        let began = second();
        let raced = (
            counts(SERVER_V4, ports..ports + 5),
            counts(other, ports + 5..ports + 10),
        );
        if second() == began {
            assert_eq!(raced, (2, 1));
            break;
        }
        // The second that has begun meanwhile has less than its ration left.
        let used = second();
        while second() == used {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Opens a connection that is answered at once by an uplink; what it took to open.
fn connect(track: &Track, port: u16, by: usize) -> &'static str {
    connect_after(track, port, by, Duration::ZERO)
}

/// The same over lines of a delay, which is remembered.
fn connect_after(track: &Track, port: u16, by: usize, delay: Duration) -> &'static str {
    let ends = Ends {
        local: (INNER, port),
        ..V4
    };
    let sent = track.probe.out(&ends.syn());
    std::thread::sleep(delay);
    if sent.reason == "out_new" {
        let packet = sent.read();
        let Transport::Tcp { source, .. } = packet.transport else {
            panic!("not tcp")
        };
        let (uplink, copy) = (uplink_at(packet.ip.source), (packet.ip.source, source));
        let back = answer(ends, copy, [5000, 1000], SYN | ACK);
        track.back(uplink, &back).is(Passed, "in_stack");
        return sent.reason;
    }
    let copies = syn_copies(track, &sent, RACING_UPLINKS);
    for uplink in std::iter::once(by).chain((0..RACING_UPLINKS).filter(|uplink| *uplink != by)) {
        let back = answer(ends, copies[&uplink], [5000, 1000], SYN | ACK);
        track.back(uplink, &back);
    }
    sent.reason
}

/// Returns the path cache entry of the server's network.
fn memory(track: &Track) -> Option<PathCacheEntry> {
    let datapath = track.probe.datapath.borrow();
    datapath.path_cache_entry(SERVER_V4).expect("memory")
}

#[test]
fn what_is_remembered_needs_no_race() {
    let track = Track::new(LbMethod::Race, ONCE);
    assert_eq!(connect(&track, 4000, 2), "race_begun");
    let memory = memory(&track);
    let memory = memory.expect("of this prefix");
    assert_eq!((memory.prefix, memory.bits), prefix_of(SERVER_V4));
    assert_eq!(memory.paths.len(), RACING_UPLINKS);
    assert!(
        memory
            .paths
            .iter()
            .all(|way| way.valid && way.rtt.is_some())
    );
    let best = |memory: &PathCacheEntry| {
        let rtts = memory.paths.iter().min_by_key(|way| way.rtt);
        rtts.expect("ways").uplink
    };
    assert_eq!(best(&memory), UplinkId(2), "who answered first");

    // A datagram comes first: a handshake measures again, and on a busy machine it takes longer than the race did.
    let datagram = build::udp((INNER, 4002), (SERVER_V4, 443), b"hello");
    track.probe.out(&datagram).is(Sent, "out_new");
    let flow = flow_of(&track.probe, INNER, 4002);
    assert_eq!(
        (flow.uplink, flow.choice),
        (UplinkId(2), Choice::Remembered)
    );
    assert_eq!(connect(&track, 4001, 0), "out_new");
    let flow = flow_of(&track.probe, INNER, 4001);
    assert_eq!(
        (flow.uplink, flow.choice),
        (UplinkId(2), Choice::Remembered)
    );

    // The path cache has nothing about an uplink that has changed.
    track.set_up(|uplinks| uplinks[1].epoch = 1);
    assert_eq!(connect(&track, 4003, 1), "race_begun");
    // An instance that starts anew is told.
    let memory = track.probe.datapath.borrow().path_cache().expect("memory");
    let fresh = Track::new(LbMethod::Race, ONCE);
    fresh
        .probe
        .datapath
        .borrow_mut()
        .restore_path_cache(&memory)
        .expect("memory");
    assert_eq!(connect(&fresh, 4000, 0), "out_new");
}

#[test]
fn memory_that_is_wrong_is_dropped() {
    let track = Track::new(LbMethod::Race, ONCE);
    assert_eq!(connect(&track, 4000, 2), "race_begun");
    // Nobody answers there: the SYN is said again, and raced.
    let ends = Ends {
        local: (INNER, 4001),
        ..V4
    };
    let sent = track.probe.out(&ends.syn()).is(Sent, "out_new");
    assert_eq!(uplink_at(sent.read().ip.source), 2);
    let again = track.probe.out(&ends.syn()).is(Sent, "race_begun");
    assert!(again.events.contains(&"path_silent"));
    let copies = syn_copies(&track, &again, RACING_UPLINKS);
    let back = answer(ends, copies[&0], [5000, 1000], SYN | ACK);
    track.back(0, &back).is(Passed, "in_stack");
    assert_eq!(flow_of(&track.probe, INNER, 4001).choice, Choice::Raced);
    // A refusal is the client's to hear, but the next one asks all.
    assert_eq!(connect(&track, 4002, 2), "race_begun");
    let ends = Ends {
        local: (INNER, 4003),
        ..V4
    };
    let sent = track.probe.out(&ends.syn()).is(Sent, "out_new");
    let copy = (sent.read().ip.source, 4003);
    let refused = answer(ends, copy, [0, 1000], RST | ACK);
    track
        .back(uplink_at(copy.0), &refused)
        .is(Passed, "in_stack");
    assert_eq!(connect(&track, 4004, 2), "race_begun");
}

/// Has the programs remember these RTTs, in milliseconds, of the server's prefix.
fn remember(track: &Track, rtts: [u64; RACING_UPLINKS]) {
    let way = |(uplink, rtt): (u8, u64)| CachedPath {
        uplink: UplinkId(uplink),
        rtt: Some(Duration::from_millis(rtt)),
        tried: false,
        age: Duration::ZERO,
        packets: 0,
        lost: 0,
        valid: true,
    };
    let (prefix, bits) = prefix_of(SERVER_V4);
    let memory = PathCacheEntry {
        prefix,
        bits,
        paths: (0..).zip(rtts).map(way).collect(),
    };
    track
        .probe
        .datapath
        .borrow_mut()
        .restore_path_cache(&[memory])
        .expect("memory");
}

/// Data from the server: `count` segments of 1000 bytes, of which every `lost`-th never comes.
fn download(track: &Track, port: u16, count: u32, lost: u32) {
    let ends = Ends {
        local: (INNER, port),
        ..V4
    };
    let flow = flow_of(&track.probe, INNER, port);
    track
        .probe
        .out(&ends.out([1000, 5001], ACK))
        .is(Sent, "out_flow");
    for number in (0..count).filter(|number| number % lost != lost - 1) {
        let sequence = 5001 + number * 1000;
        let outer = (flow.outer.ip(), flow.outer.port());
        let data = build::segment(ends.peer, outer, [sequence, 1000], ACK, &[7; 1000]);
        track
            .back(flow.uplink.index(), &data)
            .is(Passed, "in_stack");
    }
}

#[test]
fn the_fastest_way_is_not_always_the_shortest() {
    let track = Track::new(LbMethod::Fastest, ONCE);
    remember(&track, [60, 50, 20]);
    let delay = Duration::from_millis(20);
    assert_eq!(connect_after(&track, 4001, 0, delay), "out_new");
    let flow = flow_of(&track.probe, INNER, 4001);
    assert_eq!((flow.uplink, flow.choice), (UplinkId(2), Choice::Predicted));
    // It loses one segment in ten.
    download(&track, 4001, 2000, 10);
    let memory = memory(&track);
    let way = memory.expect("of this prefix").paths[2];
    let share = f64::from(way.lost) / f64::from(way.packets);
    assert!((0.09..0.13).contains(&share), "{way:?}");
    assert_eq!(connect(&track, 4002, 0), "out_new");
    let flow = flow_of(&track.probe, INNER, 4002);
    assert_ne!(flow.uplink, UplinkId(2), "lossy");
    // A full uplink takes no new flow, however short its round trip.
    let spare = |id: usize| if id == flow.uplink.index() { 1 } else { 100 };
    let forecasts = [0_u8, 1, 2].map(|id| forecast(id, 100, spare(id.into()), 0));
    let mut busy = forecasts;
    for forecast in &mut busy {
        forecast.busy = if spare(forecast.uplink.index()) == 1 {
            99
        } else {
            0
        };
    }
    track.set_forecasts(&busy);
    assert_eq!(connect(&track, 4003, 0), "out_new");
    let next = flow_of(&track.probe, INNER, 4003);
    assert!(next.uplink != flow.uplink && next.uplink != UplinkId(2));
}

/// The handshakes of a page see the queue that the page makes.
#[test]
fn what_is_remembered_grows_by_a_quarter_a_second_and_shrinks_at_once() {
    let track = Track::new(LbMethod::Fastest, ONCE);
    // Everything takes the second uplink, and is seen to take 30 ms.
    remember(&track, [500, 20, 500]);
    let delay = Duration::from_millis(30);
    let rtt = || {
        memory(&track).expect("of this prefix").paths[1]
            .rtt
            .expect("known")
    };
    let began = Instant::now();
    let mut last = rtt();
    let mut rises = 0;
    for port in 4001..4011 {
        assert_eq!(connect_after(&track, port, 1, delay), "out_new");
        assert!(last <= rtt());
        rises += u32::from(last < rtt());
        last = rtt();
    }
    // The clock's seconds count, not those since the last change.
    let seconds = u32::try_from(began.elapsed().as_secs()).expect("a few") + 1;
    assert!(rises <= seconds, "{rises} in {seconds}");
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(connect_after(&track, 4021, 1, delay), "out_new");
    assert!(rtt() > last, "{:?}", rtt());
    connect(&track, 4011, 1);
    assert!(rtt() < delay / 3, "{:?}", rtt());
}

#[test]
fn flows_opened_at_once_do_not_all_go_the_same_way() {
    let track = Track::new(LbMethod::Fastest, ONCE);
    assert_eq!(connect(&track, 4000, 0), "race_begun");
    let mut taken = [0; RACING_UPLINKS];
    for port in 4001..4031 {
        connect(&track, port, 0);
        taken[flow_of(&track.probe, INNER, port).uplink.index()] += 1;
    }
    assert!(
        taken.iter().all(|count| (7..=13).contains(count)),
        "{taken:?}"
    );
    let flow_activity = track
        .probe
        .datapath
        .borrow()
        .flow_activity()
        .expect("counts");
    let opened: u32 = flow_activity
        .iter()
        .map(|flow_activity| flow_activity.opened)
        .sum();
    assert_eq!(opened, 31);
}

/// Else ten downloads that begin where a page has just been loaded would all avoid the line that carried more of it, and
/// so would the next page's document: the server's FIN is often lost in the queue that the page has left.
#[test]
fn what_ends_takes_no_room_from_the_first_fin_on() {
    let track = Track::new(LbMethod::Fastest, ONCE);
    remember(&track, [20, 20, 20]);
    let flow_activity = || {
        let datapath = track.probe.datapath.borrow();
        datapath.flow_activity().expect("counts")
    };
    let set = |forecasts: &[UplinkForecast]| {
        let mut datapath = track.probe.datapath.borrow_mut();
        datapath.set_forecasts(forecasts).expect("forecasts");
    };
    set(&[0_u8, 1, 2].map(|id| forecast(id, 10, 10, 0)));
    for port in 4001..4004 {
        assert_eq!(connect(&track, port, 0), "out_new");
        download(&track, port, 200, u32::MAX);
    }
    for each in &flow_activity()[..RACING_UPLINKS] {
        assert_eq!((each.opened, each.active), (1, 1), "{each:?}");
    }
    let ends = |port| Ends {
        local: (INNER, port),
        ..V4
    };
    let uplink = |port| flow_of(&track.probe, INNER, port).uplink.index();
    let server_ends = |port| {
        let flow = flow_of(&track.probe, INNER, port);
        let outer = (flow.outer.ip(), flow.outer.port());
        let fin = build::segment(ends(port).peer, outer, [205_001, 1000], FIN | ACK, &[]);
        track.back(flow.uplink.index(), &fin).is(Passed, "in_stack");
    };
    let client_ends = |port| {
        let fin = ends(port).out([1000, 205_001], FIN | ACK);
        track.probe.out(&fin).is(Sent, "out_flow");
    };
    let counts = |port| {
        let each = flow_activity()[uplink(port)];
        (each.opened, each.active, each.busy)
    };
    // One under the forecast that counts it, the others under the next one.
    server_ends(4001);
    assert_eq!(counts(4001), (0, 0, 0));
    let told = |id: u8| UplinkForecast {
        busy: flow_activity()[usize::from(id)].active,
        ..forecast(id, 10, 10, 0)
    };
    set(&[0_u8, 1, 2].map(told));
    let busy: u32 = flow_activity().iter().map(|each| each.busy).sum();
    assert_eq!(busy, 2);
    client_ends(4002);
    server_ends(4003);
    assert_eq!([4002, 4003].map(counts), [(0, 0, 0); 2]);
    // One that was opened since then is not taken for it when the other side ends.
    for port in 4004..4007 {
        assert_eq!(connect(&track, port, 0), "out_new");
    }
    assert_eq!([4001, 4002, 4003].map(counts), [(1, 0, 0); 3]);
    client_ends(4001);
    server_ends(4002);
    assert_eq!([4001, 4002].map(counts), [(1, 0, 0); 2]);
    // A flow that goes on although one side has ended is busy again, until the other one ends.
    download(&track, 4003, 400, u32::MAX);
    assert_eq!(counts(4003), (1, 1, 0));
    client_ends(4003);
    assert_eq!(counts(4003), (1, 0, 0));
}

/// The uplink that a race prefers, by its round trip.
const FAVOURITE: usize = 1;

/// Begins a race that has a favourite; the connection, and its SYNs.
fn race_with_favourite() -> (Track, Ends, SynCopies) {
    let track = Track::new(LbMethod::Fastest, ALWAYS);
    remember(&track, [500, 60, 500]);
    let ends = Ends {
        local: (INNER, 4001),
        ..V4
    };
    let sent = track.probe.out(&ends.syn()).is(Sent, "race_begun");
    let all = syn_copies(&track, &sent, RACING_UPLINKS);
    (track, ends, all)
}

#[test]
fn a_race_again_only_measures_where_speed_is_predicted() {
    let (track, ends, all) = race_with_favourite();
    let syn_ack = |uplink: usize| answer(ends, all[&uplink], [5000, 1000], SYN | ACK);
    track.back(0, &syn_ack(0)).is(Sent, "race_lost");
    track
        .back(FAVOURITE, &syn_ack(FAVOURITE))
        .is(Passed, "in_stack");
    assert_eq!(flow_of(&track.probe, INNER, 4001).uplink, UplinkId(1));

    // A favourite that refuses, or says nothing until the SYN is said again, is none.
    for silent in [false, true] {
        let (track, ends, all) = race_with_favourite();
        if silent {
            let sent = track.probe.out(&ends.syn()).is(Sent, "race_repeated");
            syn_copies(&track, &sent, RACING_UPLINKS);
        } else {
            let refusal = answer(ends, all[&FAVOURITE], [0, 1000], RST | ACK);
            track.back(FAVOURITE, &refusal).is(Dropped, "race_refused");
        }
        let back = answer(ends, all[&2], [5000, 1000], SYN | ACK);
        track.back(2, &back).is(Passed, "in_stack");
    }
}

/// Its server has no connection any more. A SYN that goes twice is answered twice.
#[test]
fn an_answer_that_was_reset_does_not_win_when_it_comes_again() {
    let (track, ends, all) = race_with_favourite();
    let syn_ack = |uplink: usize| answer(ends, all[&uplink], [5000, 1000], SYN | ACK);
    track.back(0, &syn_ack(0)).is(Sent, "race_lost");
    track.set_up(|uplinks| uplinks[FAVOURITE].accepts_new = false);
    track.back(0, &syn_ack(0)).is(Sent, "race_lost");
    track.back(2, &syn_ack(2)).is(Passed, "in_stack");
}

#[test]
fn a_crowded_uplink_is_left_out() {
    let track = Track::new(LbMethod::Fastest, ALWAYS);
    let forecasts = [
        forecast(0, 100, 100, 0),
        forecast(1, 100, 90, 0),
        forecast(2, 10, 9, 0),
    ];
    track.set_forecasts(&forecasts);
    let sent = track.probe.out(&V4.syn()).is(Sent, "race_begun");
    assert!(sent.events.contains(&"race_crowded"));
    let copies = syn_copies(&track, &sent, 2);
    assert_eq!(copies.keys().copied().collect::<Vec<_>>(), [0, 1]);
}

/// A fast line that has fallen silent: as the only one worth while it would get the same SYN again and again.
#[test]
fn a_fast_line_that_leaves_a_syn_unanswered_is_not_the_only_one_worth_while() {
    let track = Track::new(LbMethod::Fastest, ONCE);
    let forecasts = [
        forecast(0, 80, 80, 0),
        forecast(1, 5, 5, 0),
        forecast(2, 5, 5, 0),
    ];
    track.set_forecasts(&forecasts);
    let sent = track.probe.out(&V4.syn()).is(Sent, "out_new");
    assert_eq!(uplink_at(sent.read().ip.source), 0);
    let again = track.probe.out(&V4.syn()).is(Sent, "race_begun");
    assert!(again.events.contains(&"path_silent"));
    let copies = syn_copies(&track, &again, RACING_UPLINKS);
    // Other connections do not take it either, until it answers.
    let ends = Ends {
        local: (INNER, 4001),
        ..V4
    };
    let next = track.probe.out(&ends.syn()).is(Sent, "race_begun");
    let raced = syn_copies(&track, &next, 2);
    assert_eq!(raced.keys().copied().collect::<Vec<_>>(), [1, 2]);
    let back = answer(V4, copies[&1], [5000, 1000], SYN | ACK);
    track.back(1, &back).is(Passed, "in_stack");
    let back = answer(V4, copies[&0], [5000, 1000], SYN | ACK);
    track.back(0, &back).is(Sent, "race_lost");
    let ends = Ends {
        local: (INNER, 4002),
        ..V4
    };
    let sent = track.probe.out(&ends.syn()).is(Sent, "out_new");
    assert_eq!(uplink_at(sent.read().ip.source), 0);
}

#[test]
fn each_uplink_gets_the_segment_size_that_fits_it() {
    let track = Track::new(LbMethod::Race, ALWAYS);
    track.set_up(|uplinks| uplinks[1].mtu = 1400);
    let mut syn = V4.syn();
    // MSS 1460, in a header four bytes longer.
    syn.splice(40..40, [2, 4, 5, 180]);
    syn[32] = 6 << 4;
    let length = u16::try_from(syn.len()).expect("small");
    syn[2..4].copy_from_slice(&length.to_be_bytes());
    let syn = support::twin::translate(&syn, support::twin::Side::Source, V4.local, false);
    let sent = track.probe.out(&syn).is(Sent, "race_begun");
    let mut all = track.copies(RACING_UPLINKS - 1);
    all.push(sent.packet.clone());
    let mut sizes = BTreeMap::new();
    for bytes in &all {
        let packet = Packet::parse(bytes).expect("a packet");
        assert!(packet.checksums_hold());
        let size = u16::from_be_bytes([bytes[42], bytes[43]]);
        sizes.insert(uplink_at(packet.ip.source), size);
    }
    assert_eq!(sizes, BTreeMap::from([(0, 1460), (1, 1360), (2, 1460)]));
}

#[test]
fn an_uplink_that_dies_is_not_waited_for() {
    let track = Track::new(LbMethod::Race, ALWAYS);
    let sent = track.probe.out(&V4.syn()).is(Sent, "race_begun");
    let all = syn_copies(&track, &sent, RACING_UPLINKS);
    let refusal = |uplink: usize| answer(V4, all[&uplink], [0, 1000], RST | ACK);
    track.back(0, &refusal(0)).is(Dropped, "race_refused");
    track.set_up(|uplinks| uplinks[2].accepts_new = false);
    track.back(1, &refusal(1)).is(Passed, "in_stack");

    // All refused at one moment, as the client sees when it asks again.
    let ends = Ends {
        local: (INNER, 4001),
        ..V4
    };
    track.set_up(|_| {});
    let sent = track.probe.out(&ends.syn()).is(Sent, "race_begun");
    let all = syn_copies(&track, &sent, RACING_UPLINKS);
    for uplink in [0, 1] {
        let refusal = answer(ends, all[&uplink], [0, 1000], RST | ACK);
        track.back(uplink, &refusal).is(Dropped, "race_refused");
    }
    track.set_up(|uplinks| uplinks[2].accepts_new = false);
    let told = track.probe.out(&ends.syn()).is(Sent, "race_none_left");
    let packet = told.read();
    assert_eq!((packet.ip.source, packet.ip.dest), (SERVER_V4, INNER));
    assert_eq!(packet.segment()[13], RST | ACK);
    track.probe.out(&ends.syn()).is(Sent, "race_begun");
}

/// RFC 5382 REQ-2a: "A NAT MUST support simultaneous-open" mode of TCP.
#[test]
fn an_end_that_opens_at_the_same_time_wins() {
    let track = Track::new(LbMethod::Race, ALWAYS);
    let sent = track.probe.out(&V4.syn()).is(Sent, "race_begun");
    let all = syn_copies(&track, &sent, RACING_UPLINKS);
    let opens = answer(V4, all[&2], [5000, 0], SYN);
    track.back(2, &opens).is(Passed, "in_stack");
    let flow = flow_of(&track.probe, INNER, PORT);
    assert_eq!((flow.uplink, flow.choice), (UplinkId(2), Choice::Raced));
    let both = V4.out([SEQUENCE, 5001], SYN | ACK);
    track.probe.out(&both).is(Sent, "out_flow");
    // The time at which it opened says nothing about the path to it.
    let memory = memory(&track);
    let ways = memory.map_or(Vec::new(), |memory| memory.paths);
    assert!(ways.iter().all(|way| way.rtt.is_none()), "{ways:?}");
}
