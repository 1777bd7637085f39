//! What a tunnel is told, and what it tells.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::proto::flow;
use crate::proto::frame::Reason;
use crate::proto::handshake::Options;
use crate::proto::handshake::terms::Refusal;
use braid_core::LinkId;
use braid_core::bond::{Change, ReceiverSettings};
use braid_core::schedule::{Class, Scheduler};

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
    Unanswered,
    /// The hub does not want us. It is asked again every half a minute, since that may change.
    Refused(Refusal),
    /// A link has become more or less usable.
    Judged(Change),
    /// A link carries data from now on.
    Usable(LinkId),
    /// A link's other end has a new address, and has proved it.
    Moved {
        /// The link.
        link: LinkId,
        /// Where its other end is.
        to: SocketAddr,
    },
    /// A link carries datagrams of so many bytes of UDP payload.
    Carries {
        /// The link.
        link: LinkId,
        /// UDP payload.
        payload: u16,
    },
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

/// How an inner packet is to be treated. Called for each: it must be quick, and must not lock.
pub type Classify = Arc<dyn Fn(&[u8]) -> Class + Send + Sync>;

/// Makes who chooses links.
pub type MakeScheduler = Arc<dyn Fn() -> Box<dyn Scheduler> + Send + Sync>;

/// What is configured of a tunnel.
#[derive(Clone)]
pub struct Settings {
    /// Makes the scheduler, anew for each session.
    pub scheduler: MakeScheduler,
    /// How packets are put in order.
    pub receiver: ReceiverSettings,
    /// How flows are treated.
    pub class: Classify,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("receiver", &self.receiver)
            .finish_non_exhaustive()
    }
}

impl Default for Settings {
    /// Earliest arrival; order with repair; classes as [`flow::class`] says.
    fn default() -> Self {
        Settings {
            scheduler: Arc::new(|| Box::<braid_core::schedule::Adaptive>::default()),
            receiver: ReceiverSettings::default(),
            class: Arc::new(flow::class),
        }
    }
}
