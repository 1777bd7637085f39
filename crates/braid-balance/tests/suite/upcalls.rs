//! Upcalls of the programs: DNS answers to learn names from, and fragments that come too early.

use std::net::{IpAddr, UdpSocket};
use std::time::Instant;

use Verdict::{Dropped, Passed, Sent};
use braid_balance::{
    Datapath, Fragments, HookKind, KernelTime, Protocol, Translation, Upcall, Upcalls,
};
use braid_packet::{build, checksum};

use crate::support;
use crate::support::net::{Namespace, PATIENCE, udp_socket};
use crate::support::probe::{Probe, Verdict, mac};
use crate::support::talk::{INNER, INNER6, SYN};
use crate::support::world::{OUTSIDE, PORT, SERVER_V4, SERVER_V6, World, reason, uplink_of};

const RESOLVER: (IpAddr, u16) = (SERVER_V4, 53);

/// A DNS message that only has its number and a name.
fn message(id: u16) -> Vec<u8> {
    about(id, b"\x07example\x03org\0", b"")
}

/// The same about another name, with something behind it.
fn about(id: u16, name: &[u8], more: &[u8]) -> Vec<u8> {
    let head = [&id.to_be_bytes()[..], b"its header"].concat();
    [&head, name, b"\0\x01\0\x01", more].concat()
}

#[test]
fn only_answers_to_questions_are_handed_over() {
    let probe = Probe::new();
    let mut upcalls = probe.datapath.borrow().upcalls().expect("a ring");
    let local = (INNER, 5353);
    let ask = |id| probe.out(&build::udp(local, RESOLVER, &message(id)));
    let sent = ask(1).is(Sent, "out_new");
    let outer = (sent.read().ip.source, 5353);
    let uplink = usize::from(outer.0 == OUTSIDE[1][0]);
    let answer = |from, id| {
        let packet = build::udp(from, outer, &message(id));
        assert_eq!(probe.back(uplink, &packet).verdict, Passed);
    };
    answer(RESOLVER, 1);
    assert_eq!(upcalls.next(), None, "nobody wants to learn");
    let want = |wanted| {
        let mut datapath = probe.datapath.borrow_mut();
        datapath.snoop_dns(wanted).expect("settings");
    };
    want(true);
    for id in 2..=5 {
        ask(id).is(Sent, "out_flow");
    }
    for id in [5, 2] {
        answer(RESOLVER, id);
        let expected = Upcall::DnsAnswer {
            from: RESOLVER.into(),
            to: INNER,
            payload: message(id),
        };
        assert_eq!(upcalls.next(), Some(expected));
    }
    // Answered already, not asked any more, never asked, or not the one who was asked.
    answer(RESOLVER, 2);
    answer(RESOLVER, 1);
    answer(RESOLVER, 6);
    let stranger = ([192, 0, 2, 66].into(), 53);
    answer(stranger, 4);
    answer((SERVER_V4, 5353), 4);
    assert_eq!(upcalls.next(), None);
    ask(7).is(Sent, "out_flow");
    want(false);
    answer(RESOLVER, 7);
    assert_eq!(upcalls.next(), None);
}

#[test]
fn the_numbers_of_questions_that_were_not_asked_cannot_be_told() {
    let probe = Probe::new();
    let mut upcalls = probe.datapath.borrow().upcalls().expect("a ring");
    let wanted = probe.datapath.borrow_mut().snoop_dns(true);
    wanted.expect("settings");
    let believed = (1..=3).filter(|port| {
        let asked = build::udp((INNER, *port), RESOLVER, &message(7));
        let sent = probe.out(&asked).is(Sent, "out_new");
        let outer = (sent.read().ip.source, *port);
        let uplink = usize::from(outer.0 == OUTSIDE[1][0]);
        probe.back(uplink, &build::udp(RESOLVER, outer, &message(0)));
        upcalls.next().is_some()
    });
    assert_eq!(believed.count(), 0);
}

