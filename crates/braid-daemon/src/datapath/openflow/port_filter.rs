//! Filters of classic BPF by port, for packets that begin with their IP header.

use std::ops::RangeInclusive;

use braid_device::{Direction, Instruction};
use braid_packet::protocol;

// Opcodes: loads of the length, of a byte, of a half word, of a word, and of a half word behind IPv4's header;
// comparisons.
const LENGTH: u16 = 0x80;
const BYTE: u16 = 0x30;
const HALF: u16 = 0x28;
const WORD: u16 = 0x20;
const AFTER: u16 = 0x48;
const HEADER: u16 = 0xb1;
const EQUAL: u16 = 0x15;
const GREATER: u16 = 0x25;
const AT_LEAST: u16 = 0x35;
const ANY: u16 = 0x45;
const SHIFT: u16 = 0x74;
const RETURN: u16 = 0x06;

/// Offset at which a load gives the packet's type instead of its bytes (`SKF_AD_OFF`, `SKF_AD_PKTTYPE`).
const PACKET_TYPE: u32 = (-0x1000_i32 + 4) as u32;

/// Whole UDP datagrams of one port.
pub(super) struct PortFilter {
    /// The port.
    pub port: u16,
    /// Also those from the port; otherwise only those to it.
    pub from_port: bool,
    /// Longest packet, bytes.
    pub max_length: u32,
}

impl PortFilter {
    /// Returns the program.
    pub fn program(&self) -> [Instruction; 22] {
        let [udp, port] = [u32::from(protocol::UDP), u32::from(self.port)];
        let passes = |steps: u8| if self.from_port { steps } else { 0 };
        [
            step(LENGTH, 0, 0, 0),
            step(GREATER, self.max_length, 19, 0),
            step(BYTE, 0, 0, 0),
            step(SHIFT, 4, 0, 0),
            step(EQUAL, 4, 0, 9),
            // IPv4: UDP, no fragment.
            step(BYTE, 9, 0, 0),
            step(EQUAL, udp, 0, 14),
            step(HALF, 6, 0, 0),
            step(ANY, 0x3fff, 12, 0),
            step(HEADER, 0, 0, 0),
            step(AFTER, 0, 0, 0),
            step(EQUAL, port, passes(8), 0),
            step(AFTER, 2, 0, 0),
            step(EQUAL, port, 6, 7),
            // IPv6 without further headers.
            step(BYTE, 6, 0, 0),
            step(EQUAL, udp, 0, 5),
            step(HALF, 40, 0, 0),
            step(EQUAL, port, passes(2), 0),
            step(HALF, 42, 0, 0),
            step(EQUAL, port, 0, 1),
            step(RETURN, u32::MAX, 0, 0),
            step(RETURN, 0, 0, 0),
        ]
    }
}

/// Packets of TCP and UDP between an uplink's outer ports and the internet, without later fragments.
pub(super) struct OuterFilter<'a> {
    pub direction: Direction,
    pub ports: &'a RangeInclusive<u16>,
}

impl OuterFilter<'_> {
    /// Returns the program.
    pub fn program(&self) -> [Instruction; 22] {
        let [tcp, udp] = [protocol::TCP, protocol::UDP].map(u32::from);
        let [first, last] = [self.ports.start(), self.ports.end()].map(|port| u32::from(*port));
        // Their place behind the header, and the type (`linux/if_packet.h`: to this host, or from it).
        let (port, kind) = match self.direction {
            Direction::Out => (0, 4),
            Direction::In => (2, 0),
        };
        [
            step(WORD, PACKET_TYPE, 0, 0),
            step(EQUAL, kind, 0, 19),
            step(BYTE, 0, 0, 0),
            step(SHIFT, 4, 0, 0),
            step(EQUAL, 4, 0, 8),
            // IPv4.
            step(BYTE, 9, 0, 0),
            step(EQUAL, tcp, 1, 0),
            step(EQUAL, udp, 0, 13),
            step(HALF, 6, 0, 0),
            step(ANY, 0x1fff, 11, 0),
            step(HEADER, 0, 0, 0),
            step(AFTER, port, 0, 0),
            step(EQUAL, first, 7, 5),
            // IPv6 without further headers.
            step(EQUAL, 6, 0, 7),
            step(BYTE, 6, 0, 0),
            step(EQUAL, tcp, 1, 0),
            step(EQUAL, udp, 0, 4),
            step(HALF, 40 + port, 0, 0),
            step(AT_LEAST, first, 0, 2),
            step(GREATER, last, 1, 0),
            step(RETURN, u32::MAX, 0, 0),
            step(RETURN, 0, 0, 0),
        ]
    }
}

