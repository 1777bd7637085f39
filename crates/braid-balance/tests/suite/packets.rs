//! Packet tables: what each program makes of one packet after another.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use Verdict::{Dropped, Passed, Sent};
use braid_balance::{Choice, FlowState, Layer, LbMethod, UplinkEntry};
use braid_core::UplinkId;
use braid_packet::{Transport, build, protocol};

use crate::support::probe::{Outcome, Probe, Verdict};
use crate::support::talk::{
    ACK, CLIENT, FIN, INNER, INNER6, RST, SERVER, SYN, answer, handshake, tcp,
};
use crate::support::world::{OUTSIDE, SERVER_V4, SERVER_V6};

#[test]
fn tcp_from_syn_to_fin() {
    let probe = Probe::new();
    let state = || {
        probe
            .flow((INNER, 4000))
            .map(|flow| (flow.state, flow.assured))
    };
    let sent = probe.out(&tcp(4000, SYN)).is(Sent, "out_new");
    assert_eq!(sent.read().ip.dest, SERVER.0);
    assert_eq!(
        sent.read().ip.hops,
        64,
        "the host's own packets keep their hop limit"
    );
    assert_eq!(state(), Some((FlowState::New, false)));
    let again = probe.out(&tcp(4000, SYN)).is(Sent, "out_flow");
    assert_eq!(
        again.packet, sent.packet,
        "a retransmitted SYN takes the same way"
    );

    let (uplink, syn_ack) = answer(&sent, SYN | ACK);
    let delivered = probe.back(uplink, &syn_ack).is(Passed, "in_stack");
    assert_eq!(delivered.read().ip.dest, INNER);
    assert_eq!(state(), Some((FlowState::Answered, false)));
    probe.out(&tcp(4000, ACK)).is(Sent, "out_flow");
    assert_eq!(state(), Some((FlowState::Established, true)));
    probe.out(&tcp(4000, FIN | ACK)).is(Sent, "out_flow");
    assert_eq!(state(), Some((FlowState::FinWait, true)));
    let (_, fin) = answer(&sent, FIN | ACK);
    probe.back(uplink, &fin).is(Passed, "in_stack");
    assert_eq!(state(), Some((FlowState::Closing, true)));

    let reused = probe.out(&tcp(4000, SYN)).is(Sent, "out_new");
    assert_eq!(reused.events, ["flow_replaced"]);
    assert_ne!(
        reused.read().ip.source,
        sent.read().ip.source,
        "a new choice: the next slot"
    );
}

#[test]
fn a_reset_that_nobody_heeds_kills_nothing() {
    let probe = Probe::new();
    let (uplink, data) = handshake(&probe, 4100);
    let rst = build::tcp(SERVER, (OUTSIDE[uplink][0], 4100), RST | ACK, b"");
    probe.back(uplink, &rst).is(Passed, "in_stack");
    assert_eq!(
        probe.flow((INNER, 4100)).expect("a flow").state,
        FlowState::Reset
    );
    probe.back(uplink, &data).is(Passed, "in_stack");
    assert_eq!(
        probe.flow((INNER, 4100)).expect("a flow").state,
        FlowState::Established
    );
}

#[test]
fn a_refused_connection_may_try_again_elsewhere() {
    let probe = Probe::new();
    let sent = probe.out(&tcp(4200, SYN)).is(Sent, "out_new");
    let (uplink, refused) = answer(&sent, RST | ACK);
    probe.back(uplink, &refused).is(Passed, "in_stack");
    let again = probe.out(&tcp(4200, SYN)).is(Sent, "out_new");
    assert_ne!(again.read().ip.source, sent.read().ip.source);
}

#[test]
fn tcp_in_midstream_goes_by_hash_and_is_answered() {
    let probe = Probe::new();
    let sent = probe.out(&tcp(4300, ACK)).is(Sent, "tcp_midstream");
    assert_eq!(
        probe.flow((INNER, 4300)).expect("an embryo").choice,
        Choice::Midstream
    );
    let (uplink, rst) = answer(&sent, RST);
    probe.back(uplink, &rst).is(Passed, "in_stack");
    probe.out(&tcp(4300, ACK)).is(Sent, "out_flow");
    assert!(
        !probe.flow((INNER, 4300)).expect("an embryo").assured,
        "refused: proves nothing"
    );
}

