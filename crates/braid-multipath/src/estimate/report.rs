//! Report of a link's receiving end to its sending end.

use std::time::Duration;

use braid_core::{Bytes, Rate, Time};

use crate::{LinkId, PacketNumber, RelativeDelay, Stamp};

/// Interval of reports while packets arrive: short enough to follow a mobile link, long enough to
/// cost under 1 % of a slow one.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(25);

/// A report is due earlier after this many packets, if 5 ms have passed.
pub const REPORT_PACKETS: u32 = 64;

/// Arrivals on one link. Totals count since the session began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkReport {
    /// The link reported on; the report may have travelled on another.
    pub link: LinkId,
    /// Highest packet number that arrived.
    pub highest: PacketNumber,
    /// Stamp of that packet, as received.
    pub echo: Stamp,
    /// Age of that packet when the report was made; not part of the round trip.
    pub held: Duration,
    /// Arrival of the last packet, on the receiver's clock. Only differences matter.
    pub received_at: Time,
    /// Packets that arrived, without duplicates.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: Bytes,
    /// Packets counted as lost, less those that arrived after all.
    pub lost: u64,
    /// Lowest delay since the last report, so that the sender's own bursts do not look like a
    /// queue.
    pub delay: RelativeDelay,
    /// Mean deviation of the delay between neighbours (RFC 3550 §6.4.1).
    pub jitter: Duration,
    /// Delivered rate of the longest packet train since the last report; none if there was none. A
    /// train is packets sent back to back, recognised by their stamps. It is a hint for a link of
    /// unknown rate.
    pub train: Option<Rate>,
}