/// Whoever guesses the number has to know the name as well, and to be there first.
#[test]
fn an_answer_is_about_the_name_that_was_asked_and_counts_once() {
    let probe = Probe::new();
    let mut upcalls = probe.datapath.borrow().upcalls().expect("a ring");
    let wanted = probe.datapath.borrow_mut().snoop_dns(true);
    wanted.expect("settings");
    let long: Vec<u8> = [&[63][..], &[b'x'; 63], b"\x03org\0"].concat();
    for (port, name) in [
        (1, &b"\x07example\x03org\0"[..]),
        (2, b"\x02de\0"),
        (3, &long),
    ] {
        let asked = about(7, name, b"");
        let sent = probe.out(&build::udp((INNER, port), RESOLVER, &asked));
        let sent = sent.is(Sent, "out_new");
        let outer = (sent.read().ip.source, port);
        let uplink = usize::from(outer.0 == OUTSIDE[1][0]);
        let mut hears = |payload: &[u8]| {
            probe.back(uplink, &build::udp(RESOLVER, outer, payload));
            upcalls.next().is_some()
        };
        let mut other = name.to_vec();
        other[1] ^= 1;
        assert!(!hears(&about(7, &other, b"")), "another name");
        assert!(!hears(&about(8, name, b"")), "another number");
        assert!(!hears(&asked[..12]), "cut short");
        // Servers repeat the name in whichever case; what they say comes behind it.
        let answer = about(7, &name.to_ascii_uppercase(), &[0xc0; 100]);
        assert!(hears(&answer), "port {port}");
        assert!(!hears(&answer), "again");
    }
}

/// UDP-Lite, AH, DCCP and L2TP: whoever sends what cannot be translated is to hear of it, once in a
/// while.
#[test]
fn what_cannot_be_translated_is_handed_over_to_be_answered() {
    let probe = Probe::new();
    let mut upcalls = probe.datapath.borrow().upcalls().expect("a ring");
    for (index, protocol) in [136, 51, 33, 115].into_iter().enumerate() {
        for (from, to) in [
            (IpAddr::from([10, 1, 1, index as u8]), SERVER_V4),
            (
                IpAddr::from([0xfd00, 1, 0, 0, 0, 0, 0, index as u16]),
                SERVER_V6,
            ),
        ] {
            let packet = build::packet(from, to, protocol, vec![7; 1400], None);
            for count in 0..20 {
                let outcome = probe.forwarded(&packet).is(Dropped, "out_protocol");
                assert_eq!(outcome.events, [""; 0]);
                let Some(upcall) = upcalls.next() else {
                    assert!(count >= 6, "{count} of {protocol} were handed over");
                    continue;
                };
                assert!(count < 8, "{count} of {protocol}");
                let Upcall::Refused(refused) = upcall else {
                    panic!("{upcall:?}");
                };
                assert_eq!((refused.from, refused.to), (from, to));
                assert_eq!(refused.device, probe.world.host.ifindex("lan0"));
                assert_eq!(refused.packet, packet[..1232]);
            }
        }
    }
    // An ICMP message is never answered with an error.
    let timestamp = build::icmp(INNER, SERVER_V4, 13, 0, 1, &[0; 12]);
    probe.out(&timestamp).is(Dropped, "out_protocol");
    assert_eq!(upcalls.next(), None);
}

/// `braid explain` says what becomes of a protocol without asking the programs.
#[test]
fn both_sides_agree_on_what_can_be_translated() {
    let probe = Probe::new();
    // Headers of IPv6 between its own and the transport's, and what is of the other family.
    let apart = [0, 1, 43, 44, 58, 60];
    for protocol in (0..=255).filter(|protocol| !apart.contains(protocol)) {
        for (from, to) in [(INNER, SERVER_V4), (INNER6, SERVER_V6)] {
            let packet = match protocol {
                6 => build::tcp((from, 4000), (to, 80), SYN, b""),
                17 => build::udp((from, 4000), (to, 53), b"x"),
                _ => build::packet(from, to, protocol, vec![0; 40], None),
            };
            let refused = probe.forwarded(&packet).reason == "out_protocol";
            let expected = Protocol(protocol).translation() == Translation::None;
            assert_eq!(refused, expected, "protocol {protocol}");
        }
    }
}

/// GRE, ESP and SCTP have no ports to be told apart by, so each uplink has room for one client.
#[test]
fn a_further_client_of_one_remote_hears_that_it_is_taken() {
    let probe = Probe::new();
    let mut upcalls = probe.datapath.borrow().upcalls().expect("a ring");
    for protocol in [47, 50, 132] {
        let [first, second, third] = [9, 10, 11].map(|client| {
            let client = [10, 1, 0, client].into();
            build::packet(client, SERVER_V4, protocol, vec![7; 40], None)
        });
        probe.forwarded(&first).is(Sent, "out_new");
        probe.forwarded(&second).is(Sent, "out_new");
        assert_eq!(upcalls.next(), None);
        let taken = probe.forwarded(&third);
        taken.is(Dropped, "nat_address_taken");
        let Some(Upcall::Refused(refused)) = upcalls.next() else {
            panic!("{protocol} is not handed over");
        };
        assert_eq!(refused.from, IpAddr::from([10, 1, 0, 11]));
        assert_eq!(refused.packet, third);
    }
}

