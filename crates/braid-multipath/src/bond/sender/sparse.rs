//! Sparse flows over links that stall: their packets do not wait for windows, and each goes out on
//! two links.
//!
//! A flow that fills the bond needs a queue on such a link, or the link runs dry when its rate
//! doubles. A call or a game beside it needs none, and each of its packets is late as soon as the
//! one link that carries it stalls. Two links seldom stall at the same time, so the packet goes over
//! both, and the first arrival counts.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::{Bytes, Rate, Time};

use super::recent_bytes::RecentBytes;
use super::{LanePacket, QueuedPacket, Sender, Transmit};
use crate::bond::traffic::InnerPacket;
use crate::schedule::Class;
use crate::{LinkId, MAX_LINKS};

/// Number of flow counters; flows share them by their hashes.
const FLOWS: usize = 1024;

/// Averaging time of the counters.
const SPAN: Duration = Duration::from_millis(100);

/// A flow is sparse up to this many bytes in [`SPAN`], and up to this share of what the bond
/// carries in it.
const MAX_FLOW_BYTES: f64 = 4_500.0;
const MAX_FLOW_SHARE: f64 = 0.1;

/// All sparse flows together get up to this share of the bond. Further ones take their turns.
const MAX_TOTAL_SHARE: f64 = 0.2;

/// Detects sparse flows, and holds their packets until the driver polls.
#[derive(Debug)]
pub(super) struct SparseFlows<T> {
    flows: Vec<RecentBytes>,
    total: RecentBytes,
    waiting: VecDeque<(Bytes, QueuedPacket<T>)>,
    /// Second copy of the packet last sent, and its link.
    copy: Option<(LinkId, LanePacket<T>)>,
    /// Bytes of second copies on each link, by its number.
    copied: [RecentBytes; MAX_LINKS],
}

impl<T> Default for SparseFlows<T> {
    fn default() -> SparseFlows<T> {
        SparseFlows {
            flows: vec![RecentBytes::over(SPAN); FLOWS],
            total: RecentBytes::over(SPAN),
            waiting: VecDeque::new(),
            copy: None,
            copied: [RecentBytes::over(SPAN); MAX_LINKS],
        }
    }
}

impl<T> SparseFlows<T> {
    /// Counts a packet. Returns true if its flow is sparse in a bond that sends at `rate`.
    pub fn handle_packet(&mut self, now: Time, inner: InnerPacket, rate: Rate) -> bool {
        let carried = rate.bytes_in(SPAN).get() as f64;
        let flow = &mut self.flows[inner.flow as usize % FLOWS];
        flow.add(now, inner.len);
        let total = self.total.bytes(now) + inner.len.get() as f64;
        let sparse = matches!(inner.class, Class::Ordered | Class::Unordered)
            && flow.bytes(now) <= MAX_FLOW_BYTES.min(MAX_FLOW_SHARE * carried)
            && total <= MAX_TOTAL_SHARE * carried;
        if sparse {
            self.total.add(now, inner.len);
        }
        sparse
    }

    pub fn push(&mut self, len: Bytes, packet: QueuedPacket<T>) {
        self.waiting.push_back((len, packet));
    }
}

impl<T: Clone> Sender<T> {
    /// Returns true if the packet belongs to a sparse flow, over links that stall, and none of its
    /// flow waits in the queue, which it would overtake.
    pub(super) fn is_sparse(&mut self, now: Time, inner: InnerPacket) -> bool {
        if !self.is_unsteady() {
            return false;
        }
        let rate = self.links.iter().map(|link| link.rate().bits_per_sec());
        let rate = Rate::from_bits_per_sec(rate.sum());
        let sparse = self.sparse.handle_packet(now, inner, rate);
        let head = self.head.as_ref();
        let waits = self.queue.is_waiting(self.queue_hash(inner.flow))
            || head.is_some_and(|(_, packet)| packet.flow == inner.flow);
        sparse && !waits
    }

    /// Returns the next packet of a sparse flow, or its second copy.
    pub(super) fn poll_sparse(&mut self, now: Time) -> Option<Transmit<T>> {
        let copy = self.sparse.copy.take();
        if let Some((link, packet)) = copy.filter(|(id, _)| self.link(*id).is_some()) {
            return Some(self.transmit(now, link, packet, true));
        }
        self.sparse.waiting.front()?;
        let Some(first) = self.cheapest_best(None) else {
            while let Some((len, packet)) = self.sparse.waiting.pop_front() {
                self.queue
                    .push(now, self.queue_hash(packet.flow), len, packet);
            }
            return None;
        };
        let (len, packet) = self.sparse.waiting.pop_front()?;
        let second = self.cheapest_best(Some(first));
        let second = second.filter(|second| self.takes_copy(now, *second, len));
        let packet = self.number_in_lane(now, len, packet, first);
        self.sparse.copy = second.map(|second| (second, packet.clone()));
        Some(self.transmit(now, first, packet, false))
    }

    /// Counts a second copy that goes out on a link. Returns false if such copies would have more than their share of it:
    /// acknowledgements of a download over a link of 6 Mbit/s upwards would fill one of 0.4 Mbit/s.
    fn takes_copy(&mut self, now: Time, id: LinkId, len: Bytes) -> bool {
        let Some(rate) = (self.links.iter().find(|link| link.id == id)).map(|link| link.rate())
        else {
            return false;
        };
        let Some(copied) = self.sparse.copied.get_mut(usize::from(id.0)) else {
            return false;
        };
        let limit = MAX_TOTAL_SHARE * rate.bytes_in(SPAN).get() as f64;
        let takes = copied.bytes(now) + len.get() as f64 <= limit;
        if takes {
            copied.add(now, len);
        }
        takes
    }

    /// Returns the best link of the cheapest usable tier other than `except`, of those with a known delay if there are any.
    fn cheapest_best(&self, except: Option<LinkId>) -> Option<LinkId> {
        let near = |link: LinkId| !self.is_far_link(link);
        let usable = || (self.links.iter()).filter(|link| link.is_usable() && near(link.id));
        let tier = usable().map(|link| link.settings.tier).min()?;
        let cheap = usable().filter(|link| link.settings.tier == tier && Some(link.id) != except);
        let best = cheap.min_by_key(|link| (!link.has_delay(), link.cost()));
        best.map(|link| link.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sparse_of(flows: u32, len: u64, every: Duration) -> usize {
        let mut sparse = SparseFlows::<()>::default();
        let mut now = Time::ZERO;
        let mut count = 0;
        for _ in 0..100 {
            now = now + every;
            for flow in 0..flows {
                let inner = InnerPacket {
                    flow,
                    class: Class::Ordered,
                    len: Bytes::new(len),
                    is_stream: false,
                    is_limited: false,
                };
                let rate = Rate::from_bits_per_sec(10_000_000);
                count += usize::from(sparse.handle_packet(now, inner, rate));
            }
        }
        count
    }

    #[test]
    fn a_call_is_sparse_and_a_download_is_not() {
        let ms = Duration::from_millis;
        assert_eq!(sparse_of(1, 200, ms(20)), 100);
        // 1.2 Mbit/s, above a tenth of the bond: its first packets only.
        assert!(sparse_of(1, 1500, ms(10)) < 5);
    }

    /// 40 calls have 3.2 of 10 Mbit/s; those beyond a fifth take their turns.
    #[test]
    fn sparse_flows_together_are_bounded() {
        let count = sparse_of(40, 200, Duration::from_millis(20));
        assert!((2_000..3_200).contains(&count), "{count} of 4000 packets");
    }
}
