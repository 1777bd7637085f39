//! The receiving end's record of one link: packets that arrived, packets missing, and since when.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use braid_core::{Bytes, Time};

use super::report::LinkReport;
use super::train::TrainDetector;
use super::{REPORT_INTERVAL, REPORT_PACKETS, ReorderExtent};
use crate::{Incoming, LinkId, PacketNumber, RelativeDelay, Stamp};

/// Most gaps that may still be filled, and most gaps remembered after they were given up. Beyond
/// that the oldest is given up or forgotten, so memory is bounded.
const MAX_GAPS: usize = 256;

/// Least time between reports that are due by packet count.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(5);

/// Packet numbers of one link, `first..=last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberRange {
    /// Lowest number.
    pub first: PacketNumber,
    /// Highest number.
    pub last: PacketNumber,
}

impl NumberRange {
    /// Returns the count of numbers.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.last.0 - self.first.0 + 1
    }

    /// Returns the places of these numbers in a list in which they ascend.
    #[must_use]
    pub fn places<T>(
        &self,
        list: &VecDeque<T>,
        number: impl Fn(&T) -> PacketNumber,
    ) -> Range<usize> {
        let from = list.partition_point(|entry| number(entry) < self.first);
        let to = list.partition_point(|entry| number(entry) <= self.last);
        from..to.max(from)
    }
}

/// Classification of an arriving packet on its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Its number is higher than all before it.
    Newest,
    /// It was missing and still waited for.
    Reordered,
    /// It was missing and already counted as lost.
    Late,
    /// It arrived before, or is too old to tell. Drop it.
    Duplicate,
}

#[derive(Debug, Clone, Copy)]
struct Gap {
    first: u64,
    last: u64,
    /// Arrival of the packet after the gap.
    after: Time,
    /// When that packet was read.
    seen: Time,
    /// Stamp of the packet before the gap.
    before: Option<Stamp>,
}

/// The packets of one link that arrived.
///
/// A link is a FIFO except for its reordering extent ([`ReorderExtent`]). A missing packet is
/// *lost* once a later one arrived that long ago; on a link that keeps order, at once (RFC 1990
/// §4.1 reasons likewise). Until then it is *open*. [`Arrivals::settled`] is the link's progress:
/// no packet stamped up to it can arrive any more.
#[derive(Debug, Clone)]
pub struct Arrivals {
    link: LinkId,
    /// One above the highest number that arrived.
    next: u64,
    newest: Option<Newest>,
    /// Gaps that may still be filled, by number.
    open: VecDeque<Gap>,
    /// Gaps given up, by number: a late packet is told from a duplicate by them.
    given_up: VecDeque<Gap>,
    /// Given up and not yet returned by [`poll_lost`](Self::poll_lost).
    newly_lost: VecDeque<NumberRange>,
    extent: ReorderExtent,
    packets: u64,
    bytes: Bytes,
    lost: u64,
    late: u64,
    duplicates: u64,
    delay: DelayStats,
    train: TrainDetector,
    reported: Time,
    unreported: u32,
}

#[derive(Debug, Clone, Copy)]
struct Newest {
    stamp: Stamp,
    /// When it was read.
    at: Time,
    /// Arrival of the last packet, which need not be the newest, and when that was read.
    received_at: Time,
    read_at: Time,
}

#[derive(Debug, Clone, Copy, Default)]
struct DelayStats {
    lowest: Option<RelativeDelay>,
    last: Option<RelativeDelay>,
    smoothed: f64,
    jitter: f64,
    count: f64,
}

impl DelayStats {
    fn handle_delay(&mut self, delay: RelativeDelay) {
        self.lowest = Some(self.lowest.map_or(delay, |lowest| lowest.min(delay)));
        let micros = delay.0 as f64;
        match self.last.replace(delay) {
            Some(last) => {
                // A plain mean at first, so that the first samples are not averaged with zero.
                self.count = (self.count + 1.0).min(16.0);
                self.jitter += (((delay.0 - last.0) as f64).abs() - self.jitter) / self.count;
                self.smoothed += (micros - self.smoothed) / self.count.max(4.0);
            }
            None => self.smoothed = micros,
        }
    }
}

