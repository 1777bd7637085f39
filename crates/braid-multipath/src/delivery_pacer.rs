//! Spreads datagrams that the reorder buffer releases at once.
//!
//! While a packet is waited for, all that follow it are held, and then leave together: 75 ms of 140 Mbit/s are 1.3 MB. TCP has
//! advertised a window for them. A datagram is dropped if its socket's receive buffer is full, and Linux's default is 212,992 bytes with
//! the kernel's own of each packet, some 90 packets. QUIC takes that for a loss on the way, and slows down each time. So at most
//! [`BURST`] bytes of a lane leave at once, and as much each millisecond from then on, which leaves a program on a busy machine some 3 ms
//! to read them. A lane that carries more has [`RATE_FACTOR`] times what it carries in the mean, so that a backlog of some time is gone
//! after as long again. Flows of other lanes may go to the same socket, and have steps of their own.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

use crate::lane_set::LaneSet;
use crate::{LANES, LaneId};

/// Bytes that the kernel takes for a packet in a socket besides its own, about.
const KERNEL_BYTES: u64 = 800;

/// Bytes that may leave at once, and in each [`STEP`], with those of the kernel: 18 full packets, some 200 Mbit/s.
const BURST: u64 = 39_600;
/// Interval in which packets of a lane leave.
const STEP: Duration = Duration::from_millis(1);

/// Least interval in which the allowance grows.
const REFILL: Duration = Duration::from_micros(125);

/// The rate as a multiple of what is carried in the mean.
const RATE_FACTOR: u64 = 2;
/// A process that is late lets leave what is due for so many steps at most, which a socket still holds, or the mean of all that time and a
/// quarter more.
const MAX_LATE_STEPS: f64 = 4.0;
const LATE_FACTOR: f64 = 1.25;
/// The mean is that of the busiest [`MEAN_BINS`] bins in a row, by the times of arrival.
const BIN: Duration = Duration::from_millis(25);
const MEAN_BINS: usize = 4;
const BINS: usize = 16;

/// Packets for which an empty queue keeps its memory.
const KEPT_CAPACITY: usize = 128;

/// Holds datagrams back that would leave in bursts, in the order of each lane.
#[derive(Debug)]
pub struct DeliveryPacer<T> {
    /// Empty before the first packet.
    lanes: Vec<PacedLane<T>>,
    /// Lanes with packets that wait.
    waiting: LaneSet,
    /// True if all leaves at once.
    is_released: bool,
    /// No lane has an allowance before that.
    empty_until: Time,
}

#[derive(Debug)]
struct PacedLane<T> {
    /// Packets that wait, with their bytes.
    queue: VecDeque<(u64, T)>,
    /// Bytes that may leave, as of `refilled`. A packet that begins within them may exceed them.
    allowance: i64,
    refilled: Time,
    /// Bytes that arrived, by bins of time, and the number of the newest bin.
    bins: [u64; BINS],
    newest: u64,
}

impl<T> Default for DeliveryPacer<T> {
    fn default() -> DeliveryPacer<T> {
        DeliveryPacer {
            lanes: Vec::new(),
            waiting: LaneSet::default(),
            is_released: false,
            empty_until: Time::ZERO,
        }
    }
}

impl<T> DeliveryPacer<T> {
    /// Takes a packet of so many bytes that arrived at a time and was held until now. Returns it if it leaves at once.
    pub fn handle(
        &mut self,
        now: Time,
        arrived: Time,
        lane: LaneId,
        bytes: usize,
        item: T,
    ) -> Option<T> {
        if self.lanes.is_empty() {
            self.lanes.resize_with(LANES, || PacedLane::new(now));
        }
        let paced = &mut self.lanes[lane.index()];
        let bytes = bytes as u64 + KERNEL_BYTES;
        paced.count(arrived, bytes);
        if paced.queue.is_empty() && (paced.take(now, bytes) || self.is_released) {
            return Some(item);
        }
        paced.queue.push_back((bytes, item));
        self.waiting.insert(lane);
        None
    }

