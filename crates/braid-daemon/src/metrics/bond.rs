//! Metrics of the bond. There are none on a machine that has joined no hub.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::{Scrape, count};
use crate::report::{BondLinkReport, BondLinkState, BondPacketsReport, BondReport, BondState};

/// Returns a value of a link, if there is one.
type OfLink = fn(&BondLinkReport) -> Option<f64>;

impl Scrape {
    pub(super) fn bond(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(bond) = &self.status.bond else {
            return Ok(());
        };
        let help = "1 if the hub answers, so that the bond takes flows";
        encoder
            .encode_descriptor("bond_up", help, None, MetricType::Gauge)?
            .encode_gauge(&f64::from(bond.state == BondState::Up))?;
        let links = of_uplinks(bond);
        link_gauges(&links, encoder)?;
        link_counts(&links, encoder)?;
        match &bond.packets {
            Some(packets) => of_packets(packets, encoder),
            None => Ok(()),
        }
    }
}

/// Returns one link per uplink: while several paths of one are tried, the one that carries packets.
fn of_uplinks(bond: &BondReport) -> Vec<&BondLinkReport> {
    let mut links: BTreeMap<&str, &BondLinkReport> = BTreeMap::new();
    for link in &bond.links {
        let known = links.entry(&link.uplink).or_insert(link);
        if !carries(known) {
            *known = link;
        }
    }
    links.into_values().collect()
}

fn carries(link: &BondLinkReport) -> bool {
    matches!(link.state, BondLinkState::Active | BondLinkState::Returning)
}

fn link_gauges(
    links: &[&BondLinkReport],
    encoder: &mut DescriptorEncoder,
) -> Result<(), fmt::Error> {
    let ratio = Unit::Other("ratio".to_owned());
    let per_second = Unit::Other("bytes_per_second".to_owned());
    let gauges: [(&str, &str, Option<&Unit>, OfLink); 8] = [
        (
            "bond_link_up",
            "1 if it carries packets of the bond",
            None,
            |link| Some(f64::from(carries(link))),
        ),
        (
            "bond_link_share",
            "Fraction of the bytes recently sent over all links",
            Some(&ratio),
            |link| Some(link.share),
        ),
        (
            "bond_link_rate",
            "Sending rate",
            Some(&per_second),
            |link| Some(link.rate_bit_s as f64 / 8.0),
        ),
        (
            "bond_link_rtt",
            "Smoothed round-trip time to the hub",
            Some(&Unit::Seconds),
            |link| link.rtt_ms.map(|ms| ms / 1e3),
        ),
        (
            "bond_link_owd_skew",
            "One-way delay without queue beyond that of the fastest link",
            Some(&Unit::Seconds),
            |link| link.owd_skew_ms.map(|ms| ms / 1e3),
        ),
        (
            "bond_link_queue",
            "Queueing delay in the network",
            Some(&Unit::Seconds),
            |link| Some(link.queue_ms / 1e3),
        ),
        (
            "bond_link_jitter",
            "Mean deviation of its one-way delay",
            Some(&Unit::Seconds),
            |link| Some(link.jitter_ms / 1e3),
        ),
        (
            "bond_link_loss",
            "Fraction of recently sent packets that were lost",
            Some(&ratio),
            |link| Some(link.loss),
        ),
    ];
    for (name, help, unit, value) in gauges {
        let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for link in links {
            if let Some(value) = value(link) {
                let labels = [("uplink", link.uplink.as_str())];
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
    }
    Ok(())
}

fn link_counts(
    links: &[&BondLinkReport],
    encoder: &mut DescriptorEncoder,
) -> Result<(), fmt::Error> {
    let help = "Bytes of the bond's datagrams over it, with IP and UDP headers";
    let unit = Some(&Unit::Bytes);
    let mut family = encoder.encode_descriptor("bond_link", help, unit, MetricType::Counter)?;
    for link in links {
        for (direction, bytes) in [("transmit", link.tx_bytes), ("receive", link.rx_bytes)] {
            let labels = [("uplink", link.uplink.as_str()), ("direction", direction)];
            count(&mut family, &labels, bytes)?;
        }
    }
    type Both = fn(&BondLinkReport) -> Vec<(&'static str, u64)>;
    let counts: [(&str, &str, Both); 2] = [
        (
            "bond_link_lost_packets",
            "Packets lost without a queue (random) and with one (congestive)",
            |link| {
                vec![
                    ("random", link.lost_random),
                    ("congestive", link.lost_congestive),
                ]
            },
        ),
        (
            "bond_link_reordering_events",
            "Inner packets that arrived late or twice, and gaps that expired while the link could have filled them",
            |link| {
                vec![
                    ("late", link.late),
                    ("duplicate", link.duplicates),
                    ("gap_expired", link.gaps_expired),
                ]
            },
        ),
    ];
    for (name, help, of) in counts {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for link in links {
            for (reason, value) in of(link) {
                let labels = [("uplink", link.uplink.as_str()), ("reason", reason)];
                count(&mut family, &labels, value)?;
            }
        }
    }
    Ok(())
}

fn of_packets(
    packets: &BondPacketsReport,
    encoder: &mut DescriptorEncoder,
) -> Result<(), fmt::Error> {
    let gauges = [
        (
            "bond_reorder_delay_p50",
            "Median delay of inner packets in the reorder buffer",
            packets.reorder_delay_p50_ms,
        ),
        (
            "bond_reorder_delay_p99",
            "99th percentile of the delay in the reorder buffer",
            packets.reorder_delay_p99_ms,
        ),
    ];
    for (name, help, ms) in gauges {
        encoder
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?
            .encode_gauge(&(ms / 1e3))?;
    }
    let help = "Gaps in the order of inner packets, by the reason for giving up";
    let mut gaps = encoder.encode_descriptor("bond_gaps", help, None, MetricType::Counter)?;
    for (reason, value) in [
        ("lost", packets.gaps_lost),
        ("expired", packets.gaps_expired),
        ("forced", packets.gaps_forced),
    ] {
        count(&mut gaps, &[("reason", reason)], value)?;
    }
    let help = "Inner packets dropped or marked by queue management, or dropped by a full queue";
    let mut queue =
        encoder.encode_descriptor("bond_queue_packets", help, None, MetricType::Counter)?;
    for (reason, value) in [
        ("dropped", packets.dropped),
        ("marked", packets.marked),
        ("overflowed", packets.overflowed),
    ] {
        count(&mut queue, &[("reason", reason)], value)?;
    }
    let counts = [
        (
            "bond_retransmitted_packets",
            "Inner packets retransmitted",
            packets.retransmitted,
        ),
        (
            "bond_lowered_windows",
            "Acknowledgements of TCP flows whose receive windows were lowered",
            packets.lowered_windows,
        ),
        (
            "bond_spurious_retransmissions",
            "TCP segments dropped because their data waited for the links already",
            packets.spurious_retransmissions,
        ),
        (
            "bond_rejected_datagrams",
            "Datagrams that were forged, replayed or malformed",
            packets.rejected,
        ),
    ];
    for (name, help, value) in counts {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        family.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}
