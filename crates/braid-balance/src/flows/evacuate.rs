//! Taking flows off an uplink: resetting them, replaying their packets elsewhere, and finding those
//! whose server did not follow.

use std::net::IpAddr;
use std::time::Duration;

use std::os::fd::AsFd;

use aya::maps::{HashMap, MapData};
use braid_core::{MAX_UPLINKS, UplinkId};
use braid_packet::build::{self, End, flags};
use braid_packet::{Packet, checksum};
use serde::Serialize;

use super::idle_times::{TCP, UDP};
use super::sweep;
use crate::generated::{
    ATTEMPT_SENT, CHOICE_ON_LINK, FAMILY_V4, FAMILY_V6, FLOW_REASSIGN, FLOW_RESET_SENT,
    PREFERRED_CANDIDATE, QUIC_PORT, STATE_CLOSING, STATE_ESTABLISHED, STATE_NEW,
};
use crate::maps::layout::{
    FlowValue, RaceValue, ReplayBufferValue, StoredPacketValue, Tuple, socket_address,
};
use crate::maps::tables::{Pair, Tables, found, ignore_missing, read, refused};
use crate::packets::inject::Injector;
use crate::{Error, Flow, FlowState, KernelTime, Protocol};

/// Stored packets older than this are not replayed: a client that has been quiet for so long waits
/// for nothing, and its flow moves with its next packet. The health monitor takes at most a few
/// seconds to call an uplink dead.
const MAX_REPLAY_AGE: Duration = Duration::from_secs(10);

/// A flow's stored packets are replayed within less than this. If a moved flow sends later than
/// that, its client still wants an answer.
const MAX_REPLAY_TIME: Duration = Duration::from_millis(100);

/// Time without packets of a connection after which its remote may wait for a doubled timeout.
const MIN_SILENCE: Duration = Duration::from_millis(600);

/// Result of [`Datapath::evacuate`](crate::Datapath::evacuate).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Evacuated {
    /// TCP connections whose inside was sent a reset.
    pub tcp_reset: usize,
    /// TCP connections being opened, whose SYN was replayed by another uplink.
    pub tcp_moved: usize,
    /// QUIC connections whose last packets were replayed by another uplink.
    pub quic_moved: usize,
    /// QUIC connections whose inside was sent "port unreachable", as their server does not survive
    /// a move.
    pub quic_unreachable: usize,
    /// Other unanswered datagrams that were replayed by another uplink.
    pub udp_moved: usize,
}

/// Action on a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// None: it stays on its uplink.
    Keep,
    /// The next packet from inside chooses an uplink anew; answers in flight to the old mapping are
    /// still accepted. UDP only; others stay.
    Move,
    /// Both ends are sent a reset. TCP only; others stay.
    Reset,
}

/// Result of [`Datapath::release`](crate::Datapath::release).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Released {
    /// Flows that choose anew.
    pub moved: usize,
    /// Connections that were reset.
    pub reset: usize,
}

pub(crate) fn evacuate(
    tables: &mut Tables,
    injector: &Injector,
    uplink: UplinkId,
    resets_tcp: bool,
    survives: impl Fn(IpAddr) -> bool,
) -> Result<Evacuated, Error> {
    let mut done = Evacuated::default();
    let others = others(tables, uplink)?;
    let leaves = |flow: &&(Tuple, FlowValue)| leaves(flow, uplink, others);
    let assured = read::<FlowValue>("flows", tables.assured.forward_fd())?;
    for (key, value) in assured.iter().filter(|flow| leaves(flow)) {
        match key.protocol {
            TCP if resets_tcp => {
                done.tcp_reset +=
                    usize::from(reset_inside(&mut tables.assured, injector, key, value)?)
            }
            UDP if is_quic(key) && !survives(remote(key).0) => {
                end_quic(&mut tables.assured, injector, key, value)?;
                done.quic_unreachable += 1;
            }
            UDP if is_quic(key) => {
                done.quic_moved +=
                    usize::from(replay_buffer(&tables.replay_buffers, injector, key)?);
            }
            _ => {}
        }
    }
    let embryos = read::<FlowValue>("embryos", tables.embryos.forward_fd())?;
    replay_embryos(tables, injector, uplink, others, &embryos, &mut done)?;
    let unanswered = |value: &FlowValue| u32::from(value.state) == STATE_NEW;
    // Flows that moved by themselves since their uplink died, to a server that does not follow.
    let came = |value: &FlowValue| value.came_from == uplink.0 + 1 && unanswered(value);
    for (key, value) in embryos.iter().filter(|(_, value)| came(value)) {
        if is_quic(key) && !survives(remote(key).0) {
            end_quic(&mut tables.embryos, injector, key, value)?;
            done.quic_unreachable += 1;
        }
    }
    Ok(done)
}