#[test]
fn a_flood_of_fragments_is_handed_over_in_part() {
    let probe = Probe::new();
    let mut upcalls = probe.datapath.borrow().upcalls().expect("a ring");
    let later = |source: IpAddr, id: u16| {
        let whole = build::udp((source, 1), (SERVER_V4, 2), &[7; 3000]);
        pieces(&whole, id.into()).remove(1)
    };
    for id in 0..64 {
        let held = probe.forwarded(&later([10, 1, 0, 9].into(), id));
        held.is(Dropped, "out_held");
    }
    let more = probe.forwarded(&later([10, 1, 0, 9].into(), 99));
    let lost = more.is(Dropped, "out_fragment_orphan");
    assert_eq!(lost.events, ["upcall_lost"]);
    let other = probe.forwarded(&later([10, 1, 0, 10].into(), 1));
    other.is(Dropped, "out_held");
    let held = std::iter::from_fn(|| upcalls.next());
    assert_eq!(held.count(), 65);
}

/// Whoever makes up sources for fragments cannot keep others' answers from being learned.
#[test]
fn fragments_of_many_sources_leave_room_for_answers() {
    let probe = Probe::new();
    let mut upcalls = probe.datapath.borrow().upcalls().expect("a ring");
    let wanted = probe.datapath.borrow_mut().snoop_dns(true);
    wanted.expect("settings");
    let asked = build::udp((INNER, 5353), RESOLVER, &message(7));
    let sent = probe.out(&asked).is(Sent, "out_new");
    let outer = (sent.read().ip.source, 5353);
    let uplink = usize::from(outer.0 == OUTSIDE[1][0]);
    // Twice what the ring has room for.
    for id in 0..512_u16 {
        let source = IpAddr::from([10, 1, 1, u8::try_from(id / 8).expect("small")]);
        let whole = build::udp((source, 1), (SERVER_V4, 2), &[7; 3000]);
        let later = pieces(&whole, id.into()).remove(1);
        probe.forwarded(&later);
    }
    probe.back(uplink, &build::udp(RESOLVER, outer, &message(7)));
    let handed_over: Vec<_> = std::iter::from_fn(|| upcalls.next()).collect();
    let fragments = handed_over.len() - 1;
    assert!((64..=256).contains(&fragments), "{fragments} held");
    assert!(matches!(handed_over.last(), Some(Upcall::DnsAnswer { .. })));
}

/// A LAN of jumbo frames: what does not fit an upcall is counted by its own name.
#[test]
fn early_fragments_up_to_two_kibibytes_are_held() {
    let probe = Probe::new();
    let whole = build::udp(([10, 1, 0, 9].into(), 1), (SERVER_V4, 2), &[7; 6000]);
    for (bytes, reason, events) in [
        (2028, "out_held", &[][..]),
        (2036, "out_fragment_orphan", &["fragment_wide"][..]),
    ] {
        let later = later_piece(&whole, 2000, bytes);
        let outcome = probe.forwarded(&later).is(Dropped, reason);
        assert_eq!(outcome.events, events, "{bytes} bytes");
    }
}

/// The piece of an IPv4 packet's payload from `start` on, as a fragment that is not the last.
fn later_piece(packet: &[u8], start: u16, bytes: u16) -> Vec<u8> {
    let mut piece = packet[..20].to_vec();
    piece[2..4].copy_from_slice(&(20 + bytes).to_be_bytes());
    piece[6..8].copy_from_slice(&((start / 8) | (1 << 13)).to_be_bytes());
    piece[10..12].fill(0);
    let sum = checksum::of(&piece);
    piece[10..12].copy_from_slice(&sum.to_be_bytes());
    let start = 20 + usize::from(start);
    piece.extend(&packet[start..start + usize::from(bytes)]);
    piece
}

