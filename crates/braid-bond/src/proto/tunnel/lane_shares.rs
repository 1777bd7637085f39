//! Bytes of each lane on each link, of the last seconds: by them a client tells which links carry one flow.
//!
//! Flows are told apart by their lanes, of which there are 256: inner packets on the wire name no other. Two flows that
//! share a lane are counted together.

use std::time::Duration;

use braid_core::{Bytes, Time};
use braid_multipath::{LANES, LaneId, LinkId, MAX_LINKS};

/// Bytes are those of the current span and of the one before.
const SPAN: Duration = Duration::from_secs(5);

/// The links of all lanes in one direction.
#[derive(Debug)]
pub(super) struct LaneShares(Vec<Lane>);

#[derive(Clone, Debug, Default)]
struct Lane {
    since: Time,
    /// Bytes since then, and in the span before.
    bytes: [[u64; MAX_LINKS]; 2],
}

impl Default for LaneShares {
    fn default() -> Self {
        Self(vec![Lane::default(); LANES])
    }
}

impl LaneShares {
    /// Counts a packet.
    pub fn add(&mut self, now: Time, lane: LaneId, link: LinkId, bytes: usize) {
        let lane = &mut self.0[lane.index()];
        lane.turn(now);
        lane.bytes[0][link.index()] += bytes as u64;
    }

    /// Returns the links that have carried packets of a lane in the last 5 to 10 s, with their bytes.
    pub fn of(&self, now: Time, lane: LaneId) -> Vec<(LinkId, Bytes)> {
        let mut lane = self.0[lane.index()].clone();
        lane.turn(now);
        let sum = |link: LinkId| lane.bytes.iter().map(|span| span[link.index()]).sum();
        let links = (0..MAX_LINKS as u8).map(LinkId);
        links
            .map(|link| (link, Bytes::new(sum(link))))
            .filter(|(_, bytes)| bytes.get() > 0)
            .collect()
    }
}

impl Lane {
    /// Begins a new span if it is time.
    fn turn(&mut self, now: Time) {
        let passed = now.since(self.since);
        if passed < SPAN {
            return;
        }
        self.bytes[1] = match passed < SPAN * 2 {
            true => self.bytes[0],
            false => [0; MAX_LINKS],
        };
        self.bytes[0] = [0; MAX_LINKS];
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn the_links_of_a_lane_are_those_of_its_last_seconds() {
        let mut shares = LaneShares::default();
        let (lane, other) = (LaneId(7), LaneId(8));
        shares.add(after(10_000), lane, LinkId(0), 1000);
        shares.add(after(13_000), lane, LinkId(2), 500);
        shares.add(after(14_000), other, LinkId(1), 1);
        let both = vec![(LinkId(0), Bytes::new(1000)), (LinkId(2), Bytes::new(500))];
        assert_eq!(shares.of(after(14_000), lane), both);
        shares.add(after(16_000), lane, LinkId(2), 100);
        let both = vec![(LinkId(0), Bytes::new(1000)), (LinkId(2), Bytes::new(600))];
        assert_eq!(shares.of(after(16_000), lane), both);
        shares.add(after(21_000), lane, LinkId(2), 1);
        assert_eq!(
            shares.of(after(21_000), lane),
            vec![(LinkId(2), Bytes::new(101))]
        );
        assert_eq!(shares.of(after(32_000), lane), vec![]);
    }
}
