use super::*;
use crate::config::Policy;
use crate::report::{FlowCounts, Health, LayerName};

fn uplink(name: &str, state: UplinkState, rtt_ms: Option<f64>) -> UplinkReport {
    UplinkReport {
        name: name.into(),
        device: "eth0".into(),
        index: 0,
        layer: LayerName::L2,
        state,
        tier: 1,
        rtt_ms,
        loss: rtt_ms.map(|_| 0.05),
        mtu: 1500,
        ipv4: None,
        ipv6: None,
        weight: 1,
        share: 0.5,
        tx_bytes: 10,
        rx_bytes: 20,
        tx_packets: 1,
        rx_packets: 2,
        flows_opened: 3,
        data_packets: 0,
        lost_packets: 0,
        why: String::new(),
    }
}

fn text(uplinks: Vec<UplinkReport>) -> String {
    let status = StatusReport {
        version: "0.1.0".into(),
        pid: 1,
        policy: Policy::Rr,
        uplinks,
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
        health: vec![Health {
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
