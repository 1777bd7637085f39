//! The flow table's upkeep: idle times, halves of pairs, and the list of flows.

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use aya::Pod;
use aya::maps::MapError;
use braid_core::UplinkId;

use crate::layout::{FlowValue, Tuple, socket_address};
use crate::shared::{
    CHOICE_FAILBACK, CHOICE_HASH_PAIR, CHOICE_HASH_SOURCE, CHOICE_MIDSTREAM, CHOICE_MOVED,
    CHOICE_NEXT_USABLE, CHOICE_ON_LINK, CHOICE_ONLY, CHOICE_PREDICTED, CHOICE_PREFERRED,
    CHOICE_RACED, CHOICE_REMEMBERED, CHOICE_STICKY, FLOW_FAST_PATH, QUIC_PORT, STATE_ANSWERED,
    STATE_CLOSING, STATE_ESTABLISHED, STATE_FIN_WAIT, STATE_NEW,
};
use crate::tables::{Pair, Tables, ignore_missing, refused};
use crate::{
    Choice, ClassId, Error, Flow, FlowState, KernelTime, Protocol, SweepReport, Traffic, batch,
    races,
};

/// Established TCP: RFC 5382 REQ-5, "established connection idle-timeout … MUST NOT be less than
/// 2 hours 4 minutes".
pub const TCP_ESTABLISHED_IDLE: Duration = Duration::from_secs(2 * 3600 + 4 * 60);
/// TCP that one end has closed or the remote has reset: RFC 5382 REQ-5, "transitory … MUST NOT be
/// less than 4 minutes"; RFC 7857 §2.2 says the same for resets, as they may be forged blindly.
pub const TCP_TRANSITORY_IDLE: Duration = Duration::from_secs(4 * 60);
/// TCP that is over: both ends have sent FIN, or the inside has reset it. A deliberate deviation
/// from the four minutes of RFC 5382 REQ-5 and RFC 7857 §2.1: as long as Linux' own TIME_WAIT, after which neither
/// end knows the connection. At 1,000 connections/s, four minutes of them fill the default table.
pub const TCP_CLOSED_IDLE: Duration = Duration::from_secs(60);
/// The same once the table is nearly full: closed connections are what it can best do without,
/// and a late segment of one is answered by the sender's own host all the same.
pub const TCP_CLOSED_IDLE_UNDER_PRESSURE: Duration = Duration::from_secs(10);
/// TCP that is not established yet: above the longest pause between Linux' SYN retransmissions
/// (64 s), and no more, as nobody waits longer.
pub const TCP_EMBRYO_IDLE: Duration = Duration::from_secs(75);
/// Answered UDP: RFC 4787 REQ-5c, "five minutes or more … is RECOMMENDED".
pub const UDP_IDLE: Duration = Duration::from_secs(5 * 60);
/// Unanswered UDP: RFC 4787 REQ-5 has two minutes as its least.
pub const UDP_EMBRYO_IDLE: Duration = Duration::from_secs(2 * 60);
/// Answered DNS: one question, one answer. RFC 4787 REQ-5a allows less than two minutes for
/// well-known ports.
pub const DNS_IDLE: Duration = Duration::from_secs(20);
/// ICMP echo: RFC 5508 REQ-2, "MUST NOT expire in less than 60 seconds".
pub const ICMP_IDLE: Duration = Duration::from_secs(60);
/// Protocols without ports, which no RFC speaks of: as UDP.
pub const PORTLESS_IDLE: Duration = UDP_IDLE;

/// Share of the table, as a divisor, that must be free for closed connections to stay their time.
const FREE_SHARE_DIVISOR: usize = 8;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// DNS' port.
const DNS: u16 = 53;

