//! Receive windows of a download through a tunnel, which keep its queue short without a drop.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use braid_packet::build::{self, flags};
use braid_packet::{Packet, Transport, option_kind, protocol};

use crate::line::Lines;
use crate::sim::Pair;

/// Bytes of a segment.
const SEGMENT: u32 = 1_250;
/// Most that the server has in flight.
const CONGESTION_WINDOW: u32 = 400_000;
const SHIFT: u8 = 7;
const RATE_MBIT: u64 = 10;

const MSS_AND_SCALE: [u8; 8] = [
    option_kind::MSS,
    4,
    5,
    0x78,
    1,
    option_kind::WINDOW_SCALE,
    3,
    SHIFT,
];
const SACK: [u8; 4] = [1, 1, option_kind::SACK_PERMITTED, 2];

type End = (IpAddr, u16);

fn ends(inside: &str, remote: &str) -> [End; 2] {
    [inside, remote]
        .map(|text| text.parse::<SocketAddr>().expect("an address"))
        .map(|end| (end.ip(), end.port()))
}

fn syn([from, to]: [End; 2], acknowledges: bool, options: &[u8]) -> Vec<u8> {
    let mut segment = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    segment.extend(
        [0_u32, u32::from(acknowledges)]
            .map(u32::to_be_bytes)
            .concat(),
    );
    let flags = if acknowledges {
        flags::SYN | flags::ACK
    } else {
        flags::SYN
    };
    let words = 5 + options.len() as u8 / 4;
    segment.extend([words << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(options);
    build::packet(from.0, to.0, protocol::TCP, segment, Some(16))
}

/// Seconds of a download. The line is not known to be steady before.
const SECONDS: u32 = 15;

/// Result of a download.
struct Download {
    /// Windows in the acknowledgements that the server got, bytes.
    windows: Vec<u32>,
    /// Packets dropped after the first second.
    dropped: u64,
    /// Longest queue at the hub in the last three seconds, and bytes received then.
    longest: u64,
    received: u32,
}

fn acknowledgement(packet: &[u8]) -> Option<(u32, u16)> {
    let packet = Packet::parse(packet).expect("a packet");
    assert!(packet.checksums_hold());
    let window = packet.segment().get(14..16)?;
    match packet.transport {
        Transport::Tcp {
            acknowledgement,
            flags: flags::ACK,
            ..
        } => Some((acknowledgement, u16::from_be_bytes([window[0], window[1]]))),
        _ => None,
    }
}

/// The server sends as much as windows permit, and nothing again.
fn download([inside, remote]: [End; 2], options: &[u8]) -> Download {
    let mut pair = Pair::new(3, vec![Lines::new(0, RATE_MBIT, 15)]);
    pair.connect();
    pair.inner_at_client(syn([inside, remote], false, options));
    while pair.at_hub.is_empty() {
        pair.run_for(Duration::from_millis(1));
    }
    pair.inner_at_hub(syn([remote, inside], true, options));
    pair.run_for(Duration::from_millis(50));
    pair.inner_at_client(build::segment(inside, remote, [1, 1], flags::ACK, &[]));
    pair.run_for(Duration::from_millis(50));
    pair.at_hub.clear();
    pair.at_client.clear();
    let (mut sent, mut acked, mut end, mut received) = (1, 1, 20_000, 1);
    let mut windows = Vec::new();
    let mut dropped = 0;
    let (mut longest, mut before) = (0, 0);
    const LAST: u64 = 1_000 * (SECONDS as u64 - 3);
    let tick = Duration::from_millis(1);
    pair.tick(tick * 1_000 * SECONDS, tick, |pair, number| {
        for (_, packet) in std::mem::take(&mut pair.at_hub) {
            let Some((acknowledged, window)) = acknowledgement(&packet) else {
                continue;
            };
            acked = acknowledged;
            windows.push(u32::from(window) << SHIFT);
            end = acked + (u32::from(window) << SHIFT);
        }
        while sent + SEGMENT <= end.min(acked + CONGESTION_WINDOW) {
            let numbers = [sent, 1];
            let bytes = [7; SEGMENT as usize];
            pair.inner_at_hub(build::segment(remote, inside, numbers, flags::ACK, &bytes));
            sent += SEGMENT;
        }
        let arrived = std::mem::take(&mut pair.at_client).len() as u32;
        if arrived > 0 {
            received += arrived * SEGMENT;
            pair.inner_at_client(build::segment(
                inside,
                remote,
                [1, received],
                flags::ACK,
                &[],
            ));
        }
        let sender = pair.hub().sender();
        let (by_codel, _, overflowed) = sender.drops();
        match number {
            1_000 => dropped = by_codel + overflowed,
            LAST => before = received,
            number if number > LAST => longest = longest.max(sender.backlog().1.get()),
            _ => {}
        }
    });
    let (by_codel, _, overflowed) = pair.hub().sender().drops();
    Download {
        windows,
        dropped: by_codel + overflowed - dropped,
        longest,
        received: received - before,
    }
}

#[test]
fn a_flow_with_a_queue_gets_a_smaller_window_and_loses_nothing() {
    let options = [&MSS_AND_SCALE[..], &SACK].concat();
    for [inside, remote] in [
        ends("10.0.0.2:50000", "192.0.2.9:443"),
        ends("[fd00::2]:50000", "[2001:db8::9]:443"),
    ] {
        let download = download([inside, remote], &options);
        assert_eq!(download.dropped, 0);
        let share = f64::from(download.received) / (3.0 * 125_000.0 * RATE_MBIT as f64);
        println!(
            "{share:.3} of the line, {} bytes wait at most",
            download.longest
        );
        // A twentieth is headers.
        assert!(share >= 0.92, "{share:.3}");
        // 60 ms at 10 Mbit/s, and headers.
        assert!(
            (30_000..90_000).contains(&download.longest),
            "{}",
            download.longest
        );
        let least = download.windows.iter().min().copied();
        assert!(least.is_some_and(|window| window < 200_000), "{least:?}");
    }
}

/// Signed segments, windows of MPTCP, and senders that take another window for no duplicate acknowledgement.
#[test]
fn windows_of_other_flows_stay_as_they_are() {
    let signed = [[1, 1, option_kind::MD5, 18].to_vec(), vec![9; 16]].concat();
    let multipath = [option_kind::MPTCP, 4, 0, 1];
    for options in [
        MSS_AND_SCALE.to_vec(),
        [&MSS_AND_SCALE[..], &SACK, &signed].concat(),
        [&MSS_AND_SCALE[..], &SACK, &multipath].concat(),
    ] {
        let pair = ends("10.0.0.2:50000", "192.0.2.9:443");
        let download = download(pair, &options);
        let receivers = 0xffff << SHIFT;
        assert!(download.windows.iter().all(|window| *window == receivers));
        assert!(
            download.dropped > 0,
            "something has to keep the queue short"
        );
    }
}
