//! Which link takes the next packet.
//!
//! One trait, [`Scheduler`], three ways:
//!
//! - [`Weighted`]: static weighted round robin in bursts (\[mpsdn\] §III-C). For a trusted network
//!   whose rates are known; with wrong weights it is slower than the better link alone.
//! - [`Overflow`]: \[l3b\] §3: the cheap link is filled until it loses packets, the excess goes to the
//!   next. Needs no rates, pays with loss.
//! - [`Adaptive`]: earliest arrival over measured links; the default.
//!
//! A scheduler sees links as [`LinkView`]s, which whoever owns pacers and estimators fills in, and
//! the packet at the head of the queue. It is asked again for every run of packets, and never
//! touches one.

mod adaptive;
mod overflow;
mod round_robin;
mod weighted;

use crate::{Bytes, LinkId, Rate, RelativeDelay, Time};

pub use adaptive::{Adaptive, Tuning};
pub use overflow::{Overflow, Parameters, ParametersError};
pub use weighted::{BURST_PACKETS, Weighted};

/// A link, as a scheduler sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkView {
    /// Which.
    pub id: LinkId,
    /// What it costs: dearer links carry only what cheaper ones cannot.
    pub tier: u8,
    /// Whether it may carry data now; a suspect link may not.
    pub usable: bool,
    /// When its pacer lets the next packet go; none if nothing more may be in flight until a report
    /// comes.
    pub ready: Option<Time>,
    /// What it is sent at.
    pub rate: Rate,
    /// One-way delay, queue included.
    pub delay: RelativeDelay,
    /// One-way delay without the queue.
    pub base: RelativeDelay,
}

/// What an inner packet asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Class {
    /// In order within its lane.
    #[default]
    Ordered,
    /// As soon as possible, on the link with the lowest delay.
    Unordered,
    /// On two links; the first to arrive counts.
    Redundant,
    /// On one link as long as that suffices, so that no order can be lost.
    Pinned,
}

/// The packet at the head of the queue, and what stands behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Its size on the wire.
    pub len: Bytes,
    /// All that waits, this packet included.
    pub backlog: Bytes,
    /// What it asks for.
    pub class: Class,
    /// The link that its flow is on, for [`Class::Pinned`].
    pub pin: Option<LinkId>,
    /// A link that it must not take, because its first copy did.
    pub except: Option<LinkId>,
}

/// What to do with the head of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Give this link the head, and more from the queue up to `run` bytes in all.
    Send {
        /// The link.
        link: LinkId,
        /// At least the head's size.
        run: Bytes,
    },
    /// Nothing may go yet. Ask again at that time, or after the next report if there is none.
    Wait(Option<Time>),
}

/// What a report interval brought for one link (\[l3b\] §3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// The link.
    pub link: LinkId,
    /// Packets sent on it since the last interval.
    pub sent: u64,
    /// Packets reported lost since the last interval.
    pub lost: u64,
}

/// Chooses links.
pub trait Scheduler: std::fmt::Debug + Send {
    /// Where the head of the queue goes. `links` are in ascending order of id.
    fn choose(&mut self, now: Time, head: &Head, links: &[LinkView]) -> Choice;

    /// Takes what an interval of [`interval`](Self::interval) brought.
    fn handle_interval(&mut self, _now: Time, _intervals: &[Interval]) {}

    /// How often it wants [`handle_interval`](Self::handle_interval); never, if none.
    fn interval(&self) -> Option<std::time::Duration> {
        None
    }

    /// Whether links are paced and capped by what was measured of them. A scheduler that learns
    /// from loss must be let to overfill a link, or it learns nothing.
    fn is_paced(&self) -> bool {
        true
    }
}