/// Replays by other uplinks the first packets of this one's unanswered flows of some protocols.
pub(crate) fn replay_unanswered(
    tables: &Tables,
    injector: &Injector,
    uplink: UplinkId,
    which: impl Fn(Protocol) -> bool,
) -> Result<Evacuated, Error> {
    let mut done = Evacuated::default();
    let others = others(tables, uplink)?;
    let mut embryos = read::<FlowValue>("embryos", tables.embryos.forward_fd())?;
    embryos.retain(|(key, _)| which(Protocol(key.protocol)));
    replay_embryos(tables, injector, uplink, others, &embryos, &mut done)?;
    Ok(done)
}

/// Replays the first packets of unanswered flows and races, and counts them.
fn replay_embryos(
    tables: &Tables,
    injector: &Injector,
    uplink: UplinkId,
    others: [bool; 2],
    embryos: &[(Tuple, FlowValue)],
    done: &mut Evacuated,
) -> Result<(), Error> {
    let asked = |flow: &&(Tuple, FlowValue)| {
        u32::from(flow.1.state) == STATE_NEW && leaves(flow, uplink, others)
    };
    for (key, _) in embryos.iter().filter(asked) {
        if !replay_embryo(&tables.replay_embryos, injector, key)? {
            continue;
        }
        match key.protocol {
            TCP => done.tcp_moved += 1,
            _ if is_quic(key) => done.quic_moved += 1,
            _ => done.udp_moved += 1,
        }
    }
    done.tcp_moved += replay_races(tables, injector, uplink)?;
    Ok(())
}

/// Returns true if a flow of a dead uplink moves or ends: another uplink takes flows of its family, and
/// its remote is no neighbour on the dead one's link.
fn leaves((key, value): &(Tuple, FlowValue), uplink: UplinkId, others: [bool; 2]) -> bool {
    value.uplink == uplink.0
        && others[family(key) as usize]
        && u32::from(value.choice) != CHOICE_ON_LINK
}

/// Replays the SYNs of races that wait for this uplink alone because they have rejected the other
/// uplinks' answers. Returns how many.
fn replay_races(tables: &Tables, injector: &Injector, uplink: UplinkId) -> Result<usize, Error> {
    let mut asked = 0;
    for (key, race) in read::<RaceValue>("races", tables.races_data.fd().as_fd())? {
        let awaited = race.preferred & PREFERRED_CANDIDATE == u32::from(uplink.0) + 1
            && u32::from(race.attempts[uplink.index()]) == ATTEMPT_SENT;
        if awaited
            && found(tables.embryos.forward.get(&key, 0))?.is_none()
            && found(tables.assured.forward.get(&key, 0))?.is_none()
        {
            asked += usize::from(replay_embryo(&tables.replay_embryos, injector, &key)?);
        }
    }
    Ok(asked)
}

