//! The sending end.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Header, IDLE, PLACES, Shape, bit, flag, place_of, read16, read32};
use crate::proto::frame::HeaderContext;
use braid_core::{LANES, LaneId, Time};

/// A flow is told of with this packet: shorter ones would not pay for it.
const WORTH: u32 = 4;

/// A context is told of again, as it is by then, after so long: what counts up is then small again.
const REFRESH: Duration = Duration::from_secs(30);

/// First repetition of a context that the other end has not spoken of, doubled each time.
const REPEAT: Duration = Duration::from_millis(200);

/// After so many it is repeated every [`REFRESH`].
const REPEATS: u32 = 5;

/// Contexts that wait to be told of; more are told of later.
const MOST_WAITING: usize = 64;

/// What compression came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Packets that went compressed.
    pub packets: u64,
    /// Bytes that they are shorter.
    pub bytes: u64,
}

/// Context that the other end has been told of, or is being told of.
#[derive(Clone, Copy, Debug)]
struct Told {
    number: u8,
    header: Header,
    at: Time,
}

/// The longest that fields were by a context.
#[derive(Clone, Copy, Debug, Default)]
struct Longest {
    /// Codes of the four lengths.
    counters: [u8; 4],
    /// Bits of the first byte.
    said: u8,
}

#[derive(Debug)]
struct Flow {
    header: Header,
    known: Option<Told>,
    longest: Longest,
    asking: Option<Told>,
    repeats: u32,
    due: Time,
    seen: u32,
    used: Time,
    /// The upper six bits of the next number of this place.
    next: u8,
}

/// Compresses the packets of a tunnel's direction.
#[derive(Debug)]
pub struct Compressor {
    /// By lane; places in each.
    lanes: Vec<Vec<Flow>>,
    waiting: VecDeque<(LaneId, Header, u8)>,
    saved: Saved,
}

impl Default for Compressor {
    fn default() -> Self {
        Compressor {
            lanes: (0..LANES).map(|_| Vec::new()).collect(),
            waiting: VecDeque::new(),
            saved: Saved::default(),
        }
    }
}

impl Compressor {
    /// Writes a packet of this lane to `out`, compressed; `false` if it is to go as it is.
    pub fn compress(&mut self, now: Time, lane: LaneId, packet: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(shape) = Shape::of_whole(packet) else {
            return false;
        };
        let Some(place) = self.place(now, lane, shape, packet) else {
            return false;
        };
        let flow = &mut self.lanes[lane.index()][place];
        flow.used = now;
        flow.seen = flow.seen.saturating_add(1);
        if let Some(told) = flow.ask(now, place, packet)
            && self.waiting.len() < MOST_WAITING
        {
            self.waiting.push_back((lane, told.header, told.number));
        }
        let Some(known) = &flow.known else {
            return false;
        };
        let before = out.len();
        write(known, &mut flow.longest, packet, out);
        self.saved.packets += 1;
        self.saved.bytes += (packet.len() - (out.len() - before)) as u64;
        true
    }

    /// The place of a packet's flow in its lane; none if all are taken by others.
    fn place(&mut self, now: Time, lane: LaneId, shape: Shape, packet: &[u8]) -> Option<usize> {
        let flows = &mut self.lanes[lane.index()];
        let is_it = |flow: &Flow| {
            flow.header.shape == shape && shape.is_same_flow(flow.header.as_bytes(), packet)
        };
        if let Some(place) = flows.iter().position(is_it) {
            return Some(place);
        }
        let header = Header::of(shape, packet);
        if flows.len() < PLACES {
            flows.push(Flow::new(now, header, 0));
            return Some(flows.len() - 1);
        }
        let idle = |flow: &Flow| now.since(flow.used) >= IDLE;
        let place = flows.iter().position(idle)?;
        flows[place] = Flow::new(now, header, flows[place].next);
        Some(place)
    }

    /// The next context that the other end is to be told of.
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

