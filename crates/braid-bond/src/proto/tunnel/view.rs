//! What a tunnel tells of itself, and what may be changed while it runs.

use std::net::SocketAddr;

use super::{DATA_HEADER, IP_UDP_HEADERS, LinkConfig, PAYLOAD_MAX, ReorderDelay, Tunnel};
use crate::proto::frame::Parity;
use crate::proto::mtu::BASE_PAYLOAD;
use crate::proto::packet::OVERHEAD;
use braid_core::{Bytes, LinkId, MAX_LINKS, Time};

impl Tunnel {
    /// Links that it has or had, in ascending order.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        let known = |id: &LinkId| self.links[id.index()].is_some();
        (0..MAX_LINKS as u8).map(LinkId).filter(known)
    }

    /// Where a link's other end is, if that has proved itself.
    #[must_use]
    pub fn remote(&self, link: LinkId) -> Option<SocketAddr> {
        self.links[link.index()].as_ref()?.path.proven()
    }

    /// Whether a link may carry data.
    #[must_use]
    pub fn is_in_use(&self, link: LinkId) -> bool {
        let link = self.links[link.index()].as_ref();
        link.is_some_and(|link| link.in_use)
    }

    /// The largest inner packet that every link carries in one piece, and sums of such packets as
    /// well, as far as is known by now.
    #[must_use]
    pub fn max_whole_packet(&self) -> usize {
        let links = self.links.iter().flatten().filter(|link| link.in_use);
        let known = links.map(|link| match link.mtu.payload() {
            // Not known yet, or less than any ordinary path has.
            BASE_PAYLOAD => link.config.max_payload,
            payload => payload,
        });
        let payload = known.min().unwrap_or(PAYLOAD_MAX);
        max_whole_packet_in(usize::from(payload))
    }

    /// When something authentic came last.
    #[must_use]
    pub fn last_received(&self) -> Time {
        self.last_received
    }

    /// How long inner packets waited for order, since the session began.
    #[must_use]
    pub fn reorder_delay(&self) -> &ReorderDelay {
        &self.reorder_delay
    }

    /// Changes what is configured of a link, but for its address and its size: it goes on with all
    /// that was measured.
    pub fn set_link(&mut self, id: LinkId, config: LinkConfig) {
        let Some(link) = &mut self.links[id.index()] else {
            return;
        };
        let LinkConfig {
            remote,
            max_payload,
            ..
        } = link.config;
        link.config = LinkConfig {
            remote,
            max_payload,
            ..config
        };
        link.params_due = true;
        let settings = link.config.settings(link_overhead());
        self.sender.set_link(id, settings);
        self.sender.set_quota(id, config.quota);
    }
}

/// The largest inner packet of which sums fit into so much UDP payload. It fits itself: a sum's header
/// is longer than a packet's.
pub(super) fn max_whole_packet_in(payload: usize) -> usize {
    payload.saturating_sub(OVERHEAD + Parity::header_size(payload))
}

/// What a whole inner packet takes beside itself.
pub(super) fn link_overhead() -> Bytes {
    Bytes::new((OVERHEAD + DATA_HEADER) as u64 + IP_UDP_HEADERS)
}
