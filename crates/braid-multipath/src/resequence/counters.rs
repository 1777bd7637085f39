//! Counters of a resequencer, by cause and link.

use crate::{LinkId, MAX_LINKS};

use super::GivenUp;

/// Totals since the session began, in packets. Arrays are by link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// Delivered at once, in order.
    pub in_order: u64,
    /// Delivered in order after waiting for a missing packet.
    pub held: u64,
    /// Delivered at once because they need no order.
    pub unordered: u64,
    /// Arrived after they had been given up, by the link of arrival. Forwarded.
    pub late: [u64; MAX_LINKS],
    /// Arrived twice, by the link of the second arrival. Dropped.
    pub duplicates: [u64; MAX_LINKS],
    /// Too old to tell late from duplicate, by link. Dropped.
    pub too_old: [u64; MAX_LINKS],
    /// Given up because every live link had settled past them.
    pub known_lost: u64,
    /// Given up at their deadline, by the link that had not settled past them.
    pub expired: [u64; MAX_LINKS],
    /// Given up because memory was short.
    pub forced: u64,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            in_order: 0,
            held: 0,
            unordered: 0,
            late: [0; MAX_LINKS],
            duplicates: [0; MAX_LINKS],
            too_old: [0; MAX_LINKS],
            known_lost: 0,
            expired: [0; MAX_LINKS],
            forced: 0,
        }
    }
}

impl Counters {
    pub(super) fn give_up(&mut self, why: GivenUp, awaited: Option<LinkId>) {
        match why {
            GivenUp::KnownLost => self.known_lost += 1,
            GivenUp::Deadline => self.expired[awaited.map_or(0, LinkId::index)] += 1,
            GivenUp::Forced => self.forced += 1,
        }
    }

    /// Returns the missing packets given up, for any cause.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.known_lost + self.forced + self.expired.iter().sum::<u64>()
    }

    /// Returns the packets that arrived late.
    #[must_use]
    pub fn all_late(&self) -> u64 {
        self.late.iter().sum()
    }

    /// Returns the packets that arrived twice.
    #[must_use]
    pub fn all_duplicates(&self) -> u64 {
        self.duplicates.iter().sum()
    }
}
