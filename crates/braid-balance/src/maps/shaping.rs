//! Rates that uplinks are shaped to, and what the shaping has dropped.

use std::time::Duration;

use braid_core::{Rate, UplinkId};

use crate::generated::{MAX_UPLINKS, SHAPED_DIRECTIONS, SHAPED_RX, SHAPED_TX};
use crate::maps::layout::{ShapeCountersValue, ShapeRateValue};
use crate::maps::tables::{Tables, refused};
use crate::programs::egress_queue;
use crate::{Error, KernelTime, Traffic};

/// Delay of the virtual queue above which every packet is dropped that is not small: bursts of a
/// round trip pass, and a flood without congestion control is held to the rate.
const LIMIT: Duration = Duration::from_millis(100);
/// Difference of a queue and what is computed of it that is left: two packets, one of which is on its way.
const MAX_UNSEEN_BYTES: u64 = 3_000;
/// Bytes that a map's cost is of.
const COST_BYTES: u64 = 1024;

/// Shaping of an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeEntry {
    /// The uplink.
    pub id: UplinkId,
    /// Rate to send at; `None` until it is known: packets are counted.
    pub tx: Option<Rate>,
    /// Rate to receive at; `None` until it is known: packets are counted.
    pub rx: Option<Rate>,
    /// Delay in the virtual queues above which CoDel drops.
    pub target: Duration,
}

/// Packets of an uplink's direction while it is shaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShapeCounters {
    /// Packets that passed.
    pub passed: Traffic,
    /// Packets that were dropped.
    pub dropped: Traffic,
    /// Packets that passed with a congestion mark (RFC 3168) instead of being dropped.
    pub marked_packets: u64,
    /// True if packets wait in a queue on the uplink's device, which is none of the line's.
    pub queued: bool,
}

impl ShapeCounters {
    /// Returns the packets since an earlier count.
    #[must_use]
    pub fn since(&self, before: &ShapeCounters) -> ShapeCounters {
        let traffic = |after: Traffic, before: Traffic| Traffic {
            packets: after.packets.saturating_sub(before.packets),
            bytes: after.bytes.saturating_sub(before.bytes),
        };
        ShapeCounters {
            passed: traffic(self.passed, before.passed),
            dropped: traffic(self.dropped, before.dropped),
            marked_packets: self.marked_packets.saturating_sub(before.marked_packets),
            queued: self.queued,
        }
    }
}

