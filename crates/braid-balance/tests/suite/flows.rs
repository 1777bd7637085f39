//! Flows on real packets: a host and a LAN behind it, over two uplinks, with offloads on and off.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use braid_balance::{FlowState, HookKind, Layer, LbMethod};

use crate::support;
use crate::support::net::{Client, Namespace, ask, ask_with, serve, udp_socket};
use crate::support::world::{OUTSIDE, PORT, QUIC, SERVER_V4, SERVER_V6, World, reason, uplink_of};

/// Enough for super-packets, congestion control and both directions at once.
const BULK: usize = 1 << 20;

fn tcp_alternates(from: &Namespace, server: SocketAddr) {
    let payload: Vec<u8> = (0..BULK).map(|i| (i % 251) as u8).collect();
    let uplinks: Vec<_> = (0..4)
        .map(|_| {
            from.enter(|| {
                let mut client = Client::connect(server);
                client.echo(&payload);
                uplink_of(client.seen)
            })
        })
        .collect();
    assert!(
        uplinks == [0, 1, 0, 1] || uplinks == [1, 0, 1, 0],
        "{server}: {uplinks:?}"
    );
}

fn udp_goes_out(from: &Namespace, server: SocketAddr) {
    for _ in 0..2 {
        let seen = from.enter(|| {
            let socket = udp_socket(server);
            let first = ask(&socket, server).expect("an answer");
            assert_eq!(
                ask(&socket, server).expect("another answer"),
                first,
                "same mapping"
            );
            assert_eq!(
                first.port(),
                socket.local_addr().expect("bound").port(),
                "port kept"
            );
            first
        });
        uplink_of(seen);
    }
}

fn everything_flows(world: &World) {
    for from in [&world.host, &world.client] {
        for address in [SERVER_V4, SERVER_V6] {
            tcp_alternates(from, SocketAddr::new(address, PORT));
            udp_goes_out(from, SocketAddr::new(address, PORT));
            udp_goes_out(from, SocketAddr::new(address, QUIC));
            from.run(&format!("ping -c 2 -i 0.01 -W 2 {address}"));
        }
    }
}

#[test]
fn traffic_flows_with_real_checksums() {
    let world = World::new();
    world.serve();
    world.offloads(false);
    let (datapath, _) = world.start(&world.options(HookKind::Auto));
    everything_flows(&world);
    assert!(
        reason(&datapath, "lan_fast") > 0,
        "LAN packets took the short way"
    );
    assert!(
        reason(&datapath, "in_lan") > 0,
        "answers took the short way"
    );
}

#[test]
fn traffic_flows_with_offloads() {
    let world = World::new();
    world.serve();
    let (datapath, _) = world.start(&world.options(HookKind::Auto));
    everything_flows(&world);
    for (_, counters) in datapath.counters().expect("counters").uplinks {
        assert!(counters.tx.bytes > BULK as u64 && counters.rx.bytes > BULK as u64);
        assert!(counters.flows_opened > 0);
    }
}

#[test]
fn traffic_flows_through_clsact() {
    let world = World::new();
    world.serve();
    let (_datapath, _) = world.start(&world.options(HookKind::Clsact));
    everything_flows(&world);
}

#[test]
fn hash_keeps_a_source_on_its_uplink() {
    let world = World::new();
    world.serve();
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    world.set_slots(&mut datapath, LbMethod::HashSource, &[0, 1, 0, 1]);
    let uplinks: Vec<_> = (0..6)
        .map(|_| {
            let server = SocketAddr::new(SERVER_V4, PORT);
            world.host.enter(|| uplink_of(Client::connect(server).seen))
        })
        .collect();
    assert!(
        uplinks.iter().all(|uplink| *uplink == uplinks[0]),
        "{uplinks:?}"
    );
}

#[test]
fn a_closed_connection_is_remembered_as_closing() {
    let world = World::new();
    world.serve();
    let (datapath, _) = world.start(&world.options(HookKind::Auto));
    let server = SocketAddr::new(SERVER_V4, PORT);
    let client = world.host.enter(|| Client::connect(server));
    let flow = |state| {
        let flows = datapath.flows().expect("flows");
        flows
            .into_iter()
            .find(|flow| flow.protocol.0 == 6 && flow.state == state)
    };
    let open = flow(FlowState::Established).expect("an established flow");
    assert!(open.assured);
    assert_eq!(open.outer, client.seen);
    assert_eq!(open.remote, Some(server));
    drop(client);
    let deadline = std::time::Instant::now() + support::net::PATIENCE;
    while flow(FlowState::Closing).is_none() {
        assert!(
            std::time::Instant::now() < deadline,
            "{:?}",
            datapath.flows()
        );
        std::thread::yield_now();
    }
}

#[test]
fn traffic_flows_over_devices_without_ethernet_headers() {
    let world = World::with_uplinks(Layer::L3);
    world.serve();
    let (datapath, _) = world.start(&world.options(HookKind::Auto));
    everything_flows(&world);
    assert!(
        reason(&datapath, "lan_fast") > 0,
        "LAN packets took the short way"
    );
    assert!(
        reason(&datapath, "in_lan") > 0,
        "answers got an Ethernet header"
    );
}

