//! Metrics in OpenMetrics text (`GET /v1/metrics`, `[metrics] listen`).
//!
//! All names have the prefix `braid_hub_` and base units. The labels are `client`, `direction`,
//! `state`, `outcome` and `reason`: traffic cannot add values to any of them.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::report::{ClientReport, StatusReport};

/// Values of one scrape.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// The hub.
    pub status: StatusReport,
    /// Its clients; only joined ones are exported.
    pub clients: Vec<ClientReport>,
}

impl Scrape {
    /// The metrics as text.
    #[must_use]
    pub fn into_text(mut self) -> String {
        self.clients.retain(|client| client.state == "joined");
        let mut registry = Registry::with_prefix("braid_hub");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("a string takes whatever is written to it");
        text
    }
}

/// Name and help of a metric of clients, and its value; none for those that do not have it.
type OfClient = (&'static str, &'static str, fn(&ClientReport) -> Option<u64>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let counts = &self.status.clients;
        let mut family =
            encoder.encode_descriptor("clients", "Clients by state", None, MetricType::Gauge)?;
        for (state, count) in [
            ("joined", counts.joined),
            ("connected", counts.connected),
            ("invited", counts.invited),
            ("revoked", counts.revoked),
        ] {
            let labels = [("state", state)];
            family
                .encode_family(&labels)?
                .encode_gauge(&(count as f64))?;
        }
        self.encode_clients(&mut encoder)?;
        let status = &self.status;
        for (name, help, label, counts) in [
            (
                "handshakes",
                "Handshakes by outcome",
                "outcome",
                &status.handshakes,
            ),
            (
                "rejected_datagrams",
                "Datagrams that were refused",
                "reason",
                &status.rejected,
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (value, times) in counts {
                count(&mut family, &[(label, value.as_str())], *times)?;
            }
        }
        let help = "Packets for inner addresses that no connected client has";
        encoder
            .encode_descriptor("unrouted_packets", help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&self.status.unrouted_packets, None)?;
        let help = "Current problems; braid hub status lists them";
        encoder
            .encode_descriptor("health_problems", help, None, MetricType::Gauge)?
            .encode_gauge(&(self.status.health.len() as f64))
    }
}

impl Scrape {
    /// Metrics of each client.
    fn encode_clients(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "1 if the client has a session";
        let mut family =
            encoder.encode_descriptor("client_connected", help, None, MetricType::Gauge)?;
        for client in &self.clients {
            let labels = [("client", client.name.as_str())];
            let connected = f64::from(client.connected);
            family.encode_family(&labels)?.encode_gauge(&connected)?;
        }
        let help = "Bytes of inner packets from it and to it, since it was invited";
        let unit = Some(&Unit::Bytes);
        let mut family = encoder.encode_descriptor("client", help, unit, MetricType::Counter)?;
        for client in &self.clients {
            for (direction, bytes) in [("receive", client.rx_bytes), ("transmit", client.tx_bytes)]
            {
                let labels = [("client", client.name.as_str()), ("direction", direction)];
                count(&mut family, &labels, bytes)?;
            }
        }
        self.encode_quotas(encoder)?;
        let refused: [OfClient; 3] = [
            (
                "client_spoofed_packets",
                "Packets with a source that is not its own: refused",
                |client| Some(client.spoofed_packets),
            ),
            (
                "client_capped_packets",
                "Packets beyond its rate: dropped",
                |client| Some(client.capped_packets),
            ),
            (
                "client_token_misuses",
                "Handshakes with its token by other machines: refused",
                |client| Some(client.token_misuses),
            ),
        ];
        self.encode_counts(encoder, &refused)?;
        self.encode_queues(encoder)
    }

    /// Metrics of what is queued for clients with a session.
    fn encode_queues(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let backlog: OfClient = (
            "client_backlog",
            "Bytes of inner packets to it that wait for its links",
            |client| Some(client.queue?.backlog_bytes),
        );
        self.encode_bytes(encoder, &[backlog])?;
        let help =
            "Inner packets to it dropped or marked by queue management, or dropped by a full queue";
        let mut family =
            encoder.encode_descriptor("client_queue_packets", help, None, MetricType::Counter)?;
        for client in &self.clients {
            let Some(queue) = client.queue else {
                continue;
            };
            for (reason, packets) in [
                ("dropped", queue.dropped),
                ("marked", queue.marked),
                ("overflowed", queue.overflowed),
            ] {
                let labels = [("client", client.name.as_str()), ("reason", reason)];
                count(&mut family, &labels, packets)?;
            }
        }
        let counts: [OfClient; 3] = [
            (
                "client_retransmitted_packets",
                "Inner packets to it retransmitted",
                |client| Some(client.queue?.retransmitted),
            ),
            (
                "client_lowered_windows",
                "Acknowledgements from it whose receive windows were lowered",
                |client| Some(client.queue?.lowered_windows),
            ),
            (
                "client_spurious_retransmissions",
                "TCP segments to it dropped because their data waited already",
                |client| Some(client.queue?.spurious_retransmissions),
            ),
        ];
        self.encode_counts(encoder, &counts)
    }

    /// Metrics of clients with a quota.
    fn encode_quotas(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let quotas: [OfClient; 3] = [
            (
                "client_quota",
                "Bytes of inner packets in a day or a month, both directions together, before it is slowed down",
                |client| Some(client.quota?.volume.get()),
            ),
            (
                "client_quota_used",
                "Used part of its quota in this day or month",
                |client| client.quota_used_bytes,
            ),
            (
                "client_quota_left",
                "Rest of its quota in this day or month; zero once it is slowed down",
                ClientReport::quota_left_bytes,
            ),
        ];
        self.encode_bytes(encoder, &quotas)
    }

    /// Counters of clients.
    fn encode_counts(&self, encoder: &mut DescriptorEncoder, counts: &[OfClient]) -> fmt::Result {
        for (name, help, of) in counts {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (client, times) in self.values(*of) {
                count(&mut family, &[("client", client)], times)?;
            }
        }
        Ok(())
    }

    /// Gauges of clients, in bytes.
    fn encode_bytes(&self, encoder: &mut DescriptorEncoder, gauges: &[OfClient]) -> fmt::Result {
        let unit = Some(&Unit::Bytes);
        for (name, help, of) in gauges {
            let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            for (client, bytes) in self.values(*of) {
                family
                    .encode_family(&[("client", client)])?
                    .encode_gauge(&(bytes as f64))?;
            }
        }
        Ok(())
    }

    fn values(&self, of: fn(&ClientReport) -> Option<u64>) -> impl Iterator<Item = (&str, u64)> {
        let clients = self.clients.iter();
        clients.filter_map(move |client| Some((client.name.as_str(), of(client)?)))
    }
}

fn count(family: &mut MetricEncoder, labels: &[(&str, &str)], value: u64) -> fmt::Result {
    family
        .encode_family(&labels)?
        .encode_counter::<NoLabelSet, _, u64>(&value, None)
}

#[cfg(test)]
mod tests;
