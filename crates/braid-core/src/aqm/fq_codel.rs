//! FQ-CoDel (RFC 8290).

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::{Bytes, Time};

use super::codel::MAX_PACKET_BYTES;
use super::{Codel, CodelQueue};

/// Queues onto which flows are hashed (RFC 8290 §5.2.3: 1024).
pub const FLOW_QUEUES: usize = 1024;

/// Bytes that a flow may send per turn (RFC 8290 §5.2.4: an MTU; here a full inner frame).
const QUANTUM_BYTES: i64 = 1514;

/// CoDel's target and interval. A bond gets more than RFC 8289's 5 ms, since its links take turns
/// of a millisecond or more: 5 ms cost a few per cent of throughput.
const DELAY_TARGET: Duration = Duration::from_millis(20);
const DELAY_INTERVAL: Duration = Duration::from_millis(100);

/// Drops of a flow that adapts to them are apart by so many times what its packets wait.
const DROP_SPACING: u32 = 2;

/// A full queue drops up to this many packets of the longest flow at once, but at most half of
/// them, so that finding the flow costs little per packet (RFC 8290 §4.1).
const MAX_DROP_BATCH: usize = 64;

/// Packets for which a queue has room for each flow that waits in it, whatever its limit: an initial window (RFC 6928) and a
/// little more. A line of 4 Mbit/s has a limit of 100 packets, and a web page opens fifty connections at once.
const FLOW_ROOM: usize = 16;

/// Most packets for which the flows together have room beyond the limit.
const MAX_FLOW_ROOM: usize = 2048;

/// A flow may have so many packets waiting behind its first one for as long as it takes, and one more for each flow with
/// which it takes turns, [`FLOW_ROOM`] at most. Fifty flows of a page at 4 Mbit/s have a turn every 150 ms, so each would be over
/// the target with its second packet, and a drop with fewer than three behind it is found by a time-out alone (RFC 5681 §3.2).
/// Other flows do not wait for them.
const SPARED_PACKETS: usize = 3;

const NONE: u32 = u32::MAX;

/// A packet that leaves the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queued<T> {
    /// Size.
    pub len: Bytes,
    /// Arrival in the queue.
    pub arrived: Time,
    /// The packet.
    pub item: T,
}

#[derive(Debug, Clone)]
struct Node<T> {
    packet: Option<Queued<T>>,
    next: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlowList {
    No,
    New,
    Old,
}

/// CoDel's treatment of a flow's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drops {
    /// By RFC 8289: its sender may not adapt to them.
    Standard,
    /// Further apart: its sender adapts to them once in a round trip, of which its queue is a part.
    Spaced,
    /// Not at all: something else keeps its queue short.
    None,
}

#[derive(Debug, Clone)]
struct Flow {
    head: u32,
    tail: u32,
    packets: usize,
    bytes: u64,
    /// Packets that have ever come.
    arrived: u64,
    staged: Staged,
    deficit: i64,
    codel: Codel,
    drops: Drops,
    grace: Duration,
    list: FlowList,
}

/// The packets at the head of a flow that are committed to this queue.
#[derive(Debug, Clone, Copy)]
struct Staged {
    /// The last one.
    tail: u32,
    packets: usize,
    bytes: u64,
}

const NOTHING_STAGED: Staged = Staged {
    tail: NONE,
    packets: 0,
    bytes: 0,
};

impl Flow {
    fn loose_bytes(&self) -> u64 {
        self.bytes - self.staged.bytes
    }

    fn loose_packets(&self) -> usize {
        self.packets - self.staged.packets
    }
}

/// Fair queue: serves the flows in turn.
///
/// New flows go first while they send no more than a quantum (RFC 8290 §4.2), so sparse flows
/// hardly wait. Nothing is allocated once the queue has reached its greatest length.
///
/// A flow may have two outlets: its turns in this queue, and packets taken from the middle of it by
/// [`take_loose`](Self::take_loose). [`stage`](Self::stage) commits the first packet that is still
/// *loose* to the former. CoDel judges a packet when it is staged or taken, and the limit counts
/// loose packets only.
#[derive(Debug)]
pub struct FlowQueue<T> {
    nodes: Vec<Node<T>>,
    free: u32,
    flows: Vec<Flow>,
    new: VecDeque<u16>,
    old: VecDeque<u16>,
    packets: usize,
    bytes: u64,
    staged_packets: usize,
    staged_bytes: u64,
    max_packets: usize,
    grace: Duration,
    dropped: u64,
    marked: u64,
    overflowed: u64,
}