/// Sends from host and LAN to both families of server.
fn everyone(world: &World, port: u16, act: impl Fn(SocketAddr) + Sync) {
    for from in [&world.host, &world.client] {
        for address in [SERVER_V4, SERVER_V6] {
            from.enter(|| act(SocketAddr::new(address, port)));
        }
    }
}

#[test]
fn fragments_follow_their_first() {
    let world = World::new();
    world.serve();
    world.offloads(false);
    let (datapath, _) = world.start(&world.options(HookKind::Auto));
    let payload: Vec<u8> = (0..5000).map(|i| (i % 251) as u8).collect();
    everyone(&world, PORT, |server| {
        ask_with(&udp_socket(server), server, &payload).expect("the whole datagram");
    });
    assert!(reason(&datapath, "out_fragment") >= 4);
    assert!(reason(&datapath, "in_fragment") >= 4);
}

#[test]
fn errors_of_the_network_reach_the_sender() {
    let world = World::new();
    world.offloads(false);
    let (datapath, _) = world.start(&world.options(HookKind::Auto));
    everyone(&world, PORT, |server| {
        let socket = udp_socket(server);
        socket.connect(server).expect("a route");
        socket.send(b"nobody listens").expect("sent");
        socket
            .set_read_timeout(Some(support::net::PATIENCE))
            .expect("a timeout");
        let error = socket.recv(&mut [0; 16]).expect_err("nobody answers");
        assert_eq!(
            error.kind(),
            ErrorKind::ConnectionRefused,
            "{server}: {error}"
        );
    });
    assert_eq!(reason(&datapath, "in_icmp_error"), 4);
}

/// While the neighbour is asked for its address the kernel holds the packet; what it then puts on
/// the wire must be for that neighbour.
#[test]
fn an_answered_flow_survives_a_forgotten_neighbour() {
    let world = World::new();
    world.serve();
    let (_datapath, _) = world.start(&world.options(HookKind::Auto));
    everyone(&world, PORT, |server| {
        let socket = udp_socket(server);
        let seen = ask(&socket, server).expect("an answer");
        ask(&socket, server).expect("an answer");
        let device = format!("wan{}", uplink_of(seen));
        world.host.ip(&format!("neigh flush dev {device}"));
        assert_eq!(ask(&socket, server).expect("no packet lost"), seen);
    });
}

#[test]
fn path_mtu_is_learned_through_the_translation() {
    let world = World::new();
    world.offloads(false);
    // A link behind the uplinks that carries less: the servers move behind it.
    let peer = Namespace::new(&support::unique());
    world.narrow(&peer, 1300);
    let (datapath, _) = world.start(&world.options(HookKind::Auto));
    let payload = vec![7; 100_000];
    everyone(&world, PORT, |server| {
        Client::connect(server).echo(&payload);
    });
    assert!(reason(&datapath, "in_icmp_error") > 0);
}

#[test]
fn a_forwarded_port_answers_by_the_uplink_it_was_asked_on() {
    let world = World::new();
    let client = SocketAddr::from(([10, 1, 0, 2], PORT));
    serve(&world.client, client.ip(), client.port());
    let host = &world.host;
    host.run("nft add table ip nat");
    host.run("nft add chain ip nat in { type nat hook prerouting priority -100 ; }");
    host.run(&format!(
        "nft add rule ip nat in iifname wan* tcp dport 8080 dnat to {client}"
    ));
    // From the internet, and not from a neighbour that the host has a route to.
    for (uplink, ends) in OUTSIDE.iter().enumerate() {
        let route = format!(
            "route replace {}/32 dev isp{uplink} src {SERVER_V4}",
            ends[0]
        );
        world.inet.ip(&route);
    }
    let (datapath, _) = world.start(&world.options(HookKind::Auto));
    for ends in OUTSIDE {
        let port = SocketAddr::new(ends[0], 8080);
        let connect = || Client::connect(port).echo(&[5; 100_000]);
        world.inet.enter(connect);
    }
    assert!(reason(&datapath, "out_own_address") > 0);
    assert_eq!(reason(&datapath, "tcp_midstream"), 0);
    // Both directions count, or the uplink would look as if nobody answered; what a socket of the
    // machine's own receives does not.
    let received = || {
        let counters = datapath.uplink_counters().expect("counters");
        [0, 1].map(|uplink: usize| {
            let (_, counters) = &counters[uplink];
            (counters.tx.bytes > 100_000, counters.rx.bytes > 100_000)
        })
    };
    assert_eq!(received(), [(true, true); 2]);
}