pub(crate) fn release(
    tables: &mut Tables,
    injector: &Injector,
    which: impl Fn(&Flow) -> Release,
) -> Result<Released, Error> {
    let mut done = Released::default();
    for (key, value) in read::<FlowValue>("flows", tables.assured.forward_fd())? {
        match which(&sweep::flow(&key, &value, true)) {
            Release::Reset if key.protocol == TCP => {
                let told = reset_inside(&mut tables.assured, injector, &key, &value)?;
                if told {
                    reset_remote(injector, &key, &value)?;
                }
                done.reset += usize::from(told);
            }
            Release::Move if key.protocol == UDP => {
                let mark = |value: &mut FlowValue| value.flags |= FLOW_REASSIGN as u8;
                done.moved += usize::from(change(&mut tables.assured, &key, &value, mark)?);
            }
            _ => {}
        }
    }
    Ok(done)
}

/// Ends QUIC flows that were moved at least `older_than` before `now`, whose client has gone on
/// sending and whose server has not answered since. Returns those flows.
pub(crate) fn end_unanswered_moves(
    tables: &mut Tables,
    injector: &Injector,
    older_than: Duration,
    now: KernelTime,
) -> Result<Vec<Flow>, Error> {
    let mut ended = Vec::new();
    for (key, value) in read::<FlowValue>("embryos", tables.embryos.forward_fd())? {
        let flow = sweep::flow(&key, &value, false);
        if is_quic(&key)
            && flow.came_from.is_some()
            && flow.state == FlowState::New
            && flow.last_seen.since(flow.created) >= MAX_REPLAY_TIME
            && now.since(flow.created) >= older_than
        {
            end_quic(&mut tables.embryos, injector, &key, &value)?;
            ended.push(flow);
        }
    }
    Ok(ended)
}

/// Returns for each family whether an uplink other than this one takes flows.
fn others(tables: &Tables, than: UplinkId) -> Result<[bool; 2], Error> {
    let mut others = [false; 2];
    for id in (0..MAX_UPLINKS).filter(|id| *id != than.index()) {
        let index = u32::try_from(id).expect("a small number");
        let uplink = tables.uplinks.get(&index, 0);
        let uplink = uplink.map_err(|error| refused("map uplinks", &error))?;
        for (others, exit) in others.iter_mut().zip(&uplink.next_hops) {
            *others |= uplink.accepts_new != 0 && exit.present != 0;
        }
    }
    Ok(others)
}

/// Marks a connection as over and sends its inside a reset that the inside accepts. Returns false
/// for connections that both ends have closed, or that are gone meanwhile: they need none.
fn reset_inside(
    pair: &mut Pair,
    injector: &Injector,
    key: &Tuple,
    value: &FlowValue,
) -> Result<bool, Error> {
    let over = |value: &mut FlowValue| {
        value.flags |= FLOW_RESET_SENT as u8;
        value.state = STATE_CLOSING as u8;
    };
    if u32::from(value.state) == STATE_CLOSING || !change(pair, key, value, over)? {
        return Ok(false);
    }
    // The acknowledgement number is read again: a segment may have come since.
    let value = found(pair.forward.get(key, 0))?.unwrap_or(*value);
    let reset = build::segment(
        remote(key),
        local(key),
        [value.inside_ack, 0],
        flags::RST,
        &[],
    );
    injector.inwards(value.inside_ifindex, local(key).0, &reset)?;
    Ok(true)
}

/// Sends a TCP keepalive (RFC 9293, section 3.8.4) on each connection of an uplink on which both
/// ends may still send. Returns how many were sent. The remote takes it for a repeated segment,
/// answers, and ignores the rest of it.
pub(crate) fn keep_alive(
    tables: &Tables,
    injector: &Injector,
    uplink: UplinkId,
) -> Result<usize, Error> {
    let mut sent = 0;
    for (key, value) in open_connections(tables, uplink)? {
        let numbers = [value.inside_next.wrapping_sub(1), value.inside_ack];
        let keepalive = build::segment(local(&key), remote(&key), numbers, flags::ACK, &[]);
        sent += usize::from(injector.outwards(&keepalive)?);
    }
    Ok(sent)
}

