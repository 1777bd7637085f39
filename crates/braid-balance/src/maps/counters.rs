//! Reading the programs' counters.

use braid_core::{MAX_UPLINKS, UplinkId};

use crate::generated::REASONS;
use crate::maps::layout::TrafficValue;
use crate::maps::tables::{Tables, refused};
use crate::{Counters, Error, KernelTime, Traffic, UplinkCounters};

/// Sums every counter over the CPUs.
pub(crate) fn read(tables: &Tables) -> Result<Counters, Error> {
    let mut counters = Counters::default();
    for (index, reason) in (0_u32..).zip(&REASONS) {
        let values = tables.reasons.get(&index, 0);
        let values = values.map_err(|error| refused("map reasons", &error))?;
        counters.reasons.push((reason.name, values.iter().sum()));
    }
    counters.uplinks = uplinks(tables)?;
    Ok(counters)
}

/// The counters of every uplink that has an entry.
pub(crate) fn uplinks(tables: &Tables) -> Result<Vec<(UplinkId, UplinkCounters)>, Error> {
    let mut uplinks = Vec::new();
    let now = KernelTime::now();
    for (id, _) in devices(tables)? {
        let values = tables.traffic.get(&u32::from(id.0), 0);
        let values = values.map_err(|error| refused("map traffic", &error))?;
        let mut sum = values.iter().fold(UplinkCounters::default(), add);
        let seen = values.iter().map(|cpu| cpu.queue_seen).max();
        let seen = KernelTime::from_nanos(seen.unwrap_or_default());
        sum.queue_unseen_us = now.since(seen).as_micros() as u64;
        uplinks.push((id, sum));
    }
    Ok(uplinks)
}

/// The device of every uplink that has an entry.
pub(crate) fn devices(tables: &Tables) -> Result<Vec<(UplinkId, u32)>, Error> {
    let mut devices = Vec::new();
    for id in 0..u8::try_from(MAX_UPLINKS).expect("fewer than 256 uplinks") {
        let uplink = tables.uplinks.get(&u32::from(id), 0);
        let uplink = uplink.map_err(|error| refused("map uplinks", &error))?;
        if uplink.ifindex != 0 {
            devices.push((UplinkId(id), uplink.ifindex));
        }
    }
    Ok(devices)
}

fn add(sum: UplinkCounters, cpu: &TrafficValue) -> UplinkCounters {
    UplinkCounters {
        tx: Traffic {
            packets: sum.tx.packets + cpu.tx_packets,
            bytes: sum.tx.bytes + cpu.tx_bytes,
        },
        rx: Traffic {
            packets: sum.rx.packets + cpu.rx_packets,
            bytes: sum.rx.bytes + cpu.rx_bytes,
        },
        flows_opened: sum.flows_opened + cpu.flows_opened,
        syns: sum.syns + cpu.syns,
        syn_repeats: sum.syn_repeats + cpu.syn_repeats,
        syn_answers: sum.syn_answers + cpu.syn_answers,
        repeats: sum.repeats + cpu.repeats,
        rtt_us_sum: sum.rtt_us_sum + cpu.rtt_us_sum,
        rtt_samples: sum.rtt_samples + cpu.rtt_samples,
        data_packets: sum.data_packets + cpu.data_packets,
        lost: sum.lost + cpu.lost,
        queueing_us_sum: sum.queueing_us_sum + cpu.queueing_us_sum,
        queueing_samples: sum.queueing_samples + cpu.queueing_samples,
        queued_us: sum.queued_us + cpu.queued_us,
        queue_unseen_us: 0,
        flow_rtt_us_sum: sum.flow_rtt_us_sum + cpu.flow_rtt_us_sum,
        jitter_us_sum: sum.jitter_us_sum + cpu.jitter_us_sum,
        jitter_samples: sum.jitter_samples + cpu.jitter_samples,
    }
}
