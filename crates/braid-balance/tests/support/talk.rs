//! The ends of the packet tables' conversations, and TCP between them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use braid_packet::{Transport, build};

use super::probe::Outcome;
use super::probe::Probe;
use super::probe::Verdict::{Passed, Sent};
use super::world::{OUTSIDE, SERVER_V4};

/// The host's own addresses.
pub const INNER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 0, 8));
pub const INNER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 1, 0x6272, 0, 0, 0, 8));
/// A client of the LAN.
pub const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 2));
/// Its IPv6 address.
pub const CLIENT6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 2));
/// A server's TCP port.
pub const SERVER: (IpAddr, u16) = (SERVER_V4, 80);

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

/// A segment from the host to the server.
pub fn tcp(port: u16, flags: u8) -> Vec<u8> {
    build::tcp((INNER, port), SERVER, flags, b"")
}

/// An answer to a packet that left: ends exchanged.
pub fn answer(sent: &Outcome, flags: u8) -> (usize, Vec<u8>) {
    let packet = sent.read();
    let Transport::Tcp { source, dest, .. } = packet.transport else {
        panic!("not tcp")
    };
    let uplink = OUTSIDE
        .iter()
        .position(|ends| ends.contains(&packet.ip.source))
        .expect("outer");
    (
        uplink,
        build::tcp(
            (packet.ip.dest, dest),
            (packet.ip.source, source),
            flags,
            b"",
        ),
    )
}

/// Opens a connection from the host; the uplink it takes, and a segment of the server's.
pub fn handshake(probe: &Probe, port: u16) -> (usize, Vec<u8>) {
    let sent = probe.out(&tcp(port, SYN)).is(Sent, "out_new");
    let (uplink, syn_ack) = answer(&sent, SYN | ACK);
    probe.back(uplink, &syn_ack).is(Passed, "in_stack");
    let confirmed = probe.out(&tcp(port, ACK)).is(Sent, "out_flow");
    assert_eq!(confirmed.events, ["flow_promoted"]);
    answer(&sent, ACK)
}