    /// Returns the next packet whose time has come.
    pub fn poll(&mut self, now: Time) -> Option<T> {
        if now < self.empty_until && !self.is_released {
            return None;
        }
        for lane in self.waiting.iter() {
            let paced = &mut self.lanes[lane.index()];
            let &(bytes, _) = paced.queue.front()?;
            if !paced.take(now, bytes) && !self.is_released {
                continue;
            }
            let (_, item) = paced.queue.pop_front()?;
            if paced.queue.is_empty() {
                paced.queue.shrink_to(KEPT_CAPACITY);
                self.waiting.remove(lane);
            }
            return Some(item);
        }
        self.empty_until = now + REFILL;
        None
    }

    /// Lets everything leave at once, what waits and what comes, until [`DeliveryPacer::end_release`].
    pub fn release(&mut self) {
        self.is_released = true;
    }

    /// Spreads packets again.
    pub fn end_release(&mut self) {
        self.is_released = false;
    }

    /// Returns the time at which [`DeliveryPacer::poll`] has something again; none if nothing waits.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let waiting = self.waiting.iter().map(|lane| &self.lanes[lane.index()]);
        waiting.map(|paced| paced.refilled + STEP).min()
    }
}

impl<T> PacedLane<T> {
    fn new(now: Time) -> PacedLane<T> {
        PacedLane {
            queue: VecDeque::new(),
            allowance: BURST as i64,
            refilled: now,
            bins: [0; BINS],
            newest: 0,
        }
    }

    /// Counts a packet in the bin of its arrival: the one that ends a gap arrived last, and is delivered first.
    fn count(&mut self, arrived: Time, bytes: u64) {
        let bin = arrived.as_nanos() / BIN.as_nanos() as u64;
        if bin > self.newest {
            let passed = (bin - self.newest).min(BINS as u64);
            for empty in bin + 1 - passed..=bin {
                self.bins[empty as usize % BINS] = 0;
            }
            self.newest = bin;
        }
        if self.newest - bin < BINS as u64 {
            self.bins[bin as usize % BINS] += bytes;
        }
    }

    /// Returns the bytes that arrive in a step, in the mean.
    fn mean_bytes(&self) -> u64 {
        let oldest = self.newest as usize + 1;
        let bins = |first: usize| (first..first + MEAN_BINS).map(|bin| self.bins[bin % BINS]);
        let windows = (oldest..=oldest + BINS - MEAN_BINS).map(|first| bins(first).sum::<u64>());
        let steps = (BIN * MEAN_BINS as u32).as_nanos() / STEP.as_nanos();
        windows.max().unwrap_or_default() / steps as u64
    }