#[test]
fn one_udp_mapping_serves_every_remote() {
    let probe = Probe::new();
    let to = |host: u8, port| {
        let remote = IpAddr::V4(Ipv4Addr::new(192, 0, 2, host));
        probe.out(&build::udp((INNER, 5000), (remote, port), b"x"))
    };
    let first = to(1, 3478).is(Sent, "out_new");
    let second = to(2, 9999).is(Sent, "out_flow");
    assert_eq!(
        first.read().ip.source,
        second.read().ip.source,
        "RFC 4787 REQ-1"
    );
    let uplink = usize::from(first.read().ip.source == OUTSIDE[1][0]);
    let stranger = (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3)), 443);
    let hole = build::udp(stranger, (OUTSIDE[uplink][0], 5000), b"punched");
    let delivered = probe.back(uplink, &hole).is(Passed, "in_stack");
    assert_eq!(delivered.events, ["flow_promoted"]);
    assert_eq!(delivered.read().ip.dest, INNER);
    assert_eq!(probe.flow((INNER, 5000)).expect("a flow").remote, None);
}

#[test]
fn quic_is_a_flow_per_remote() {
    let probe = Probe::new();
    let to = |host: u8| {
        let remote = IpAddr::V4(Ipv4Addr::new(192, 0, 2, host));
        probe
            .out(&build::udp((INNER, 5100), (remote, 443), b"x"))
            .is(Sent, "out_new")
    };
    assert_ne!(to(1).read().ip.source, to(2).read().ip.source);
}

#[test]
fn echoes_keep_their_id_and_never_leave_the_embryos() {
    let probe = Probe::new();
    for (inner, server, ask, reply) in [(INNER, SERVER_V4, 8, 0), (INNER6, SERVER_V6, 128, 129)] {
        let sent = probe
            .out(&build::icmp(inner, server, ask, 0, 77, b"ping"))
            .is(Sent, "out_new");
        let outer = sent.read().ip.source;
        let uplink = OUTSIDE
            .iter()
            .position(|ends| ends.contains(&outer))
            .expect("outer");
        let back = build::icmp(server, outer, reply, 0, 77, b"ping");
        let delivered = probe.back(uplink, &back).is(Passed, "in_stack");
        assert_eq!(delivered.read().ip.dest, inner);
        assert!(!probe.flow((inner, 77)).expect("an embryo").assured);
        let stranger = build::icmp(server, outer, ask, 0, 77, b"ping");
        probe.back(uplink, &stranger).is(Passed, "in_protocol");
    }
}

#[test]
fn a_taken_port_is_replaced_by_one_of_the_range_until_none_is_left() {
    let probe = Probe::new();
    let narrow = |ports| UplinkEntry {
        ports,
        ..probe.world.uplinks()[0].clone()
    };
    probe
        .datapath
        .borrow_mut()
        .set_uplinks(&[narrow(20_000..=20_001)])
        .expect("uplinks");
    let mut datapath = probe.datapath.borrow_mut();
    probe
        .world
        .set_slots(&mut datapath, LbMethod::RoundRobin, &[0]);
    drop(datapath);
    let client = |host: u8| IpAddr::V4(Ipv4Addr::new(10, 1, 0, host));
    let from = |host, flags| probe.forwarded(&build::tcp((client(host), 6000), SERVER, flags, b""));
    let port = |outcome: &Outcome| match outcome.read().transport {
        Transport::Tcp { source, .. } => source,
        other => panic!("{other:?}"),
    };
    let open = |host| {
        let sent = from(host, SYN).is(Sent, "out_new");
        let (uplink, syn_ack) = answer(&sent, SYN | ACK);
        let _ = probe.back(uplink, &syn_ack);
        let _ = from(host, ACK).is(Sent, "out_flow");
        sent
    };
    assert_eq!(port(&open(10)), 6000, "the client's own port");
    let second = open(11);
    assert_eq!(second.events, ["port_changed"]);
    let third = from(12, SYN).is(Sent, "out_new");
    let mut ports = [port(&second), port(&third)];
    ports.sort_unstable();
    assert_eq!(ports, [20_000, 20_001]);
    // Nobody has answered the third one, so its port goes to the next, and then back to it.
    for host in [13, 12] {
        let taken = from(host, SYN).is(Sent, "out_new");
        assert_eq!(taken.events, ["port_changed", "port_taken_over"]);
        assert_eq!(port(&taken), port(&third));
    }
    assert!(probe.flow((client(13), 6000)).is_none());
    // Nor is an answer enough, as long as nobody inside has confirmed it.
    let (uplink, syn_ack) = answer(&third, SYN | ACK);
    let delivered = probe.back(uplink, &syn_ack);
    assert_eq!(delivered.read().ip.dest, client(12));
    assert_eq!(port(&open(14)), port(&third));
    from(15, SYN).is(Dropped, "nat_ports_exhausted");
}

