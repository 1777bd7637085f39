//! Figures for a monitoring system, in OpenMetrics text (`GET /v1/metrics`, `[metrics] listen`).
//!
//! Everything has the prefix `braid_` and base units (bytes, seconds, ratios). The labels are
//! `uplink`, `direction` and `reason` alone: as many series as there are uplinks and reasons of the
//! datapath, and none that traffic can add to.

mod bond;
mod listener;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::report::{StatusReport, UplinkReport, UplinkState};

pub use listener::{export, offer};

/// What the text is, in an HTTP header's words.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One moment's figures.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// Uplinks, flows, reasons, memory, health.
    pub status: StatusReport,
    /// Number of the latest event.
    pub events: u64,
}

impl Scrape {
    /// The figures as text.
    #[must_use]
    pub fn into_text(self) -> String {
        let mut registry = Registry::with_prefix("braid");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("a string takes whatever is written to it");
        text
    }
}

/// A figure of an uplink; none where there is nothing to say.
type OfUplink = fn(&UplinkReport) -> Option<f64>;

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        self.uplink_gauges(&mut encoder)?;
        self.uplink_traffic(&mut encoder)?;
        let status = &self.status;

        let (name, help) = ("datapath_packets", "Packets per exit of the datapath");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (reason, packets) in &status.reasons {
            count(&mut family, &[("reason", reason.as_str())], *packets)?;
        }

        self.races(&mut encoder)?;
        self.bond(&mut encoder)?;

        let gauges: [(&str, &str, Option<&Unit>, f64); 5] = [
            (
                "flows_established",
                "Answered flows, which nothing evicts",
                None,
                status.flows.established as f64,
            ),
            (
                "flows_embryonic",
                "Flows that nobody has answered yet",
                None,
                status.flows.embryonic as f64,
            ),
            (
                "datapath_memory",
                "Kernel memory that the datapath's tables hold",
                Some(&Unit::Bytes),
                status.memory_bytes as f64,
            ),
            (
                "health_problems",
                "Things that are not as they should be; braid status names them",
                None,
                status.health.len() as f64,
            ),
            (
                "reload_refused",
                "Whether the last reload was refused, so that an older configuration is at work",
                None,
                f64::from(status.health.iter().any(|h| h.code == "reload-refused")),
            ),
        ];
        for (name, help, unit, value) in gauges {
            encoder
                .encode_descriptor(name, help, unit, MetricType::Gauge)?
                .encode_gauge(&value)?;
        }
        let help = "Events of this run directory; braid events shows them";
        let mut events = encoder.encode_descriptor("events", help, None, MetricType::Counter)?;
        events.encode_counter::<NoLabelSet, _, u64>(&self.events, None)
    }
}

impl Scrape {
    fn uplink_gauges(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        let ratio = Unit::Other("ratio".to_owned());
        let gauges: [(&str, &str, Option<&Unit>, OfUplink); 7] = [
            ("uplink_up", "Whether it takes new flows", None, |uplink| {
                Some(f64::from(uplink.state.takes_new_flows()))
            }),
            (
                "uplink_degraded",
                "Whether it gets fewer flows than its share, because it loses or delays too much",
                None,
                |uplink| Some(is(uplink, UplinkState::Degraded)),
            ),
            (
                "uplink_portal",
                "Whether a captive portal answers in the internet's place",
                None,
                |uplink| Some(is(uplink, UplinkState::Portal)),
            ),
            (
                "uplink_dead",
                "Whether its device is fine and nobody answers",
                None,
                |uplink| Some(is(uplink, UplinkState::Dead)),
            ),
            (
                "uplink_share",
                "Part of the new flows that the slot table gives it",
                Some(&ratio),
                |uplink| Some(uplink.share),
            ),
            (
                "uplink_rtt",
                "Smoothed round-trip time",
                Some(&Unit::Seconds),
                |uplink| uplink.rtt_ms.map(|milliseconds| milliseconds / 1e3),
            ),
            (
                "uplink_loss",
                "Part of the last probes that nobody answered",
                Some(&ratio),
                |uplink| uplink.loss,
            ),
        ];
        for (name, help, unit, value) in gauges {
            let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            for uplink in &self.status.uplinks {
                if let Some(value) = value(uplink) {
                    let labels = [("uplink", uplink.name.as_str())];
                    family.encode_family(&labels)?.encode_gauge(&value)?;
                }
            }
        }
        Ok(())
    }

    fn uplink_traffic(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        type Both = fn(&UplinkReport) -> [(&'static str, u64); 2];
        let traffic: [(&str, &str, Option<&Unit>, Both); 2] = [
            (
                "uplink",
                "Bytes of IP packets over it: all that was sent, what was received for flows",
                Some(&Unit::Bytes),
                |uplink| [("transmit", uplink.tx_bytes), ("receive", uplink.rx_bytes)],
            ),
            (
                "uplink_packets",
                "Packets over it: all that were sent, what was received for flows",
                None,
                |uplink| {
                    [
                        ("transmit", uplink.tx_packets),
                        ("receive", uplink.rx_packets),
                    ]
                },
            ),
        ];
        for (name, help, unit, both) in traffic {
            let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
            for uplink in &self.status.uplinks {
                for (direction, value) in both(uplink) {
                    let labels = [("uplink", uplink.name.as_str()), ("direction", direction)];
                    count(&mut family, &labels, value)?;
                }
            }
        }
        type One = fn(&UplinkReport) -> u64;
        let counts: [(&str, &str, One); 3] = [
            ("uplink_flows_opened", "Flows put on it", |uplink| {
                uplink.flows_opened
            }),
            (
                "uplink_data_packets",
                "TCP packets with data seen on it, in both directions",
                |uplink| uplink.data_packets,
            ),
            (
                "uplink_lost_packets",
                "Of those, what tells of a loss: repeats from inside, gaps from outside",
                |uplink| uplink.lost_packets,
            ),
        ];
        for (name, help, of) in counts {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for uplink in &self.status.uplinks {
                let labels = [("uplink", uplink.name.as_str())];
                count(&mut family, &labels, of(uplink))?;
            }
        }
        Ok(())
    }

    /// What races did, and what they cost: sums of the datapath's reasons.
    fn races(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        let races: [(&str, &str, &[&str]); 4] = [
            (
                "race_connections",
                "Connections whose SYN went out by several uplinks",
                &["race_begun"],
            ),
            (
                "race_extra_packets",
                "Copies of SYNs, and resets for answers that came too late",
                &["race_copy", "race_lost"],
            ),
            (
                "race_rate_limited_connections",
                "Connections that were not raced because there were enough races",
                &["race_over_rate"],
            ),
            (
                "path_cache_flows",
                "Flows that went by what is remembered of their destination",
                &["path_remembered", "path_predicted"],
            ),
        ];
        for (name, help, reasons) in races {
            let seen = reasons
                .iter()
                .filter_map(|name| self.status.reasons.get(*name));
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            family.encode_counter::<NoLabelSet, _, u64>(&seen.sum::<u64>(), None)?;
        }
        Ok(())
    }
}

fn is(uplink: &UplinkReport, state: UplinkState) -> f64 {
    f64::from(uplink.state == state)
}

fn count(family: &mut MetricEncoder, labels: &[(&str, &str)], value: u64) -> fmt::Result {
    family
        .encode_family(&labels)?
        .encode_counter::<NoLabelSet, _, u64>(&value, None)
}

#[cfg(test)]
mod tests;
