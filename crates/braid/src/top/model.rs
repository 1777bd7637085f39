//! The data model: the latest answers, and rates from their difference to earlier ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use braid_daemon::report::{FlowReport, FlowsReport, StatusReport, UplinkReport};
use braid_host::user_error::UserError;

/// Samples kept: the width of a wide terminal.
const MAX_EVENTS: usize = 240;

/// Bits per second in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Towards the inside.
    pub down: f64,
    /// From inside.
    pub up: f64,
}

/// A flow and its rates.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowRow {
    /// The flow.
    pub flow: FlowReport,
    /// Its rates since the previous sample.
    pub rates: Rates,
}

/// Everything that is drawn.
#[derive(Debug)]
pub struct Model {
    /// Sampling interval.
    pub every: Duration,
    /// The latest answer.
    pub status: Option<StatusReport>,
    /// The fastest flows first, then the most recently active; `None`: too many to list.
    pub flows: Option<Vec<FlowRow>>,
    /// Packets per second and exit reason of the datapath since the previous sample, most first.
    pub reasons: Vec<(String, f64)>,
    /// Reason why there is no newer answer.
    pub trouble: Option<UserError>,
    /// Number of flows scrolled past.
    pub skipped: usize,
    histories: BTreeMap<String, VecDeque<Rates>>,
    seen: Option<Seen>,
}

/// Counters of the previous sample.
#[derive(Debug)]
struct Seen {
    at: Instant,
    uplinks: HashMap<String, (u64, u64)>,
    flows: HashMap<FlowKey, (u64, u64)>,
    reasons: BTreeMap<String, u64>,
}

/// Identity of a flow; differs also for a flow that reuses another's addresses and ports.
type FlowKey = (String, String, Option<String>, String);

impl Model {
    /// Returns an empty model.
    pub fn new(every: Duration) -> Model {
        Model {
            every,
            status: None,
            flows: None,
            reasons: Vec::new(),
            trouble: None,
            skipped: 0,
            histories: BTreeMap::new(),
            seen: None,
        }
    }

    /// Adds the answers of `now`. `flows` is none if there were too many to ask for.
    pub fn update(&mut self, now: Instant, status: StatusReport, flows: Option<FlowsReport>) {
        let before = self.seen.take();
        let span = before.as_ref().map(|seen| now.duration_since(seen.at));
        let rate = |now: u64, before: Option<u64>| match (span, before) {
            // Counters that went back belong to another datapath.
            (Some(span), Some(before)) if !span.is_zero() => {
                now.saturating_sub(before) as f64 / span.as_secs_f64()
            }
            _ => 0.0,
        };
        let rates = |tx: u64, rx: u64, before: Option<(u64, u64)>| Rates {
            down: 8.0 * rate(rx, before.map(|(_, rx)| rx)),
            up: 8.0 * rate(tx, before.map(|(tx, _)| tx)),
        };

        for uplink in &status.uplinks {
            let seen = before
                .as_ref()
                .and_then(|seen| seen.uplinks.get(&uplink.name));
            let history = self.histories.entry(uplink.name.clone()).or_default();
            if history.len() == MAX_EVENTS {
                history.pop_front();
            }
            history.push_back(rates(uplink.tx_bytes, uplink.rx_bytes, seen.copied()));
        }
        self.histories
            .retain(|name, _| status.uplinks.iter().any(|uplink| uplink.name == *name));

        let known = before.as_ref().map(|seen| &seen.flows);
        let mut rows: Option<Vec<FlowRow>> = flows.map(|report| {
            let row = |flow: FlowReport| {
                let seen = known.and_then(|known| known.get(&key(&flow)));
                let rates = rates(flow.tx_bytes, flow.rx_bytes, seen.copied());
                FlowRow { flow, rates }
            };
            report.flows.into_iter().map(row).collect()
        });
        if let Some(rows) = &mut rows {
            let bits = |row: &FlowRow| (row.rates.down + row.rates.up) as u64;
            rows.sort_by_key(|row| (Reverse(bits(row)), row.flow.idle_ms));
        }

        let counted = before.as_ref().map(|seen| &seen.reasons);
        let reasons = status.reasons.iter().map(|(reason, packets)| {
            let seen = counted.and_then(|counted| counted.get(reason));
            (reason.clone(), rate(*packets, seen.copied()))
        });
        self.reasons = reasons.filter(|(_, rate)| *rate > 0.0).collect();
        self.reasons.sort_by(|(_, a), (_, b)| b.total_cmp(a));

        self.seen = Some(Seen {
            at: now,
            uplinks: status.uplinks.iter().map(counters).collect(),
            flows: rows.iter().flatten().map(flow_counters).collect(),
            reasons: status.reasons.clone(),
        });
        self.flows = rows;
        self.status = Some(status);
        self.trouble = None;
        self.scroll(0);
    }

    /// Records that there was no answer.
    pub fn lost(&mut self, why: UserError) {
        self.trouble = Some(why);
    }

    /// Scrolls the list of flows.
    pub fn scroll(&mut self, by: isize) {
        let last = self.flows.as_ref().map_or(0, Vec::len).saturating_sub(1);
        self.skipped = self.skipped.saturating_add_signed(by).min(last);
    }

    /// Returns an uplink's rates, the oldest first.
    pub fn history(&self, uplink: &str) -> impl DoubleEndedIterator<Item = Rates> + Clone {
        self.histories.get(uplink).into_iter().flatten().copied()
    }