    /// Takes a packet's bytes off the allowance. Returns false if there is none.
    fn take(&mut self, now: Time, bytes: u64) -> bool {
        let passed = now.since(self.refilled);
        if passed >= REFILL {
            let steps = passed.as_secs_f64() / STEP.as_secs_f64();
            let mean = self.mean_bytes();
            let step_bytes = BURST.max(RATE_FACTOR * mean) as f64;
            // While packets wait, polls are a step apart at most, unless the process is late.
            let (most, late) = match self.queue.is_empty() {
                true => (1.0, 0.0),
                false => (MAX_LATE_STEPS, mean as f64 * steps * LATE_FACTOR),
            };
            let more = (step_bytes * steps.min(most)).max(late);
            let limit = step_bytes.max(more);
            self.allowance = (self.allowance as f64 + more).min(limit) as i64;
            self.refilled = now;
        }
        let has_left = self.allowance > 0;
        if has_left {
            self.allowance -= bytes as i64;
        }
        has_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: usize = 1_400;

    fn at(micros: u64) -> Time {
        Time::ZERO + Duration::from_micros(micros)
    }

    /// Takes all that leaves by a time, each with the time at which it does.
    fn drain(pacer: &mut DeliveryPacer<u32>, until: Time) -> Vec<(Time, u32)> {
        let mut left = Vec::new();
        while let Some(now) = pacer.poll_timeout().filter(|due| *due <= until) {
            let next = std::iter::from_fn(|| pacer.poll(now));
            left.extend(next.map(|item| (now, item)));
        }
        left
    }

    #[test]
    fn a_burst_leaves_in_order_and_in_steps_that_a_socket_holds() {
        let mut pacer = DeliveryPacer::default();
        let now = at(5_000_000);
        // 300 packets, 420 kB.
        let at_once = (0..300).filter_map(|item| pacer.handle(now, now, LaneId(7), PACKET, item));
        let at_once: Vec<u32> = at_once.collect();
        assert_eq!(at_once, (0..18).collect::<Vec<_>>());
        let rest = drain(&mut pacer, at(6_000_000));
        let items: Vec<u32> = rest.iter().map(|(_, item)| *item).collect();
        assert_eq!(items, (18..300).collect::<Vec<_>>());
        for step in 0..20 {
            let end = now + STEP * step;
            let here = rest.iter().filter(|(left, _)| *left == end).count();
            assert!(here <= 19, "{here} packets after {step} ms");
        }
        assert!(rest.last().unwrap().0 <= now + Duration::from_millis(17));
        assert_eq!(pacer.poll_timeout(), None);
    }

    #[test]
    fn what_was_held_for_a_while_is_gone_after_as_long_again() {
        for held in [60_u64, 100, 200, 300] {
            // 400 Mbit/s, and a gap that its last packet ends: that one is delivered first.
            let (mut pacer, mut last, mut left) = (DeliveryPacer::default(), 0, Vec::new());
            for tick in 0..3_000_u64 {
                let now = at(1_000_000 + tick * 1_000);
                while pacer.poll(now).is_some() {
                    last = tick;
                    left.push(tick);
                }
                let mut arrivals: Vec<u64> = match tick {
                    tick if tick < 2_000 || tick > 2_000 + held => vec![tick],
                    tick if tick == 2_000 + held => (2_000..=tick).collect(),
                    _ => Vec::new(),
                };
                if let Some(newest) = arrivals.pop() {
                    arrivals.insert(0, newest);
                }
                for arrived in arrivals {
                    let arrived = at(1_000_000 + arrived * 1_000);
                    for item in 0..36 {
                        let passes = pacer.handle(now, arrived, LaneId(1), PACKET, item);
                        left.extend(passes.map(|_| tick));
                    }
                }
            }
            let (soonest, latest) = (2_000 + held * 17 / 10, 2_000 + held * 23 / 10);
            assert!(
                (soonest..=latest).contains(&last),
                "{held} ms: gone at {last}"
            );
            let busiest = left.chunk_by(|a, b| a == b).map(<[_]>::len).max().unwrap();
            assert!(
                busiest <= 2 * 36 + 10,
                "{held} ms: {busiest} packets in one"
            );
        }
    }

    #[test]
    fn a_process_that_is_late_each_time_keeps_up() {
        for late in [2_u64, 4, 8, 20] {
            // 200 Mbit/s.
            let (mut pacer, mut longest) = (DeliveryPacer::default(), Duration::ZERO);
            for tick in 0..2_000 / late {
                let now = at(1_000_000 + tick * late * 1_000);
                while let Some(came) = pacer.poll(now) {
                    longest = longest.max(now.since(came));
                }
                for _ in 0..18 * late {
                    pacer.handle(now, now, LaneId(1), PACKET, now);
                }
            }
            let allowed = Duration::from_millis(20 + 4 * late);
            assert!(longest <= allowed, "each {late} ms: {longest:?}");
        }
    }

    #[test]
    fn small_packets_are_as_few() {
        for bytes in [60, 400] {
            let mut pacer = DeliveryPacer::default();
            let now = at(5_000_000);
            let at_once =
                (0..1_000).filter_map(|item| pacer.handle(now, now, LaneId(7), bytes, item));
            let at_once = at_once.count();
            assert!(
                at_once * (bytes + 800) < 42_000,
                "{at_once} of {bytes} bytes"
            );
        }
    }

    #[test]
    fn a_datagram_that_is_longer_than_a_step_passes() {
        let mut pacer = DeliveryPacer::default();
        let now = at(1_000_000);
        for item in 0..10 {
            pacer.handle(now, now, LaneId(1), 65_535, item);
        }
        let rest = drain(&mut pacer, at(1_100_000));
        assert_eq!(rest.last().map(|(_, item)| *item), Some(9));
    }

    #[test]
    fn all_leaves_at_once_where_memory_is_short() {
        let mut pacer = DeliveryPacer::default();
        let now = at(1_000_000);
        let held = (0..400_u32).filter(|item| {
            let lane = LaneId((item % 2) as u8);
            pacer.handle(now, now, lane, PACKET, *item).is_none()
        });
        let held = held.count();
        assert!(held > 300);
        pacer.release();
        assert_eq!(std::iter::from_fn(|| pacer.poll(now)).count(), held);
        assert_eq!(pacer.poll_timeout(), None);
        // Packets that come then leave at once as well.
        let next = (0..400).filter_map(|item| pacer.handle(now, now, LaneId(0), PACKET, item));
        assert_eq!(next.count(), 400);
        pacer.end_release();
        // Later packets are spread again.
        let next = (0..400).filter_map(|item| pacer.handle(now, now, LaneId(0), PACKET, item));
        assert!(next.count() < 20);
    }

    #[test]
    fn what_comes_at_the_rate_of_links_is_not_delayed() {
        let mut pacer = DeliveryPacer::default();
        // 150 Mbit/s in batches of 16 packets.
        for batch in 0..1_000 {
            let now = at(1_000_000 + batch * 1_195);
            for item in 0..16 {
                assert_eq!(pacer.handle(now, now, LaneId(1), PACKET, item), Some(item));
            }
        }
    }

    #[test]
    fn a_faster_lane_is_delayed_at_its_start_at_most() {
        let mut pacer = DeliveryPacer::default();
        // 5 Gbit/s.
        let mut delays = Vec::new();
        for tick in 0..4_000_u64 {
            let now = at(1_000_000 + tick * 100);
            while let Some(came) = pacer.poll(now) {
                delays.push((came, now.since(came)));
            }
            for _ in 0..45 {
                if let Some(came) = pacer.handle(now, now, LaneId(1), PACKET, now) {
                    delays.push((came, Duration::ZERO));
                }
            }
        }
        let longest = delays.iter().map(|(_, delay)| *delay).max().unwrap();
        assert!(longest <= Duration::from_millis(30), "{longest:?}");
        let late = delays.iter().filter(|(came, _)| *came >= at(1_150_000));
        let late = late.map(|(_, delay)| *delay).max().unwrap();
        assert!(late <= STEP, "{late:?}");
    }

    #[test]
    fn a_lane_does_not_wait_for_another() {
        let mut pacer = DeliveryPacer::default();
        let now = at(1);
        for item in 0..100 {
            pacer.handle(now, now, LaneId(3), PACKET, item);
        }
        let other = pacer.handle(now, now, LaneId(131), PACKET, 1_000);
        assert_eq!(other, Some(1_000));
        assert_eq!(pacer.handle(now, now, LaneId(3), 60, 2_000), None);
        let rest = drain(&mut pacer, at(1_000_000));
        assert_eq!(rest.last().map(|(_, item)| *item), Some(2_000));
        // Nothing is kept of a burst.
        let capacity = pacer.lanes.iter().map(|lane| lane.queue.capacity());
        assert!(capacity.max().unwrap() <= KEPT_CAPACITY);
    }
}