/// RFC 4787 REQ-4: "A NAT [should] have a port parity preservation behavior".
#[test]
fn a_datagrams_other_port_stays_even_or_odd() {
    let probe = Probe::new();
    probe
        .world
        .set_slots(&mut probe.datapath.borrow_mut(), LbMethod::RoundRobin, &[0]);
    let client = |host: u8| IpAddr::V4(Ipv4Addr::new(10, 1, 0, host));
    for inside in 6000..6010 {
        for host in [10, 11] {
            let sent = probe.forwarded(&build::udp((client(host), inside), SERVER, b"x"));
            let Transport::Udp { source, .. } = sent.read().transport else {
                panic!("{sent:?}");
            };
            assert_eq!(source % 2, inside % 2, "port {inside} of {host}");
            assert_eq!(source == inside, host == 10);
        }
    }
}

#[test]
fn nobody_in_a_lan_has_our_addresses() {
    let probe = Probe::new();
    for own in OUTSIDE.as_flattened() {
        let server = if own.is_ipv4() { SERVER_V4 } else { SERVER_V6 };
        probe
            .lan(&build::tcp((*own, 4000), (server, 80), SYN, b""))
            .is(Dropped, "lan_spoofed");
    }
}

#[test]
fn strangers_on_an_uplinks_segment_get_nothing_translated() {
    let probe = Probe::new();
    let client = build::udp((CLIENT, 4600), (SERVER_V4, 53), b"x");
    probe.forwarded(&client).is(Sent, "out_new");
    for stranger in [
        "203.0.113.77",
        "2001:db8:1::77",
        // As if it were a client, or the machine itself.
        "10.1.0.2",
        "fd00:1::2",
        "64:ff9b:1:6272::8",
    ] {
        let stranger: IpAddr = stranger.parse().expect("an address");
        let (server, echo, unreachable) = match stranger.is_ipv4() {
            true => (SERVER_V4, 8, 3),
            false => (SERVER_V6, 128, 1),
        };
        let udp = build::udp((stranger, 4600), (server, 53), b"x");
        for packet in [
            build::tcp((stranger, 4600), (server, 80), SYN, b""),
            build::tcp((stranger, 4600), (server, 80), ACK, b""),
            udp.clone(),
            build::icmp(stranger, server, echo, 0, 7, b"ping"),
            build::icmp(stranger, server, unreachable, 0, 7, &udp),
            build::packet(stranger, server, 47, vec![0; 16], None),
        ] {
            let dropped = probe.forwarded_from(0, &packet);
            dropped.is(Dropped, "out_from_uplink");
        }
    }
    let mut later = build::udp((CLIENT, 4600), (SERVER_V4, 53), b"a later fragment");
    later[7] = 1;
    probe
        .forwarded_from(0, &later)
        .is(Dropped, "out_from_uplink");
    let flows = probe.datapath.borrow().flows().expect("flows");
    assert_eq!(flows.len(), 1, "the client's");
    assert_eq!(flows[0].tx.packets, 1);
    // A packet that connection tracking has translated answers a client of a published port.
    let published = build::tcp((OUTSIDE[1][0], 4600), SERVER, ACK, b"");
    probe
        .forwarded_from(0, &published)
        .is(Sent, "out_own_address");
}

#[test]
fn nobody_outside_has_our_addresses() {
    let probe = Probe::new();
    let own = OUTSIDE[1][1];
    for packet in [
        build::tcp((own, 4000), (SERVER_V6, 80), SYN, b""),
        build::udp((own, 4000), (SERVER_V6, 53), b"x"),
        build::icmp(own, SERVER_V6, 128, 0, 7, b"ping"),
        build::icmp(own, SERVER_V6, 1, 0, 7, b"what was it?"),
        build::packet(own, SERVER_V6, 200, vec![0; 16], None),
    ] {
        probe.back(0, &packet).is(Dropped, "in_spoofed");
    }
    // Two uplinks on one network hear each other's multicast.
    let group = "ff02::fb".parse().expect("a group");
    let heard = build::udp((own, 5353), (group, 5353), b"x");
    probe.back(0, &heard).is(Passed, "in_not_addressed");
}

