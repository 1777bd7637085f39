//! Estimates of a link's capacity, delay and loss: measured, never configured.
//!
//! The receiving end records the packets of a link ([`Arrivals`]) and sends a [`LinkReport`] every
//! [`REPORT_INTERVAL`] or [`REPORT_PACKETS`]. A report goes over *every* link, because the link
//! that it is about may be the one that fails. The sending end derives from the reports what
//! schedulers and pacers need ([`LinkEstimator`]).
//!
//! - Counters in reports are totals since the session began: a lost report costs only time.
//! - One-way delays are relative ([`RelativeDelay`](crate::RelativeDelay)): clocks are never
//!   synchronised. A *rise* above the minimum of the last [`RECENT_MIN_WINDOW`] is the queue on the
//!   link (RFC 6817).
//! - A rate is proven by the packets that arrived, never by the packets sent ([`Capacity`]): packet
//!   trains and optimism overestimate, and one overestimated link starves the others.
//! - A *stall* is no queue. A link that delivers nothing for 40 ms or more and then everything at
//!   once has a mean for its rate and a window for its limit (module `stall`).
//! - The delay around a loss tells random from congestive loss ([`LossEstimator`]). A sender that
//!   slows down for radio loss wastes the link; one that does not slow down for congestion floods
//!   it.
//! - The reordering of each link is learned ([`ReorderExtent`]): radio jitter is not taken for
//!   loss, and a gap on a wire is a loss at once.

mod arrivals;
mod capacity;
mod link;
mod loss;
mod persistent_delay;
mod policer;
mod recent_min;
mod reorder;
mod report;
mod rtt;
mod sent;
mod stall;
mod train;

pub use arrivals::{Arrival, Arrivals, NumberRange};
pub use capacity::{Capacity, Demand, Queue, Sample};
pub use link::LinkEstimator;
pub use loss::LossEstimator;
pub use recent_min::{RECENT_MIN_WINDOW, RecentMin};
pub use reorder::ReorderExtent;
pub use report::{LinkReport, REPORT_INTERVAL, REPORT_PACKETS};
pub use rtt::Rtt;
pub use sent::{SentAt, SentLog};