    /// Returns an uplink's current rates.
    pub fn rates(&self, uplink: &str) -> Rates {
        self.history(uplink).next_back().unwrap_or_default()
    }
}

fn key(flow: &FlowReport) -> FlowKey {
    (
        flow.protocol.clone(),
        flow.inner.clone(),
        flow.remote.clone(),
        flow.outer.clone(),
    )
}

fn counters(uplink: &UplinkReport) -> (String, (u64, u64)) {
    (uplink.name.clone(), (uplink.tx_bytes, uplink.rx_bytes))
}

fn flow_counters(row: &FlowRow) -> (FlowKey, (u64, u64)) {
    (key(&row.flow), (row.flow.tx_bytes, row.flow.rx_bytes))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use braid_daemon::config::Policy;
    use braid_daemon::report::{FlowCounts, LayerName, UplinkState};
    use braid_host::report::HealthProblem;

    pub fn uplink(name: &str, state: UplinkState, bytes: u64) -> UplinkReport {
        UplinkReport {
            name: name.into(),
            device: name.into(),
            id: 0,
            layer: LayerName::L2,
            state,
            tier: 1,
            rtt_ms: Some(21.4),
            rtt_known: None,
            jitter_ms: None,
            jitter_known: None,
            loss: Some(0.0),
            loss_known: None,
            sends_twice: false,
            probe_rtt_ms: None,
            probe_loss: None,
            mtu: 1500,
            ipv4: None,
            ipv6: None,
            weight: 1,
            tx_bit_s: None,
            rx_bit_s: None,
            tx_capacity: None,
            rx_capacity: None,
            tx_shaping: None,
            rx_shaping: None,
            share: 0.5,
            tx_bytes: bytes / 10,
            rx_bytes: bytes,
            tx_packets: 0,
            rx_packets: 0,
            flows_opened: 1,
            quota_used_bytes: None,
            quota_bytes: None,
            data_packets: 0,
            lost_packets: 0,
            since_unix_ms: None,
            pause: None,
            why: "3 of 3 targets answer".into(),
        }
    }

    pub fn flow(inner: &str, idle_ms: u64, bytes: u64) -> FlowReport {
        FlowReport {
            protocol: "tcp".into(),
            inner: inner.into(),
            remote: Some("198.51.100.1:443".into()),
            outer: "192.0.2.2:5000".into(),
            uplink: "dsl".into(),
            state: "established".into(),
            age_ms: 1000,
            idle_ms,
            tx_bytes: 0,
            rx_bytes: bytes,
            tx_packets: 0,
            rx_packets: 0,
            previous_uplink: None,
            why: "next slot".into(),
        }
    }

    pub fn status(bytes: u64, packets: u64) -> StatusReport {
        StatusReport {
            version: "0.1.0".into(),
            pid: 1,
            policy: Policy::Rr,
            uplinks: vec![
                uplink("dsl", UplinkState::Up, bytes),
                uplink("lte", UplinkState::Dead, 0),
            ],
            bond: None,
            flows: FlowCounts {
                established: 2,
                embryonic: 0,
            },
            reasons: [
                ("out_flow".to_owned(), packets),
                ("no_uplink".to_owned(), 7),
            ]
            .into(),
            memory_bytes: 12_300_000,
            paused_rules: vec![],
            health: vec![HealthProblem {
                code: "uplink-dead".into(),
                text: "lte: silent".into(),
                fix: String::new(),
            }],
        }
    }

    pub fn model() -> Model {
        let mut model = Model::new(Duration::from_secs(1));
        let begin = Instant::now();
        for step in 0..4 {
            let bytes = 125_000 * step * step;
            let flows = vec![
                flow("10.0.0.2:1000", 5, 0),
                flow("10.0.0.3:1000", 900, bytes),
            ];
            model.update(
                begin + Duration::from_secs(step),
                status(bytes, 100 * step),
                Some(FlowsReport {
                    matching: flows.len(),
                    flows,
                }),
            );
        }
        model
    }

    #[test]
    fn two_looks_make_a_rate() {
        let model = model();
        let down: Vec<f64> = model.history("dsl").map(|rates| rates.down).collect();
        assert_eq!(down, [0.0, 1e6, 3e6, 5e6]);
        assert_eq!(model.rates("dsl").up, 0.5e6);
        assert_eq!(model.reasons, [("out_flow".to_owned(), 100.0)]);
        let flows = model.flows.as_ref().unwrap();
        assert_eq!(flows[0].flow.inner, "10.0.0.3:1000");
        assert_eq!(flows[0].rates.down, 5e6);
    }

    #[test]
    fn a_datapath_that_began_anew_has_no_negative_rates() {
        let mut model = model();
        let later = Instant::now() + Duration::from_secs(60);
        model.update(later, status(0, 0), None);
        assert_eq!(model.rates("dsl"), Rates::default());
        assert_eq!(model.reasons, []);
        assert_eq!(model.flows, None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut model = Model::new(Duration::from_secs(1));
        let begin = Instant::now();
        for step in 0..2 * MAX_EVENTS as u64 {
            model.update(begin + Duration::from_secs(step), status(step, 0), None);
        }
        assert_eq!(model.history("dsl").count(), MAX_EVENTS);
    }

    #[test]
    fn scrolling_ends_at_both_ends() {
        let mut model = model();
        model.scroll(100);
        assert_eq!(model.skipped, 1);
        model.scroll(isize::MIN);
        assert_eq!(model.skipped, 0);
    }
}