impl Arrivals {
    /// Returns the record of a link without arrivals.
    #[must_use]
    pub fn new(link: LinkId) -> Arrivals {
        Arrivals {
            link,
            next: 0,
            newest: None,
            open: VecDeque::new(),
            given_up: VecDeque::new(),
            newly_lost: VecDeque::new(),
            extent: ReorderExtent::default(),
            packets: 0,
            bytes: Bytes::default(),
            lost: 0,
            late: 0,
            duplicates: 0,
            delay: DelayStats::default(),
            train: TrainDetector::default(),
            reported: Time::ZERO,
            unreported: 0,
        }
    }

    /// Takes an authenticated packet. Its link is judged by when packets arrived, so a backlog that
    /// waited for a busy processor shows no queue, no reordering and no rate but the link's own.
    pub fn handle_packet(&mut self, now: Time, packet: &Incoming) -> Arrival {
        let Incoming {
            number,
            stamp,
            arrived,
            len,
            elicits,
        } = *packet;
        let extent = self.extent.extent(now);
        // A gap is waited for by both clocks: of a backlog that is read at once, nothing is overdue.
        self.give_up_while(|gap| {
            arrived.since(gap.after) >= extent && now.since(gap.seen) >= extent
        });
        let arrival = if number.0 >= self.next {
            self.handle_newest(now, packet);
            Arrival::Newest
        } else if let Some(gap) = take(&mut self.open, number.0, stamp) {
            self.extent.handle_late(now, arrived.since(gap.after));
            self.bound_gaps();
            Arrival::Reordered
        } else if let Some(gap) = take(&mut self.given_up, number.0, stamp) {
            self.extent.handle_late(now, arrived.since(gap.after));
            self.lost = self.lost.saturating_sub(1);
            self.late += 1;
            self.bound_gaps();
            Arrival::Late
        } else {
            self.duplicates += 1;
            return Arrival::Duplicate;
        };
        self.packets += 1;
        self.bytes += len;
        self.unreported += u32::from(elicits);
        self.delay.handle_delay(RelativeDelay::of(stamp, arrived));
        self.train.handle_packet(arrived, stamp, len);
        if let Some(newest) = &mut self.newest {
            newest.received_at = arrived;
            newest.read_at = now;
        }
        arrival
    }

    fn handle_newest(&mut self, now: Time, packet: &Incoming) {
        let (number, stamp) = (packet.number.0, packet.stamp);
        let missing = number > self.next;
        let before = self.newest.map(|newest| newest.stamp);
        if missing {
            let gap = Gap {
                first: self.next,
                last: number - 1,
                after: packet.arrived,
                seen: now,
                before,
            };
            if self.extent.extent(now).is_zero() && self.open.is_empty() {
                self.give_up(gap);
            } else {
                self.open.push_back(gap);
                self.bound_gaps();
            }
        }
        self.next = number + 1;
        self.newest = Some(Newest {
            stamp,
            at: now,
            received_at: packet.arrived,
            read_at: now,
        });
    }

