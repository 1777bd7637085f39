//! Forward error correction (FEC): repair symbols over the last packets replace lost ones without a
//! request.
//!
//! A retransmission takes a round trip, for which its lane waits. That wait ends a young TCP flow's
//! slow start, and CUBIC then needs ten seconds to fill a bond. Repair symbols follow the packets
//! at once.
//!
//! - After every `k` packets of a lane a repair symbol is sent ([`spacing`] derives `k` from the
//!   loss, so that one symbol in three is needed). It covers the last [`SYMBOLS_PER_PACKET`] · `k`
//!   packets: a *sliding window*. A symbol over `k` packets alone would fail for two lost ones,
//!   which happens seven times a second at 2 % loss; here the next symbol solves them some
//!   milliseconds later (RFC 8681 reasons likewise).
//! - The symbols of a window must therefore differ: packet `i` of a symbol is multiplied by
//!   2^(`power` · `i`) in GF(2⁸) ([`field`]), with a different `power` for each of
//!   [`SYMBOLS_PER_PACKET`] symbols in a row. Power 0 is XOR.
//! - A symbol is used once every packet sent before it has arrived or is lost: a packet that is
//!   only delayed need not be rebuilt.
//! - A *young* lane gets its symbols closer together and sooner, from the links' spare capacity,
//!   also while their loss is not known yet ([`FecController`]).
//! - A symbol says how many packets it covers. It can overtake them, and a sum over the wrong
//!   number of packets yields a plausible wrong one.
//! - The caller knows the bytes and makes and solves the symbols. This module collects packets,
//!   counts them, and says how to combine them.

mod controller;
mod decoder;
mod encoder;
pub mod field;

use crate::{LaneId, LaneSeq};

pub use controller::{FecController, FecRate};
pub use decoder::{Decoder, Rebuild};
pub use encoder::Encoder;

/// Mean losses per repair symbol. With more, windows with too many losses become frequent.
const LOSSES_PER_SYMBOL: f64 = 0.33;

/// Fewest and most packets between two repair symbols.
const MIN_SPACING: usize = 4;
const MAX_SPACING: usize = 32;

/// Loss below this is left to retransmission.
pub const MIN_FEC_LOSS: f64 = 0.002;

/// Repair symbols that cover each packet.
pub const SYMBOLS_PER_PACKET: usize = 4;

/// Returns the packets between two repair symbols at this loss, 0 to 1; none if FEC is not worth
/// it.
#[must_use]
pub fn spacing(loss: f64) -> Option<usize> {
    if loss < MIN_FEC_LOSS {
        return None;
    }
    Some(((LOSSES_PER_SYMBOL / loss) as usize).clamp(MIN_SPACING, MAX_SPACING))
}

/// Consecutive packets of a lane that a repair symbol covers, and their factors: an encoding window
/// of RFC 8681.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The lane.
    pub lane: LaneId,
    /// Number of the first packet.
    pub first: LaneSeq,
    /// Count of packets, at least 2.
    pub count: u8,
    /// Packet `i` from the first on is multiplied by 2^(`power` · `i`).
    pub power: u8,
}

impl Group {
    /// Returns the factor of the packet of this number; none if it is not covered.
    #[must_use]
    pub fn factor(&self, seq: LaneSeq) -> Option<u8> {
        let index = seq.0.checked_sub(self.first.0)?;
        let covered = index < u64::from(self.count);
        covered.then(|| field::power_of_two(u64::from(self.power) * index))
    }

    /// Returns one more than the last number.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first.0 + u64::from(self.count)
    }
}
