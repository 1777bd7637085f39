//! Flows on real packets: a host and a LAN behind it, over two uplinks, with offloads on and off.

mod support;

use std::net::{SocketAddr, UdpSocket};

use braid_balance::{FlowState, HookKind, Walk};
use support::net::{Client, ask};
use support::world::{PORT, QUIC, SERVER_V4, SERVER_V6, World, reason, uplink_of};

/// Enough for super-packets, congestion control and both directions at once.
const BULK: usize = 1 << 20;

fn tcp_alternates(from: &support::net::Namespace, server: SocketAddr) {
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

fn udp_goes_out(from: &support::net::Namespace, server: SocketAddr) {
    for _ in 0..2 {
        let seen = from.enter(|| {
            let socket = UdpSocket::bind(if server.is_ipv4() {
                "0.0.0.0:0"
            } else {
                "[::]:0"
            });
            let socket = socket.expect("a socket");
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
    world.walk(&mut datapath, Walk::HashSource, &[0, 1, 0, 1]);
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
    assert!(open.kept);
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
