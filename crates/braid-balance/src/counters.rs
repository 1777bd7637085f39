//! Reading the programs' counters.

use braid_core::{MAX_UPLINKS, UplinkId};

use crate::layout::TrafficValue;
use crate::shared::REASONS;
use crate::tables::{Tables, refused};
use crate::{Counters, Error, Traffic, UplinkCounters};

/// Sums every counter over the CPUs.
pub(crate) fn read(tables: &Tables) -> Result<Counters, Error> {
    let mut counters = Counters::default();
    for (index, reason) in (0_u32..).zip(&REASONS) {
        let values = tables.reasons.get(&index, 0);
        let values = values.map_err(|error| refused("map reasons", &error))?;
        counters.reasons.push((reason.name, values.iter().sum()));
    }
    for id in 0..u8::try_from(MAX_UPLINKS).expect("fewer than 256 uplinks") {
        let uplink = tables.uplinks.get(&u32::from(id), 0);
        if uplink
            .map_err(|error| refused("map uplinks", &error))?
            .ifindex
            == 0
        {
            continue;
        }
        let values = tables.traffic.get(&u32::from(id), 0);
        let values = values.map_err(|error| refused("map traffic", &error))?;
        counters.uplinks.push((
            UplinkId(id),
            values.iter().fold(UplinkCounters::default(), add),
        ));
    }
    Ok(counters)
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
    }
}
