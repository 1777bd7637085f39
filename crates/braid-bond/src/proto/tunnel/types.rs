//! Settings and events of a tunnel.

use std::net::SocketAddr;

use braid_multipath::LinkId;
use braid_multipath::bond::{LinkChange, ReceiverSettings};

use super::PolicyStatus;
use crate::proto::frame::Reason;
use crate::proto::handshake::Options;
use crate::proto::handshake::terms::Refusal;
use crate::proto::policy::Policy;

/// Event of a tunnel.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// New keys are in force. If the session does not continue, order and numbers begin anew.
    Established {
        /// True if the session continues under new keys.
        continued: bool,
        /// The hub's options; empty at the hub itself.
        options: Options,
    },
    /// No reply to a handshake for ten seconds; the tunnel tries again.
    HandshakeTimeout,
    /// Somebody who sees this handshake, most likely the hub, says that the hub has another key by
    /// now. It is not proved, so the tunnel goes on trying.
    KeyRetired,
    /// The hub refuses this client. The tunnel asks again every half a minute, since that may
    /// change.
    Refused(Refusal),
    /// The verdict on a link has changed.
    LinkVerdict(LinkChange),
    /// A link carries data from now on.
    LinkUsable(LinkId),
    /// The other end of a link has a new, validated address.
    PathMigrated {
        /// The link.
        link: LinkId,
        /// The new address.
        to: SocketAddr,
    },
    /// A link carries larger datagrams than known before.
    PayloadIncreased {
        /// The link.
        link: LinkId,
        /// Largest UDP payload, bytes.
        payload: u16,
    },
    /// The state of the policy at the hub has changed.
    PolicyStatus(PolicyStatus),
    /// The other end has closed the session.
    Closed(Reason),
}

/// A datagram to send; its bytes are in the buffer given to
/// [`Tunnel::poll_transmit`](super::Tunnel::poll_transmit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The link to send it on.
    pub link: LinkId,
    /// Its destination.
    pub to: SocketAddr,
}

/// Settings of a tunnel. By default: adaptive scheduler, order with repair, classes by
/// [`FlowInfo::class`](crate::proto::flow::FlowInfo::class), header compression.
#[derive(Clone, Debug, PartialEq)]
pub struct TunnelSettings {
    /// Treatment of outgoing packets. A hub uses its client's policy.
    pub policy: Policy,
    /// Settings of the receiving direction.
    pub receiver: ReceiverSettings,
    /// True if headers are compressed, provided that the other end supports it.
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
