//! Datagrams of programs with sockets of a usual size, and of QUIC, which asks what a path carries.

use std::time::Duration;

use braid_core::Time;
use braid_packet::build;

use crate::line::Lines;
use crate::sim::Pair;

/// Linux's default for a socket's receive buffer, bytes, of which each packet takes some 800 for the kernel.
const SOCKET_BUFFER: usize = 212_992;
const KERNEL_BYTES: usize = 800;

/// Headers of IPv6 and UDP.
const HEADERS: usize = 40 + 8;

/// First bytes of a packet of QUIC after the handshake, with its fixed bit greased (RFC 9287), and of one in it.
const SHORT: [u8; 5] = [0x20, 0, 0, 0, 1];
const LONG: [u8; 5] = [0xe0, 0, 0, 0, 1];

/// A packet of QUIC of so many bytes that a server sends, with its number.
fn quic(bytes: usize, number: u32) -> Vec<u8> {
    quic_with(SHORT, bytes, number)
}

fn quic_with(first: [u8; 5], bytes: usize, number: u32) -> Vec<u8> {
    let [server, client] = ["2001:db8::1", "2001:db8::2"].map(|at| at.parse().expect("an address"));
    let mut payload = [&first[..], &number.to_be_bytes()].concat();
    payload.resize(bytes - HEADERS, 0);
    build::udp((server, 443), (client, 50_000), &payload)
}

fn number(packet: &[u8]) -> u32 {
    let number = packet[HEADERS + SHORT.len()..]
        .first_chunk()
        .expect("it has a number");
    u32::from_be_bytes(*number)
}

fn connected() -> Pair {
    let mut pair = Pair::new(5, vec![Lines::new(1, 60, 20), Lines::new(2, 60, 20)]);
    pair.connect();
    pair
}

/// Lengths of the packets that arrived since then.
fn lengths(pair: &Pair, since: usize) -> Vec<usize> {
    let arrived = pair.at_client[since..].iter();
    arrived.map(|(_, packet)| packet.len()).collect()
}

#[test]
fn what_waited_for_one_packet_does_not_overflow_a_socket() {
    let mut pair = connected();
    // 90 Mbit/s. One line is silent for a moment, so all that the other one brings waits.
    let (tick, mut sent) = (Duration::from_millis(1), 0);
    pair.tick(Duration::from_secs(6), tick, |pair, tick| {
        for line in &mut pair.lines[..1] {
            line.down.hole = (4_000..4_060).contains(&tick);
        }
        for _ in 0..8 {
            pair.inner_at_hub(quic(1_400, sent));
            sent += 1;
        }
    });
    pair.run_for(Duration::from_secs(1));
    let numbers: Vec<u32> = pair
        .at_client
        .iter()
        .map(|(_, packet)| number(packet))
        .collect();
    assert!(numbers.is_sorted(), "they have changed their order");
    assert!(
        numbers.len() * 100 >= sent as usize * 98,
        "{} of {sent}",
        numbers.len()
    );
    // A program that reads each 3 ms: so long others may have its processor.
    let mut most = (0, Time::ZERO);
    for (start, (begin, _)) in pair.at_client.iter().enumerate() {
        let end = *begin + Duration::from_millis(3);
        let span = pair.at_client[start..].iter();
        let bytes = span
            .take_while(|(at, _)| *at < end)
            .map(|(_, packet)| packet.len() + KERNEL_BYTES);
        most = most.max((bytes.sum::<usize>(), *begin));
    }
    assert!(most.0 <= SOCKET_BUFFER, "{most:?}");
}

#[test]
fn a_probe_for_a_size_that_would_be_fragmented_is_lost() {
    let mut pair = connected();
    let whole = pair.hub().max_whole_packet();
    pair.inner_at_hub(quic_with(LONG, 1_300, 1));
    pair.run_for(Duration::from_secs(1));
    assert!((1_300..1_480).contains(&whole), "{whole}");
    let before = pair.at_client.len();
    pair.tick(
        Duration::from_millis(300),
        Duration::from_millis(1),
        |pair, tick| {
            let bytes = if tick % 100 == 50 { whole + 1 } else { whole };
            pair.inner_at_hub(quic(bytes, 0));
        },
    );
    pair.run_for(Duration::from_secs(1));
    assert_eq!(lengths(&pair, before), vec![whole; 297]);
}

#[test]
fn a_sender_that_does_not_ask_is_served() {
    let mut pair = connected();
    pair.inner_at_hub(quic_with(LONG, 1_300, 0));
    pair.run_for(Duration::from_secs(1));
    let before = pair.at_client.len();
    pair.tick(
        Duration::from_millis(300),
        Duration::from_millis(1),
        |pair, _| {
            pair.inner_at_hub(quic(1_480, 0));
        },
    );
    pair.run_for(Duration::from_secs(1));
    // The first one looks like a probe.
    assert_eq!(lengths(&pair, before), vec![1_480; 299]);
}

#[test]
fn packets_of_the_handshake_pass_whatever_their_size() {
    let mut pair = connected();
    let before = pair.at_client.len();
    pair.tick(
        Duration::from_millis(300),
        Duration::from_millis(1),
        |pair, tick| {
            let (first, bytes) = match tick % 100 {
                50 => (LONG, 1_480),
                0 => (LONG, 1_300),
                _ => (SHORT, 1_300),
            };
            pair.inner_at_hub(quic_with(first, bytes, 0));
        },
    );
    pair.run_for(Duration::from_secs(1));
    let lengths = lengths(&pair, before);
    assert_eq!(lengths.len(), 300);
    assert_eq!(lengths.iter().filter(|length| **length == 1_480).count(), 3);
}

/// Bytes that a far line carries of a flow of 25 Mbit/s, whose first packet is this, beside a near one of 20.
fn far_bytes(first: Vec<u8>) -> u64 {
    let mut pair = Pair::new(5, vec![Lines::new(1, 20, 10), Lines::new(2, 20, 160)]);
    pair.connect();
    pair.inner_at_hub(first);
    pair.tick(
        Duration::from_secs(6),
        Duration::from_millis(5),
        |pair, _| {
            for _ in 0..12 {
                pair.inner_at_hub(quic(1_300, 0));
            }
        },
    );
    pair.lines[1].down.bytes
}

#[test]
fn a_far_link_carries_what_quic_sends_and_no_other_datagrams() {
    let handshake = far_bytes(quic_with(LONG, 1_300, 0));
    assert!(handshake > 2_500_000, "{handshake}");
    let other = far_bytes(quic(1_300, 0));
    assert!(other < 500_000, "{other}");
}
