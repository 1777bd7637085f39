//! Measured capacities of the uplinks, from the datapath's counters and from active measurements.
//!
//! Pure: takes the counters and the time, cuts them into intervals for [`braid_core::capacity`], passes the results of
//! `braid measure` on, and returns the estimates.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use braid_balance::{ShapeCounters, UplinkCounters};
use braid_core::capacity::{
    ActiveEstimate, CapacityBasis, CapacityEstimate, MIN_INTERVAL, StallInterval, StallMonitor,
    UplinkCapacity, UplinkInterval,
};
use braid_core::{Bytes, Rate, Time, UplinkId};

use crate::bond::LinkTraffic;
use crate::report::MeasuredDirection;

/// Growth of round trips that shows a queue.
const MIN_QUEUEING: Duration = Duration::from_millis(4);

/// Estimates of all uplinks.
#[derive(Debug)]
pub(crate) struct Capacities {
    origin: Instant,
    noted: Instant,
    /// True if an uplink has begun or ceased to stall since [`Capacities::take_stall_change`].
    stalls_changed: bool,
    uplinks: BTreeMap<UplinkId, Measured>,
}

/// Estimates of one uplink, and its counters at the end of the last interval.
#[derive(Debug)]
struct Measured {
    counters: UplinkCounters,
    /// Counters of the shaping, sent and received, if it is shaped.
    shaped: Option<[ShapeCounters; 2]>,
    capacity: UplinkCapacity,
    stalls: StallMonitor,
    /// Time of its last queue.
    queued: Option<Instant>,
}

impl Capacities {
    /// Starts without estimates.
    pub fn new(now: Instant) -> Capacities {
        Capacities {
            origin: now,
            noted: now,
            stalls_changed: false,
            uplinks: BTreeMap::new(),
        }
    }

