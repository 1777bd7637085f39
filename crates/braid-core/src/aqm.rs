//! Active queue management: the one queue in front of all links.
//!
//! Loss then happens here, ahead of the sequence numbers, so that an inner TCP sees one clean
//! bottleneck instead of the worst link. Every flow has its turn, so that a call does not wait
//! behind a download.
//!
//! - [`Codel`] decides when to drop (RFC 8289), for any queue ([`CodelQueue`]); the link emulator
//!   uses it too.
//! - [`FlowQueue`] decides whose turn it is (FQ-CoDel, RFC 8290): deficit round robin over hashed
//!   flows, each with its own CoDel. An inner packet that supports ECN is marked instead of dropped
//!   (RFC 8290 §5.4's hook; the tunnel carries the mark as RFC 6040 says).

mod codel;
mod fq_codel;

pub use codel::{Codel, CodelQueue};
pub use fq_codel::{Drops, FLOW_QUEUES, FlowQueue, Queued};
