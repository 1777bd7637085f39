//! The sending end.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;
use braid_multipath::{LANES, LaneId};

use super::{
    CONTEXTS_PER_LANE, Header, HeaderLayout, SLOT_IDLE_TIMEOUT, bit, flag, read16, read32, slot_of,
};
use crate::proto::frame::HeaderContext;

/// Packet of a flow with which its context is sent: for shorter flows it would not pay.
const MIN_FLOW_PACKETS: u32 = 4;

/// Age after which a context is replaced by a current one, so that the differences become small
/// again.
const CONTEXT_REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// Time before the first repetition of an unacknowledged context, doubled each time.
const MIN_CONTEXT_RETRY: Duration = Duration::from_millis(200);

/// Transmissions after which an unacknowledged context is repeated every
/// [`CONTEXT_REFRESH_INTERVAL`].
const MAX_FAST_RETRIES: u32 = 5;

/// Contexts waiting to be sent; more are sent later.
const MAX_PENDING_CONTEXTS: usize = 64;

/// Savings of compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressionSavings {
    /// Compressed packets.
    pub packets: u64,
    /// Bytes saved by them.
    pub bytes: u64,
}

/// A context that the other end has acknowledged, or that is being sent.
#[derive(Clone, Copy, Debug)]
struct Context {
    number: u8,
    header: Header,
    at: Time,
}

/// Largest widths of fields since the context is in use.
#[derive(Clone, Copy, Debug, Default)]
struct FieldWidths {
    /// Codes of the four widths.
    counters: [u8; 4],
    /// Bits of the first byte.
    said: u8,
}

#[derive(Debug)]
struct Flow {
    header: Header,
    known: Option<Context>,
    widths: FieldWidths,
    pending: Option<Context>,
    retries: u32,
    due: Time,
    seen: u32,
    used: Time,
    /// The upper six bits of this slot's next number.
    next: u8,
}

/// Compresses the packets of one direction of a tunnel.
#[derive(Debug)]
pub struct Compressor {
    /// Slots by lane.
    lanes: Vec<Vec<Flow>>,
    waiting: VecDeque<(LaneId, Header, u8)>,
    saved: CompressionSavings,
}

impl Default for Compressor {
    fn default() -> Self {
        Compressor {
            lanes: (0..LANES).map(|_| Vec::new()).collect(),
            waiting: VecDeque::new(),
            saved: CompressionSavings::default(),
        }
    }
}

impl Compressor {
    /// Writes a packet of this lane to `out`, compressed; returns `false` if it has to go
    /// uncompressed.
    pub fn compress(&mut self, now: Time, lane: LaneId, packet: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(layout) = HeaderLayout::of_whole(packet) else {
            return false;
        };
        let Some(slot) = self.slot(now, lane, layout, packet) else {
            return false;
        };
        let flow = &mut self.lanes[lane.index()][slot];
        flow.used = now;
        flow.seen = flow.seen.saturating_add(1);
        if let Some(context) = flow.ask(now, slot, packet)
            && self.waiting.len() < MAX_PENDING_CONTEXTS
        {
            self.waiting
                .push_back((lane, context.header, context.number));
        }
        let Some(known) = &flow.known else {
            return false;
        };
        let before = out.len();
        write(known, &mut flow.widths, packet, out);
        self.saved.packets += 1;
        self.saved.bytes += (packet.len() - (out.len() - before)) as u64;
        true
    }

    /// The slot of a packet's flow in its lane; none if other flows occupy all.
    fn slot(
        &mut self,
        now: Time,
        lane: LaneId,
        layout: HeaderLayout,
        packet: &[u8],
    ) -> Option<usize> {
        let flows = &mut self.lanes[lane.index()];
        let is_it = |flow: &Flow| {
            flow.header.layout == layout && layout.is_same_flow(flow.header.as_bytes(), packet)
        };
        if let Some(slot) = flows.iter().position(is_it) {
            return Some(slot);
        }
        let header = Header::of(layout, packet);
        if flows.len() < CONTEXTS_PER_LANE {
            flows.push(Flow::new(now, header, 0));
            return Some(flows.len() - 1);
        }
        let idle = |flow: &Flow| now.since(flow.used) >= SLOT_IDLE_TIMEOUT;
        let slot = flows.iter().position(idle)?;
        flows[slot] = Flow::new(now, header, flows[slot].next);
        Some(slot)
    }