    /// Returns true if an interval has ended.
    pub fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.noted) >= MIN_INTERVAL
    }

    /// Takes the counters of all uplinks, of those that are shaped, and what the links of a bond carry over them.
    /// Returns the interval that has ended; `None` while it lasts.
    ///
    /// Shaping counts all packets, those of the machine's own sockets and of a bond as well, and so tells more of the
    /// line than the flows do. What it drops of the packets received has crossed the line.
    pub fn note(
        &mut self,
        now: Instant,
        counters: &[(UplinkId, UplinkCounters)],
        shaped: &[(UplinkId, [ShapeCounters; 2])],
        links: &[(UplinkId, LinkTraffic)],
    ) -> Option<Duration> {
        if !self.is_due(now) {
            return None;
        }
        let span = now.saturating_duration_since(self.noted);
        self.noted = now;
        let end = self.time(now);
        self.uplinks
            .retain(|id, _| counters.iter().any(|(other, _)| other == id));
        for (id, counters) in counters {
            let shaped = shaped.iter().find(|(other, _)| other == id);
            let shaped = shaped.map(|(_, counters)| *counters);
            let Some(measured) = self.uplinks.get_mut(id) else {
                let measured = Measured {
                    counters: *counters,
                    shaped,
                    capacity: UplinkCapacity::default(),
                    stalls: StallMonitor::default(),
                    queued: None,
                };
                self.uplinks.insert(*id, measured);
                continue;
            };
            let before = std::mem::replace(&mut measured.counters, *counters);
            let flows = interval(end, span, &before, counters);
            let links = links.iter().filter(|(other, _)| other == id);
            let [tx, rx] = links.fold([Bytes::default(); 2], |[tx, rx], (_, link)| {
                [tx + link.tx.bytes_in(span), rx + link.rx.bytes_in(span)]
            });
            let shaped_before = std::mem::replace(&mut measured.shaped, shaped);
            let line = match (shaped_before, shaped) {
                (Some(before), Some(after)) => with_shaping(flows, &before, &after),
                (None, Some(_)) => flows,
                (_, None) => UplinkInterval {
                    tx: flows.tx + tx,
                    rx: flows.rx + rx,
                    ..flows
                },
            };
            measured.capacity.note(&line);
            let mut stall = stall_interval(&measured.capacity, &flows, &before, counters);
            stall.carried += tx.max(rx);
            if stall.queue {
                measured.queued = Some(now);
            }
            self.stalls_changed |= measured.stalls.note(&stall);
        }
        Some(span)
    }

    /// Returns the estimates of an uplink.
    pub fn of(&self, id: UplinkId) -> Option<&UplinkCapacity> {
        self.uplinks.get(&id).map(|measured| &measured.capacity)
    }

    /// Takes the result of a measurement of this kind. Returns false if the uplink has no counters yet.
    pub fn note_active(
        &mut self,
        now: Instant,
        id: UplinkId,
        direction: MeasuredDirection,
        basis: CapacityBasis,
        found: &ActiveEstimate,
    ) -> bool {
        let now = self.time(now);
        let Some(measured) = self.uplinks.get_mut(&id) else {
            return false;
        };
        match direction {
            MeasuredDirection::Down => measured.capacity.note_rx_active(now, basis, found),
            MeasuredDirection::Up => measured.capacity.note_tx_active(now, basis, found),
        }
        true
    }

    /// Returns the capacity to send, if anything is known of it.
    pub fn tx(&self, now: Instant, id: UplinkId) -> Option<CapacityEstimate> {
        self.uplinks.get(&id)?.capacity.tx(self.time(now))
    }

    /// Returns the capacity to receive, if anything is known of it; while the uplink stalls, what it carries.
    pub fn rx(&self, now: Instant, id: UplinkId) -> Option<CapacityEstimate> {
        let measured = self.uplinks.get(&id)?;
        let carried = measured.stalls.carried().map(carried_estimate);
        carried.or_else(|| measured.capacity.rx(self.time(now)))
    }

    /// Returns the capacity to send of the last second as a whole, see [`UplinkCapacity::tx_last_second`].
    pub fn tx_last_second(&self, now: Instant, id: UplinkId) -> Option<CapacityEstimate> {
        let measured = self.uplinks.get(&id)?;
        measured.capacity.tx_last_second(self.time(now))
    }

    /// Returns the same of the capacity to receive; while the uplink stalls, what it carries.
    pub fn rx_last_second(&self, now: Instant, id: UplinkId) -> Option<CapacityEstimate> {
        let measured = self.uplinks.get(&id)?;
        let carried = measured.stalls.carried().map(carried_estimate);
        carried.or_else(|| measured.capacity.rx_last_second(self.time(now)))
    }

    /// Returns what the other method knows of the capacity to send.
    pub fn other_tx(&self, now: Instant, id: UplinkId) -> Option<CapacityEstimate> {
        self.uplinks.get(&id)?.capacity.other_tx(self.time(now))
    }

    /// Returns what the other method knows of the capacity to receive.
    pub fn other_rx(&self, now: Instant, id: UplinkId) -> Option<CapacityEstimate> {
        self.uplinks.get(&id)?.capacity.other_rx(self.time(now))
    }

    /// Returns the capacity by which shares are weighed, see [`UplinkCapacity::assumed`]; while the uplink stalls, what
    /// it carries.
    pub fn measured(&self, now: Instant, id: UplinkId) -> Option<Rate> {
        let measured = self.uplinks.get(&id)?;
        let carried = measured.stalls.carried();
        carried.or_else(|| measured.capacity.assumed(self.time(now)))
    }

    /// Returns the rate of an uplink that stalls, or did so until a moment ago; `None` for one that does not.
    pub fn stall(&self, id: UplinkId) -> Option<Rate> {
        self.uplinks.get(&id)?.stalls.rate()
    }

    /// Returns true if an uplink stalls now.
    pub fn is_stalled(&self, id: UplinkId) -> bool {
        let measured = self.uplinks.get(&id);
        measured.is_some_and(|measured| measured.stalls.carried().is_some())
    }

    /// Returns the time within which connections of an uplink were active that may wait for their servers, see
    /// [`StallMonitor::disruption`]; `None` if there are none.
    pub fn disruption(&self, now: Instant, id: UplinkId) -> Option<Duration> {
        let now = self.time(now);
        let since = self.uplinks.get(&id)?.stalls.disruption(now)?;
        Some(now.since(since))
    }

    /// Returns true if an uplink has begun or ceased to stall since the last call.
    pub fn take_stall_change(&mut self) -> bool {
        std::mem::take(&mut self.stalls_changed)
    }

    /// Returns true if an uplink had a queue within the last `span`.
    pub fn had_queue(&self, now: Instant, id: UplinkId, span: Duration) -> bool {
        let queued = self.uplinks.get(&id).and_then(|measured| measured.queued);
        queued.is_some_and(|queued| now.saturating_duration_since(queued) < span)
    }

    /// Returns the rate that an uplink is known to carry, in either direction.
    pub fn at_least(&self, now: Instant, id: UplinkId) -> Rate {
        let both = [self.rx(now, id), self.tx(now, id)];
        let rates = both.into_iter().flatten().map(|found| found.rate);
        rates.max().unwrap_or_default()
    }

    /// Returns the time for the estimates of [`Capacities::of`].
    pub fn time(&self, now: Instant) -> Time {
        Time::ZERO + now.saturating_duration_since(self.origin)
    }
}

