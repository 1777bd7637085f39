//! The receiving end.

use braid_multipath::{LANES, LaneId};
use braid_packet::checksum;

use super::{
    CONTEXTS_PER_LANE, Header, HeaderLayout, MAX_HEADER_BYTES, bit, flag, read32, slot_of,
};
use crate::proto::frame::{FrameError, HeaderContext};
use crate::proto::reader::Reader;
use crate::proto::reassembly::MAX_PACKET_BYTES;

/// Largest step between two numbers of a slot for which the higher one is the newer.
const MAX_STEPS_AHEAD: u8 = 32;

/// Result of handling a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextOutcome {
    /// The context is known.
    Known,
    /// It is older than the known one, differs from the known one of its number, or is not a valid
    /// header.
    Refused,
}

/// The newest context of a slot, and the previous one: packets that refer to it may be in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    newest: Option<(u8, Header)>,
    before: Option<(u8, Header)>,
}

/// Decompresses the packets of one direction of a tunnel.
#[derive(Debug, Default)]
pub struct Decompressor {
    /// Slots by lane; empty before the first context.
    slots: Vec<Slot>,
}

impl Decompressor {
    /// Handles a context.
    pub fn handle_context(&mut self, context: &HeaderContext<'_>) -> ContextOutcome {
        let layout = HeaderLayout::of(context.content);
        let Some(layout) = layout.filter(|layout| layout.len() == context.content.len()) else {
            return ContextOutcome::Refused;
        };
        if self.slots.is_empty() {
            self.slots = vec![Slot::default(); LANES * CONTEXTS_PER_LANE];
        }
        let index = usize::from(context.lane) * CONTEXTS_PER_LANE + slot_of(context.number);
        let slot = &mut self.slots[index];
        if let Some(known) = slot.find(context.number) {
            return match known.as_bytes() == context.content {
                true => ContextOutcome::Known,
                false => ContextOutcome::Refused,
            };
        }
        let ahead = |newest: u8| (context.number >> 2).wrapping_sub(newest >> 2) & 0x3f;
        if slot
            .newest
            .is_some_and(|(newest, _)| ahead(newest) > MAX_STEPS_AHEAD)
        {
            return ContextOutcome::Refused;
        }
        slot.before = slot.newest;
        slot.newest = Some((context.number, Header::of(layout, context.content)));
        ContextOutcome::Known
    }

    /// Decompresses a packet of this lane into `out`.
    ///
    /// # Errors
    /// The number of the unknown context that it refers to, or none if it is malformed. The
    /// contents of `out` are undefined then.
    pub fn decompress(
        &self,
        lane: LaneId,
        packet: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Option<u8>> {
        let number = *packet.get(1).ok_or(None)?;
        let slot = self
            .slots
            .get(lane.index() * CONTEXTS_PER_LANE + slot_of(number));
        let header = slot.and_then(|slot| slot.find(number));
        let header = header.ok_or(Some(number))?;
        decompress(header, packet, out).map_err(|_| None)
    }
}

impl Slot {
    fn find(&self, number: u8) -> Option<&Header> {
        let known = [&self.newest, &self.before].into_iter().flatten();
        let mut known = known.filter(|(known, _)| *known == number);
        known.next().map(|(_, header)| header)
    }
}

fn decompress(base: &Header, packet: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
    let layout = base.layout;
    let (start, size) = (layout.ip(), layout.len());
    let reader = &mut Reader::new(packet);
    let first = reader.u8()?;
    let _number = reader.u8()?;
    let has = |bit: u8| first & bit != 0;
    let (tcp_bits, tcp) = (bit::PSH | bit::FLAGS | bit::WINDOW, layout.is_tcp);
    let both = has(bit::PSH) && has(bit::FLAGS);
    if (!tcp && has(tcp_bits)) || (!layout.is_v4 && has(bit::ID)) || both {
        return Err(FrameError::Range);
    }
    let mut header = [0; MAX_HEADER_BYTES];
    header[..size].copy_from_slice(base.as_bytes());
    let mut lengths = 0;
    if tcp {
        lengths = reader.u8()?;
        header[start + 13] = match has(bit::FLAGS) {
            true => reader.u8()?,
            false if has(bit::PSH) => flag::ACK | flag::PSH,
            false => flag::ACK,
        };
        if has(bit::WINDOW) {
            header[start + 14..start + 16].copy_from_slice(reader.take(2)?);
        }
    }
    if has(bit::ID) {
        header[4..6].copy_from_slice(reader.take(2)?);
    }
    let counters = layout.counters();
    for (index, at) in counters.into_iter().enumerate() {
        let code = lengths >> (6 - 2 * index) & 3;
        if index >= layout.count() {
            if code != 0 {
                return Err(FrameError::Range);
            }
            continue;
        }
        let bytes = if code == 0 { 0 } else { usize::from(code) + 1 };
        let more = reader.take(bytes)?;
        let more = more
            .iter()
            .fold(0, |more, byte| more << 8 | u32::from(*byte));
        let counted = read32(&header, at).wrapping_add(more);
        header[at..at + 4].copy_from_slice(&counted.to_be_bytes());
    }
    let sum = layout.checksum();
    header[sum..sum + 2].copy_from_slice(reader.take(2)?);
    let payload = reader.take_rest();
    let length = size + payload.len();
    let ecn = (first & bit::ECN) >> bit::ECN_SHIFT;
    let (at, counted) = match layout.is_v4 {
        true => {
            header[1] = header[1] & !3 | ecn;
            (2, length)
        }
        false => {
            header[1] = header[1] & !(3 << 4) | ecn << 4;
            (4, length - start)
        }
    };
    if length > MAX_PACKET_BYTES {
        return Err(FrameError::Range);
    }
    header[at..at + 2].copy_from_slice(&(counted as u16).to_be_bytes());
    if !tcp {
        let own = (length - start) as u16;
        header[start + 4..start + 6].copy_from_slice(&own.to_be_bytes());
    }
    if layout.is_v4 {
        header[10..12].fill(0);
        let sum = checksum::of(&header[..20]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    out.extend_from_slice(&header[..size]);
    out.extend_from_slice(payload);
    Ok(())
}
