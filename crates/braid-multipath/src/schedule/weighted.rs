//! Static weighted round robin that "sends bursts of packets along the paths, weighted according to
//! their capacity as w_j = c_j / Σ c_i" (\[mpsdn\] §III-C).

use braid_core::Time;

use super::round_robin::RoundRobin;
use super::{Choice, Head, LinkView, Scheduler};
use crate::{LinkId, MAX_LINKS};

/// A burst, in full packets: long enough that neighbours mostly share a path.
pub const BURST_PACKETS: u32 = 8;

/// Static weights. Delay and readiness are ignored; unusable links are skipped.
#[derive(Debug, Clone)]
pub struct Weighted {
    weights: Vec<(LinkId, f64)>,
    burst: u64,
    current: Option<(LinkId, u64)>,
    robin: RoundRobin,
}

impl Weighted {
    /// Returns a scheduler with these weights, of which only the proportions matter; zero for a
    /// link that carries nothing. A burst is in packets of 1500 bytes, at least 1 (see
    /// [`BURST_PACKETS`]).
    #[must_use]
    pub fn new(weights: &[(LinkId, u32)], burst: u32) -> Weighted {
        Weighted {
            weights: weights.iter().map(|&(l, w)| (l, f64::from(w))).collect(),
            burst: u64::from(burst.max(1)) * 1500,
            current: None,
            robin: RoundRobin::default(),
        }
    }
}

impl Scheduler for Weighted {
    fn choose(&mut self, _now: Time, head: &Head, links: &[LinkView]) -> Choice {
        let usable = |link: LinkId| {
            let view = links.iter().find(|view| view.id == link);
            view.is_some_and(|view| view.usable) && head.except != Some(link)
        };
        let weights =
            |&(link, weight): &(LinkId, f64)| (link, if usable(link) { weight } else { 0.0 });
        let mut live = [(LinkId(0), 0.0); MAX_LINKS];
        let count = self.weights.len().min(live.len());
        for (slot, given) in live.iter_mut().zip(&self.weights) {
            *slot = weights(given);
        }
        let live = &live[..count];
        let current = self
            .current
            .filter(|&(link, left)| left >= head.len.get() && usable(link));
        let Some((link, left)) = current.or_else(|| {
            let link = self.robin.pick(live)?;
            Some((link, self.burst.max(head.len.get())))
        }) else {
            return Choice::Wait(None);
        };
        self.robin.charge(live, link, head.len);
        self.current = Some((link, left - head.len.get()));
        Choice::Send {
            link,
            run: head.len,
        }
    }

    fn is_paced(&self) -> bool {
        false
    }
}
