//! Acknowledgements of a download through a tunnel.

use std::net::{IpAddr, SocketAddr};
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

fn ends() -> [(IpAddr, u16); 2] {
    ["10.0.0.2:50000", "192.0.2.9:443"]
        .map(|text| text.parse::<SocketAddr>().expect("an address"))
        .map(|end| (end.ip(), end.port()))
}

fn segment(acknowledged: u32, payload: &[u8]) -> Vec<u8> {
    let [inside, remote] = ends();
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
    came(&pair)
}

/// The times of arrival at the hub, and the numbers acknowledged.
fn came(pair: &Pair) -> Vec<(Time, u32)> {
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

/// The server sends nothing more before the last of a window: it must not wait for a quarter of the round trip.
#[test]
fn the_last_of_a_new_flows_round_trip_does_not_wait() {
    let mut pair = Pair::new(3, vec![Lines::new(0, 50, 15), Lines::new(1, 50, 15)]);
    pair.connect();
    let [inside, remote] = ends();
    pair.inner_at_client(build::segment(inside, remote, [0, 0], flags::SYN, &[]));
    pair.run_for(Duration::from_millis(50));
    for number in 0..40 {
        let numbers = [1 + 1_000 * number, 1];
        pair.inner_at_hub(build::segment(
            remote,
            inside,
            numbers,
            flags::ACK,
            &[7; 1_000],
        ));
    }
    pair.run_for(Duration::from_millis(50));
    pair.at_hub.clear();
    let tick = Duration::from_millis(1);
    pair.tick(tick * 20, tick, |pair, number| {
        pair.inner_at_client(segment(2_001 + 2_000 * number as u32, &[]));
    });
    pair.run_for(Duration::from_millis(50));
    let came = came(&pair);
    assert!((4..=7).contains(&came.len()), "{came:?}");
    let (first, last) = (came[0], came[came.len() - 1]);
    assert_eq!([first.1, last.1], [2_001, 40_001]);
    let span = last.0.since(first.0);
    assert!((18_500..20_000).contains(&span.as_micros()), "{span:?}");
}
