//! Header compression over lines in virtual time.

use std::collections::BTreeSet;
use std::time::Duration;

use braid_bond::proto::reject::Reject;
use braid_bond::proto::tunnel::TunnelSettings;
use braid_packet::checksum;

use crate::line::Lines;
use crate::sim::Pair;

/// The `n`-th full packet of a download over IPv4 with timestamps.
fn segment(flow: u8, n: u32) -> Vec<u8> {
    let payload = 1382u16;
    let mut ip = vec![0x45, 0];
    ip.extend_from_slice(&(52 + payload).to_be_bytes());
    ip.extend_from_slice(&(n as u16).to_be_bytes());
    ip.extend_from_slice(&[0x40, 0, 60, 6, 0, 0, 192, 0, 2, 80, 10, 73, 0, 2]);
    let sum = checksum::of(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip.extend_from_slice(&[0x01, 0xbb, 0x99, flow]);
    ip.extend_from_slice(&(n * u32::from(payload)).to_be_bytes());
    ip.extend_from_slice(&[0, 0, 2, 8, 0x80, 0x10, 1, 0xf5]);
    ip.extend_from_slice(&(n.wrapping_mul(0x9e37) as u16).to_be_bytes());
    ip.extend_from_slice(&[0, 0, 1, 1, 8, 10]);
    ip.extend_from_slice(&(70_000 + n / 4).to_be_bytes());
    ip.extend_from_slice(&(90_000 + n / 8).to_be_bytes());
    ip.extend((0..payload).map(|at| (u32::from(at) * 7 + n) as u8));
    ip
}

fn number(packet: &[u8]) -> (u8, u32) {
    let seq = u32::from_be_bytes([packet[24], packet[25], packet[26], packet[27]]);
    (packet[23], seq / 1382)
}

/// Has the hub send `count` packets of each of three flows, and checks what arrives.
fn download(pair: &mut Pair, count: u32, every: Duration) -> usize {
    pair.tick(every * count, every, |pair, n| {
        (0..3).for_each(|flow| pair.inner_at_hub(segment(flow, n as u32)));
    });
    pair.run_for(Duration::from_secs(2));
    let mut came = BTreeSet::new();
    for (_, packet) in &pair.at_client {
        let (flow, n) = number(packet);
        assert_eq!(*packet, segment(flow, n));
        assert!(came.insert((flow, n)), "twice");
    }
    came.len()
}

#[test]
fn a_download_takes_that_much_less_of_a_line() {
    let bytes = |compress| {
        let mut pair = Pair::new(41, vec![Lines::new(0, 50, 15), Lines::new(1, 50, 15)]);
        pair.connect();
        let settings = TunnelSettings {
            compress,
            ..TunnelSettings::default()
        };
        pair.hub().set_settings(settings);
        let count = download(&mut pair, 1000, Duration::from_millis(1));
        assert_eq!(count, 3000);
        let (saved, came) = (pair.hub().saved(), 3000.0);
        println!("{saved:?}");
        assert_eq!(saved.packets > 0, compress);
        // With IP and UDP headers.
        let lines = pair.lines.iter().map(|line| &line.down);
        let bytes: u64 = lines.map(|line| line.bytes + 28 * line.packets).sum();
        bytes as f64 / came
    };
    let (plain, less) = (bytes(false), bytes(true));
    println!("{plain:.1} bytes a packet of 1434, {less:.1} with headers said once");
    assert!(plain - less > 34.0, "{plain} {less}");
}

#[test]
fn loss_and_reordering_make_no_wrong_packet_and_sums_and_copies_still_mend() {
    let mut all = 0;
    for seed in 42..45 {
        let mut lines = vec![Lines::new(0, 50, 15), Lines::new(1, 30, 40)];
        lines.iter_mut().for_each(|line| {
            line.both(|line| {
                line.loss = 0.03;
                line.jitter = Duration::from_millis(10);
            });
        });
        let [plain, less] = [false, true].map(|compress| {
            let mut pair = Pair::new(seed, lines.clone());
            pair.connect();
            let settings = TunnelSettings {
                compress,
                ..TunnelSettings::default()
            };
            pair.hub().set_settings(settings);
            let count = download(&mut pair, 2000, Duration::from_millis(2));
            let (saved, rebuilt) = (pair.hub().saved(), pair.client.receiver().rebuilt());
            println!("{count} of 6000, {rebuilt} rebuilt, {saved:?}");
            assert_eq!(saved.packets > 5800, compress, "{saved:?}");
            all += rebuilt * u64::from(compress);
            assert_eq!(pair.client.rejects().of(Reject::Header), 0);
            count
        });
        // Both lose some at the start, when the rates are not known yet.
        assert!(less + 60 > plain, "{less} {plain}");
    }
    assert!(all > 100, "{all}");
}

#[test]
fn flows_go_on_over_new_keys_and_begin_anew_with_a_new_hub() {
    let mut pair = Pair::new(46, vec![Lines::new(0, 50, 15)]);
    pair.connect();
    // Keys change after two minutes, contexts every half.
    let count = download(&mut pair, 1500, Duration::from_millis(100));
    assert_eq!(count, 4500);
    assert!(pair.hub().saved().packets > 4400);
    assert_eq!(pair.client.rejects().of(Reject::Header), 0);
    pair.server = crate::sim::restarted(pair.hub_now(), 78);
    pair.inner_at_client(segment(9, 0));
    pair.run_for(Duration::from_secs(3));
    pair.at_client.clear();
    let count = download(&mut pair, 100, Duration::from_millis(10));
    assert_eq!(count, 300);
    assert!(pair.hub().saved().packets > 250);
    assert_eq!(pair.client.rejects().of(Reject::Header), 0);
}
