//! Metrics in OpenMetrics text (`GET /v1/metrics`, `[metrics] listen`).
//!
//! All names have the prefix `braid_` and base units (bytes, seconds, ratios). The only labels are
//! `uplink`, `direction` and `reason`: the number of series depends on the uplinks and the datapath's
//! reasons, and traffic cannot add any.

mod bond;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::report::{
    CapacityBasisName, CapacityReport, QualityBasisName, ShapingReport, StatusReport, UplinkReport,
    UplinkState,
};

/// The data of one scrape.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// Uplinks, flows, reasons, memory, health.
    pub status: StatusReport,
    /// Number of the latest event.
    pub events: u64,
}

impl Scrape {
    /// Encodes the metrics as text.
    #[must_use]
    pub fn into_text(self) -> String {
        let mut registry = Registry::with_prefix("braid");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("a string takes whatever is written to it");
        text
    }
}

/// Returns a value of an uplink, if there is one.
type OfUplink = fn(&UplinkReport) -> Option<f64>;

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        self.uplink_gauges(&mut encoder)?;
        self.uplink_capacities(&mut encoder)?;
        self.uplink_shaping(&mut encoder)?;
        self.uplink_traffic(&mut encoder)?;
        let status = &self.status;

        let (name, help) = ("datapath_packets", "Packets by exit reason of the datapath");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (reason, packets) in &status.reasons {
            count(&mut family, &[("reason", reason.as_str())], *packets)?;
        }

        self.races(&mut encoder)?;
        self.bond(&mut encoder)?;

        let gauges: [(&str, &str, Option<&Unit>, f64); 6] = [
            (
                "flows_established",
                "Answered flows, which are never evicted",
                None,
                status.flows.established as f64,
            ),
            (
                "flows_embryonic",
                "Flows without an answer so far",
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
                "rules_paused",
                "Rules that are switched off",
                None,
                status.paused_rules.len() as f64,
            ),
            (
                "health_problems",
                "Health problems; braid status lists them",
                None,
                status.health.len() as f64,
            ),
            (
                "reload_refused",
                "1 if the last reload was refused, so that an older configuration is in force",
                None,
                f64::from(status.health.iter().any(|h| h.code == "reload-refused")),
            ),
        ];
        for (name, help, unit, value) in gauges {
            encoder
                .encode_descriptor(name, help, unit, MetricType::Gauge)?
                .encode_gauge(&value)?;
        }
        let help = "Events of this run directory; braid events lists them";
        let mut events = encoder.encode_descriptor("events", help, None, MetricType::Counter)?;
        events.encode_counter::<NoLabelSet, _, u64>(&self.events, None)
    }
}

