//! One direction of a bond, put together: [`Sender`] at one end, [`Receiver`] at the other.
//!
//! ```text
//!  inner packets                                                       inner packets
//!       │                                                                    ▲
//!  FlowQueue ──▶ Scheduler ──▶ link 0: Pacer, LinkEstimator ~~~~▶ Arrivals ──┤
//!  (fair, CoDel)      │        link 1:      ,  Liveness     ~~~~▶ Arrivals ──┴▶ Resequencer
//!                     └ RetransmitBuffer                 ◀~~~ LinkReports, Nacks over every link
//! ```
//!
//! They are made of the pieces of this crate and add only what joins them; who seals, opens and
//! carries packets drives them:
//!
//! | when | sending end | receiving end |
//! |---|---|---|
//! | inner packet | [`Sender::handle_packet`] | |
//! | then | [`Sender::poll_repair`], [`Sender::poll_transmit`] until none: seal and send each | |
//! | a sealed packet came in | [`Sender::handle_received`] | [`Receiver::handle_datagram`], then [`Receiver::handle_data`] for each inner packet in it, [`Receiver::handle_repair`] for a sum, then [`Receiver::handle_end`] |
//! | then | | [`Receiver::poll_rebuild`], [`Receiver::poll_delivery`], [`Receiver::poll_nack`], [`Receiver::poll_reports`] |
//! | a report, a nack came in | [`Sender::handle_report`], [`Sender::handle_nack`] | |
//! | any other packet is to be sent | [`Sender::number_control`] gives it number and stamp | |
//! | timer | [`Sender::handle_timeout`], then [`Sender::poll_control`] | [`Receiver::handle_timeout`] |
//!
//! Every packet on a link, data or not, takes its number and stamp from the [`Sender`], since those
//! are what loss, order and liveness are known by.

mod receiver;
mod sender;
mod sender_link;
mod traffic;

pub use receiver::{Receiver, ReceiverSettings};
pub use sender::{Sender, SenderSettings};
pub use sender_link::{LinkSettings, TRAIN_PACKETS};
pub use traffic::{
    Control, ControlKind, InnerPacket, LanePacket, LinkChange, Transmit, TransmitRepair,
};