#[test]
fn what_comes_inside_a_vlan_is_left_to_its_device() {
    let world = World::new();
    let (datapath, _) = world.start(&world.options(HookKind::Auto));
    let packet = braid_packet::build::udp((SERVER_V4, 1), (OUTSIDE[0][0], 2), b"tagged");
    // To everybody: it only has to come in.
    let macs = [[0xff; 6], [2, 0, 0, 0, 0, 1]].concat();
    let tag = |id: u8| [0x81, 0, 0, id, 8, 0];
    for (id, counted) in [(5, "in_vlan"), (0, "in_no_flow")] {
        let before = reason(&datapath, counted);
        let frame = [&macs[..], &tag(id), &packet].concat();
        support::frame::send(&world.inet, "isp0", &frame);
        let deadline = std::time::Instant::now() + support::net::PATIENCE;
        while reason(&datapath, counted) == before {
            assert!(std::time::Instant::now() < deadline, "{counted}");
            std::thread::yield_now();
        }
    }
}

/// The kernel gives a socket that is bound to an uplink's address any port that no other socket has:
/// it knows nothing of mappings.
#[test]
fn a_socket_of_the_machine_is_answered_on_a_port_that_a_mapping_has() {
    let world = World::new();
    world.serve();
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    world.set_slots(&mut datapath, LbMethod::RoundRobin, &[0]);
    for (family, server) in [SERVER_V4, SERVER_V6].into_iter().enumerate() {
        let own = OUTSIDE[0][family];
        let other: IpAddr = ["192.0.2.81", "2001:db8:80::81"][family]
            .parse()
            .expect("an address");
        world.inet.ip(&format!("addr add {other} dev lo nodad"));
        serve(&world.inet, other, PORT);
        let (server, other) = (SocketAddr::new(server, PORT), SocketAddr::new(other, PORT));
        let client = world.client.enter(|| udp_socket(server));
        let outer = ask(&client, server).expect("an answer");
        assert_eq!(outer.ip(), own);
        let probe = world
            .host
            .enter(|| UdpSocket::bind(outer).expect("a port that no socket has"));
        assert_eq!(ask(&probe, other).expect("an answer"), outer);
        // The client's mapping is open to others all the same.
        assert_eq!(ask(&client, server).expect("an answer"), outer);
        drop(probe);
        assert_eq!(ask(&client, other).expect("an answer"), outer);
    }
}

/// RFC 4787 REQ-9: "A NAT MUST support 'Hairpinning'", with "External source IP address and port".
#[test]
fn clients_reach_each_other_by_their_outer_ends() {
    let world = World::new();
    world.serve();
    world.offloads(false);
    let (datapath, _) = world.start(&world.options(HookKind::Auto));
    for server in [SERVER_V4, SERVER_V6] {
        let server = SocketAddr::new(server, PORT);
        let socket = || world.client.enter(|| udp_socket(server));
        let (a, b, fresh) = (socket(), socket(), socket());
        let outer = [&a, &b].map(|socket| ask(socket, server).expect("an answer"));
        let receive = |socket: &std::net::UdpSocket, from: Option<SocketAddr>| {
            let mut bytes = [0; 100];
            socket
                .set_read_timeout(Some(support::net::PATIENCE))
                .expect("a socket");
            let (length, seen) = socket.recv_from(&mut bytes).expect("a datagram");
            assert!(from.is_none_or(|from| from == seen), "{seen} for {from:?}");
            (bytes[..length].to_vec(), seen)
        };
        a.send_to(b"hello", outer[1]).expect("sent");
        assert_eq!(receive(&b, Some(outer[0])).0, b"hello");
        b.send_to(b"well met", outer[0]).expect("sent");
        assert_eq!(receive(&a, Some(outer[1])).0, b"well met");
        // A socket without a mapping gets one.
        fresh.send_to(b"me too", outer[1]).expect("sent");
        let (words, seen) = receive(&b, None);
        assert_eq!(words, b"me too");
        uplink_of(seen);
        b.send_to(b"welcome", seen).expect("sent");
        assert_eq!(receive(&fresh, Some(outer[1])).0, b"welcome");
    }
    assert_eq!(reason(&datapath, "out_hairpin"), 8);
}

/// The firewall decides on traffic from one LAN to another.
#[test]
fn clients_of_another_lan_are_not_reached_behind_the_firewall_s_back() {
    let world = World::new();
    world.serve();
    let guests = Namespace::new(&support::unique());
    world.add_lan(&guests);
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    let mut attachments = world.attachments();
    attachments.lans.push(world.host.ifindex("lan1"));
    world
        .host
        .enter(|| datapath.attach(&attachments))
        .expect("attaching");
    for server in [SERVER_V4, SERVER_V6] {
        let server = SocketAddr::new(server, PORT);
        let a = world.client.enter(|| udp_socket(server));
        let outer = ask(&a, server).expect("an answer");
        let guest = guests.enter(|| udp_socket(server));
        ask(&guest, server).expect("an answer");
        guest.connect(outer).expect("a route");
        guest.send(b"let me in").expect("sent");
        // The gateway's own answer.
        let error = guest.recv(&mut [0; 9]).expect_err("nobody is there");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        a.set_nonblocking(true).expect("a socket");
        a.recv(&mut [0; 9]).expect_err("nothing came");
    }
    assert_eq!(reason(&datapath, "hairpin_apart"), 2);
    assert_eq!(reason(&datapath, "out_hairpin"), 0);
}
