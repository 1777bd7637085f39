//! Golden test of the metrics text; `BLESS=1` rewrites the file.

use std::path::Path;
use std::{env, fs};

use super::*;
use crate::report::{ClientCounts, QueueReport};

fn client(name: &str, state: &str) -> ClientReport {
    ClientReport {
        name: name.into(),
        state: state.into(),
        connected: true,
        addresses: vec!["10.73.0.2".parse().unwrap()],
        key: None,
        rate: None,
        quota: None,
        quota_used_bytes: None,
        created_unix_ms: 1,
        expires_unix_ms: None,
        last_seen_unix_ms: Some(2),
        rx_bytes: 1_000,
        tx_bytes: 2_000,
        spoofed_packets: 3,
        capped_packets: 4,
        token_misuses: 5,
        links: Vec::new(),
        queue: (name != "shed").then_some(QueueReport {
            backlog_packets: 10,
            backlog_bytes: 15_000,
            dropped: 11,
            marked: 12,
            overflowed: 13,
            lowered_windows: 14,
            spurious_retransmissions: 15,
            retransmitted: 16,
        }),
    }
}

fn limited(name: &str, quota: &str, used: u64) -> ClientReport {
    ClientReport {
        quota: Some(quota.parse().unwrap()),
        quota_used_bytes: Some(used),
        ..client(name, "joined")
    }
}

#[test]
fn the_text_is_as_it_was() {
    let scrape = Scrape {
        status: StatusReport {
            version: "0".into(),
            pid: 1,
            key: "k".into(),
            previous_key: None,
            is_sealed: false,
            listen: Vec::new(),
            device: "braid-hub".into(),
            networks: Vec::new(),
            forward: "nat".into(),
            clients: ClientCounts {
                joined: 3,
                connected: 3,
                invited: 2,
                revoked: 3,
            },
            handshakes: [("accepted".to_owned(), 7)].into(),
            rejected: [("forged".to_owned(), 8)].into(),
            unrouted_packets: 9,
            health: Vec::new(),
        },
        clients: vec![
            client("attic", "joined"),
            client("gone", "revoked"),
            limited("cellar", "50 GB/month", 20_000_000_000),
            limited("shed", "2 GB/day", 2_000_000_007),
        ],
    };
    let text = scrape.into_text();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/metrics/tests.txt");
    if env::var_os("BLESS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, fs::read_to_string(&path).unwrap());
}
