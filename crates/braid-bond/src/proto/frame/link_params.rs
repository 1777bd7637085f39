//! LINK_PARAMS: how its receiver is to use the link that it comes on.
//!
//! ```text
//! type 0x0a · tier 8 · flags 8 · cap varint
//! ```
//! Only the client knows the costs of its uplinks, and the hub sends most of the traffic: so the
//! client sends the parameters, and the hub's scheduler uses them. Flag 1: the link must carry no
//! data, because its quota is used up; other flags are zero. `cap` is in kbit/s, zero for no limit.

use super::{FrameError, kind};
use crate::proto::reader::Reader;
use crate::proto::varint;
use braid_core::Rate;

/// Flag: the link's quota is used up, so it must carry no data.
const SPENT: u8 = 1;

/// Largest cap: 1 Tbit/s.
const MAX_CAP_KBIT_S: u64 = 1_000_000_000;

/// Parameters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkParams {
    /// Cost class: links of a higher tier carry only what links of lower tiers cannot.
    pub tier: u8,
    /// True if its quota is used up: it must carry no data.
    pub spent: bool,
    /// Maximum send rate, kbit/s; zero means no limit.
    pub cap: u32,
}

impl LinkParams {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let tier = reader.u8()?;
        let flags = reader.u8()?;
        let cap = varint::parse_u32(reader)?;
        if flags & !SPENT != 0 || u64::from(cap) > MAX_CAP_KBIT_S {
            return Err(FrameError::Range);
        }
        let spent = flags & SPENT != 0;
        Ok(LinkParams { tier, spent, cap })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[kind::LINK_PARAMS, self.tier, u8::from(self.spent)]);
        varint::append(u64::from(self.cap).min(MAX_CAP_KBIT_S), out);
    }

    /// The cap as a rate.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        let bits = u64::from(self.cap) * 1000;
        (bits > 0).then(|| Rate::from_bits_per_sec(bits))
    }

    /// The wire value of a rate; a limit below 1 kbit/s becomes 1 kbit/s.
    #[must_use]
    pub fn cap_of(rate: Option<Rate>) -> u32 {
        let kilobits = |rate: Rate| (rate.bits_per_sec() / 1000).clamp(1, MAX_CAP_KBIT_S) as u32;
        rate.map_or(0, kilobits)
    }
}
