//! Packet tables of what goes wrong: uplinks that fail, tables that are pressed, errors and strangers.

use std::net::{IpAddr, Ipv4Addr};

use Verdict::{Dropped, Passed, Sent};
use braid_balance::{FlowState, KernelTime, LbMethod, UplinkEntry};
use braid_packet::build;

use crate::support::probe::{Outcome, Probe, Verdict};
use crate::support::talk::{ACK, CLIENT, FIN, INNER, RST, SERVER, SYN, answer, handshake, tcp};
use crate::support::world::{OUTSIDE, SERVER_V4, SERVER_V6};

/// An ICMP error that `router` inside sends about a packet as the inside has received it.
fn complain(router: IpAddr, received: &Outcome) -> Vec<u8> {
    let (kind, code) = if router.is_ipv4() { (3, 4) } else { (2, 0) };
    let remote = received.read().ip.source;
    build::icmp(router, remote, kind, code, 0, &received.packet)
}

#[test]
fn errors_from_inside_reach_the_remote() {
    let probe = Probe::new();
    let router = [
        "10.1.0.1".parse().expect("v4"),
        "fd00:1::1".parse().expect("v6"),
    ];
    let client: [IpAddr; 2] = [CLIENT, "fd00:1::2".parse().expect("v6")];
    for (family, server) in [SERVER_V4, SERVER_V6].into_iter().enumerate() {
        let ask = build::udp((client[family], 5600), (server, 53), b"x");
        let sent = probe.forwarded(&ask).is(Sent, "out_new");
        let outer = sent.read().ip.source;
        let uplink = usize::from(outer == OUTSIDE[1][family]);
        let reply = build::udp((server, 53), (outer, 5600), b"a large answer");
        let received = probe.back(uplink, &reply);
        // A client's own error and one of a router on the way to it.
        for from in [client[family], router[family]] {
            let error = probe.forwarded(&complain(from, &received));
            let error = error.is(Sent, "out_icmp_error");
            assert_eq!(error.read().ip.source, outer);
            let quote = &error.read().segment()[8..];
            assert_eq!(quote[HOPS_END[family]..], reply[HOPS_END[family]..]);
        }
        let stranger = build::udp((server, 54), (router[family], 1), b"x");
        let orphan = build::icmp(router[family], server, [3, 1][family], 3, 0, &stranger);
        probe.forwarded(&orphan).is(Dropped, "out_icmp_orphan");
    }
}

/// End of the header fields that a router may change: behind TTL and header checksum, or behind the hop limit.
const HOPS_END: [usize; 2] = [12, 8];

#[test]
fn what_has_an_uplinks_address_already_leaves_through_it() {
    let probe = Probe::new();
    for (family, server) in [SERVER_V4, SERVER_V6].into_iter().enumerate() {
        for (uplink, outside) in OUTSIDE.iter().enumerate() {
            let own = outside[family];
            let sent = || {
                let counters = probe.datapath.borrow().counters().expect("counters");
                counters.uplinks[uplink].1.tx.packets
            };
            let before = sent();
            let echo_reply = [0, 129][family];
            let answers = [
                build::tcp((own, 8080), (server, 5700), SYN | ACK, b""),
                build::udp((own, 8080), (server, 5700), b"x"),
                build::icmp(own, server, echo_reply, 0, 7, b"x"),
                build::icmp(
                    own,
                    server,
                    [3, 1][family],
                    3,
                    0,
                    &build::udp((server, 1), (own, 2), b"x"),
                ),
            ];
            for answer in answers {
                let outcome = probe.forwarded(&answer).is(Sent, "out_own_address");
                assert_eq!(outcome.packet, answer);
            }
            assert_eq!(sent() - before, 4);
        }
    }
    assert_eq!(probe.datapath.borrow().flows().expect("flows").len(), 0);
}

#[test]
fn what_can_begin_anew_leaves_a_dead_or_renumbered_uplink() {
    let dead: fn(&mut UplinkEntry) = |uplink| uplink.accepts_new = false;
    let renumbered: fn(&mut UplinkEntry) = |uplink| {
        let exit = uplink.v4.as_mut().expect("an IPv4 exit");
        exit.address = Ipv4Addr::new(203, 0, 113, 77);
    };
    for change in [dead, renumbered] {
        let probe = Probe::new();
        let walk = |slots: &[u8]| {
            let mut datapath = probe.datapath.borrow_mut();
            probe
                .world
                .set_slots(&mut datapath, LbMethod::RoundRobin, slots);
        };
        walk(&[0]);
        let udp = build::udp((INNER, 5800), (SERVER_V4, 5000), b"x");
        let quic = build::udp((INNER, 5801), (SERVER_V4, 443), b"x");
        let echo = build::icmp(INNER, SERVER_V4, 8, 0, 5802, b"x");
        let fresh = [udp, quic, echo, tcp(5803, SYN)];
        for packet in &fresh {
            probe.out(packet).is(Sent, "out_new");
        }
        handshake(&probe, 5804);
        let mut uplinks = probe.world.uplinks();
        change(&mut uplinks[0]);
        probe
            .datapath
            .borrow_mut()
            .set_uplinks(&uplinks)
            .expect("uplinks");
        walk(&[1]);
        probe.out(&tcp(5804, ACK)).is(Sent, "out_flow");
        for packet in fresh.iter().chain([&tcp(5804, SYN)]) {
            let moved = probe.out(packet).is(Sent, "out_new");
            assert_eq!(moved.events, ["flow_moved"]);
            assert_eq!(moved.read().ip.source, OUTSIDE[1][0]);
        }
    }
}