    /// The next context to send to the other end.
    pub fn poll_context<'o>(&mut self, out: &'o mut Vec<u8>) -> Option<HeaderContext<'o>> {
        let (lane, header, number) = self.waiting.pop_front()?;
        out.clear();
        out.extend_from_slice(header.as_bytes());
        Some(HeaderContext {
            lane: lane.0,
            number,
            content: out,
        })
    }

    /// Returns true if a context waits to be sent.
    #[must_use]
    pub fn has_context(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Handles an acknowledgement: the other end has the context, or has not.
    pub fn handle_ack(&mut self, lane: LaneId, number: u8, has: bool) {
        let Some(flow) = self.lanes[lane.index()].get_mut(slot_of(number)) else {
            return;
        };
        let is_it = |context: &Context| context.number == number;
        if has && flow.pending.as_ref().is_some_and(is_it) {
            flow.known = flow.pending.take();
            flow.widths = FieldWidths::default();
        } else if !has {
            flow.known = flow.known.take().filter(|context| !is_it(context));
        }
    }

    /// Savings so far.
    #[must_use]
    pub fn saved(&self) -> CompressionSavings {
        self.saved
    }
}

impl Flow {
    fn new(now: Time, header: Header, next: u8) -> Flow {
        Flow {
            header,
            known: None,
            widths: FieldWidths::default(),
            pending: None,
            retries: 0,
            due: now,
            seen: 0,
            used: now,
            next,
        }
    }

    /// The context to send now, if one is due.
    fn ask(&mut self, now: Time, slot: usize, packet: &[u8]) -> Option<Context> {
        let stale = |context: &Context| now.since(context.at) >= CONTEXT_REFRESH_INTERVAL;
        let wants = match &self.known {
            None => self.seen >= MIN_FLOW_PACKETS,
            Some(known) => stale(known),
        };
        if !wants || now < self.due {
            return None;
        }
        // The same context until it is acknowledged: the other end keeps two, one of which may be
        // in use.
        let context = *self.pending.get_or_insert_with(|| {
            let number = self.next << 2 | slot as u8;
            self.next = (self.next + 1) & 0x3f;
            self.retries = 0;
            let header = Header::of(self.header.layout, packet);
            let at = now;
            Context { number, header, at }
        });
        self.retries += 1;
        self.due = match self.retries < MAX_FAST_RETRIES {
            true => now + MIN_CONTEXT_RETRY * (1 << (self.retries - 1)),
            false => now + CONTEXT_REFRESH_INTERVAL,
        };
        Some(context)
    }
}

/// Code of the width that a number needs: 0, 2, 3 or 4 bytes.
fn code(number: u32) -> u8 {
    match number {
        0 => 0,
        1..=0xffff => 1,
        0x1_0000..=0xff_ffff => 2,
        _ => 3,
    }
}

fn write(known: &Context, widths: &mut FieldWidths, packet: &[u8], out: &mut Vec<u8>) {
    let (layout, base) = (known.header.layout, known.header.as_bytes());
    let start = layout.ip();
    if layout.is_v4 && read16(packet, 4) != read16(base, 4) {
        widths.said |= bit::ID;
    }
    let mut first = layout.ecn(packet) << bit::ECN_SHIFT;
    let counters = layout.counters();
    let counters = &counters[..layout.count()];
    let mut lengths = 0;
    if layout.is_tcp {
        let flags = packet[start + 13];
        if read16(packet, start + 14) != read16(base, start + 14) {
            widths.said |= bit::WINDOW;
        }
        first |= match flags & !flag::PSH {
            flag::ACK if flags & flag::PSH != 0 => bit::PSH,
            flag::ACK => 0,
            _ => bit::FLAGS,
        };
        for (at, widths) in counters.iter().zip(&mut widths.counters) {
            let more = read32(packet, *at).wrapping_sub(read32(base, *at));
            *widths = code(more).max(*widths);
        }
        lengths = widths
            .counters
            .iter()
            .fold(0, |bits, code| bits << 2 | code);
    }
    first |= widths.said;
    out.extend_from_slice(&[first, known.number]);
    if layout.is_tcp {
        out.push(lengths);
        if first & bit::FLAGS != 0 {
            out.push(packet[start + 13]);
        }
        if first & bit::WINDOW != 0 {
            out.extend_from_slice(&packet[start + 14..start + 16]);
        }
    }
    if first & bit::ID != 0 {
        out.extend_from_slice(&packet[4..6]);
    }
    for (at, code) in counters.iter().zip(widths.counters) {
        let more = read32(packet, *at).wrapping_sub(read32(base, *at));
        let bytes = if code == 0 { 0 } else { usize::from(code) + 1 };
        out.extend_from_slice(&more.to_be_bytes()[4 - bytes..]);
    }
    let sum = layout.checksum();
    out.extend_from_slice(&packet[sum..sum + 2]);
    out.extend_from_slice(&packet[layout.len()..]);
}
