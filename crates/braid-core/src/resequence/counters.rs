//! What a resequencer did, by cause and link.

use crate::{LinkId, MAX_LINKS};

use super::GivenUp;

/// Totals since the session began, in packets. Arrays are by link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// Went on at once, in order.
    pub in_order: u64,
    /// Waited for a missing packet, then went on in order.
    pub held: u64,
    /// Went on at once because they do not ask for order.
    pub unordered: u64,
    /// Came after they had been given up, by the link that they came on. Forwarded.
    pub late: [u64; MAX_LINKS],
    /// Came twice, by the link that the second came on. Dropped.
    pub duplicates: [u64; MAX_LINKS],
    /// Too old to tell late from twice, by link. Dropped.
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

    /// Missing packets given up, for whatever cause.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.known_lost + self.forced + self.expired.iter().sum::<u64>()
    }

    /// Packets that came late.
    #[must_use]
    pub fn all_late(&self) -> u64 {
        self.late.iter().sum()
    }

    /// Packets that came twice.
    #[must_use]
    pub fn all_duplicates(&self) -> u64 {
        self.duplicates.iter().sum()
    }
}
