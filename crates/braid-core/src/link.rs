//! What a bond counts by: its links, each link's own packets, its lanes, and the sender's stamps.

use std::fmt;
use std::time::Duration;

use crate::Time;

/// Most links of one bond.
pub const MAX_LINKS: usize = 32;

/// Lanes of a bond. Inner flows are hashed onto them, so that a lost packet holds up its own flow
/// and not the tunnel.
pub const LANES: usize = 256;

/// One link of a bond, `0..MAX_LINKS`; both ends know it by this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u8);

impl LinkId {
    /// As arrays want it.
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

/// The number of a packet on its link: 0, 1, 2 … without holes, data or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PacketNumber(pub u64);

/// A lane of a bond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LaneId(pub u8);

impl LaneId {
    /// The lane of a flow, by its hash.
    #[must_use]
    pub fn of(flow: u32) -> LaneId {
        LaneId((flow % LANES as u32) as u8)
    }

    /// As arrays want it.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The number of an inner packet in its lane: 0, 1, 2 … without holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LaneSeq(pub u64);

/// The sender's clock in microseconds since an origin of its own, read when a packet was given to
/// its link. Over all packets of a sender it never decreases, so it tells the receiver two things:
/// of any two packets on any two links, which was sent later; and how one-way delays compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(pub u64);

impl Stamp {
    /// The stamp of an instant of the sender's clock.
    #[must_use]
    pub fn of(now: Time) -> Stamp {
        Stamp(now.as_nanos() / 1_000)
    }
}

/// A one-way delay plus the unknown difference of the two ends' clocks, in microseconds.
///
/// It means nothing alone and may be negative. Differences between two of one session do mean
/// something, also between two of different links, because the two clocks are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RelativeDelay(pub i64);

impl RelativeDelay {
    /// Of a packet stamped `sent` that arrived `now`.
    #[must_use]
    pub fn of(sent: Stamp, now: Time) -> RelativeDelay {
        let arrived = i64::try_from(now.as_nanos() / 1_000).unwrap_or(i64::MAX);
        RelativeDelay(arrived.saturating_sub(i64::try_from(sent.0).unwrap_or(i64::MAX)))
    }

    /// How much longer this is than `other`; zero if it is not.
    #[must_use]
    pub fn over(self, other: RelativeDelay) -> Duration {
        let more = self.0.saturating_sub(other.0).max(0);
        Duration::from_micros(more.unsigned_abs())
    }

    /// Longer by `span`.
    #[must_use]
    pub fn plus(self, span: Duration) -> RelativeDelay {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        RelativeDelay(self.0.saturating_add(micros))
    }
}