impl Scrape {
    fn uplink_gauges(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        let ratio = Unit::Other("ratio".to_owned());
        let gauges: [(&str, &str, Option<&Unit>, OfUplink); 15] = [
            ("uplink_up", "1 if it takes new flows", None, |uplink| {
                Some(f64::from(uplink.takes_new_flows()))
            }),
            (
                "uplink_degraded",
                "1 if it gets fewer flows than its share, because it loses or delays too many packets",
                None,
                |uplink| Some(is(uplink, UplinkState::Degraded)),
            ),
            (
                "uplink_portal",
                "1 if a captive portal answers instead of the internet",
                None,
                |uplink| Some(is(uplink, UplinkState::Portal)),
            ),
            (
                "uplink_dead",
                "1 if its device is fine but no target answers",
                None,
                |uplink| Some(is(uplink, UplinkState::Dead)),
            ),
            (
                "uplink_paused",
                "1 if somebody has set it aside",
                None,
                |uplink| Some(is(uplink, UplinkState::Paused)),
            ),
            (
                "uplink_share",
                "Fraction of new flows that the slot table gives it",
                Some(&ratio),
                |uplink| Some(uplink.share),
            ),
            (
                "uplink_rtt",
                "Round-trip time of its TCP traffic, or of probes where there is none",
                Some(&Unit::Seconds),
                |uplink| uplink.rtt_ms.map(|milliseconds| milliseconds / 1e3),
            ),
            (
                "uplink_rtt_age",
                "Time since the last round trip was measured",
                Some(&Unit::Seconds),
                |uplink| uplink.rtt_known.map(|known| known.age_ms as f64 / 1e3),
            ),
            (
                "uplink_rtt_from_traffic",
                "1 if the round-trip time is of traffic, 0 if of probes",
                None,
                |uplink| {
                    let known = uplink.rtt_known?;
                    Some(f64::from(known.basis == QualityBasisName::Traffic))
                },
            ),
            (
                "uplink_jitter",
                "Mean difference of one round trip to the next",
                Some(&Unit::Seconds),
                |uplink| uplink.jitter_ms.map(|milliseconds| milliseconds / 1e3),
            ),
            (
                "uplink_loss",
                "Fraction lost: of TCP segments with data, or of probes where there are few",
                Some(&ratio),
                |uplink| uplink.loss,
            ),
            (
                "uplink_loss_from_traffic",
                "1 if the loss is of traffic, 0 if of probes",
                None,
                |uplink| {
                    let known = uplink.loss_known?;
                    Some(f64::from(known.basis == QualityBasisName::Traffic))
                },
            ),
            (
                "uplink_probe_loss",
                "Fraction of recent probes without an answer",
                Some(&ratio),
                |uplink| uplink.probe_loss,
            ),
            (
                "uplink_quota",
                "Quota for the day or the month",
                Some(&Unit::Bytes),
                |uplink| uplink.quota_bytes.map(|bytes| bytes as f64),
            ),
            (
                "uplink_quota_used",
                "Bytes of its quota used, in both directions",
                Some(&Unit::Bytes),
                |uplink| uplink.quota_used_bytes.map(|bytes| bytes as f64),
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

    /// Encodes the measured capacities. Lower bounds are left out: nobody should take them for more.
    fn uplink_capacities(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        let ratio = Unit::Other("ratio".to_owned());
        type OfCapacity = fn(&CapacityReport) -> f64;
        let gauges: [(&str, &str, Option<&Unit>, OfCapacity); 3] = [
            (
                "uplink_capacity_bytes_per_second",
                "Measured capacity in bytes of IP packets per second",
                None,
                |capacity| capacity.rate_bit_s as f64 / 8.0,
            ),
            (
                "uplink_capacity_error",
                "Expected error of the measured capacity, as a fraction of it",
                Some(&ratio),
                |capacity| capacity.error,
            ),
            (
                "uplink_capacity_age",
                "Time since the capacity was last measured",
                Some(&Unit::Seconds),
                |capacity| capacity.age_ms as f64 / 1e3,
            ),
        ];
        for (name, help, unit, value) in gauges {
            let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            for uplink in &self.status.uplinks {
                let both = [
                    ("transmit", &uplink.tx_capacity),
                    ("receive", &uplink.rx_capacity),
                ];
                for (direction, capacity) in both {
                    let is_known =
                        |found: &&CapacityReport| found.basis != CapacityBasisName::AtLeast;
                    if let Some(capacity) = capacity.as_ref().filter(is_known) {
                        let labels = [("uplink", uplink.name.as_str()), ("direction", direction)];
                        family
                            .encode_family(&labels)?
                            .encode_gauge(&value(capacity))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Encodes the shaping of the uplinks that are shaped.
    fn uplink_shaping(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        let shaped = || {
            self.status.uplinks.iter().flat_map(|uplink| {
                let both = [
                    ("transmit", &uplink.tx_shaping),
                    ("receive", &uplink.rx_shaping),
                ];
                both.into_iter().filter_map(|(direction, shaping)| {
                    let labels = [("uplink", uplink.name.as_str()), ("direction", direction)];
                    Some((labels, shaping.as_ref()?))
                })
            })
        };
        let (name, help) = (
            "uplink_shaped_bytes_per_second",
            "Rate that it is shaped to, in bytes of IP packets per second",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, shaping) in shaped() {
            if let Some(rate) = shaping.rate_bit_s {
                let value = rate as f64 / 8.0;
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        type OfShaping = fn(&ShapingReport) -> u64;
        let counts: [(&str, &str, OfShaping); 2] = [
            (
                "uplink_shaping_dropped_packets",
                "Packets dropped because they were above the rate that it is shaped to",
                |shaping| shaping.dropped_packets,
            ),
            (
                "uplink_shaping_marked_packets",
                "Packets that got a congestion mark instead",
                |shaping| shaping.marked_packets,
            ),
        ];
        for (name, help, of) in counts {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, shaping) in shaped() {
                count(&mut family, &labels, of(shaping))?;
            }
        }
        Ok(())
    }

    fn uplink_traffic(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        type Both = fn(&UplinkReport) -> [(&'static str, u64); 2];
        let traffic: [(&str, &str, Option<&Unit>, Both); 2] = [
            (
                "uplink",
                "Bytes of IP packets: all sent, and those received for flows",
                Some(&Unit::Bytes),
                |uplink| [("transmit", uplink.tx_bytes), ("receive", uplink.rx_bytes)],
            ),
            (
                "uplink_packets",
                "Packets: all sent, and those received for flows",
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
            ("uplink_flows_opened", "Flows opened on it", |uplink| {
                uplink.flows_opened
            }),
            (
                "uplink_data_packets",
                "TCP packets with data seen on it, in both directions",
                |uplink| uplink.data_packets,
            ),
            (
                "uplink_lost_packets",
                "Signs of loss among them: retransmissions from inside, gaps from outside",
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

    /// Encodes the effect and the cost of races: sums of the datapath's reasons.
    fn races(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        let races: [(&str, &str, &[&str]); 4] = [
            (
                "race_connections",
                "Connections whose SYN was sent over several uplinks",
                &["race_begun"],
            ),
            (
                "race_extra_packets",
                "Copies of SYNs, and resets for late answers",
                &["race_copy", "race_lost"],
            ),
            (
                "race_rate_limited_connections",
                "Connections not raced because of the rate limit",
                &["race_over_rate"],
            ),
            (
                "path_cache_flows",
                "Flows placed by the path cache",
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
