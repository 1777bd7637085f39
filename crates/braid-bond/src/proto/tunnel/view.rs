//! State of a tunnel, and settings that may change while it runs.

use std::net::SocketAddr;

use braid_core::{Bytes, Histogram, Time};
use braid_multipath::bond::FarFlowView;
use braid_multipath::{LaneId, LinkId, MAX_LINKS};

use super::{DATA_HEADER, IP_UDP_HEADERS, LinkConfig, MAX_PAYLOAD_BYTES, Tunnel};
use crate::proto::frame::Parity;
use crate::proto::mtu::BASE_PAYLOAD;
use crate::proto::packet::OVERHEAD;

/// The links that carry a flow, and those of the few flows that share its lane, with their bytes of
/// the last 5 to 10 s.
#[derive(Clone, Debug, Default)]
pub struct FlowLinks {
    /// Sent from this end.
    pub sent: Vec<(LinkId, Bytes)>,
    /// Received at this end.
    pub received: Vec<(LinkId, Bytes)>,
    /// Use of far links by what this end sends, if it may use some.
    pub far: Option<FarFlowView>,
}

impl Tunnel {
    /// Current and removed links, in ascending order.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        let known = |id: &LinkId| self.links[id.index()].is_some();
        (0..MAX_LINKS as u8).map(LinkId).filter(known)
    }

    /// The validated address of a link's other end.
    #[must_use]
    pub fn remote(&self, link: LinkId) -> Option<SocketAddr> {
        self.links[link.index()].as_ref()?.path.proven()
    }

    /// Returns true if a link may carry data.
    #[must_use]
    pub fn is_in_use(&self, link: LinkId) -> bool {
        let link = self.links[link.index()].as_ref();
        link.is_some_and(|link| link.in_use)
    }

    /// The largest inner packet that every link carries unfragmented and whose repair symbol fits
    /// as well, as far as known.
    #[must_use]
    pub fn max_whole_packet(&self) -> usize {
        let links = self.links.iter().flatten().filter(|link| link.in_use);
        let known = links.map(|link| match link.mtu.payload() {
            // Not known yet, or less than any ordinary path has.
            BASE_PAYLOAD => link.config.max_payload,
            payload => payload,
        });
        let payload = known.min().unwrap_or(MAX_PAYLOAD_BYTES);
        max_whole_packet_in(usize::from(payload))
    }

    /// The links of a flow, given by its hashes as it is sent and as it is received. None at the end
    /// that accepts.
    #[must_use]
    pub fn flow_links(&self, now: Time, [sent, received]: [u32; 2]) -> Option<FlowLinks> {
        let [up, down] = self.shares.as_deref()?;
        let mut far = self.sender.far_flows(now);
        Some(FlowLinks {
            sent: up.of(now, self.sender.lane(sent)),
            received: down.of(now, LaneId::of(received)),
            far: far.find(|view| view.flow == sent),
        })
    }

    /// Time of the last authentic packet.
    #[must_use]
    pub fn last_received(&self) -> Time {
        self.last_received
    }

    /// Time that inner packets waited for order, since the session began.
    #[must_use]
    pub fn reorder_delay(&self) -> &Histogram {
        &self.reorder_delay
    }

    /// Changes the configuration of a link except for its address and its size; its measurements
    /// stay.
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

/// The largest inner packet whose repair symbol fits into a UDP payload. The packet itself fits
/// too: a symbol's header is longer than a packet's.
pub(super) fn max_whole_packet_in(payload: usize) -> usize {
    payload.saturating_sub(OVERHEAD + Parity::header_size(payload))
}

/// Overhead of a whole inner packet, bytes.
pub(super) fn link_overhead() -> Bytes {
    Bytes::new((OVERHEAD + DATA_HEADER) as u64 + IP_UDP_HEADERS)
}