fn carried_estimate(rate: Rate) -> CapacityEstimate {
    CapacityEstimate {
        rate,
        basis: CapacityBasis::Saturated,
        error: 1.0,
        age: Duration::ZERO,
    }
}

fn interval(
    end: Time,
    span: Duration,
    before: &UplinkCounters,
    after: &UplinkCounters,
) -> UplinkInterval {
    let more = |of: fn(&UplinkCounters) -> u64| of(after).saturating_sub(of(before));
    let samples = more(|counters| counters.queueing_samples);
    let queueing = more(|counters| counters.queueing_us_sum).checked_div(samples);
    // Segments sent again are as long as the mean packet, nearly: bulk flows send nothing else.
    let (packets, bytes) = (
        more(|counters| counters.tx.packets),
        more(|counters| counters.tx.bytes),
    );
    let repeated = more(|counters| counters.repeats) * bytes.checked_div(packets).unwrap_or(0);
    UplinkInterval {
        end,
        span,
        tx: Bytes::new(bytes),
        rx: Bytes::new(more(|counters| counters.rx.bytes)),
        repeated: Bytes::new(repeated),
        queueing: queueing.map(Duration::from_micros),
        queued: Duration::from_micros(more(|counters| counters.queued_us)),
        unseen: Duration::from_micros(after.queue_unseen_us),
    }
}

/// Returns the interval as far as it tells of stalls. A transfer that the line did carry is no stall in either direction.
fn stall_interval(
    capacity: &UplinkCapacity,
    interval: &UplinkInterval,
    before: &UplinkCounters,
    after: &UplinkCounters,
) -> StallInterval {
    let more = |of: fn(&UplinkCounters) -> u64| of(after).saturating_sub(of(before));
    let sent = interval.tx.get().saturating_sub(interval.repeated.get());
    let queueing = capacity.queueing().unwrap_or_default();
    StallInterval {
        end: interval.end,
        span: interval.span,
        carried: Bytes::new(sent.max(interval.rx.get())),
        rx_packets: more(|counters| counters.rx.packets),
        rx: interval.rx,
        repeats: more(|counters| counters.repeats),
        queue: queueing >= MIN_QUEUEING,
        capacity: capacity.rx(interval.end).map(|found| found.rate),
    }
}

