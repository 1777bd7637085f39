//! Which inside hosts may not open more flows for now, so that one of them cannot fill the table
//! that all of them share.
//!
//! Pure. Rules, and why:
//! - Nobody is limited while the table is not [`CROWDED`]: what is free may be used by anyone.
//! - Then each host has the same share of the whole table, and who holds more opens no new flows;
//!   running ones go on. A host alone has all of it. However many addresses somebody makes up,
//!   [`LEAST`] of the table is everybody's.
//! - It may again below [`EASED`] of its share, or when the table has emptied to [`CALM`]: so that
//!   a host at the limit does not flap.
//! - Every look begins with the flows there are, so nothing grows here: at most [`MOST`] hosts are
//!   limited, those who hold most.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Part of the table, as a fraction, above which shares count.
const CROWDED: (usize, usize) = (1, 2);
/// Part of the table below which they do not count any more.
const CALM: (usize, usize) = (3, 8);
/// Part of its share below which a limited host is free again.
const EASED: (usize, usize) = (3, 4);
/// Part of the table that no host is limited below.
const LEAST: (usize, usize) = (1, 64);
/// Most hosts limited at once.
const MOST: usize = 256;

/// Who is limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    limited: BTreeSet<IpAddr>,
}

/// A host over its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// The host.
    pub client: IpAddr,
    /// Flows that it holds.
    pub flows: usize,
    /// Flows that it may hold.
    pub share: usize,
}

/// What a look changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Limited from now on.
    pub limited: Vec<Over>,
    /// Free again.
    pub freed: Vec<IpAddr>,
}

fn part(of: usize, (numerator, denominator): (usize, usize)) -> usize {
    of * numerator / denominator
}

impl Limits {
    /// Whether a table of `capacity` with `held` flows must be looked at host by host.
    #[must_use]
    pub fn concern(&self, held: usize, capacity: usize) -> bool {
        held > part(capacity, CROWDED) || !self.limited.is_empty()
    }

    /// Looks at the kept flows' inside addresses, one for each flow.
    pub fn look(&mut self, inner: impl Iterator<Item = IpAddr>, capacity: usize) -> Changes {
        let mut held: BTreeMap<IpAddr, usize> = BTreeMap::new();
        inner.for_each(|client| *held.entry(client).or_default() += 1);
        let total: usize = held.values().sum();
        let share = (capacity / held.len().max(1)).max(part(capacity, LEAST));
        let over = |client: &IpAddr, flows: usize| match self.limited.contains(client) {
            true => flows >= part(share, EASED),
            false => flows > share,
        };
        let counts = match self.limited.is_empty() {
            true => total > part(capacity, CROWDED),
            false => total > part(capacity, CALM),
        };
        let mut hogs: Vec<Over> = held
            .iter()
            .filter(|&(client, &flows)| counts && held.len() > 1 && over(client, flows))
            .map(|(&client, &flows)| Over {
                client,
                flows,
                share,
            })
            .collect();
        hogs.sort_by_key(|over| std::cmp::Reverse(over.flows));
        hogs.truncate(MOST);
        let now: BTreeSet<IpAddr> = hogs.iter().map(|over| over.client).collect();
        hogs.retain(|over| !self.limited.contains(&over.client));
        let freed = self.limited.difference(&now).copied().collect();
        self.limited = now;
        Changes {
            limited: hogs,
            freed,
        }
    }

    /// Who is limited now.
    #[must_use]
    pub fn limited(&self) -> Vec<IpAddr> {
        self.limited.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: usize = 100;

    fn look(limits: &mut Limits, held: &[(u8, usize)]) -> (Vec<u8>, Vec<u8>) {
        let flows = held.iter().flat_map(|&(client, flows)| {
            std::iter::repeat_n(IpAddr::from([192, 168, 0, client]), flows)
        });
        let last = |client: IpAddr| match client {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(_) => unreachable!(),
        };
        let changes = limits.look(flows, CAPACITY);
        let limited = changes.limited.iter().map(|over| last(over.client));
        (
            limited.collect(),
            changes.freed.into_iter().map(last).collect(),
        )
    }

    #[test]
    fn a_hog_is_limited_only_while_others_need_room() {
        let mut limits = Limits::default();
        let none = (vec![], vec![]);
        assert_eq!(look(&mut limits, &[(1, 45), (2, 3)]), none, "half is free");
        assert_eq!(look(&mut limits, &[(1, 90)]), none, "it is alone");
        assert_eq!(look(&mut limits, &[(1, 50), (2, 3)]), none, "its share");
        assert_eq!(look(&mut limits, &[(1, 51), (2, 3)]), (vec![1], vec![]));
        assert_eq!(look(&mut limits, &[(1, 60), (2, 3)]), none, "said once");
        assert_eq!(look(&mut limits, &[(1, 38), (2, 3)]), none, "no flapping");
        assert_eq!(look(&mut limits, &[(1, 36), (2, 3)]), (vec![], vec![1]));
        assert_eq!(look(&mut limits, &[(1, 90), (2, 3)]), (vec![1], vec![]));
        assert_eq!(look(&mut limits, &[(1, 20), (2, 3)]), (vec![], vec![1]));
        assert!(!limits.concern(20, CAPACITY));
    }

    #[test]
    fn made_up_addresses_take_nothing_from_others() {
        let mut limits = Limits::default();
        let made_up = (0..4096_u32).flat_map(|i| std::iter::repeat_n(i.to_be_bytes().into(), 10));
        let honest = std::iter::repeat_n(IpAddr::from([192, 168, 0, 1]), 900);
        let changes = limits.look(made_up.chain(honest), 65_536);
        assert_eq!(changes, Changes::default());
    }

    #[test]
    fn everybody_else_keeps_their_share() {
        let mut limits = Limits::default();
        let held = [(1, 70), (2, 10), (3, 10), (4, 9)];
        assert_eq!(look(&mut limits, &held).0, [1]);
        assert_eq!(limits.limited().len(), 1);
    }
}
