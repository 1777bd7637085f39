//! Acknowledgements of a download through a tunnel.

use std::net::SocketAddr;
use std::time::Duration;

use braid_core::Time;
use braid_packet::build::{self, flags};
use braid_packet::{Packet, Transport};

use crate::line::Lines;
use crate::sim::Pair;

/// Bytes that each acknowledgement adds, one in a millisecond: 24 Mbit/s.
const STEP: u32 = 3_000;
/// Those of the first megabyte.
const FIRST: usize = 334;

fn segment(acknowledged: u32, payload: &[u8]) -> Vec<u8> {
    let [inside, remote] = ["10.0.0.2:50000", "192.0.2.9:443"]
        .map(|text| text.parse::<SocketAddr>().expect("an address"))
        .map(|end| (end.ip(), end.port()));
    build::segment(inside, remote, [1, acknowledged], flags::ACK, payload)
}

/// Acknowledges as many milliseconds of a download; every hundredth segment carries `payload` bytes. Returns the times of
/// arrival and the numbers acknowledged.
fn arrived(milliseconds: u64, delay_ms: u64, payload: usize) -> Vec<(Time, u32)> {
    let mut pair = Pair::new(3, vec![Lines::new(0, 50, delay_ms)]);
    pair.connect();
    let tick = Duration::from_millis(1);
    pair.tick(tick * milliseconds as u32, tick, |pair, number| {
        let bytes = if number % 100 == 99 { payload } else { 0 };
        pair.inner_at_client(segment(STEP * number as u32, &vec![7; bytes]));
    });
    pair.run_for(Duration::from_millis(200));
    let number = |packet: &[u8]| {
        let packet = Packet::parse(packet).expect("a packet");
        let Transport::Tcp {
            acknowledgement, ..
        } = packet.transport
        else {
            panic!("only TCP was sent");
        };
        acknowledgement
    };
    pair.at_hub
        .iter()
        .map(|(at, packet)| (*at, number(packet)))
        .collect()
}

#[test]
fn those_of_a_bulk_download_are_fewer() {
    let came = arrived(2_000, 80, 0);
    let numbers: Vec<u32> = came.iter().map(|(_, number)| *number).collect();
    let all: Vec<u32> = (0..FIRST as u32).map(|number| STEP * number).collect();
    assert_eq!(numbers[..FIRST], all, "the first megabyte's all pass");
    let (first, last) = (came[FIRST], came[came.len() - 1]);
    assert_eq!(last.1, STEP * 1_999, "the last one comes");
    // A thirty-second of the round trip of 160 ms, as far as times are exact, or a moment more.
    let interval = last.0.since(first.0) / (came.len() - FIRST - 1) as u32;
    assert!(
        (4_990..6_500).contains(&interval.as_micros()),
        "{interval:?}"
    );
}

#[test]
fn none_comes_later_than_a_newer_segment_with_data() {
    for payload in [10, 1_000] {
        let came = arrived(2_000, 80, payload);
        assert!(came.len() < 900, "{} of 2,000", came.len());
        assert!(came.is_sorted_by_key(|(_, number)| *number), "{came:?}");
        let with_data = (0..20).map(|number| STEP * (100 * number + 99));
        for number in with_data {
            assert!(came.iter().any(|(_, came)| *came == number), "{number}");
        }
    }
}

#[test]
fn all_pass_where_the_round_trip_is_short() {
    assert_eq!(arrived(1_000, 1, 0).len(), 1_000);
}
