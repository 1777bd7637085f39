//! Packet schedulers: choose the link for the next packet.
//!
//! The trait [`Scheduler`] has three implementations:
//!
//! - [`Weighted`]: static weighted round robin in bursts (\[mpsdn\] §III-C), for a trusted network
//!   of known rates. With wrong weights it is slower than the better link alone.
//! - [`Overflow`]: \[l3b\] §3: fills the cheap link until it loses packets and sends the excess to
//!   the next. It needs no rates and pays with loss.
//! - [`Adaptive`]: earliest arrival over measured links; the default.
//!
//! A scheduler sees links as [`LinkView`]s, which the owner of pacers and estimators fills in, and
//! the packet at the head of the queue. It is asked once per run of packets and never touches one.

mod adaptive;
mod overflow;
mod round_robin;
mod weighted;

use braid_core::{Bytes, Rate, Time};

use crate::{LinkId, RelativeDelay};

pub use adaptive::{Adaptive, Tuning};
pub use overflow::{Overflow, Parameters, ParametersError};
pub use weighted::{BURST_PACKETS, Weighted};

/// A link, as a scheduler sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkView {
    /// Link id.
    pub id: LinkId,
    /// Cost tier: dearer links carry only what cheaper ones cannot.
    pub tier: u8,
    /// True if it may carry data now; a suspect link may not.
    pub usable: bool,
    /// When its pacer releases the next packet; none if its window is full until a report arrives.
    pub ready: Option<Time>,
    /// Send rate.
    pub rate: Rate,
    /// One-way delay, queue included.
    pub delay: RelativeDelay,
    /// One-way delay without the queue.
    pub base: RelativeDelay,
}

/// Delivery class of an inner packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Class {
    /// In order within its lane.
    #[default]
    Ordered,
    /// As soon as possible, on the link with the lowest delay.
    Unordered,
    /// On two links; the first arrival counts.
    Redundant,
    /// On one link as long as that suffices, so that it cannot be reordered.
    Pinned,
}

/// The packet at the head of the queue, and the queue behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Size on the wire.
    pub len: Bytes,
    /// Bytes in the queue, this packet included.
    pub backlog: Bytes,
    /// Delivery class.
    pub class: Class,
    /// Link of its flow, for [`Class::Pinned`].
    pub pin: Option<LinkId>,
    /// Link that it must not use, because its first copy did.
    pub except: Option<LinkId>,
}

/// Decision about the head of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Give this link the head, and more from the queue up to `run` bytes in all.
    Send {
        /// The link.
        link: LinkId,
        /// At least the head's size.
        run: Bytes,
    },
    /// Nothing may be sent yet. Ask again at this time; if none, after the next report.
    Wait(Option<Time>),
}

/// Result of a report interval for one link (\[l3b\] §3).
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
    /// Chooses the link for the head of the queue. `links` are in ascending order of id.
    fn choose(&mut self, now: Time, head: &Head, links: &[LinkView]) -> Choice;

    /// Takes the results of a report interval; see [`interval`](Self::interval).
    fn handle_interval(&mut self, _now: Time, _intervals: &[Interval]) {}

    /// Returns the interval of [`handle_interval`](Self::handle_interval); none for never.
    fn interval(&self) -> Option<std::time::Duration> {
        None
    }

    /// Returns the difference in base delay beyond which a slower link is left to flows that wait
    /// for it; none if no link is left out.
    fn reorder_budget(&self) -> Option<std::time::Duration> {
        None
    }

    /// Returns true if links are paced and limited by their estimates. A scheduler that learns from
    /// loss must be able to overfill a link, or it learns nothing.
    fn is_paced(&self) -> bool {
        true
    }
}
