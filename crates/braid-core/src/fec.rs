//! Making up for loss without asking: sums of the last packets stand in for whatever is missing.
//!
//! A copy that is asked for takes a round trip, for which its lane waits; that ends a young TCP
//! flow's slow start, and CUBIC then needs ten seconds to fill a bond. Sums follow the packets at
//! once.
//!
//! - Every `k` packets of a lane a sum goes out ([`spacing`]: by the loss, so that one sum in three
//!   has something to make up for) over the last [`SYMBOLS_PER_PACKET`] · `k` of them: a *sliding window*. Of a
//!   plain sum over `k` packets two lost ones are too many, which at 2 % of loss happens seven times
//!   a second; here the next sum solves them, some milliseconds later (RFC 8681 reasons likewise).
//! - So the sums of a window must differ: packet `i` of a sum is multiplied by 2^(`power` · `i`) in
//!   GF(2⁸) ([`field`]), with another `power` for each of [`SYMBOLS_PER_PACKET`] sums in a row. Power 0 is XOR.
//! - A sum is used once everything sent before it has arrived or is lost: what is only on its way
//!   need not be computed.
//! - A *young* lane gets its sums closer and sooner, from what the links have to spare, also while
//!   nobody knows yet whether they lose ([`FecController`]).
//! - The sum says how many packets it covers: it can overtake them, and the sum over a wrong number
//!   of packets yields a plausible wrong one.
//! - The sums themselves are made and taken apart by whoever knows the bytes: here packets are
//!   collected, counted, and told how to be combined.

mod controller;
mod decoder;
mod encoder;
pub mod field;

use crate::{LaneId, LaneSeq};

pub use controller::{FecController, FecRate};
pub use decoder::{Decoder, Rebuild};
pub use encoder::Encoder;

/// Lost packets for each sum, on average: more, and windows with too many become frequent.
const LOSSES_PER_SYMBOL: f64 = 0.33;

/// Fewest and most packets from one sum to the next.
const MIN_SPACING: usize = 4;
const MAX_SPACING: usize = 32;

/// Loss below this is left to repair.
pub const MIN_FEC_LOSS: f64 = 0.002;

/// Each packet is in so many sums.
pub const SYMBOLS_PER_PACKET: usize = 4;

/// Packets from one sum to the next at this loss, 0 to 1; none where sums are not worth it.
#[must_use]
pub fn spacing(loss: f64) -> Option<usize> {
    if loss < MIN_FEC_LOSS {
        return None;
    }
    Some(((LOSSES_PER_SYMBOL / loss) as usize).clamp(MIN_SPACING, MAX_SPACING))
}

/// Consecutive packets of a lane, and what they are multiplied by in their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The lane.
    pub lane: LaneId,
    /// The first one's number.
    pub first: LaneSeq,
    /// How many, at least 2.
    pub count: u8,
    /// Packet `i` from the first on is multiplied by 2^(`power` · `i`).
    pub power: u8,
}

impl Group {
    /// What the packet of this number is multiplied by; none if it is not covered.
    #[must_use]
    pub fn factor(&self, seq: LaneSeq) -> Option<u8> {
        let index = seq.0.checked_sub(self.first.0)?;
        let covered = index < u64::from(self.count);
        covered.then(|| field::power_of_two(u64::from(self.power) * index))
    }

    /// One more than the last number.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first.0 + u64::from(self.count)
    }
}