/// TCP segments between an uplink's outer ports and the internet, both ways, without later fragments.
pub(super) struct SegmentFilter<'a> {
    pub ports: &'a RangeInclusive<u16>,
}

impl SegmentFilter<'_> {
    /// Returns the program.
    pub fn program(&self) -> [Instruction; 25] {
        let tcp = u32::from(protocol::TCP);
        let [first, last] = [self.ports.start(), self.ports.end()].map(|port| u32::from(*port));
        [
            step(BYTE, 0, 0, 0),
            step(SHIFT, 4, 0, 0),
            step(EQUAL, 4, 0, 11),
            // IPv4.
            step(BYTE, 9, 0, 0),
            step(EQUAL, tcp, 0, 19),
            step(HALF, 6, 0, 0),
            step(ANY, 0x1fff, 17, 0),
            step(HEADER, 0, 0, 0),
            step(AFTER, 0, 0, 0),
            step(AT_LEAST, first, 0, 1),
            step(GREATER, last, 0, 12),
            step(AFTER, 2, 0, 0),
            step(AT_LEAST, first, 0, 11),
            step(GREATER, last, 10, 9),
            // IPv6 without further headers.
            step(EQUAL, 6, 0, 9),
            step(BYTE, 6, 0, 0),
            step(EQUAL, tcp, 0, 7),
            step(HALF, 40, 0, 0),
            step(AT_LEAST, first, 0, 1),
            step(GREATER, last, 0, 3),
            step(HALF, 42, 0, 0),
            step(AT_LEAST, first, 0, 2),
            step(GREATER, last, 1, 0),
            step(RETURN, u32::MAX, 0, 0),
            step(RETURN, 0, 0, 0),
        ]
    }
}

fn step(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use braid_device::PacketCounter;

    use super::*;

    #[test]
    fn segments_pass_by_the_port_of_either_end() {
        let loopback = nix::net::if_::if_nametoindex("lo").unwrap();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let mut inner = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let [from, to] = [inner.local_addr(), inner.peer_addr()].map(|end| end.unwrap().port());
            let ranges = [from - 1..=from, to..=to + 1, 0..=0, u16::MAX..=u16::MAX];
            let mut counters = ranges.map(|ports| {
                let program = SegmentFilter { ports: &ports }.program();
                PacketCounter::start(loopback, &program).unwrap()
            });
            inner.set_nodelay(true).unwrap();
            for _ in 0..100 {
                inner.write_all(b"x").unwrap();
            }
            let counts = counters.each_mut().map(|counter| counter.count().unwrap());
            // Each leaves and arrives, as do its acknowledgements; some have several bytes.
            assert!(
                counts[..2].iter().all(|count| *count >= 4),
                "{address}: {counts:?}"
            );
            assert_eq!(counts[2..], [0, 0], "{address}");
        }
    }

    #[test]
    fn packets_are_counted_by_direction_and_outer_port() {
        let loopback = nix::net::if_::if_nametoindex("lo").unwrap();
        for address in ["127.0.0.1", "[::1]"] {
            let [inner, remote] = [0, 1].map(|_| UdpSocket::bind(format!("{address}:0")).unwrap());
            let [from, to] = [&inner, &remote].map(|socket| socket.local_addr().unwrap().port());
            // Each packet of the loopback device leaves and arrives.
            let mut counters = [
                (Direction::Out, from),
                (Direction::Out, to),
                (Direction::In, from),
                (Direction::In, to),
            ]
            .map(|(direction, port)| {
                let filter = OuterFilter {
                    direction,
                    ports: &(port..=port),
                };
                PacketCounter::start(loopback, &filter.program()).unwrap()
            });
            for _ in 0..1000 {
                inner.send_to(b"x", remote.local_addr().unwrap()).unwrap();
            }
            let counts = counters.each_mut().map(|counter| counter.count().unwrap());
            assert_eq!(counts, [1000, 0, 0, 1000], "{address}");
        }
    }
}