/// Returns the time that a flow may be idle. A nearly full table (`pressed`) keeps flows that a
/// client can reopen without loss no longer than it must; QUIC connections are not among these.
fn idle_time(protocol: u8, value: &FlowValue, pressed: bool) -> Duration {
    let remote_port = u16::from_be_bytes(value.remote_port);
    match (protocol, state_of(value.state)) {
        (TCP, FlowState::Established) => TCP_ESTABLISHED_IDLE,
        (TCP, FlowState::New | FlowState::Answered) => TCP_EMBRYO_IDLE,
        (TCP, FlowState::Closing) if pressed => TCP_CLOSED_IDLE_UNDER_PRESSURE,
        (TCP, FlowState::Closing) => TCP_CLOSED_IDLE,
        (TCP, FlowState::FinWait | FlowState::Reset) => TCP_TRANSITORY_IDLE,
        (UDP, FlowState::New) => UDP_EMBRYO_IDLE,
        (UDP, _) if remote_port == DNS => DNS_IDLE,
        (UDP, _) if pressed && u32::from(remote_port) != QUIC_PORT => UDP_EMBRYO_IDLE,
        (UDP, _) => UDP_IDLE,
        (ICMP | ICMPV6, _) => ICMP_IDLE,
        _ => PORTLESS_IDLE,
    }
}

fn state_of(value: u8) -> FlowState {
    match u32::from(value) {
        STATE_NEW => FlowState::New,
        STATE_ANSWERED => FlowState::Answered,
        STATE_ESTABLISHED => FlowState::Established,
        STATE_FIN_WAIT => FlowState::FinWait,
        STATE_CLOSING => FlowState::Closing,
        _ => FlowState::Reset,
    }
}

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

/// Removes what was idle too long at `now` and mends or removes halves of pairs.
pub(crate) fn sweep(tables: &mut Tables, now: KernelTime) -> Result<SweepReport, Error> {
    let started = Instant::now();
    let mut report = SweepReport::default();
    let room = tables.assured.max_entries()? as usize;
    let embryos = &mut tables.embryos;
    let attempts = races::sweep(&mut tables.races, &tables.races_data, now)?;
    let none = HashSet::new();
    let assured = &mut tables.assured;
    report.established = sweep_pair(assured, Some(embryos), &none, now, room, &mut report)?;
    // The kernel evicts embryos by itself, so their table is never pressed.
    report.embryos = sweep_pair(embryos, None, &attempts, now, usize::MAX, &mut report)?;
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
/// Outer ends that races hold (`attempts`, by connection and port) need no flow of their own.
fn sweep_pair(
    pair: &mut Pair,
    mut embryos: Option<&mut Pair>,
    attempts: &HashSet<(Tuple, [u8; 2])>,
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
        let races = attempts.contains(&(*owner, key.local_port));
        if !whole && !races && !owned(pair, key, owner)? {
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

pub(crate) fn read<V: Pod>(what: &str, map: BorrowedFd<'_>) -> Result<Vec<(Tuple, V)>, Error> {
    batch::entries(map).map_err(|source| Error::system(format!("reading map {what}"), source))
}

pub(crate) fn found<V>(result: Result<V, MapError>) -> Result<Option<V>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(refused("looking up a flow", &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::STATE_RESET;

    fn idle(protocol: u8, state: u32, remote_port: u16, pressed: bool) -> u64 {
        let value = FlowValue {
            state: u8::try_from(state).expect("a state"),
            remote_port: remote_port.to_be_bytes(),
            ..FlowValue::default()
        };
        idle_time(protocol, &value, pressed).as_secs()
    }

    #[test]
    fn idle_times_by_state_port_and_pressure() {
        // Protocol, state, remote port, seconds, seconds under pressure.
        for (protocol, state, port, easy, pressed) in [
            (TCP, STATE_NEW, 80, 75, 75),
            (TCP, STATE_ANSWERED, 80, 75, 75),
            (TCP, STATE_ESTABLISHED, 80, 7440, 7440),
            (TCP, STATE_FIN_WAIT, 80, 240, 240),
            (TCP, STATE_CLOSING, 80, 60, 10),
            (TCP, STATE_RESET, 80, 240, 240),
            (UDP, STATE_NEW, 53, 120, 120),
            (UDP, STATE_ESTABLISHED, 53, 20, 20),
            (UDP, STATE_ESTABLISHED, 443, 300, 300),
            (UDP, STATE_ESTABLISHED, 3478, 300, 120),
            (ICMP, STATE_ESTABLISHED, 0, 60, 60),
            (47, STATE_ESTABLISHED, 0, 300, 300),
        ] {
            let case = format!("protocol {protocol}, state {state}, port {port}");
            assert_eq!(idle(protocol, state, port, false), easy, "{case}");
            assert_eq!(
                idle(protocol, state, port, true),
                pressed,
                "{case}, pressed"
            );
        }
    }
}