/// A machine at rest hears its own probes' answers, and neighbours' announcements: `in_no_flow` is for
/// what nobody here has asked for.
#[test]
fn what_is_of_no_flow_is_told_apart_by_whom_it_is_for() {
    let probe = Probe::new();
    let [own, other] = [OUTSIDE[0][0], [203, 0, 113, 99].into()];
    let own_v6 = OUTSIDE[0][1];
    let all: IpAddr = [255, 255, 255, 255].into();
    let group: IpAddr = "ff02::fb".parse().expect("a group");
    let far_v6 = (SERVER_V6, 53);
    let _listens = probe
        .world
        .host
        .enter(|| UdpSocket::bind("[::]:4700").expect("a socket"));
    for (packet, reason) in [
        (build::udp((SERVER_V4, 53), (own, 4701), b"x"), "in_no_flow"),
        (build::udp(far_v6, (own_v6, 4701), b"x"), "in_no_flow"),
        (build::tcp(SERVER, (own, 4701), SYN, b""), "in_no_flow"),
        (build::udp(far_v6, (own_v6, 4700), b"x"), "in_local"),
        (build::icmp(SERVER_V4, own, 0, 0, 7, b"pong"), "in_local"),
        (
            build::port_unreachable(
                SERVER_V4,
                own,
                &build::udp((own, 4702), (SERVER_V4, 1), b""),
            ),
            "in_local",
        ),
        (
            build::packet(SERVER_V4, own, 50, vec![0; 16], None),
            "in_local",
        ),
        (
            build::udp((SERVER_V4, 68), (all, 67), b"x"),
            "in_not_addressed",
        ),
        (build::udp(far_v6, (group, 5353), b"x"), "in_not_addressed"),
        (
            build::tcp(SERVER, (other, 4700), SYN, b""),
            "in_not_addressed",
        ),
    ] {
        probe.back(0, &packet).is(Passed, reason);
    }
}

#[test]
fn protocols_without_ports_go_by_address() {
    let probe = Probe::new();
    let gre = |from| build::packet(from, SERVER_V4, 47, vec![0; 16], None);
    let sent = probe.forwarded(&gre(CLIENT)).is(Sent, "out_new");
    let uplink = usize::from(sent.read().ip.source == OUTSIDE[1][0]);
    let back = build::packet(SERVER_V4, OUTSIDE[uplink][0], 47, vec![0; 16], None);
    assert_eq!(
        probe
            .back(uplink, &back)
            .is(Passed, "in_stack")
            .read()
            .ip
            .dest,
        CLIENT
    );
    probe
        .datapath
        .borrow_mut()
        .set_uplinks(&probe.world.uplinks()[..1])
        .expect("one uplink");
    for host in 20..22 {
        let other = IpAddr::V4(Ipv4Addr::new(10, 1, 0, host));
        let _ = probe.forwarded(&gre(other));
    }
    let late = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 30));
    probe.forwarded(&gre(late)).is(Dropped, "nat_address_taken");
    let unknown = build::packet(INNER, SERVER_V4, 200, vec![0; 16], None);
    probe.out(&unknown).is(Dropped, "out_protocol");
}

#[test]
fn what_must_not_leave_does_not() {
    let probe = Probe::new();
    for dest in [
        "224.0.0.1",
        "255.255.255.255",
        "169.254.1.1",
        "127.0.0.1",
        "0.0.0.0",
    ] {
        let packet = build::udp((INNER, 1), (dest.parse().expect("v4"), 1), b"");
        probe.out(&packet).is(Dropped, "out_not_unicast");
    }
    for dest in ["ff02::1", "fe80::1", "::1", "::"] {
        let packet = build::udp((INNER6, 1), (dest.parse().expect("v6"), 1), b"");
        probe.out(&packet).is(Dropped, "out_not_unicast");
    }
}

#[test]
fn a_slot_without_its_uplink_is_skipped_and_none_at_all_is_said() {
    let probe = Probe::new();
    let mut uplinks = probe.world.uplinks();
    uplinks[0].accepts_new = false;
    probe
        .datapath
        .borrow_mut()
        .set_uplinks(&uplinks)
        .expect("uplinks");
    for port in 7000..7004 {
        let sent = probe.out(&tcp(port, SYN)).is(Sent, "out_new");
        assert_eq!(sent.read().ip.source, OUTSIDE[1][0]);
    }
    assert_eq!(
        probe.flow((INNER, 7000)).expect("a flow").uplink,
        UplinkId(1)
    );
    uplinks[1].v4 = None;
    probe
        .datapath
        .borrow_mut()
        .set_uplinks(&uplinks)
        .expect("uplinks");
    probe.out(&tcp(7010, SYN)).is(Dropped, "no_uplink");
}