    /// Whether the other end is to be told of anything.
    #[must_use]
    pub fn has_context(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The other end has a context, or has not.
    pub fn handle_heard(&mut self, lane: LaneId, number: u8, has: bool) {
        let Some(flow) = self.lanes[lane.index()].get_mut(place_of(number)) else {
            return;
        };
        let is_it = |told: &Told| told.number == number;
        if has && flow.asking.as_ref().is_some_and(is_it) {
            flow.known = flow.asking.take();
            flow.longest = Longest::default();
        } else if !has {
            flow.known = flow.known.take().filter(|told| !is_it(told));
        }
    }

    /// What it came to so far.
    #[must_use]
    pub fn saved(&self) -> Saved {
        self.saved
    }
}

impl Flow {
    fn new(now: Time, header: Header, next: u8) -> Flow {
        Flow {
            header,
            known: None,
            longest: Longest::default(),
            asking: None,
            repeats: 0,
            due: now,
            seen: 0,
            used: now,
            next,
        }
    }

    /// What the other end is to be told now.
    fn ask(&mut self, now: Time, place: usize, packet: &[u8]) -> Option<Told> {
        let stale = |told: &Told| now.since(told.at) >= REFRESH;
        let wants = match &self.known {
            None => self.seen >= WORTH,
            Some(known) => stale(known),
        };
        if !wants || now < self.due {
            return None;
        }
        // The same one until it is heard: the other end keeps two, one of which may be in use.
        let told = *self.asking.get_or_insert_with(|| {
            let number = self.next << 2 | place as u8;
            self.next = (self.next + 1) & 0x3f;
            self.repeats = 0;
            let header = Header::of(self.header.shape, packet);
            let at = now;
            Told { number, header, at }
        });
        self.repeats += 1;
        self.due = match self.repeats < REPEATS {
            true => now + REPEAT * (1 << (self.repeats - 1)),
            false => now + REFRESH,
        };
        Some(told)
    }
}

/// A number as the code of its length says: in 0, 2, 3 or 4 bytes.
fn code(number: u32) -> u8 {
    match number {
        0 => 0,
        1..=0xffff => 1,
        0x1_0000..=0xff_ffff => 2,
        _ => 3,
    }
}

fn write(known: &Told, longest: &mut Longest, packet: &[u8], out: &mut Vec<u8>) {
    let (shape, base) = (known.header.shape, known.header.as_bytes());
    let start = shape.ip();
    if shape.is_v4 && read16(packet, 4) != read16(base, 4) {
        longest.said |= bit::ID;
    }
    let mut first = shape.ecn(packet) << bit::ECN_SHIFT;
    let counters = shape.counters();
    let counters = &counters[..shape.count()];
    let mut lengths = 0;
    if shape.is_tcp {
        let flags = packet[start + 13];
        if read16(packet, start + 14) != read16(base, start + 14) {
            longest.said |= bit::WINDOW;
        }
        first |= match flags & !flag::PSH {
            flag::ACK if flags & flag::PSH != 0 => bit::PSH,
            flag::ACK => 0,
            _ => bit::FLAGS,
        };
        for (at, longest) in counters.iter().zip(&mut longest.counters) {
            let more = read32(packet, *at).wrapping_sub(read32(base, *at));
            *longest = code(more).max(*longest);
        }
        lengths = longest
            .counters
            .iter()
            .fold(0, |bits, code| bits << 2 | code);
    }
    first |= longest.said;
    out.extend_from_slice(&[first, known.number]);
    if shape.is_tcp {
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
    for (at, code) in counters.iter().zip(longest.counters) {
        let more = read32(packet, *at).wrapping_sub(read32(base, *at));
        let bytes = if code == 0 { 0 } else { usize::from(code) + 1 };
        out.extend_from_slice(&more.to_be_bytes()[4 - bytes..]);
    }
    let sum = shape.checksum();
    out.extend_from_slice(&packet[sum..sum + 2]);
    out.extend_from_slice(&packet[shape.len()..]);
}