#[test]
fn a_lans_datagrams_leave_the_short_way_to_move() {
    let probe = Probe::new();
    probe.world.host.ip(&format!(
        "neigh replace {CLIENT} dev lan0 lladdr 02:00:00:00:00:01"
    ));
    let ask = build::udp((CLIENT, 5810), (SERVER_V4, 5000), b"x");
    let outer = probe.forwarded(&ask).is(Sent, "out_new").read().ip.source;
    let uplink = usize::from(outer == OUTSIDE[1][0]);
    let reply = build::udp((SERVER_V4, 5000), (outer, 5810), b"x");
    probe.back(uplink, &reply).is(Sent, "in_lan");
    probe.lan(&ask).is(Sent, "lan_fast");
    let mut uplinks = probe.world.uplinks();
    uplinks[uplink].accepts_new = false;
    probe
        .datapath
        .borrow_mut()
        .set_uplinks(&uplinks)
        .expect("uplinks");
    probe.lan(&ask).is(Passed, "lan_not_fast");
}

#[test]
fn a_port_reused_after_the_clients_fin_is_a_new_flow() {
    let probe = Probe::new();
    handshake(&probe, 5820);
    probe.out(&tcp(5820, FIN | ACK)).is(Sent, "out_flow");
    let reused = probe.out(&tcp(5820, SYN)).is(Sent, "out_new");
    assert_eq!(reused.events, ["flow_replaced"]);
    let (uplink, syn_ack) = answer(&reused, SYN | ACK);
    probe.back(uplink, &syn_ack).is(Passed, "in_stack");
    probe.out(&tcp(5820, ACK)).is(Sent, "out_flow");
    assert_eq!(
        probe.flow((INNER, 5820)).expect("a flow").state,
        FlowState::Established
    );
}

#[test]
fn an_embryo_whose_port_has_gone_to_another_is_not_promoted() {
    let probe = Probe::new();
    let mut datapath = probe.datapath.borrow_mut();
    probe
        .world
        .set_slots(&mut datapath, LbMethod::RoundRobin, &[0]);
    drop(datapath);
    let other = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 3));
    let from = |client, flags| build::tcp((client, 5900), SERVER, flags, b"");
    let sent = probe.forwarded(&from(CLIENT, SYN)).is(Sent, "out_new");
    let (uplink, syn_ack) = answer(&sent, SYN | ACK);
    let _ = probe.back(uplink, &syn_ack);
    // Its reverse entry is evicted and claimed by another client with the same port.
    probe.world.empty("embryos_reverse");
    let taken = probe.forwarded(&from(other, SYN)).is(Sent, "out_new");
    assert_eq!(taken.events, [""; 0]);
    probe.lan(&from(CLIENT, ACK)).is(Passed, "lan_no_flow");
    assert!(probe.flow((CLIENT, 5900)).is_none());
    let (_, syn_ack) = answer(&taken, SYN | ACK);
    let delivered = probe.back(uplink, &syn_ack);
    assert_eq!(delivered.read().ip.dest, other);
}

#[test]
fn a_sweep_mends_kept_flows_and_leaves_embryos_to_their_packets() {
    let probe = Probe::new();
    let mut datapath = probe.datapath.borrow_mut();
    probe
        .world
        .set_slots(&mut datapath, LbMethod::RoundRobin, &[0]);
    drop(datapath);
    let (uplink, data) = handshake(&probe, 6100);
    let sent = probe.out(&tcp(6101, SYN)).is(Sent, "out_new");
    for table in ["flows_reverse", "embryos_reverse"] {
        probe.world.empty(table);
    }
    // Another client claims the kept flow's port while nothing says that it is taken.
    let rival = build::tcp((CLIENT, 6100), SERVER, SYN, b"");
    probe.forwarded(&rival).is(Sent, "out_new");
    let now = KernelTime::now();
    let report = probe.datapath.borrow_mut().sweep(now).expect("a sweep");
    assert_eq!((report.expired, report.repaired), (0, 1));
    let delivered = probe.back(uplink, &data).is(Passed, "in_stack");
    assert_eq!(delivered.read().ip.dest, INNER);
    let elsewhere = probe.forwarded(&rival).is(Sent, "out_new");
    assert!(elsewhere.events.contains(&"port_changed"));
    let again = probe.out(&tcp(6101, SYN)).is(Sent, "out_flow");
    assert_eq!(
        (again.events, again.packet),
        (vec!["half_pair"], sent.packet)
    );
}

