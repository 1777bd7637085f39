//! Smooth weighted round robin over bytes.

use braid_core::Bytes;

use crate::{LinkId, MAX_LINKS};

/// Gives each link its share of the bytes, spread as evenly as packets allow.
#[derive(Debug, Clone)]
pub(super) struct RoundRobin {
    credit: [f64; MAX_LINKS],
}

impl Default for RoundRobin {
    fn default() -> RoundRobin {
        RoundRobin {
            credit: [0.0; MAX_LINKS],
        }
    }
}

impl RoundRobin {
    /// Returns the link furthest behind its share, the first of equals; none if no weight is above
    /// zero.
    pub fn pick(&self, weights: &[(LinkId, f64)]) -> Option<LinkId> {
        let sum: f64 = weights.iter().map(|&(_, weight)| weight).sum();
        let mut best: Option<(LinkId, f64)> = None;
        for &(link, weight) in weights.iter().filter(|(_, weight)| *weight > 0.0) {
            let claim = self.credit[link.index()] + weight / sum;
            if best.is_none_or(|(_, most)| claim > most) {
                best = Some((link, claim));
            }
        }
        best.map(|(link, _)| link)
    }

    /// Counts `len` bytes carried by `taken`. Shares are owed in full packets of 1500 bytes, so
    /// that sizes weigh as bytes and ties are decided as if all packets were full.
    pub fn charge(&mut self, weights: &[(LinkId, f64)], taken: LinkId, len: Bytes) {
        let sum: f64 = weights.iter().map(|&(_, weight)| weight).sum();
        let size = len.get() as f64 / 1500.0;
        for &(link, weight) in weights {
            let credit = &mut self.credit[link.index()];
            // A link whose weight was zero for long neither owes nor is owed.
            *credit = (*credit + size * weight / sum).clamp(-64.0, 64.0);
        }
        self.credit[taken.index()] -= size;
    }
}
