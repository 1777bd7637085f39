//! Nanoseconds per packet of each program, by `BPF_PROG_TEST_RUN`: `cargo bench -p braid-balance`.
//!
//! A test run hands the program the same packet again and again, as the run before left it. So the
//! flows here have the same address inside and outside: every translation step is taken, and the
//! packet stays what it was; for that, the programs must not know the address as an uplink's own
//! while flows are opened. The redirect itself is not part of a test run.

#[path = "../tests/support/mod.rs"]
mod support;

use std::net::IpAddr;

use aya::maps::{HashMap, Map, MapData};
use braid_balance::Walk;
use braid_packet::build;
use support::probe::Probe;
use support::world::{OUTSIDE, SERVER_V4, SERVER_V6};

const SYN: u8 = 2;
const ACK: u8 = 16;
/// Fewer than the hop limit set below, which the LAN's program counts down.
const REPEAT: u32 = 200;
const ROUNDS: usize = 200;

fn main() {
    let probe = Probe::new();
    probe
        .world
        .walk(&mut probe.datapath.borrow_mut(), Walk::RoundRobin, &[0]);
    disown(&probe);
    println!("{:<28} {:>10} {:>10}", "PATH", "MEDIAN ns", "BEST ns");
    for (family, server) in [(0, SERVER_V4), (1, SERVER_V6)] {
        let inner = OUTSIDE[0][family];
        let word = if family == 0 { "ipv4" } else { "ipv6" };
        let (out, back) = establish(&probe, inner, server);
        measure(&probe, &format!("outbound, tcp {word}"), 0, &out);
        measure(&probe, &format!("inbound, tcp {word}"), 1, &back);
        measure(
            &probe,
            &format!("lan to uplink, tcp {word}"),
            2,
            &lan(&probe, inner, server),
        );
        let stranger = build::tcp((server, 9), (inner, 9), ACK, b"");
        measure(&probe, &format!("inbound, not ours {word}"), 1, &stranger);
    }
}

/// Empties the list of the uplinks' own addresses.
fn disown(probe: &Probe) {
    let path = probe.world.pin_dir().join("datapath/maps/own_addresses");
    let map = Map::from_map_data(MapData::from_pin(path).expect("pinned")).expect("a map");
    let mut own: HashMap<_, [u8; 16], u32> = HashMap::try_from(map).expect("a hash map");
    for address in OUTSIDE.as_flattened() {
        let octets = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        own.remove(&octets).expect("an uplink's address");
    }
}

fn establish(probe: &Probe, inner: IpAddr, server: IpAddr) -> (Vec<u8>, Vec<u8>) {
    let out = |flags| build::tcp((inner, 1000), (server, 80), flags, &[0; 1000]);
    let back = |flags| build::tcp((server, 80), (inner, 1000), flags, &[0; 1000]);
    let _ = probe.out(&out(SYN));
    let _ = probe.back(0, &back(SYN | ACK));
    let _ = probe.out(&out(ACK));
    (out(ACK), back(ACK))
}

/// A LAN's flow whose way back the route to `inner` gives.
fn lan(probe: &Probe, inner: IpAddr, server: IpAddr) -> Vec<u8> {
    let host = &probe.world.host;
    let mask = if inner.is_ipv4() { 32 } else { 128 };
    host.ip(&format!(
        "addr del {inner}/{} dev wan0",
        if inner.is_ipv4() { 24 } else { 64 }
    ));
    host.ip(&format!("route replace {inner}/{mask} dev lan0"));
    host.ip(&format!(
        "neigh replace {inner} dev lan0 lladdr 02:00:00:00:00:01"
    ));
    let packet = |flags| build::tcp((inner, 2000), (server, 80), flags, &[0; 1000]);
    let _ = probe.forwarded(&packet(SYN));
    let _ = probe.back(0, &build::tcp((server, 80), (inner, 2000), SYN | ACK, b""));
    let _ = probe
        .lan(&packet(ACK))
        .is(support::probe::Verdict::Sent, "lan_fast");
    let mut packet = packet(ACK);
    packet[if inner.is_ipv4() { 8 } else { 7 }] = 255;
    packet
}

fn measure(probe: &Probe, what: &str, program: usize, packet: &[u8]) {
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| probe.nanoseconds(program, packet, REPEAT))
        .collect();
    times.sort_unstable();
    println!("{what:<28} {:>10} {:>10}", times[ROUNDS / 2], times[0]);
}
