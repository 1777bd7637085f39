//! Upkeep of the flow table: removal of idle flows, repair of half pairs, and the list of flows.

use std::collections::HashMap;
use std::time::Instant;

use aya::maps::MapData;
use braid_core::UplinkId;

use super::idle_times::{idle_time, state_of};
use super::races;
use crate::generated::{
    CHOICE_FAILBACK, CHOICE_HASH_PAIR, CHOICE_HASH_SOURCE, CHOICE_MIDSTREAM, CHOICE_MOVED,
    CHOICE_NEXT_USABLE, CHOICE_ON_LINK, CHOICE_ONLY, CHOICE_PREDICTED, CHOICE_PREFERRED,
    CHOICE_RACED, CHOICE_REMEMBERED, CHOICE_STICKY, FLOW_FAST_PATH,
};
use crate::maps::layout::{FlowValue, RaceValue, Tuple, socket_address};
use crate::maps::tables::{Pair, Tables, found, ignore_missing, read, refused};
use crate::{Choice, ClassId, Error, Flow, KernelTime, Protocol, SweepReport, Traffic};

type Races = aya::maps::HashMap<MapData, Tuple, RaceValue>;

/// Share of the table, as a divisor, that must be free for closed connections to stay their time.
const FREE_SHARE_DIVISOR: usize = 8;

fn choice_of(value: u8) -> Choice {
    match u32::from(value) {
        CHOICE_HASH_SOURCE => Choice::HashSource,
        CHOICE_HASH_PAIR => Choice::HashPair,
        CHOICE_NEXT_USABLE => Choice::NextUsable,
        CHOICE_MIDSTREAM => Choice::Midstream,
        CHOICE_STICKY => Choice::Sticky,
        CHOICE_ONLY => Choice::Only,
        CHOICE_MOVED => Choice::Moved,
        CHOICE_FAILBACK => Choice::Failback,
        CHOICE_RACED => Choice::Raced,
        CHOICE_REMEMBERED => Choice::Remembered,
        CHOICE_PREDICTED => Choice::Predicted,
        CHOICE_PREFERRED => Choice::Preferred,
        CHOICE_ON_LINK => Choice::OnLink,
        _ => Choice::NextSlot,
    }
}

/// All flows of both tables, in no particular order.
pub(crate) fn flows(tables: &Tables) -> Result<Vec<Flow>, Error> {
    let mut flows = Vec::new();
    for (pair, assured) in [(&tables.assured, true), (&tables.embryos, false)] {
        let entries = read::<FlowValue>("flows", pair.forward_fd())?;
        flows.extend(entries.iter().map(|(key, value)| flow(key, value, assured)));
    }
    Ok(flows)
}

pub(crate) fn flow(key: &Tuple, value: &FlowValue, assured: bool) -> Flow {
    Flow {
        protocol: Protocol(key.protocol),
        inner: socket_address(key.local, key.local_port),
        remote: (key.remote != [0; 16]).then(|| socket_address(key.remote, key.remote_port)),
        outer: socket_address(value.outer, value.outer_port),
        uplink: UplinkId(value.uplink),
        state: state_of(value.state),
        assured,
        fast: u32::from(value.flags) & FLOW_FAST_PATH != 0,
        choice: choice_of(value.choice),
        class: ClassId(value.class),
        rule: usize::from(value.rule).checked_sub(1),
        came_from: value.came_from.checked_sub(1).map(UplinkId),
        created: KernelTime::from_nanos(value.created),
        last_seen: KernelTime::from_nanos(value.last_seen),
        tx: Traffic {
            packets: value.tx_packets,
            bytes: value.tx_bytes,
        },
        rx: Traffic {
            packets: value.rx_packets,
            bytes: value.rx_bytes,
        },
    }
}

/// Removes flows that have been idle too long at `now`, and repairs or removes half pairs.
pub(crate) fn sweep(tables: &mut Tables, now: KernelTime) -> Result<SweepReport, Error> {
    let started = Instant::now();
    let mut report = SweepReport::default();
    let room = tables.assured.max_entries()? as usize;
    let (assured, embryos) = (&mut tables.assured, &mut tables.embryos);
    races::sweep(&mut tables.races, &tables.races_data, now)?;
    report.established = sweep_pair(assured, Some(embryos), None, now, room, &mut report)?;
    let races = Some(&tables.races);
    // The kernel evicts embryos by itself, so their table is never pressed.
    report.embryos = sweep_pair(embryos, None, races, now, usize::MAX, &mut report)?;
    report.took = started.elapsed();
    Ok(report)
}