#[test]
fn flows_of_a_vanished_uplink_move_or_say_so() {
    let probe = Probe::new();
    let mut datapath = probe.datapath.borrow_mut();
    probe
        .world
        .set_slots(&mut datapath, LbMethod::RoundRobin, &[0]);
    drop(datapath);
    let udp = build::udp((INNER, 5300), (SERVER_V4, 53), b"x");
    probe.out(&udp).is(Sent, "out_new");
    probe.out(&tcp(7100, SYN)).is(Sent, "out_new");
    let second = probe.world.uplinks().split_off(1);
    let mut datapath = probe.datapath.borrow_mut();
    datapath.set_uplinks(&second).expect("uplinks");
    probe
        .world
        .set_slots(&mut datapath, LbMethod::RoundRobin, &[1]);
    drop(datapath);
    let moved = probe.out(&udp).is(Sent, "out_new");
    assert_eq!(moved.events, ["flow_moved"]);
    assert_eq!(moved.read().ip.source, OUTSIDE[1][0]);
    probe.out(&tcp(7100, ACK)).is(Dropped, "uplink_gone");
}

#[test]
fn hop_limits_and_sizes_of_the_short_way() {
    let probe = Probe::new();
    probe.world.host.ip(&format!(
        "neigh replace {CLIENT} dev lan0 lladdr 02:00:00:00:00:01"
    ));
    let lan = |flags, payload: &[u8]| build::tcp((CLIENT, 8000), SERVER, flags, payload);
    probe.lan(&lan(SYN, b"")).is(Passed, "lan_not_fast");
    let sent = probe.forwarded(&lan(SYN, b"")).is(Sent, "out_new");
    probe.lan(&lan(ACK, b"")).is(Passed, "lan_no_flow");
    let (uplink, syn_ack) = answer(&sent, SYN | ACK);
    let back = probe.back(uplink, &syn_ack).is(Sent, "in_lan");
    assert_eq!((back.read().ip.dest, back.read().ip.hops), (CLIENT, 63));
    let first = probe.lan(&lan(ACK, b"")).is(Sent, "lan_fast");
    assert_eq!(first.events, ["flow_promoted"]);
    assert_eq!(
        (first.read().ip.source, first.read().ip.hops),
        (OUTSIDE[uplink][0], 63)
    );
    probe.lan(&lan(ACK, &[0; 1461])).is(Passed, "lan_too_big");
    let mut last = lan(ACK, b"");
    last[8] = 1;
    probe.lan(&last).is(Passed, "lan_ttl");
}

#[test]
fn a_zero_udp_checksum_stays_zero() {
    let probe = Probe::new();
    let mut packet = build::udp((INNER, 5400), (SERVER_V4, 53), b"x");
    packet[26..28].fill(0);
    let sent = probe.out(&packet).is(Sent, "out_new");
    assert_eq!(sent.packet[26..28], [0, 0]);
    assert_eq!(sent.read().ip.protocol, protocol::UDP);
}

#[test]
fn the_layer_of_an_uplink_says_where_headers_begin() {
    let probe = Probe::new();
    let mut uplinks = probe.world.uplinks();
    for uplink in &mut uplinks {
        uplink.layer = Layer::L3;
    }
    probe
        .datapath
        .borrow_mut()
        .set_uplinks(&uplinks)
        .expect("uplinks");
    // These frames have an Ethernet header, which is no IP header.
    let reply = build::tcp(SERVER, (OUTSIDE[0][0], 1), ACK, b"");
    probe.back(0, &reply).is(Passed, "in_malformed");
}

#[test]
fn a_flood_of_syns_evicts_its_like_and_nothing_else() {
    let probe = Probe::new();
    let ports = 10_000..10_020;
    for port in ports.clone() {
        handshake(&probe, port);
    }
    // Six times as many as there is room for, from behind a router of the LAN.
    probe.world.host.ip("route add 10.2.0.0/16 via 10.1.0.2");
    for source in 0..6_000_u32 {
        let client = IpAddr::V4(Ipv4Addr::from(0x0a02_0000 + source));
        probe
            .forwarded(&build::tcp((client, 1), SERVER, SYN, b""))
            .is(Sent, "out_new");
    }
    let flows = probe.datapath.borrow().flows().expect("flows");
    assert_eq!(
        flows.iter().filter(|flow| flow.assured).count(),
        ports.len()
    );
    assert!(flows.len() <= 1024 + ports.len(), "{} flows", flows.len());
    for port in ports {
        probe.out(&tcp(port, ACK)).is(Sent, "out_flow");
    }
}

