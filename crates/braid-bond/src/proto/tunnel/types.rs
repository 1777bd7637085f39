//! What a tunnel is told, and what it tells.

use std::net::SocketAddr;

use super::PolicyStatus;
use crate::proto::frame::Reason;
use crate::proto::handshake::Options;
use crate::proto::handshake::terms::Refusal;
use crate::proto::policy::Policy;
use braid_core::LinkId;
use braid_core::bond::{LinkChange, ReceiverSettings};

/// What has become known.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// There are keys. If the session was not continued, order and numbers begin anew.
    Established {
        /// Whether it goes on under new keys.
        continued: bool,
        /// What the hub said; empty on its own side.
        options: Options,
    },
    /// Nobody answered a handshake for ten seconds; it is tried on.
    HandshakeTimeout,
    /// The hub does not want us. It is asked again every half a minute, since that may change.
    Refused(Refusal),
    /// A link has become more or less usable.
    LinkVerdict(LinkChange),
    /// A link carries data from now on.
    LinkUsable(LinkId),
    /// A link's other end has a new address, and has proved it.
    PathMigrated {
        /// The link.
        link: LinkId,
        /// Where its other end is.
        to: SocketAddr,
    },
    /// A link carries datagrams of so many bytes of UDP payload.
    PayloadIncreased {
        /// The link.
        link: LinkId,
        /// UDP payload.
        payload: u16,
    },
    /// What the hub has made of the policy that it was told has changed.
    PolicyStatus(PolicyStatus),
    /// The other end has closed the session.
    Closed(Reason),
}

/// A datagram to be sent; its bytes are in the buffer given to
/// [`Tunnel::poll_transmit`](super::Tunnel::poll_transmit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The link to send it on.
    pub link: LinkId,
    /// Where to.
    pub to: SocketAddr,
}

/// What is configured of a tunnel. By default: earliest arrival, order with repair, classes as
/// [`FlowInfo::class`](crate::proto::flow::Seen::class) says, headers compressed.
#[derive(Clone, Debug, PartialEq)]
pub struct TunnelSettings {
    /// How packets are treated on their way out. A hub goes by its client's.
    pub policy: Policy,
    /// How packets are put in order.
    pub receiver: ReceiverSettings,
    /// Whether inner headers are said once, to who understands that.
    pub compress: bool,
}

impl Default for TunnelSettings {
    fn default() -> Self {
        TunnelSettings {
            policy: Policy::default(),
            receiver: ReceiverSettings::default(),
            compress: true,
        }
    }
}
