//! TCP segments that are sent again while they still wait at the hub.

use std::net::SocketAddr;
use std::time::Duration;

use braid_core::Time;
use braid_packet::build::{self, flags};
use braid_packet::{Packet, Transport};

use crate::line::Lines;
use crate::sim::{Pair, restarted};

const SEGMENT: u32 = 1_250;
/// 250 kB, a fifth of a second at 10 Mbit/s.
const SEGMENTS: u32 = 200;

/// A segment of a download.
fn segment(number: u32, flags: u8) -> Vec<u8> {
    between(["192.0.2.9:443", "10.0.0.2:50000"], number, flags)
}

fn between(ends: [&str; 2], number: u32, flags: u8) -> Vec<u8> {
    let [from, to] = ends
        .map(|text| text.parse::<SocketAddr>().expect("an address"))
        .map(|end| (end.ip(), end.port()));
    let sequence = 1 + number * SEGMENT;
    build::segment(from, to, [sequence, 1], flags, &[7; SEGMENT as usize])
}

/// The numbers of these segments.
fn numbers(packets: &[(Time, Vec<u8>)]) -> Vec<u32> {
    let sequence = |packet: &[u8]| match Packet::parse(packet).expect("a packet").transport {
        Transport::Tcp { sequence, .. } => sequence,
        other => panic!("{other:?}"),
    };
    let numbers = packets.iter().map(|(_, packet)| sequence(packet));
    numbers.map(|sequence| (sequence - 1) / SEGMENT).collect()
}

#[test]
fn data_that_wait_are_not_queued_again() {
    let mut pair = Pair::new(5, vec![Lines::new(0, 10, 15)]);
    pair.connect();
    pair.run_for(Duration::from_millis(100));
    for number in 0..SEGMENTS {
        pair.inner_at_hub(segment(number, flags::ACK));
    }
    pair.run_for(Duration::from_millis(50));
    let early = numbers(&std::mem::take(&mut pair.at_client));
    assert!(!early.is_empty() && early.len() < SEGMENTS as usize / 2);
    let waiting = pair.hub().sender().backlog().0 as u64;
    assert!(waiting > u64::from(SEGMENTS) / 2);
    // The sender takes everything that is not acknowledged for lost.
    for number in 0..SEGMENTS {
        pair.inner_at_hub(segment(number, flags::ACK));
    }
    let dropped = pair.hub().spurious_retransmissions();
    // One in sixteen is a checkpoint.
    assert!(dropped <= waiting && dropped + 16 >= waiting, "{dropped}");
    pair.run_for(Duration::from_secs(2));
    let later = numbers(&std::mem::take(&mut pair.at_client));
    let again = early.len() + later.len() - SEGMENTS as usize;
    assert_eq!(again as u64 + dropped, u64::from(SEGMENTS));
    let mut all = [early, later].concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), SEGMENTS as usize);

    // Segments that have left may have been lost behind the tunnel, and one that ends a flow is no copy.
    pair.inner_at_hub(segment(0, flags::ACK));
    for flags in [flags::ACK, flags::ACK | flags::FIN] {
        pair.inner_at_hub(segment(SEGMENTS, flags));
    }
    pair.run_for(Duration::from_millis(500));
    assert_eq!(
        numbers(&std::mem::take(&mut pair.at_client)),
        [0, SEGMENTS, SEGMENTS]
    );
    assert_eq!(pair.hub().spurious_retransmissions(), dropped);
}

/// The queue of a session ends with it.
#[test]
fn data_that_waited_in_an_earlier_session_are_queued_again() {
    let mut pair = Pair::new(5, vec![Lines::new(0, 10, 15)]);
    pair.connect();
    pair.run_for(Duration::from_millis(100));
    let upload = |number| between(["10.0.0.2:50000", "192.0.2.9:443"], number, flags::ACK);
    for number in 0..SEGMENTS {
        pair.inner_at_client(upload(number));
    }
    pair.run_for(Duration::from_millis(50));
    pair.server = restarted(pair.now + Duration::from_secs(1234), 0x55);
    // Nothing new: the sender's window is full.
    pair.run_for(Duration::from_secs(2));
    pair.at_hub.clear();
    for number in SEGMENTS - 50..SEGMENTS {
        pair.inner_at_client(upload(number));
    }
    pair.run_for(Duration::from_secs(1));
    let again = numbers(&pair.at_hub);
    assert_eq!(again, (SEGMENTS - 50..SEGMENTS).collect::<Vec<_>>());
}