#[test]
fn a_full_table_leaves_flows_as_embryos_that_work() {
    let probe = Probe::with_room(2);
    handshake(&probe, 9001);
    handshake(&probe, 9002);
    let sent = probe.out(&tcp(9003, SYN)).is(Sent, "out_new");
    let (uplink, syn_ack) = answer(&sent, SYN | ACK);
    probe.back(uplink, &syn_ack).is(Passed, "in_stack");
    let full = probe.out(&tcp(9003, ACK)).is(Sent, "out_flow");
    assert_eq!(full.events, ["flow_table_full"]);
    let (_, data) = answer(&sent, ACK);
    probe.back(uplink, &data).is(Passed, "in_stack");
    assert!(!probe.flow((INNER, 9003)).expect("an embryo").assured);
}

#[test]
fn shares_are_exact() {
    let probe = Probe::new();
    let mut third = probe.world.uplinks()[1].clone();
    third.id = UplinkId(2);
    third.ifindex = probe.world.host.ifindex("lan0");
    let uplinks = [probe.world.uplinks(), vec![third]].concat();
    probe
        .datapath
        .borrow_mut()
        .set_uplinks(&uplinks)
        .expect("uplinks");
    let slots = [0, 1, 0, 2, 0, 1, 0, 1, 0];
    probe.world.set_slots(
        &mut probe.datapath.borrow_mut(),
        LbMethod::RoundRobin,
        &slots,
    );
    for port in 0..450 {
        probe.out(&tcp(20_000 + port, SYN)).is(Sent, "out_new");
        // A retransmission takes no turn.
        probe.out(&tcp(20_000 + port, SYN)).is(Sent, "out_flow");
    }
    let counters = probe.datapath.borrow().counters().expect("counters");
    let opened: Vec<_> = counters
        .uplinks
        .iter()
        .map(|(_, uplink)| uplink.flows_opened)
        .collect();
    assert_eq!(opened, [250, 150, 50], "5 : 3 : 1");
}

/// A SYN or SYN/ACK with options: NOP, NOP, MSS.
fn with_mss(local: (IpAddr, u16), peer: (IpAddr, u16), flags: u8, mss: u16) -> Vec<u8> {
    let plain = build::tcp(local, peer, flags, b"");
    let header = plain.len() - 20;
    let mut segment = plain[header..].to_vec();
    segment[12] = 7 << 4;
    segment[16..18].fill(0);
    segment.extend([1, 1, 2, 4]);
    segment.extend(mss.to_be_bytes());
    segment.extend([0, 0]);
    build::packet(local.0, peer.0, protocol::TCP, segment, Some(16))
}

#[test]
fn segment_sizes_are_clamped_to_the_uplink_both_ways() {
    let probe = Probe::new();
    let mut uplinks = probe.world.uplinks();
    uplinks.iter_mut().for_each(|uplink| uplink.mtu = 1400);
    probe
        .datapath
        .borrow_mut()
        .set_uplinks(&uplinks)
        .expect("uplinks");
    for (inner, server, headers) in [(INNER, SERVER_V4, 40), (INNER6, SERVER_V6, 60)] {
        let mss = |outcome: &Outcome| {
            let packet = outcome.read();
            u16::from_be_bytes([packet.segment()[24], packet.segment()[25]])
        };
        let (local, peer) = ((inner, 4400), (server, 80));
        let sent = probe
            .out(&with_mss(local, peer, SYN, 1460))
            .is(Sent, "out_new");
        assert_eq!(mss(&sent), 1400 - headers);
        let outer = sent.read().ip.source;
        let uplink = OUTSIDE
            .iter()
            .position(|ends| ends.contains(&outer))
            .expect("outer");
        let back = probe.back(uplink, &with_mss(peer, (outer, 4400), SYN | ACK, 1460));
        assert_eq!(mss(&back.is(Passed, "in_stack")), 1400 - headers);
        let small = probe
            .out(&with_mss(local, peer, SYN, 536))
            .is(Sent, "out_flow");
        assert_eq!(mss(&small), 536, "what fits stays");
    }
}