/// The loose packets of one flow of a queue, as CoDel sees them.
struct FlowView<'a, T> {
    nodes: &'a mut [Node<T>],
    free: &'a mut u32,
    flow: &'a mut Flow,
    packets: &'a mut usize,
    bytes: &'a mut u64,
    spared: u64,
}

impl<T> FlowView<'_, T> {
    /// Takes the packet behind node `before`, or the first one if that is none.
    fn unlink(&mut self, before: u32) -> Option<Queued<T>> {
        let index = match self.nodes.get(before as usize) {
            Some(node) => node.next,
            None => self.flow.head,
        };
        let node = self.nodes.get_mut(index as usize)?;
        let next = std::mem::replace(&mut node.next, *self.free);
        let packet = node.packet.take()?;
        *self.free = index;
        match self.nodes.get_mut(before as usize) {
            Some(node) => node.next = next,
            None => self.flow.head = next,
        }
        if next == NONE {
            self.flow.tail = before;
        }
        self.flow.packets -= 1;
        self.flow.bytes -= packet.len.get();
        *self.packets -= 1;
        *self.bytes -= packet.len.get();
        Some(packet)
    }
}

impl<T> CodelQueue for FlowView<'_, T> {
    type Packet = Queued<T>;

    fn pop(&mut self) -> Option<Queued<T>> {
        self.unlink(self.flow.staged.tail)
    }

    fn arrived(packet: &Queued<T>) -> Time {
        packet.arrived
    }

    fn bytes(&self) -> u64 {
        self.flow.loose_bytes()
    }

    fn spared(&self) -> u64 {
        self.spared
    }
}

impl<T> FlowQueue<T> {
    /// Returns a queue for `max_packets` packets, at least 1.
    #[must_use]
    pub fn new(max_packets: usize) -> FlowQueue<T> {
        let flow = Flow {
            head: NONE,
            tail: NONE,
            packets: 0,
            bytes: 0,
            arrived: 0,
            staged: NOTHING_STAGED,
            deficit: 0,
            codel: Codel::new(DELAY_TARGET, DELAY_INTERVAL),
            drops: Drops::Standard,
            grace: Duration::ZERO,
            list: FlowList::No,
        };
        FlowQueue {
            nodes: Vec::new(),
            free: NONE,
            flows: vec![flow; FLOW_QUEUES],
            new: VecDeque::with_capacity(FLOW_QUEUES),
            old: VecDeque::with_capacity(FLOW_QUEUES),
            packets: 0,
            bytes: 0,
            staged_packets: 0,
            staged_bytes: 0,
            max_packets: max_packets.clamp(1, NONE as usize - 1),
            grace: Duration::ZERO,
            dropped: 0,
            marked: 0,
            overflowed: 0,
        }
    }

    /// Changes the limit. Packets above it are dropped when the next one arrives.
    pub fn set_limit(&mut self, max_packets: usize) {
        self.max_packets = max_packets.clamp(1, NONE as usize - 1);
    }

    /// Adds `grace` to CoDel's target and interval. It delays only the flow that has the queue.
    pub fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// Adds at least `grace` to CoDel's target and interval for the flow with this `hash`.
    pub fn set_flow_grace(&mut self, hash: u32, grace: Duration) {
        self.flows[hash as usize % FLOW_QUEUES].grace = grace;
    }

    /// Sets how CoDel drops packets of the flow with this `hash`.
    pub fn set_drops(&mut self, hash: u32, drops: Drops) {
        let flow = &mut self.flows[hash as usize % FLOW_QUEUES];
        flow.drops = drops;
        flow.codel.set_spacing(match drops {
            Drops::Spaced => DROP_SPACING,
            Drops::Standard | Drops::None => 0,
        });
    }