/// Tells the remotes of an uplink's connections that the path was disrupted, if no packet has passed
/// for [`MIN_SILENCE`] but one has within `active`. Returns how many were told.
///
/// A remote that repeats a segment in vain waits twice as long each time. "Host unreachable" about
/// the segment that the inside misses has it take one doubling back (RFC 6069). It aborts nothing
/// because of that (RFC 1122, section 4.2.3.9), and ignores it if it waits for nothing. If the
/// inside's acknowledgement was lost as well, the remote waits for an earlier segment. So the inside
/// is had to send it again first, by a keepalive, to which its stack answers.
pub(crate) fn indicate_disruption(
    tables: &Tables,
    injector: &Injector,
    uplink: UplinkId,
    active: Duration,
    now: KernelTime,
) -> Result<usize, Error> {
    let mut told = 0;
    for (key, value) in open_connections(tables, uplink)? {
        let silence = now.since(KernelTime::from_nanos(value.last_seen));
        if !(MIN_SILENCE..active).contains(&silence) {
            continue;
        }
        let (local, remote) = (local(&key), remote(&key));
        let numbers = [value.inside_ack.wrapping_sub(1), value.inside_next];
        let keepalive = build::segment(remote, local, numbers, flags::ACK, &[]);
        injector.inwards(value.inside_ifindex, local.0, &keepalive)?;
        let missing = build::segment(remote, local, [value.inside_ack, 0], flags::ACK, &[]);
        let error = build::host_unreachable(local.0, remote.0, &missing);
        told += usize::from(injector.outwards(&error)?);
    }
    Ok(told)
}

/// Returns the TCP connections of an uplink on which both ends may still send.
fn open_connections(tables: &Tables, uplink: UplinkId) -> Result<Vec<(Tuple, FlowValue)>, Error> {
    let mut flows = read::<FlowValue>("flows", tables.assured.forward_fd())?;
    flows.retain(|(key, value)| {
        value.uplink == uplink.0
            && key.protocol == TCP
            && u32::from(value.state) == STATE_ESTABLISHED
    });
    Ok(flows)
}

/// Sends the remote a reset that it accepts.
fn reset_remote(injector: &Injector, key: &Tuple, value: &FlowValue) -> Result<(), Error> {
    let reset = build::segment(
        local(key),
        remote(key),
        [value.inside_next, 0],
        flags::RST,
        &[],
    );
    injector.outwards(&reset).map(drop)
}

/// Ends a QUIC connection for its client, which opens another one or falls back to TCP.
fn end_quic(
    pair: &mut Pair,
    injector: &Injector,
    key: &Tuple,
    value: &FlowValue,
) -> Result<(), Error> {
    sweep::forget(pair, key, value)?;
    let (local, remote) = (local(key), remote(key));
    // A client's stack matches the error by its headers.
    let error = build::port_unreachable(remote.0, local.0, &build::udp(local, remote, &[]));
    injector
        .inwards(value.inside_ifindex, local.0, &error)
        .map(drop)
}

/// Replays a flow's stored packets, oldest first; the outbound program then moves the flow.
/// `false`: there are none, or they are too old.
fn replay_buffer(
    last: &HashMap<MapData, Tuple, ReplayBufferValue>,
    injector: &Injector,
    key: &Tuple,
) -> Result<bool, Error> {
    let Some(last) = found(last.get(key, 0))? else {
        return Ok(false);
    };
    let mut words: Vec<&StoredPacketValue> =
        last.after_receive.iter().chain(&last.unsolicited).collect();
    words.sort_by_key(|words| words.at);
    let mut said = false;
    for words in words {
        said |= replay_packet(injector, words)?;
    }
    Ok(said)
}

/// Replays the first packet of an unanswered flow, if it is not too old.
fn replay_embryo(
    questions: &HashMap<MapData, Tuple, StoredPacketValue>,
    injector: &Injector,
    key: &Tuple,
) -> Result<bool, Error> {
    match found(questions.get(key, 0))? {
        Some(words) => replay_packet(injector, &words),
        None => Ok(false),
    }
}

