//! The one queue in front of all links.
//!
//! Loss then happens here, ahead of the sequence numbers, so that an inner TCP sees one clean
//! bottleneck instead of the worst link; and every flow has its turn, so that a call does not wait
//! behind a download.
//!
//! - [`Codel`]: when to drop (RFC 8289), over any queue ([`CodelQueue`]); the link emulator uses it too.
//! - [`FlowQueue`]: whose turn it is (RFC 8290): deficit round robin over hashed flows, each with a
//!   CoDel of its own. Where the inner packet knows ECN, it is marked instead of dropped
//!   (RFC 8290 §5.4's hook; the tunnel carries the mark as RFC 6040 says).

mod codel;
mod fq_codel;

pub use codel::{Codel, CodelQueue};
pub use fq_codel::{FLOW_QUEUES, FlowQueue, Queued};