#[test]
fn uplinks_with_the_same_address_do_not_mix_up_their_answers() {
    let probe = Probe::new();
    let mut uplinks = probe.world.uplinks();
    uplinks[1].v4 = uplinks[0].v4;
    let set = |uplinks: &[UplinkEntry]| {
        let mut datapath = probe.datapath.borrow_mut();
        datapath.set_uplinks(uplinks).expect("uplinks");
    };
    set(&uplinks);
    let outer = OUTSIDE[0][0];
    let clients: [IpAddr; 2] = [CLIENT, Ipv4Addr::new(10, 1, 0, 3).into()];
    let large = vec![7; 1200];
    for (uplink, client) in clients.into_iter().enumerate() {
        let mut walk = probe.datapath.borrow_mut();
        let slot = u8::try_from(uplink).expect("two uplinks");
        probe
            .world
            .set_slots(&mut walk, LbMethod::RoundRobin, &[slot]);
        drop(walk);
        let sent = probe.forwarded(&build::tcp((client, 6200), SERVER, SYN, b""));
        assert_eq!(sent.events, [""; 0], "the port is free in its realm");
        let quic = build::udp((client, 6201), (SERVER_V4, 443), &large);
        probe.forwarded(&quic).is(Sent, "out_new");
    }
    // Realms are kept while addresses are, whoever comes and goes.
    set(&uplinks[1..]);
    uplinks.reverse();
    set(&uplinks);
    for (uplink, client) in clients.into_iter().enumerate() {
        let syn_ack = build::tcp(SERVER, (outer, 6200), SYN | ACK, b"");
        let delivered = probe.back(uplink, &syn_ack).is(Sent, "in_lan");
        assert_eq!(delivered.read().ip.dest, client);
        let quoted = build::tcp((outer, 6200), SERVER, SYN, b"");
        let error = build::icmp(SERVER_V4, outer, 3, 4, 0, &quoted);
        let delivered = probe.back(uplink, &error).is(Passed, "in_icmp_error");
        assert_eq!(delivered.read().ip.dest, client);
        let mut first = build::udp((SERVER_V4, 443), (outer, 6201), &large);
        first[6] = 0x20;
        let _ = probe.back(uplink, &first).is(Passed, "in_stack");
        let mut later = first;
        later[6..8].copy_from_slice(&[0, 150]);
        let delivered = probe.back(uplink, &later).is(Passed, "in_fragment");
        assert_eq!(delivered.packet[16..20], octets(client));
    }
}

fn octets(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => panic!("{address}"),
    }
}

#[test]
fn a_reset_ends_a_connection_for_those_who_have_ended_it_themselves() {
    let probe = Probe::new();
    let state = |port| {
        probe
            .flow((INNER, port))
            .map(|flow| (flow.state, flow.assured))
    };
    let _ = handshake(&probe, 6300);
    probe.out(&tcp(6300, RST)).is(Sent, "out_flow");
    assert_eq!(state(6300), Some((FlowState::Closing, true)));
    let (uplink, _) = handshake(&probe, 6301);
    probe.out(&tcp(6301, FIN | ACK)).is(Sent, "out_flow");
    let rst = build::tcp(SERVER, (OUTSIDE[uplink][0], 6301), RST | ACK, b"");
    probe.back(uplink, &rst).is(Passed, "in_stack");
    assert_eq!(state(6301), Some((FlowState::Closing, true)));
    // An embryo's client that gives up, as a port scan does, proves nothing.
    let sent = probe.out(&tcp(6302, SYN)).is(Sent, "out_new");
    let (uplink, syn_ack) = answer(&sent, SYN | ACK);
    let _ = probe.back(uplink, &syn_ack);
    for _ in 0..2 {
        probe.out(&tcp(6302, RST)).is(Sent, "out_flow");
    }
    assert_eq!(state(6302), Some((FlowState::Reset, false)));
}

#[test]
fn devices_with_high_numbers_are_found_too() {
    let probe = Probe::new();
    let high = "link add name high index 70000 type veth peer name high1";
    probe.world.host.ip(high);
    let mut uplinks = probe.world.uplinks();
    uplinks[1].ifindex = 70_000;
    let set = |uplinks: &[UplinkEntry]| {
        let mut datapath = probe.datapath.borrow_mut();
        datapath.set_uplinks(uplinks).expect("uplinks");
    };
    set(&uplinks);
    let reply = build::tcp(SERVER, (OUTSIDE[1][0], 1), ACK, b"");
    probe.back_by(70_000, &reply).is(Passed, "in_no_flow");
    probe.back(0, &reply).is(Passed, "in_no_flow");
    probe.back(1, &reply).is(Passed, "in_not_uplink");
    set(&uplinks[..1]);
    probe.back_by(70_000, &reply).is(Passed, "in_not_uplink");
}
