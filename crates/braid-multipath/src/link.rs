//! Identifiers and numbers of a bond: links, packets of a link, lanes, send timestamps.

use std::fmt;
use std::time::Duration;

use braid_core::{Bytes, Time};

/// Most links of one bond.
pub const MAX_LINKS: usize = 32;

/// Difference of the links' base delays for which every packet is waited for. A link slower than
/// that is *far*: only flows whose packets it carries wait for it.
pub const REORDER_BUDGET: Duration = Duration::from_millis(80);

/// Lanes of a bond. Inner flows are hashed onto them, so that a lost packet holds up its own flow
/// and not the tunnel.
pub const LANES: usize = 256;

/// A link of a bond, `0..MAX_LINKS`; both ends use the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u8);

impl LinkId {
    /// Returns the number as an array index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a packet on its link: 0, 1, 2 … without gaps, data or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PacketNumber(pub u64);

/// A lane of a bond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LaneId(pub u8);

impl LaneId {
    /// Returns the lane of a flow hash.
    #[must_use]
    pub fn of(flow: u32) -> LaneId {
        LaneId((flow % LANES as u32) as u8)
    }

    /// Returns the number as an array index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Number of an inner packet in its lane: 0, 1, 2 … without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LaneSeq(pub u64);

/// Send timestamp: the sender's clock in microseconds since an origin of its own, read when a
/// packet is given to its link.
/// It never decreases over all packets of a sender, so it tells the receiver which of two packets
/// on any two links was sent later, and how one-way delays compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Returns the stamp of an instant of the sender's clock.
    #[must_use]
    pub fn of(now: Time) -> Stamp {
        Stamp(now.as_nanos() / 1_000)
    }
}

/// A packet of a link as its receiving end gets it.
#[derive(Debug, Clone, Copy)]
pub struct Incoming {
    /// Its number on the link.
    pub number: PacketNumber,
    /// Its send timestamp.
    pub stamp: Stamp,
    /// When it arrived, which is before now if it waited to be read.
    pub arrived: Time,
    /// Its size on the wire.
    pub len: Bytes,
    /// True if it asks for a report, as every packet does that holds more than a report.
    pub elicits: bool,
}

/// A one-way delay plus the unknown offset of the two ends' clocks, in microseconds.
///
/// It means nothing alone and may be negative. The difference of two values of one session is
/// meaningful, also between links, because the clocks are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RelativeDelay(pub i64);

impl RelativeDelay {
    /// Returns the delay of a packet stamped `sent` that arrived at `arrived`.
    #[must_use]
    pub fn of(sent: Stamp, arrived: Time) -> RelativeDelay {
        let arrived = i64::try_from(arrived.as_nanos() / 1_000).unwrap_or(i64::MAX);
        RelativeDelay(arrived.saturating_sub(i64::try_from(sent.0).unwrap_or(i64::MAX)))
    }

    /// Returns the stamp of a packet with this delay that arrived at `arrived`.
    #[must_use]
    pub fn sent(self, arrived: Time) -> Stamp {
        let arrived = i64::try_from(arrived.as_nanos() / 1_000).unwrap_or(i64::MAX);
        Stamp(arrived.saturating_sub(self.0).max(0).unsigned_abs())
    }

    /// Returns by how much this exceeds `other`; zero if it does not.
    #[must_use]
    pub fn over(self, other: RelativeDelay) -> Duration {
        let more = self.0.saturating_sub(other.0).max(0);
        Duration::from_micros(more.unsigned_abs())
    }

    /// Adds `span`.
    #[must_use]
    pub fn plus(self, span: Duration) -> RelativeDelay {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        RelativeDelay(self.0.saturating_add(micros))
    }
}