    /// Adds a packet of the flow with this `hash`.
    pub fn push(&mut self, now: Time, hash: u32, len: Bytes, item: T) {
        let packet = Queued {
            len,
            arrived: now,
            item,
        };
        let index = self.node(packet);
        let id = hash as usize % FLOW_QUEUES;
        let flow = &mut self.flows[id];
        match self.nodes.get_mut(flow.tail as usize) {
            Some(tail) => tail.next = index,
            None => flow.head = index,
        }
        flow.tail = index;
        flow.arrived += 1;
        flow.packets += 1;
        flow.bytes += len.get();
        self.packets += 1;
        self.bytes += len.get();
        if flow.list == FlowList::No {
            flow.list = FlowList::New;
            flow.deficit = QUANTUM_BYTES;
            self.new.push_back(id as u16);
        }
        if self.packets - self.staged_packets > self.room() {
            self.drop_from_longest();
        }
    }

    /// Returns the number of packets above which some are dropped.
    fn room(&self) -> usize {
        let shares = self.flows_in_turn() * FLOW_ROOM;
        self.max_packets.max(shares.min(MAX_FLOW_ROOM))
    }

    fn flows_in_turn(&self) -> usize {
        self.new.len() + self.old.len()
    }

    /// Returns true if a packet of the flow with this `hash` waits.
    #[must_use]
    pub fn is_waiting(&self, hash: u32) -> bool {
        self.flows[hash as usize % FLOW_QUEUES].packets > 0
    }

    fn node(&mut self, packet: Queued<T>) -> u32 {
        let index = self.free;
        let packet = Some(packet);
        match self.nodes.get_mut(index as usize) {
            Some(node) => {
                self.free = node.next;
                *node = Node { packet, next: NONE };
                index
            }
            None => {
                self.nodes.push(Node { packet, next: NONE });
                self.nodes.len() as u32 - 1
            }
        }
    }

