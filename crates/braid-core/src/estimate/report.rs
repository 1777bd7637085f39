//! What the receiving end of a link tells the sending end.

use std::time::Duration;

use crate::{Bytes, LinkId, PacketNumber, Rate, RelativeDelay, Stamp, Time};

/// A report is due this long after the last, if anything arrived. Short enough to follow a mobile
/// link, long enough to cost under 1 % of a slow one.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(25);

/// A report is due after so many packets, if that comes first and 5 ms have passed.
pub const REPORT_PACKETS: u32 = 64;

/// What arrived on one link. Totals count since the session began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkReport {
    /// The link it speaks of; it may have travelled on another.
    pub link: LinkId,
    /// The highest packet number that arrived.
    pub highest: PacketNumber,
    /// That packet's stamp, as it was received.
    pub echo: Stamp,
    /// How long ago it arrived when the report was made; not part of the round trip.
    pub held: Duration,
    /// When the last packet arrived, on the receiver's clock. Only differences matter.
    pub received_at: Time,
    /// Packets that arrived, duplicates not counted.
    pub packets: u64,
    /// Their bytes, as counted on the wire.
    pub bytes: Bytes,
    /// Packets held for lost, less those that came after all.
    pub lost: u64,
    /// The lowest delay since the last report: bursts of our own do not look like a queue.
    pub delay: RelativeDelay,
    /// Mean deviation of the delay between neighbours (RFC 3550 §6.4.1).
    pub jitter: Duration,
    /// At what rate the longest train since the last report came in: packets sent as one, told by
    /// their stamps. None if there was none. A hint for a link of which nothing is known.
    pub train: Option<Rate>,
}
