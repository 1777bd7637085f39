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
use aya::programs::SchedClassifier;
use braid_balance::{ClassId, LbMethod, MAX_RULES, RuleEntry};
use braid_packet::build;
use support::probe::Probe;
use support::world::{OUTSIDE, SERVER_V4, SERVER_V6};

const SYN: u8 = 2;
const ACK: u8 = 16;
/// Fewer than the hop limit set below, which the LAN's program counts down.
const REPEAT: u32 = 200;
const ROUNDS: usize = 200;
/// New flows measured, one run each: fewer than embryos there is room for.
const NEW_FLOWS: u16 = 500;

fn main() {
    let probe = Probe::new();
    probe
        .world
        .set_slots(&mut probe.datapath.borrow_mut(), LbMethod::RoundRobin, &[0]);
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
        let published = build::tcp((server, 9), (OUTSIDE[1][family], 9), ACK, b"");
        measure(&probe, &format!("inbound, published {word}"), 1, &published);
    }
    for rules in [0, 1, 32, MAX_RULES] {
        open(&probe, rules);
    }
    println!("\n{:<28} {:>10}", "PROGRAM", "VERIFIED");
    for name in ["braid_outbound", "braid_inbound", "braid_lan"] {
        let path = probe.world.pin_dir().join("datapath/programs").join(name);
        let program = SchedClassifier::from_pin(path).expect("pinned");
        let verified = program
            .info()
            .expect("a program")
            .verified_instruction_count();
        println!("{name:<28} {:>10}", verified.expect("Linux 5.16 or newer"));
    }
}

/// New flows that none of so many rules matches.
fn open(probe: &Probe, rules: usize) {
    let rule = RuleEntry {
        dest_ports: Some(1..=1),
        class: ClassId(1),
        ..RuleEntry::default()
    };
    let mut datapath = probe.datapath.borrow_mut();
    datapath.set_rules(&vec![rule; rules]).expect("rules");
    drop(datapath);
    let times = (0..NEW_FLOWS).map(|port| {
        let ends = (
            (OUTSIDE[0][0], 20_000 + port),
            (SERVER_V4, 9000 + rules as u16),
        );
        let syn = build::tcp(ends.0, ends.1, SYN, b"");
        probe.nanoseconds(0, &syn, 1)
    });
    report(&format!("outbound, new, {rules} rules"), times.collect());
}

/// Takes the addresses that flows have here off the list of the uplinks' own.
fn disown(probe: &Probe) {
    let path = probe.world.pin_dir().join("datapath/maps/own_addresses");
    let map = Map::from_map_data(MapData::from_pin(path).expect("pinned")).expect("a map");
    let mut own: HashMap<_, [u8; 16], u32> = HashMap::try_from(map).expect("a hash map");
    for address in OUTSIDE[0] {
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
    let times = (0..ROUNDS).map(|_| probe.nanoseconds(program, packet, REPEAT));
    report(what, times.collect());
}

fn report(what: &str, mut times: Vec<u128>) {
    times.sort_unstable();
    println!("{what:<28} {:>10} {:>10}", times[times.len() / 2], times[0]);
}
