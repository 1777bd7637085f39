//! One direction of a bond: a [`Sender`] at one end, a [`Receiver`] at the other.
//!
//! ```text
//!  inner packets                                                       inner packets
//!       │                                                                    ▲
//!  FlowQueue ──▶ Scheduler ──▶ link 0: Pacer, LinkEstimator ~~~~▶ Arrivals ──┤
//!  (fair, CoDel)      │        link 1:      ,  Liveness     ~~~~▶ Arrivals ──┴▶ Resequencer
//!                     └ RetransmitBuffer          ◀~~~ LinkReports, Nacks over every link
//! ```
//!
//! Both join the other modules of this crate. The caller seals, opens and carries the packets:
//!
//! | when | sending end | receiving end |
//! |---|---|---|
//! | an inner packet arrives | [`Sender::handle_packet`] | |
//! | then | [`Sender::poll_repair`], [`Sender::poll_transmit`] until none: seal and send each | |
//! | a sealed packet arrives | [`Sender::handle_received`] | [`Receiver::handle_datagram`], then [`Receiver::handle_data`] for each inner packet in it, [`Receiver::handle_repair`] for a repair symbol, then [`Receiver::handle_end`] |
//! | then | | [`Receiver::poll_rebuild`], [`Receiver::poll_delivery`], [`Receiver::poll_nack`], [`Receiver::poll_reports`] |
//! | a report or NACK arrives | [`Sender::handle_report`], [`Sender::handle_nack`] | |
//! | any other packet is to be sent | [`Sender::number_control`] gives its number and stamp | |
//! | timer | [`Sender::handle_timeout`], then [`Sender::poll_control`] | [`Receiver::handle_timeout`] |
//!
//! The caller also reads inner TCP: acknowledgements pass an [`AckFilter`](crate::ack_filter::AckFilter), and those for this end's flows get
//! their windows from [`WindowLimits`](crate::window_limit::WindowLimits), by [`Sender::queued`] and [`Sender::queue_room`].
//!
//! Every packet on a link, data or not, takes its number and stamp from the [`Sender`]: loss, order
//! and liveness are derived from them.

mod receiver;
mod sender;
mod sender_link;
mod traffic;

pub use receiver::{Receiver, ReceiverSettings};
pub use sender::{FarFlowView, FarState, MAX_EXTRA_DELAY, Sender, SenderSettings};
pub use sender_link::{LinkSettings, TRAIN_PACKETS};
pub use traffic::{
    Control, ControlKind, InnerPacket, LanePacket, LinkChange, Transmit, TransmitRepair,
};