    /// Takes the next packet to send. With `control`, CoDel drops packets of flows that stand too
    /// long, or marks them if `mark` returns true.
    pub fn pop(
        &mut self,
        now: Time,
        control: bool,
        mark: impl Fn(&mut T) -> bool,
    ) -> Option<Queued<T>> {
        loop {
            let (id, from_new) = match (self.new.front(), self.old.front()) {
                (Some(&id), _) => (id, true),
                (None, Some(&id)) => (id, false),
                (None, None) => return None,
            };
            let flow = &mut self.flows[usize::from(id)];
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM_BYTES;
                self.move_to_old(id, from_new);
                continue;
            }
            match self.pop_of(now, id, control, &mark) {
                Some(packet) => {
                    self.flows[usize::from(id)].deficit -= packet.len.get() as i64;
                    return Some(packet);
                }
                // An empty new flow still takes a turn among the old ones. Otherwise it could
                // return as new at once and starve them (RFC 8290 §4.2).
                None if from_new => self.move_to_old(id, true),
                None => {
                    self.old.pop_front();
                    self.flows[usize::from(id)].list = FlowList::No;
                }
            }
        }
    }

    fn move_to_old(&mut self, id: u16, from_new: bool) {
        if from_new {
            self.new.pop_front();
        } else {
            self.old.pop_front();
        }
        self.flows[usize::from(id)].list = FlowList::Old;
        self.old.push_back(id);
    }

    fn view_of(&mut self, id: usize) -> FlowView<'_, T> {
        let spared =
            (SPARED_PACKETS + self.flows_in_turn()).min(FLOW_ROOM) as u64 * MAX_PACKET_BYTES;
        FlowView {
            nodes: &mut self.nodes,
            free: &mut self.free,
            flow: &mut self.flows[id],
            packets: &mut self.packets,
            bytes: &mut self.bytes,
            spared,
        }
    }

    fn pop_of(
        &mut self,
        now: Time,
        id: u16,
        control: bool,
        mark: impl Fn(&mut T) -> bool,
    ) -> Option<Queued<T>> {
        if self.flows[usize::from(id)].staged.packets > 0 {
            return self.pop_staged(usize::from(id));
        }
        self.pop_loose(now, usize::from(id), control, mark)
    }

    fn pop_staged(&mut self, id: usize) -> Option<Queued<T>> {
        let first = self.view_of(id).unlink(NONE)?;
        let staged = &mut self.flows[id].staged;
        staged.packets -= 1;
        staged.bytes -= first.len.get();
        if staged.packets == 0 {
            *staged = NOTHING_STAGED;
        }
        self.staged_packets -= 1;
        self.staged_bytes -= first.len.get();
        Some(first)
    }

    fn pop_loose(
        &mut self,
        now: Time,
        id: usize,
        control: bool,
        mark: impl Fn(&mut T) -> bool,
    ) -> Option<Queued<T>> {
        let grace = self.grace.max(self.flows[id].grace);
        let mut view_of = self.view_of(id);
        if !control || view_of.flow.drops == Drops::None {
            return view_of.pop();
        }
        let mut codel = view_of.flow.codel;
        codel.set_target(DELAY_TARGET + grace, DELAY_INTERVAL + grace);
        let (mut dropped, mut marked) = (0, 0);
        let packet = codel.pop(now, &mut view_of, |mut packet| {
            let is_marked = mark(&mut packet.item);
            *(if is_marked { &mut marked } else { &mut dropped }) += 1;
            is_marked.then_some(packet)
        });
        self.flows[id].codel = codel;
        self.dropped += dropped;
        self.marked += marked;
        packet
    }

    /// Commits the first loose packet of the flow with this `hash` to its turns in this queue:
    /// `commit` gets it, unless CoDel drops it. Returns its size; none if the flow has no more.
    /// `control` and `mark` as for [`pop`](Self::pop).
    pub fn stage(
        &mut self,
        now: Time,
        hash: u32,
        control: bool,
        mark: impl Fn(&mut T) -> bool,
        commit: impl FnOnce(&mut T),
    ) -> Option<Bytes> {
        let id = hash as usize % FLOW_QUEUES;
        let mut packet = self.pop_loose(now, id, control, mark)?;
        commit(&mut packet.item);
        let len = packet.len;
        let index = self.node(packet);
        let flow = &mut self.flows[id];
        let before = std::mem::replace(&mut flow.staged.tail, index);
        let next = match self.nodes.get_mut(before as usize) {
            Some(node) => std::mem::replace(&mut node.next, index),
            None => std::mem::replace(&mut flow.head, index),
        };
        self.nodes[index as usize].next = next;
        if next == NONE {
            flow.tail = index;
        }
        flow.packets += 1;
        flow.bytes += len.get();
        flow.staged.packets += 1;
        flow.staged.bytes += len.get();
        self.packets += 1;
        self.bytes += len.get();
        self.staged_packets += 1;
        self.staged_bytes += len.get();
        Some(len)
    }

    /// Takes the first loose packet of the flow with this `hash`. It costs the flow no turn.
    /// `control` and `mark` as for [`pop`](Self::pop).
    pub fn take_loose(
        &mut self,
        now: Time,
        hash: u32,
        control: bool,
        mark: impl Fn(&mut T) -> bool,
    ) -> Option<Queued<T>> {
        self.pop_loose(now, hash as usize % FLOW_QUEUES, control, mark)
    }

    /// Returns the places of the loose packets in the queue onto which this `hash` falls. Packets are numbered as they come, so the
    /// loose ones are the last.
    #[must_use]
    pub fn places(&self, hash: u32) -> Range<u64> {
        let flow = &self.flows[hash as usize % FLOW_QUEUES];
        flow.arrived - flow.loose_packets() as u64..flow.arrived
    }

    /// Returns the staged and the loose bytes of the flow with this `hash`.
    #[must_use]
    pub fn bytes_of(&self, hash: u32) -> (Bytes, Bytes) {
        let flow = &self.flows[hash as usize % FLOW_QUEUES];
        (
            Bytes::new(flow.staged.bytes),
            Bytes::new(flow.loose_bytes()),
        )
    }

    /// Returns the bytes in the queue that are not staged.
    #[must_use]
    pub fn loose_bytes(&self) -> Bytes {
        Bytes::new(self.bytes - self.staged_bytes)
    }

    fn drop_from_longest(&mut self) {
        let flows = self.flows.iter().enumerate();
        let longest = flows.max_by_key(|(_, flow)| flow.loose_bytes());
        let Some((id, flow)) = longest else { return };
        for _ in 0..flow.loose_packets().div_ceil(2).min(MAX_DROP_BATCH) {
            self.view_of(id).pop();
            self.overflowed += 1;
        }
    }

    /// Returns the number of flows that take turns.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.new.len() + self.old.len()
    }

    /// Returns the packets in the queue.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Returns the bytes in the queue.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes)
    }

    /// Returns the packets dropped by CoDel.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the packets marked by CoDel.
    #[must_use]
    pub fn marked(&self) -> u64 {
        self.marked
    }

    /// Returns the packets dropped because the queue was full.
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        self.overflowed
    }
}
