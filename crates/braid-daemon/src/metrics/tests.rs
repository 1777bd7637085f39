use braid_host::report::HealthProblem;

use super::*;
use crate::config::{BondConfig, BondScheduler, Policy};
use crate::report::{
    BondLinkReport, BondLinkState, BondPacketsReport, BondReport, BondState, CapacityBasisName,
    CapacityReport, FlowCounts, KnownReport, LayerName, QualityBasisName, ShapingReport,
};

fn uplink(name: &str, state: UplinkState, rtt_ms: Option<f64>) -> UplinkReport {
    UplinkReport {
        name: name.into(),
        device: "eth0".into(),
        id: 0,
        layer: LayerName::L2,
        state,
        tier: 1,
        rtt_ms,
        rtt_known: rtt_ms.map(|_| KnownReport {
            basis: QualityBasisName::Traffic,
            age_ms: 1200,
        }),
        jitter_ms: rtt_ms.map(|_| 1.5),
        jitter_known: None,
        loss: rtt_ms.map(|_| 0.05),
        loss_known: rtt_ms.map(|_| KnownReport {
            basis: QualityBasisName::Probes,
            age_ms: 300,
        }),
        sends_twice: false,
        probe_rtt_ms: None,
        probe_loss: rtt_ms.map(|_| 0.05),
        mtu: 1500,
        ipv4: None,
        ipv6: None,
        weight: 1,
        tx_bit_s: None,
        rx_bit_s: None,
        tx_capacity: None,
        rx_capacity: rtt_ms.map(|_| CapacityReport {
            rate_bit_s: 8_000_000,
            basis: CapacityBasisName::Saturated,
            other: None,
            error: 0.02,
            age_ms: 1500,
        }),
        tx_shaping: rtt_ms.map(|_| ShapingReport {
            rate_bit_s: Some(4_000_000),
            dropped_packets: 12,
            marked_packets: 3,
        }),
        rx_shaping: None,
        share: 0.5,
        tx_bytes: 10,
        rx_bytes: 20,
        tx_packets: 1,
        rx_packets: 2,
        flows_opened: 3,
        quota_used_bytes: rtt_ms.map(|_| 1_000),
        quota_bytes: rtt_ms.map(|_| 50_000),
        data_packets: 0,
        lost_packets: 0,
        since_unix_ms: None,
        pause: None,
        why: String::new(),
    }
}

fn link(uplink: &str, state: BondLinkState, rate_bit_s: u64) -> BondLinkReport {
    BondLinkReport {
        uplink: uplink.into(),
        id: 0,
        hub: "203.0.113.9:27243".into(),
        state,
        share: 0.6,
        why: String::new(),
        cleartext: false,
        rate_bit_s,
        delivered_bit_s: None,
        rtt_ms: (rate_bit_s > 0).then_some(31.0),
        rtt_min_ms: None,
        owd_skew_ms: (rate_bit_s > 0).then_some(0.0),
        queue_ms: 2.0,
        jitter_ms: 0.5,
        loss: 0.01,
        lost_random: 3,
        lost_congestive: 4,
        max_payload_bytes: 1472,
        tx_bytes: 1000,
        rx_bytes: 9000,
        late: 1,
        duplicates: 2,
        gaps_expired: 5,
        send_errors: 0,
    }
}

/// A bond that carries packets over one uplink, of which another path is being tried, and not over the
/// other uplink.
fn bond() -> BondReport {
    BondReport {
        state: BondState::Up,
        why: String::new(),
        hub: vec![],
        name: None,
        addresses: vec![],
        config: BondConfig::default(),
        links: vec![
            link("dsl", BondLinkState::Trying, 0),
            link("dsl", BondLinkState::Active, 48_000_000),
            link("lte", BondLinkState::Suspect, 0),
        ],
        packets: Some(BondPacketsReport {
            scheduler: BondScheduler::Adaptive,
            reorder_delay_p50_ms: 0.1,
            reorder_delay_p99_ms: 12.0,
            in_order: 900,
            held: 90,
            unordered: 10,
            gaps_lost: 6,
            gaps_expired: 7,
            gaps_forced: 0,
            backlog_packets: 0,
            backlog_bytes: 0,
            dropped: 11,
            marked: 0,
            overflowed: 0,
            lowered_windows: 17,
            spurious_retransmissions: 19,
            retransmitted: 13,
            header_bytes_saved: 4_700,
            rejected: 2,
        }),
        problems: vec![],
    }
}

fn text(uplinks: Vec<UplinkReport>) -> String {
    let status = StatusReport {
        version: "0.1.0".into(),
        pid: 1,
        policy: Policy::Rr,
        uplinks,
        bond: Some(bond()),
        flows: FlowCounts {
            established: 7,
            embryonic: 1,
        },
        reasons: [
            ("out_flow", 900),
            ("race_begun", 5),
            ("race_copy", 6),
            ("race_lost", 4),
        ]
        .map(|(reason, packets)| (reason.to_owned(), packets))
        .into(),
        memory_bytes: 4096,
        paused_rules: vec![],
        health: vec![HealthProblem {
            code: "uplink-dead".into(),
            text: String::new(),
            fix: String::new(),
        }],
    };
    Scrape { status, events: 12 }.into_text()
}

#[test]
fn the_text_is_as_prometheus_reads_it() {
    let text = text(vec![
        uplink("dsl", UplinkState::Up, Some(21.5)),
        uplink("lte", UplinkState::Dead, None),
    ]);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/metrics/tests.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(path).unwrap());
}

#[test]
fn names_cannot_break_out_of_their_label() {
    let text = text(vec![uplink("a\"b\\c\nd", UplinkState::Up, None)]);
    assert!(
        text.contains(r#"braid_uplink_up{uplink="a\"b\\c\nd"} 1.0"#),
        "{text}"
    );
}

#[test]
fn units_are_base_units_and_labels_are_few() {
    let text = text(vec![uplink("dsl", UplinkState::Up, Some(21.5))]);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = line.split_once(['{', ' ']).unwrap();
        assert!(name.starts_with("braid_"), "{line}");
        for label in labels.split(['{', ',']).filter(|part| part.contains('=')) {
            let key = label.split('=').next().unwrap();
            assert!(["uplink", "direction", "reason"].contains(&key), "{line}");
        }
    }
}