    /// Gives up packets missing for longer than the reordering extent. Early and repeated calls do
    /// no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        let extent = self.extent.extent(now);
        self.give_up_while(|gap| now.since(gap.seen) >= extent);
    }

    fn give_up_while(&mut self, is_overdue: impl Fn(&Gap) -> bool) {
        while self.open.front().is_some_and(&is_overdue) {
            self.give_up_oldest();
        }
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let mut extent = self.extent;
        let gap = self.open.front()?;
        Some(gap.seen + extent.extent(gap.seen))
    }

    /// Returns the next range newly counted as lost, each once: a candidate for retransmission.
    pub fn poll_lost(&mut self) -> Option<NumberRange> {
        self.newly_lost.pop_front()
    }

    /// Returns the link's progress: every packet sent on it with a stamp up to this one has arrived
    /// or is lost. None before the first packet.
    #[must_use]
    pub fn settled(&self) -> Option<Stamp> {
        match self.open.front() {
            Some(gap) => gap.before,
            None => self.newest.map(|newest| newest.stamp),
        }
    }

    /// Returns true if a report is due.
    #[must_use]
    pub fn is_report_due(&self, now: Time) -> bool {
        let passed = now.since(self.reported);
        self.unreported > 0
            && (passed >= REPORT_INTERVAL
                || (self.unreported >= REPORT_PACKETS && passed >= MIN_REPORT_INTERVAL))
    }

    /// Returns when a report will be due if nothing more arrives; none if there is nothing to
    /// report.
    #[must_use]
    pub fn next_report(&self) -> Option<Time> {
        (self.unreported > 0).then_some(self.reported + REPORT_INTERVAL)
    }

    /// Returns the report to send and resets its timer; none before the first packet.
    pub fn report(&mut self, now: Time) -> Option<LinkReport> {
        let newest = self.newest?;
        self.reported = now;
        self.unreported = 0;
        let delay = self.delay.lowest.take().or(self.delay.last)?;
        Some(LinkReport {
            link: self.link,
            highest: PacketNumber(self.next - 1),
            echo: newest.stamp,
            held: now.since(newest.at),
            received_at: newest.received_at,
            packets: self.packets,
            bytes: self.bytes,
            lost: self.lost,
            delay,
            jitter: self.jitter(),
            train: self.train.take(),
        })
    }

    /// Returns the mean deviation of the delay between neighbouring packets (RFC 3550 §6.4.1).
    #[must_use]
    pub fn jitter(&self) -> Duration {
        Duration::from_micros(self.delay.jitter as u64)
    }

    /// Returns the delay, smoothed over some 16 packets; none before the first.
    #[must_use]
    pub fn delay(&self) -> Option<RelativeDelay> {
        self.delay
            .last
            .map(|_| RelativeDelay(self.delay.smoothed as i64))
    }

    /// Returns the link's reordering extent.
    #[must_use]
    pub fn extent(&self, now: Time) -> Duration {
        let mut extent = self.extent;
        extent.extent(now)
    }

    /// Returns when the last packet was read.
    #[must_use]
    pub fn last_at(&self) -> Option<Time> {
        self.newest.map(|newest| newest.read_at)
    }

    /// Returns the packets that arrived, without duplicates.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the packets counted as lost that have not arrived since.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the packets counted as lost that arrived after all: misjudged.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Returns the packets that arrived twice.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Returns the missing packets that may still arrive.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.open.iter().map(|gap| gap.last - gap.first + 1).sum()
    }

    fn give_up_oldest(&mut self) {
        if let Some(gap) = self.open.pop_front() {
            self.give_up(gap);
        }
    }

    /// Gives up and forgets the oldest gaps beyond [`MAX_GAPS`]. A packet from the middle of a gap
    /// makes two of it.
    fn bound_gaps(&mut self) {
        if self.open.len() > MAX_GAPS {
            self.give_up_oldest();
        }
        if self.given_up.len() > MAX_GAPS {
            self.given_up.pop_front();
        }
    }

    fn give_up(&mut self, gap: Gap) {
        self.lost += gap.last - gap.first + 1;
        self.given_up.push_back(gap);
        if self.given_up.len() > MAX_GAPS {
            self.given_up.pop_front();
        }
        self.newly_lost.push_back(NumberRange {
            first: PacketNumber(gap.first),
            last: PacketNumber(gap.last),
        });
        if self.newly_lost.len() > MAX_GAPS {
            self.newly_lost.pop_front();
        }
    }
}

/// Takes `number`, whose packet is stamped `stamp`, out of its gap.
fn take(gaps: &mut VecDeque<Gap>, number: u64, stamp: Stamp) -> Option<Gap> {
    let index = gaps.partition_point(|gap| gap.last < number);
    let gap = *gaps.get(index).filter(|gap| gap.first <= number)?;
    match (gap.first == number, gap.last == number) {
        (true, true) => {
            gaps.remove(index);
        }
        (true, false) => {
            gaps[index].first += 1;
            gaps[index].before = Some(stamp);
        }
        (false, true) => gaps[index].last -= 1,
        (false, false) => {
            gaps[index].last = number - 1;
            let right = Gap {
                first: number + 1,
                before: Some(stamp),
                ..gap
            };
            gaps.insert(index + 1, right);
        }
    }
    Some(gap)
}