fn replay_packet(injector: &Injector, words: &StoredPacketValue) -> Result<bool, Error> {
    let age = KernelTime::now().since(KernelTime::from_nanos(words.at));
    match words.bytes.get(..words.length as usize) {
        Some(packet) if age < MAX_REPLAY_AGE => match complete_checksum(packet) {
            Some(packet) => injector.outwards(&packet),
            None => Ok(false),
        },
        _ => Ok(false),
    }
}

/// Returns the packet with its checksum completed: the program may have stored it before the device
/// that was to complete it. `None`: the checksum is neither complete nor partial, so the packet was
/// read while a program overwrote it. With a partial checksum that cannot be detected; a QUIC
/// server drops such a packet because its seal is broken.
fn complete_checksum(packet: &[u8]) -> Option<Vec<u8>> {
    let headers = Packet::parse(packet).ok()?;
    let mut bytes = packet.to_vec();
    if headers.checksums_hold() {
        return Some(bytes);
    }
    let (at, sum) = (headers.checksum_offset()?, headers.transport_checksum()?);
    let ip = &headers.ip;
    let empty = vec![0; headers.segment().len()];
    let begun = !checksum::of_transport(ip.source, ip.dest, ip.protocol, &empty);
    if !checksum::same(u16::from_be_bytes([bytes[at], bytes[at + 1]]), begun) {
        return None;
    }
    let sum = if sum == 0 { 0xffff } else { sum };
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    Some(bytes)
}

/// Changes a flow, unless it is gone or replaced by now, as after its port was used again. A
/// program's write at the same moment may be lost: some counts, or a state that this change makes
/// meaningless.
fn change(
    pair: &mut Pair,
    key: &Tuple,
    seen: &FlowValue,
    by: impl Fn(&mut FlowValue),
) -> Result<bool, Error> {
    /// `BPF_EXIST` of linux/bpf.h.
    const EXIST: u64 = 2;
    let current = found(pair.forward.get(key, 0))?;
    let Some(mut value) = current.filter(|value| value.created == seen.created) else {
        return Ok(false);
    };
    by(&mut value);
    match pair.forward.insert(key, value, EXIST) {
        Ok(()) => Ok(true),
        Err(error) => ignore_missing("changing a flow", Err(error)).map(|()| false),
    }
}

fn is_quic(key: &Tuple) -> bool {
    key.protocol == UDP && u32::from(u16::from_be_bytes(key.remote_port)) == QUIC_PORT
}

fn family(key: &Tuple) -> u32 {
    if local(key).0.is_ipv4() {
        FAMILY_V4
    } else {
        FAMILY_V6
    }
}

fn local(key: &Tuple) -> End {
    let address = socket_address(key.local, key.local_port);
    (address.ip(), address.port())
}

fn remote(key: &Tuple) -> End {
    let address = socket_address(key.remote, key.remote_port);
    (address.ip(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_packets_are_completed_and_torn_ones_not_replayed() {
        for (local, remote) in [
            ("192.0.0.8", "192.0.2.80"),
            ("64:ff9b:1:6272::8", "2001:db8:80::80"),
        ] {
            let [local, remote] = [local, remote].map(|ip| (ip.parse().expect("an address"), 443));
            let whole = build::udp(local, remote, b"the very last words");
            assert_eq!(complete_checksum(&whole), Some(whole.clone()));

            let at = whole.len() - b"the very last words".len() - 2;
            let empty = vec![0; whole.len() + 2 - at + 4];
            let mut begun = whole.clone();
            let sum = !checksum::of_transport(local.0, remote.0, UDP, &empty);
            begun[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(
                complete_checksum(&begun),
                Some(whole.clone()),
                "as a device would"
            );

            for byte in at..whole.len() {
                let mut torn = whole.clone();
                torn[byte] ^= 1;
                assert_eq!(complete_checksum(&torn), None, "byte {byte}");
            }
            assert_eq!(complete_checksum(&whole[..whole.len() - 9]), None);
            assert_eq!(complete_checksum(&[]), None);
        }
    }
}
