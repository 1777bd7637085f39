//! Decisions of a bond: one flow over several links, and its order restored at the far end. Pure.
//!
//! In: rates, times and observations of packets, as typed values. Out: the next link, repair symbols (FEC), packets in order,
//! reports. [`bond`] joins the parts to the two ends of a tunnel; the fabric's edge uses [`resequence`] alone.
//!
//! As in [`braid_core`], no socket is opened, no clock read, no random number drawn, and no unordered
//! collection iterated over. Packets themselves pass through unread.
#![forbid(unsafe_code)]

pub mod ack_filter;
pub mod bond;
pub mod delivery_pacer;
pub mod estimate;
pub mod fec;
mod flow_table;
mod lane_set;
mod link;
pub mod liveness;
pub mod quic_flows;
pub mod resequence;
pub mod retransmit;
pub mod schedule;
mod sequence;
pub mod spurious;
pub mod window_limit;

pub use link::{
    Incoming, LANES, LaneId, LaneSeq, LinkId, MAX_LINKS, PacketNumber, REORDER_BUDGET,
    RelativeDelay, Stamp,
};