/// Returns the number of flows left. The reverse table is read first: a flow's reverse entry is
/// made before or at once after its forward entry, so an entry without its other half in these
/// two pictures is looked at again before anything is done about it.
///
/// A kept flow gets a lost reverse entry back, from an embryo if need be. Embryos do not: their
/// table would evict a live one for it, and the next packet from inside does it as well.
///
/// Outer ends that `races` hold need no flow of their own. Their table is asked for each such end, and
/// not read before: a race that begins meanwhile would lose its ends, and answers would find nobody.
fn sweep_pair(
    pair: &mut Pair,
    mut embryos: Option<&mut Pair>,
    races: Option<&Races>,
    now: KernelTime,
    room: usize,
    report: &mut SweepReport,
) -> Result<usize, Error> {
    let reverse: HashMap<Tuple, Tuple> = read::<Tuple>("flows_reverse", pair.reverse_fd())?
        .into_iter()
        .collect();
    let forward: HashMap<Tuple, FlowValue> = read::<FlowValue>("flows", pair.forward_fd())?
        .into_iter()
        .collect();
    let pressed = forward.len() > room - room / FREE_SHARE_DIVISOR;
    let mut left = forward.len();
    for (key, value) in &forward {
        let idle = now.since(KernelTime::from_nanos(value.last_seen));
        if idle >= idle_time(key.protocol, value, pressed) {
            if expire(pair, key, value)? {
                report.expired += 1;
                left -= 1;
            }
        } else if let Some(embryos) = &mut embryos
            && reverse.get(&key.reverse(value)) != Some(key)
            && !complete(pair, embryos, key)?
        {
            report.repaired += 1;
        }
    }
    for (key, owner) in &reverse {
        let whole = forward
            .get(owner)
            .is_some_and(|value| owner.reverse(value) == *key);
        if !whole && !owned(pair, key, owner)? && !raced(races, owner)? {
            ignore_missing("removing a flow", pair.reverse.remove(key))?;
            report.repaired += 1;
        }
    }
    Ok(left)
}

/// Removes a flow unless a packet has come since it was read.
fn expire(pair: &mut Pair, key: &Tuple, value: &FlowValue) -> Result<bool, Error> {
    match found(pair.forward.get(key, 0))? {
        Some(current) if current.last_seen == value.last_seen => {
            forget(pair, key, value)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Removes a flow.
pub(crate) fn forget(pair: &mut Pair, key: &Tuple, value: &FlowValue) -> Result<(), Error> {
    ignore_missing("removing a flow", pair.forward.remove(key))?;
    ignore_missing("removing a flow", pair.reverse.remove(&key.reverse(value)))
}

/// Gives a flow its reverse entry back, or removes it if another flow has that by now. `true`:
/// it was whole after all.
fn complete(pair: &mut Pair, embryos: &mut Pair, key: &Tuple) -> Result<bool, Error> {
    let Some(value) = found(pair.forward.get(key, 0))? else {
        return Ok(true);
    };
    let reverse = key.reverse(&value);
    match found(pair.reverse.get(&reverse, 0))? {
        Some(owner) if owner == *key => Ok(true),
        Some(_) => ignore_missing("removing a flow", pair.forward.remove(key)).map(|()| false),
        None => {
            let inserted = pair.reverse.insert(reverse, key, 0);
            inserted.map_err(|error| refused("map flows_reverse", &error))?;
            // An embryo that has claimed the port meanwhile finds so and opens anew.
            ignore_missing("removing a flow", embryos.reverse.remove(&reverse)).map(|()| false)
        }
    }
}

/// Returns true if the reverse entry's flow exists by now.
fn owned(pair: &Pair, reverse: &Tuple, owner: &Tuple) -> Result<bool, Error> {
    let value = found(pair.forward.get(owner, 0))?;
    Ok(value.is_some_and(|value| owner.reverse(&value) == *reverse))
}

/// Returns true if the connection is being raced. Its race may not have all of its ports yet.
fn raced(races: Option<&Races>, owner: &Tuple) -> Result<bool, Error> {
    match races {
        None => Ok(false),
        Some(races) => Ok(found(races.get(owner, 0))?.is_some()),
    }
}