/// Puts the bytes that shaping has counted in the place of those of the flows.
fn with_shaping(
    flows: UplinkInterval,
    before: &[ShapeCounters; 2],
    after: &[ShapeCounters; 2],
) -> UplinkInterval {
    let [tx, rx] = [0, 1].map(|direction| after[direction].since(&before[direction]));
    // Bytes that shaping dropped are sent again, and were never in the line's queue.
    let repeated = flows.repeated.get().saturating_sub(tx.dropped.bytes);
    UplinkInterval {
        tx: Bytes::new(tx.passed.bytes),
        rx: Bytes::new(rx.passed.bytes + rx.dropped.bytes),
        repeated: Bytes::new(repeated),
        ..flows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: UplinkId = UplinkId(2);

    /// Counters after `steps` fifths of a second of a download at 20 Mbit/s whose round trips have grown by
    /// 50 ms, four of them measured in each.
    fn counters(steps: u64) -> [(UplinkId, UplinkCounters); 1] {
        let mut counters = UplinkCounters {
            queueing_us_sum: 7 + steps * 4 * 50_000,
            queueing_samples: 9 + steps * 4,
            ..UplinkCounters::default()
        };
        counters.rx.bytes = 1_000_000 + steps * 500_000;
        counters.tx.bytes = 1_000_000 + steps * 10_000;
        [(ID, counters)]
    }

    #[test]
    fn a_queue_shows_the_capacity() {
        let start = Instant::now();
        let mut capacities = Capacities::new(start);
        for tick in 0..40 {
            let now = start + Duration::from_millis(50) * tick;
            capacities.note(now, &counters(u64::from(tick / 4)), &[], &[]);
        }
        let now = start + Duration::from_secs(2);
        let found = capacities.rx(now, ID).unwrap();
        assert_eq!(found.basis, CapacityBasis::Saturated);
        assert_eq!(found.rate, Rate::from_bits_per_sec(20_000_000));
        assert_eq!(capacities.measured(now, ID), Some(found.rate));
        let up = capacities.tx(now, ID).unwrap();
        assert_eq!(up.basis, CapacityBasis::AtLeast);
        assert_eq!(capacities.rx(now, UplinkId(0)), None);
        let second = Duration::from_secs(1);
        assert!(capacities.had_queue(now, ID, second));
        assert!(!capacities.had_queue(now, UplinkId(0), second));
        // Nothing moves any more.
        let later = now + Duration::from_millis(900);
        capacities.note(later, &counters(9), &[], &[]);
        assert!(capacities.had_queue(later, ID, second));
        assert!(!capacities.had_queue(later + second, ID, second));
    }

    #[test]
    fn what_shaping_drops_of_the_bytes_received_has_crossed_the_line() {
        let start = Instant::now();
        let mut capacities = Capacities::new(start);
        let shaped = |steps: u64| {
            let mut both = [ShapeCounters::default(); 2];
            both[1].passed.bytes = steps * 500_000;
            both[1].dropped.bytes = steps * 125_000;
            both[0].passed.bytes = steps * 10_000;
            both[0].dropped.bytes = steps * 900_000;
            [(ID, both)]
        };
        for tick in 0..10 {
            let now = start + Duration::from_millis(200) * tick;
            capacities.note(now, &counters(tick.into()), &shaped(tick.into()), &[]);
        }
        let found = capacities.rx(start + Duration::from_secs(2), ID).unwrap();
        assert_eq!(found.basis, CapacityBasis::Saturated);
        assert_eq!(found.rate, Rate::from_bits_per_sec(25_000_000));
        let up = capacities.tx(start + Duration::from_secs(2), ID).unwrap();
        assert_eq!(up.rate, Rate::from_bits_per_sec(400_000));
    }

    #[test]
    fn a_line_that_carries_a_bond_does_not_stall() {
        let stalls = |mbit: u64| {
            let start = Instant::now();
            let mut capacities = Capacities::new(start);
            let link = LinkTraffic {
                tx: Rate::from_bits_per_sec(0),
                rx: Rate::from_bits_per_sec(mbit * 1_000_000),
            };
            (0..20_u64).any(|tick| {
                let mut all = counters(tick.min(10));
                all[0].1.repeats = 2 * tick.saturating_sub(10).min(4);
                let now = start + Duration::from_millis(200) * u32::try_from(tick).unwrap();
                capacities.note(now, &all, &[], &[(ID, link)]);
                capacities.is_stalled(ID)
            })
        };
        assert!(stalls(0));
        assert!(!stalls(10));
    }

    #[test]
    fn what_a_bond_carries_counts_beside_the_flows() {
        let start = Instant::now();
        let link = |mbit: u64| LinkTraffic {
            tx: Rate::from_bits_per_sec(0),
            rx: Rate::from_bits_per_sec(mbit * 1_000_000),
        };
        let known = |links: &[(UplinkId, LinkTraffic)], shaped: &[_], idle: bool| {
            let mut capacities = Capacities::new(start);
            for tick in 0..10 {
                let now = start + Duration::from_millis(200) * tick;
                let steps = if idle { 0 } else { tick.into() };
                capacities.note(now, &counters(steps), shaped, links);
            }
            let found = capacities.rx(start + Duration::from_secs(2), ID)?;
            Some((found.basis, found.rate.bits_per_sec() / 1_000_000))
        };
        // An uplink may have several links; the flows' round trips show the queue, and carry 20 Mbit/s.
        let links = [(ID, link(10)), (ID, link(20)), (UplinkId(0), link(40))];
        let (saturated, at_least) = (CapacityBasis::Saturated, CapacityBasis::AtLeast);
        assert_eq!(known(&links, &[], false), Some((saturated, 50)));
        assert_eq!(known(&links, &[], true), Some((at_least, 30)));
        // Shaping counts a bond's packets itself.
        let shaped = (ID, [ShapeCounters::default(); 2]);
        assert_eq!(known(&links, &[shaped], true), None);
    }

    #[test]
    fn a_line_on_which_requests_are_repeated_in_vain_stalls_and_is_held_back_when_bytes_come() {
        let start = Instant::now();
        let mut capacities = Capacities::new(start);
        let (mut stalled, mut held) = (Vec::new(), Vec::new());
        for tick in 0..20_u64 {
            // From the tenth interval to the fifteenth nothing comes.
            let mut all = counters(if tick < 15 { tick.min(10) } else { tick });
            all[0].1.repeats = 2 * tick.saturating_sub(10).min(4);
            let now = start + Duration::from_millis(200) * u32::try_from(tick).unwrap();
            capacities.note(now, &all, &[], &[]);
            let changed = capacities.take_stall_change();
            assert_eq!(changed, tick == 12, "{tick}");
            let stalls = capacities.is_stalled(ID);
            assert_eq!(stalls, (12..15).contains(&tick), "{tick}");
            match capacities.stall(ID).map(|rate| rate.bits_per_sec()) {
                Some(..100_000) => stalled.push(tick),
                Some(rate) => held.push((tick, rate)),
                None => assert!(tick < 12, "{tick}"),
            }
        }
        assert_eq!(stalled, [12, 13, 14]);
        // A sixteenth of 20 Mbit/s.
        assert_eq!(held, [15, 16, 17, 18, 19].map(|tick| (tick, 1_250_000)));
    }

    #[test]
    fn a_transfer_decides_until_traffic_shows_more() {
        let start = Instant::now();
        let mut capacities = Capacities::new(start);
        let found = ActiveEstimate {
            rate: Rate::from_bits_per_sec(50_000_000),
            error: 0.02,
            saturated: true,
        };
        let down = MeasuredDirection::Down;
        assert!(!capacities.note_active(start, ID, down, CapacityBasis::Transfer, &found));
        let now = start + Duration::from_secs(1);
        capacities.note(now, &counters(0), &[], &[]);
        assert!(capacities.note_active(now, ID, down, CapacityBasis::Transfer, &found));
        assert_eq!(capacities.measured(now, ID), Some(found.rate));
        let later = now + Duration::from_secs(60);
        let known = capacities.rx(later, ID).unwrap();
        assert_eq!(
            (known.basis, known.age.as_secs()),
            (CapacityBasis::Transfer, 60)
        );
        assert_eq!(capacities.other_rx(later, ID), None);
    }
}