/// Cuts a packet's payload into pieces of 1,400 bytes.
fn pieces(packet: &[u8], id: u32) -> Vec<Vec<u8>> {
    let v6 = packet[0] >> 4 == 6;
    let header = if v6 { 40 } else { 20 };
    let chunks = packet[header..].chunks(1400);
    let last = chunks.len() - 1;
    let cut = |(index, chunk): (usize, &[u8])| {
        let place = u16::try_from(index * 1400 / 8).expect("an offset");
        let mut piece = packet[..header].to_vec();
        let more = u16::from(index < last);
        if v6 {
            piece[4..6].copy_from_slice(&u16::try_from(8 + chunk.len()).unwrap().to_be_bytes());
            piece[6] = 44;
            piece.extend([packet[6], 0]);
            piece.extend((place << 3 | more).to_be_bytes());
            piece.extend(id.to_be_bytes());
        } else {
            piece[2..4].copy_from_slice(&u16::try_from(20 + chunk.len()).unwrap().to_be_bytes());
            piece[4..6].copy_from_slice(&u16::try_from(id).unwrap().to_be_bytes());
            piece[6..8].copy_from_slice(&(place | more << 13).to_be_bytes());
            piece[10..12].fill(0);
            let sum = checksum::of(&piece);
            piece[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        piece.extend(chunk);
        piece
    };
    chunks.enumerate().map(cut).collect()
}

/// Sends IP packets out of a device to the station with a link-layer address.
fn send(namespace: &Namespace, device: &str, to: [u8; 6], packets: &[Vec<u8>]) {
    for packet in packets {
        let kind: [u8; 2] = if packet[0] >> 4 == 6 {
            [0x86, 0xdd]
        } else {
            [8, 0]
        };
        let frame = [&to[..], &[2, 0, 0, 0, 0, 1], &kind, packet].concat();
        support::frame::send(namespace, device, &frame);
    }
}

/// Does as the daemon does until the socket has received something; returns that.
fn receive(
    world: &World,
    datapath: &mut Datapath,
    upcalls: &mut Upcalls,
    socket: &UdpSocket,
) -> Vec<u8> {
    socket.set_nonblocking(true).expect("a socket");
    let mut held = Fragments::new();
    let mut bytes = vec![0; 65536];
    let deadline = Instant::now() + PATIENCE;
    loop {
        while let Some(upcall) = upcalls.next() {
            if let Upcall::Fragment(fragment) = upcall {
                assert!(held.hold(fragment, KernelTime::now()));
            }
        }
        let reinject = || datapath.reinject(&mut held, KernelTime::now());
        world.host.enter(reinject).expect("reinjected");
        if let Ok(length) = socket.recv(&mut bytes) {
            assert!(held.is_empty());
            return bytes[..length].to_vec();
        }
        assert!(Instant::now() < deadline, "{} held", held.len());
        std::thread::yield_now();
    }
}

#[test]
fn fragments_arrive_in_whatever_order_they_come() {
    let world = World::new();
    world.serve();
    world.offloads(false);
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    let mut upcalls = datapath.upcalls().expect("a ring");
    let payload: Vec<u8> = (0..3000).map(|i| (i % 251) as u8).collect();
    let address =
        |namespace: &Namespace, device: &str| mac(&namespace.ip(&format!("link show {device}")));
    let mut id = 100;
    for (from, device, gateway) in [
        (&world.host, "braid0", address(&world.host, "braid0")),
        (&world.client, "eth0", address(&world.host, "lan0")),
    ] {
        for server in [SERVER_V4, SERVER_V6] {
            let server = (server, PORT);
            let (socket, local, outer) = from.enter(|| {
                let socket = udp_socket(server.into());
                socket.connect(server).expect("a route");
                let local = socket.local_addr().expect("bound");
                socket.send(b"opens").expect("sent");
                socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
                let mut bytes = [0; 100];
                let length = socket.recv(&mut bytes).expect("an answer");
                let text = std::str::from_utf8(&bytes[..length]).expect("text");
                let outer = text.lines().next().expect("an address").to_owned();
                (
                    socket,
                    local,
                    outer.parse::<std::net::SocketAddr>().expect("an address"),
                )
            });
            id += 1;
            let (local, outer, uplink) = ((local.ip(), local.port()), outer, uplink_of(outer));
            let mut out = pieces(&build::udp(local, server, &payload), id);
            out.reverse();
            send(from, device, gateway, &out);
            let back = receive(&world, &mut datapath, &mut upcalls, &socket);
            assert!(back.ends_with(&payload), "outwards, {local:?}");

            let outer = (outer.ip(), outer.port());
            let mut back = pieces(&build::udp(server, outer, &payload), id);
            back.reverse();
            let wan = address(&world.host, &format!("wan{uplink}"));
            send(&world.inet, &format!("isp{uplink}"), wan, &back);
            let received = receive(&world, &mut datapath, &mut upcalls, &socket);
            assert!(received == payload, "inwards, {local:?}");
        }
    }
    assert_eq!(reason(&datapath, "out_held"), 8);
    assert_eq!(reason(&datapath, "in_held"), 8);
}
