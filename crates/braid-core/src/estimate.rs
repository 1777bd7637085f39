//! What a link can carry, how long it takes, and what it loses: measured, never typed in.
//!
//! The receiving end watches a link's packets arrive ([`Arrivals`]) and says what it saw in a
//! [`LinkReport`], every [`REPORT_INTERVAL`] or [`REPORT_PACKETS`], over *every* link, because the
//! link that a report speaks of may be the one that fails. The sending end makes of the reports
//! what schedulers and pacers ask for ([`LinkEstimator`]).
//!
//! - Counters in reports are totals since the session began: a lost report loses nothing but time.
//! - One-way delays are relative ([`RelativeDelay`](crate::RelativeDelay)): no clock is ever synchronised, a *rise*
//!   above the lowest of the last [`BASE_DELAY_WINDOW`] is the queue on the link ([`BaseDelay`]).
//! - A rate is proven by what arrived, never by what was sent ([`Capacity`]): trains and hopes
//!   overestimate, and one overestimated link starves the others.
//! - A *stall* is no queue: a link that delivers nothing for 40 ms and more, and then all at once, is rated by a mean and
//!   limited by a window (module `stall`).
//! - Loss is told apart into random and congestive by the delay around it ([`LossEstimator`]): who slows down
//!   for radio loss gives the link away, who does not for congestion floods it.
//! - How far a link reorders is learned ([`ReorderExtent`]), so that radio jitter is not taken for
//!   loss and a wire's gap is loss at once.

mod arrivals;
mod base_delay;
mod capacity;
mod link;
mod loss;
mod persistent_delay;
mod policer;
mod reorder;
mod report;
mod rtt;
mod sent;
mod stall;
mod train;

pub use arrivals::{Arrival, Arrivals, NumberRange};
pub use base_delay::{BASE_DELAY_WINDOW, BaseDelay};
pub use capacity::{Capacity, Demand, Queue, Sample};
pub use link::LinkEstimator;
pub use loss::LossEstimator;
pub use reorder::ReorderExtent;
pub use report::{LinkReport, REPORT_INTERVAL, REPORT_PACKETS};
pub use rtt::Rtt;
pub use sent::{SentAt, SentLog};