/// Replaces the rates of all uplinks. Those that stay the same are not written. `queued` are those with an egress queue.
pub(crate) fn set_shaping(
    tables: &mut Tables,
    entries: &[ShapeEntry],
    queued: &[UplinkId],
) -> Result<(), Error> {
    let failed = |error| refused("map shape_rates", &error);
    for uplink in 0..MAX_UPLINKS {
        let entry = entries.iter().find(|entry| u32::from(entry.id.0) == uplink);
        for direction in 0..SHAPED_DIRECTIONS {
            let index = uplink * SHAPED_DIRECTIONS + direction;
            let before = tables.shape_rates.get(&index, 0).map_err(failed)?;
            let wanted = entry.map_or_else(Default::default, |entry| ShapeRateValue {
                behind: before.behind,
                look: before.look,
                ..value(entry, direction, queued.contains(&entry.id))
            });
            if before != wanted {
                tables.shape_rates.set(index, wanted, 0).map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// Corrects what is computed of the egress queues by the bytes that wait there, by device: a timer that was late for long
/// has let less pass.
pub(crate) fn correct_queues(
    tables: &mut Tables,
    backlogs: impl Fn(u32) -> Option<u32>,
) -> Result<(), Error> {
    for (id, ifindex) in super::counters::devices(tables)? {
        let index = u32::from(id.0) * SHAPED_DIRECTIONS + SHAPED_TX;
        let failed = |error| refused("map shape_rates", &error);
        let mut rate = tables.shape_rates.get(&index, 0).map_err(failed)?;
        let Some(backlog) = backlogs(ifindex).filter(|_| rate.first_class != 0) else {
            continue;
        };
        let computed = tables.virtual_queues.get(&index, 0);
        let computed = computed.map_err(|error| refused("map virtual_queues", &error))?;
        let waits = computed
            .empty_at
            .saturating_sub(KernelTime::now().as_nanos());
        let takes = |bytes: u64| bytes * u64::from(rate.cost) / COST_BYTES;
        let behind = takes(backlog.into()).cast_signed() - waits.cast_signed();
        if behind.unsigned_abs() > takes(MAX_UNSEEN_BYTES) {
            rate.behind = behind.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
            rate.look = rate.look.wrapping_add(1);
            tables.shape_rates.set(index, rate, 0).map_err(failed)?;
        }
    }
    Ok(())
}

/// Returns the uplinks that are shaped, with their rates.
pub(crate) fn shaping(tables: &Tables) -> Result<Vec<ShapeEntry>, Error> {
    let mut entries = Vec::new();
    for uplink in 0..MAX_UPLINKS {
        let value = |direction| {
            let value = tables
                .shape_rates
                .get(&(uplink * SHAPED_DIRECTIONS + direction), 0);
            value.map_err(|error| refused("map shape_rates", &error))
        };
        let (tx, rx) = (value(SHAPED_TX)?, value(SHAPED_RX)?);
        if tx.is_shaped != 0 {
            entries.push(ShapeEntry {
                id: UplinkId(u8::try_from(uplink).expect("below MAX_UPLINKS")),
                tx: rate(tx.cost),
                rx: rate(rx.cost),
                target: Duration::from_nanos(tx.target.into()),
            });
        }
    }
    Ok(entries)
}

/// Returns the counters of the uplinks that are shaped: sent, then received.
pub(crate) fn counters(tables: &Tables) -> Result<Vec<(UplinkId, [ShapeCounters; 2])>, Error> {
    let mut uplinks = Vec::new();
    for (id, _) in super::counters::devices(tables)? {
        let first = u32::from(id.0) * SHAPED_DIRECTIONS;
        let rate = tables.shape_rates.get(&(first + SHAPED_TX), 0);
        let rate = rate.map_err(|error| refused("map shape_rates", &error))?;
        if rate.is_shaped != 0 {
            let of = |direction| sum(tables, first + direction);
            let sent = ShapeCounters {
                queued: rate.first_class != 0,
                ..of(SHAPED_TX)?
            };
            uplinks.push((id, [sent, of(SHAPED_RX)?]));
        }
    }
    Ok(uplinks)
}

fn sum(tables: &Tables, index: u32) -> Result<ShapeCounters, Error> {
    let values = tables.shape_counters.get(&index, 0);
    let values = values.map_err(|error| refused("map shape_counters", &error))?;
    let of = |field: fn(&ShapeCountersValue) -> u64| values.iter().map(field).sum();
    Ok(ShapeCounters {
        passed: Traffic {
            packets: of(|cpu| cpu.packets),
            bytes: of(|cpu| cpu.bytes),
        },
        dropped: Traffic {
            packets: of(|cpu| cpu.dropped_packets),
            bytes: of(|cpu| cpu.dropped_bytes),
        },
        marked_packets: of(|cpu| cpu.marked_packets),
        queued: false,
    })
}

fn value(entry: &ShapeEntry, direction: u32, is_queued: bool) -> ShapeRateValue {
    let rate = match direction {
        SHAPED_TX => entry.tx,
        _ => entry.rx,
    };
    ShapeRateValue {
        cost: rate.map_or(0, cost),
        target: nanoseconds(entry.target),
        limit: nanoseconds(LIMIT.max(entry.target * 2)),
        is_shaped: 1,
        first_class: match direction {
            SHAPED_TX if is_queued => egress_queue::first_class(),
            _ => 0,
        },
        behind: 0,
        look: 0,
    }
}

/// Returns the nanoseconds that [`COST_BYTES`] take.
fn cost(rate: Rate) -> u32 {
    let bits = u128::from(COST_BYTES) * 8 * 1_000_000_000;
    let cost = bits / u128::from(rate.bits_per_sec().max(1));
    u32::try_from(cost.max(1)).unwrap_or(u32::MAX)
}

/// Returns the rate of a cost; `None` for zero.
fn rate(cost: u32) -> Option<Rate> {
    let bits = (COST_BYTES * 8 * 1_000_000_000).checked_div(cost.into())?;
    Some(Rate::from_bits_per_sec(bits))
}

fn nanoseconds(span: Duration) -> u32 {
    u32::try_from(span.as_nanos()).unwrap_or(u32::MAX)
}
