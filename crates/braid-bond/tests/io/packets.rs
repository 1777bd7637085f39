//! Inner packets arrive unchanged, whatever carries them.

use std::net::SocketAddr;

use crate::net::{Client as Connection, ask_with, serve, udp_socket};
use crate::world::{self, CLIENT, HUB, Outer, World, links};

const SERVICE: u16 = 7777;

/// Bytes that differ from all nearby ones.
fn pattern(size: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(2_654_435_761) >> 13) as u8;
    (0..size).map(byte).collect()
}

/// A kernel counter of a namespace, by name.
fn counter(world: &World, name: &str) -> u64 {
    let mut sum = 0;
    for namespace in [&world.client, &world.hub] {
        let table = namespace.run(&format!("nstat -asz {name}"));
        let line = table.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_whitespace().nth(1));
        sum += value.expect("a counter").parse::<u64>().expect("a number");
    }
    sum
}

fn crosses(outer: Outer, offloads: (bool, bool)) {
    crosses_in(&World::new(), outer, offloads);
}

fn crosses_in(world: &World, outer: Outer, (at_client, at_hub): (bool, bool)) {
    let hub = world.start_hub(at_hub);
    let client = world.start_client(at_client, links(outer));
    client.until_in_use(&[0, 1]);
    client.until(|status| status.links.iter().all(|link| link.cleartext == world.gre));
    for address in HUB {
        let address = world::address(address);
        serve(&world.hub, address, SERVICE);
        let server = SocketAddr::new(address, SERVICE);
        world
            .client
            .run(&format!("ping -q -c 3 -i 0.05 -W 2 {address}"));
        world.client.enter(|| {
            let mut connection = Connection::connect(server);
            connection.echo(&pattern(6_000_000));
            let socket = udp_socket(server);
            // One byte, full packets, more than one packet.
            for size in [1, 100, 1400, 1452, 9000] {
                ask_with(&socket, server, &pattern(size)).expect("an answer");
            }
        });
    }
    for address in CLIENT {
        world
            .hub
            .run(&format!("ping -q -c 2 -i 0.05 -W 2 {address}"));
    }
    assert_eq!(counter(world, "TcpInCsumErrors"), 0);
    assert_eq!(counter(world, "UdpInCsumErrors"), 0);
    let status = client.status();
    println!("{status:#?}");
    assert_eq!(status.tun.refused, 0);
    drop(hub);
}

#[test]
fn packets_cross_with_offloads_over_ipv4() {
    crosses(Outer::V4, (true, true));
}

#[test]
fn packets_cross_with_offloads_over_ipv6() {
    crosses(Outer::V6, (true, true));
}

/// Without offloads at one end, its kernel checks every checksum that the other end has computed.
#[test]
fn packets_cross_with_offloads_at_the_client_alone() {
    crosses(Outer::V4, (true, false));
}

#[test]
fn packets_cross_with_offloads_at_the_hub_alone() {
    crosses(Outer::V4, (false, true));
}

#[test]
fn packets_cross_as_gre_over_ipv4() {
    crosses_in(&World::trusted(), Outer::V4, (true, true));
}

#[test]
fn packets_cross_as_gre_over_ipv6() {
    crosses_in(&World::trusted(), Outer::V6, (true, true));
}
