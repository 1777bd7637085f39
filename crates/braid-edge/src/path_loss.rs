//! Measures what a path loses, by the packet counts of both edges. Pure.
//!
//! A probe notes how many packets were sent before it, and the far edge's reply how many of them had come. The path is
//! first in, first out, so the rest is lost: the direct mode of RFC 6374, §2.2. It holds for all protocols, and
//! for none of what hosts take for lost.
//!
//! - **A count is a lower bound**: packets that are sent while the probe is on its way out come before it, so the
//!   loss between two probes may seem smaller. Of [`BASE_SAMPLES`] at the beginning the one with the most missing is the base.
//! - **A probe may overtake** packets in front of another processor of the far edge. So losses count once
//!   [`CONFIRMING_SAMPLES`] in a row show them; where copies are kept, once all of [`REPAIR_TIME`] do, since what is
//!   sent again by another path is no loss.
//! - **A burst is one loss**, of one packet, as for the sender that slows down. What is lost while the edge's own packets
//!   fill the path's queue says nothing about the path.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

use crate::pair_repair::LOSS_WINDOW;

/// Samples of which the one with the most missing is the base: packets that slip in before a probe hide as many losses.
const BASE_SAMPLES: usize = 8;
/// Samples in a row that show a loss.
const CONFIRMING_SAMPLES: usize = 3;
/// Packets that may have come beside those that were sent before a probe: 10 ms of 10 Gbit/s.
const MAX_SLIPPED: u64 = 10_000;
/// Time within which packets are sent again, of which copies are kept.
const REPAIR_TIME: Duration = Duration::from_millis(400);
/// Estimated queue from which on it may be the edge's own packets that fill a path; as `OWN_QUEUE_US` in `bpf/arrival.h`.
pub const OWN_QUEUE: Duration = Duration::from_millis(50);
/// Time after a loss within which more of them belong to it; as `LOSS_EVENT_NS`.
const LOSS_EVENT: Duration = Duration::from_millis(50);

/// Losses of a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecentLoss {
    /// Bytes that were sent within [`LOSS_WINDOW`], of which older ones count for less.
    pub sent: u64,
    /// Among them those of one packet for each loss.
    pub lost: u64,
    /// Among them those of all packets that were lost.
    pub lost_bytes: u64,
    /// Losses since the beginning.
    pub events: u64,
}

/// Packets and bytes sent by a path before a probe, since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SentCounters {
    /// Packets, those that were repeated included.
    pub packets: u64,
    /// Bytes of those that were sent for the first time.
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Time,
    /// Packets that were missing, modulo 2^32.
    missing: u32,
    /// Packets that were sent again until then.
    repeated: u64,
    /// The estimated queue in front of the probe.
    estimated: Duration,
}

/// Losses of one path.
#[derive(Debug)]
pub struct LossMeter {
    /// The last ones.
    samples: VecDeque<Sample>,
    /// True if copies of the path's packets are kept.
    is_copied: bool,
    /// Packets missing that are none that were lost, and the number of samples that they are of.
    base: (u32, usize),
    /// Packets that were sent again although none was lost since the base: those that were late.
    needless: u64,
    /// Packets that count as lost.
    counted: u64,
    /// The last counters of both edges.
    last: Option<(SentCounters, u32)>,
    /// Mean of the packets sent last.
    packet_bytes: f64,
    /// Bytes within [`LOSS_WINDOW`], as of `at`.
    sent: f64,
    lost: f64,
    lost_bytes: f64,
    at: Time,
    /// Beginning of the last loss, and the number of all.
    event: Option<Time>,
    events: u64,
}

impl LossMeter {
    /// Creates it for a path of which nothing is known.
    #[must_use]
    pub fn new(now: Time) -> LossMeter {
        LossMeter {
            samples: VecDeque::new(),
            is_copied: false,
            base: (0, 0),
            needless: 0,
            counted: 0,
            last: None,
            packet_bytes: 0.0,
            sent: 0.0,
            lost: 0.0,
            lost_bytes: 0.0,
            at: now,
            event: None,
            events: 0,
        }
    }

    /// Takes in the counters before a probe: what was sent, how many of these packets came, modulo 2^32, and how many
    /// that were lost have been sent again by another path until now. The probe was sent into an estimated queue.
    pub fn handle_sample(
        &mut self,
        now: Time,
        sent: SentCounters,
        received: u32,
        repeated: u64,
        estimated: Duration,
    ) {
        let is_restart = |(before, came): (SentCounters, u32)| {
            let between = sent.packets.checked_sub(before.packets);
            between.is_none_or(|sent| u64::from(received.wrapping_sub(came)) > sent + MAX_SLIPPED)
        };
        if self.last.is_some_and(is_restart) {
            // The far edge, or its program, has begun anew.
            *self = LossMeter {
                sent: self.sent,
                lost: self.lost,
                lost_bytes: self.lost_bytes,
                at: self.at,
                is_copied: self.is_copied,
                events: self.events,
                ..LossMeter::new(now)
            };
        }
        self.decay(now);
        let (before, _) = self.last.replace((sent, received)).unwrap_or((sent, 0));
        let (packets, bytes) = (sent.packets - before.packets, sent.bytes - before.bytes);
        self.sent += bytes as f64;
        if packets > 0 {
            self.packet_bytes = bytes as f64 / packets as f64;
        }
        let missing = (sent.packets as u32).wrapping_sub(received);
        let is_old = |sample: &Sample| now.since(sample.at) > REPAIR_TIME;
        while self.samples.len() > CONFIRMING_SAMPLES && self.samples.front().is_some_and(is_old) {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample {
            at: now,
            missing,
            repeated,
            estimated,
        });
        let (base, samples) = self.base;
        if samples < BASE_SAMPLES {
            let is_more = samples == 0 || beyond(missing, base) > 0;
            self.base = (if is_more { missing } else { base }, samples + 1);
            self.needless = repeated;
            return;
        }
        let count = match self.is_copied {
            true => self.samples.len(),
            false => CONFIRMING_SAMPLES,
        };
        let last = || self.samples.iter().rev().take(count);
        let shown = last().map(|sample| beyond(sample.missing, base)).min();
        let packets = |beyond: Option<i32>| u64::try_from(beyond.unwrap_or(0)).unwrap_or(0);
        // A loss is seen before its packet has been sent again for that long.
        let all = self.samples.iter();
        let most = packets(all.map(|sample| beyond(sample.missing, base)).max());
        let settled = self.samples.front().map_or(0, |sample| sample.repeated);
        self.needless = self.needless.max(settled.saturating_sub(most));
        let made_good = repeated.saturating_sub(self.needless);
        let lost = packets(shown).saturating_sub(made_good);
        let Some(more) = lost.checked_sub(self.counted).filter(|more| *more > 0) else {
            return;
        };
        self.counted = lost;
        let is_own = last().any(|sample| sample.estimated >= OWN_QUEUE);
        let is_new = self.event.is_none_or(|at| now.since(at) > LOSS_EVENT);
        if is_own {
            return;
        }
        self.lost_bytes += more as f64 * self.packet_bytes;
        if is_new {
            self.event = Some(now);
            self.events += 1;
            self.lost += self.packet_bytes;
        }
    }

    /// Sets whether copies of the path's packets are kept. As soon as they are, only losses count that are not
    /// repaired.
    pub fn set_copied(&mut self, is_copied: bool) {
        if is_copied && !self.is_copied {
            (self.lost, self.lost_bytes) = (0.0, 0.0);
        }
        self.is_copied = is_copied;
    }

    /// Returns what the path lost lately; none before there were enough probes.
    #[must_use]
    pub fn recent(&self, now: Time) -> Option<RecentLoss> {
        let part = remaining(now.since(self.at));
        let (_, samples) = self.base;
        (samples == BASE_SAMPLES).then_some(RecentLoss {
            sent: (self.sent * part) as u64,
            lost: (self.lost * part) as u64,
            lost_bytes: (self.lost_bytes * part) as u64,
            events: self.events,
        })
    }

    fn decay(&mut self, now: Time) {
        let part = remaining(now.since(self.at));
        for bytes in [&mut self.sent, &mut self.lost, &mut self.lost_bytes] {
            *bytes *= part;
        }
        self.at = now;
    }
}

/// Returns the part of the bytes of some time ago that counts.
fn remaining(past: Duration) -> f64 {
    (1.0 - past.as_secs_f64() / LOSS_WINDOW.as_secs_f64()).max(0.0)
}

/// Returns how far a count, modulo 2^32, is beyond another one.
fn beyond(count: u32, base: u32) -> i32 {
    count.wrapping_sub(base) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(20);

    /// A path of 400 packets a second, 1,500 bytes each, that is probed 50 times a second.
    struct Line {
        meter: LossMeter,
        now: Time,
        sent: u64,
        lost: u64,
        /// Packets of the far edge before it began to count.
        offset: u32,
        repeated: u64,
        estimated: Duration,
        /// Packets that a probe overtakes.
        overtaken: u64,
        /// Packets that overtake the next probe on its way out.
        slipped: u64,
    }

    impl Line {
        fn new() -> Line {
            // Both counters wrap soon.
            Line::with_offset(u32::MAX - 5_000)
        }

        fn with_offset(offset: u32) -> Line {
            let now = Time::ZERO + Duration::from_secs(100);
            let mut line = Line {
                meter: LossMeter::new(now),
                now,
                sent: 1 << 33,
                lost: 0,
                offset,
                repeated: 0,
                estimated: Duration::ZERO,
                overtaken: 0,
                slipped: 0,
            };
            line.run(1_000);
            line
        }

        /// Probes after eight more packets.
        fn step(&mut self) {
            self.now = self.now + INTERVAL;
            self.sent += 8;
            let came = (self.sent + self.slipped - self.lost - self.overtaken) as u32;
            let sent = SentCounters {
                packets: self.sent,
                bytes: 1_500 * self.sent,
            };
            let received = came.wrapping_add(self.offset);
            self.meter
                .handle_sample(self.now, sent, received, self.repeated, self.estimated);
        }

        fn run(&mut self, ms: u64) {
            for _ in 0..ms / 20 {
                self.step();
            }
        }

        fn recent(&self) -> (u64, u64) {
            let RecentLoss { sent, lost, .. } = self.meter.recent(self.now).expect("samples");
            (sent, lost)
        }
    }

    #[test]
    fn what_is_lost_is_counted_once_and_forgotten() {
        let mut line = Line::new();
        line.run(10_000);
        let (sent, lost) = line.recent();
        // A mean of 8 s, in which what was sent counts for ever less: 4 s, or a little more by steps.
        assert!((2_000_000..3_600_000).contains(&sent), "{sent}");
        assert_eq!(lost, 0);
        line.lost += 1;
        line.run(40);
        assert_eq!(line.recent().1, 0, "it may have been overtaken");
        line.run(20);
        assert_eq!(line.recent().1, 1_500);
        line.run(200);
        assert!((1_400..1_500).contains(&line.recent().1));
        line.lost += 1;
        line.run(60);
        assert!((2_800..3_000).contains(&line.recent().1));
        line.run(60_000);
        assert!(line.recent().1 < 10);
    }

    #[test]
    fn a_burst_is_one_loss() {
        let mut line = Line::new();
        for _ in 0..3 {
            line.lost += 5;
            line.step();
        }
        line.run(100);
        assert!((1_400..=1_500).contains(&line.recent().1));
        let lost = line.meter.recent(line.now).expect("samples").lost_bytes;
        assert!((14 * 1_500..=15 * 1_500).contains(&lost), "{lost}");
    }

    #[test]
    fn losses_in_a_queue_of_the_edge_itself_say_nothing_of_the_path() {
        let mut line = Line::new();
        line.estimated = OWN_QUEUE;
        line.lost += 3;
        line.run(1_000);
        line.estimated = Duration::ZERO;
        line.run(1_000);
        assert_eq!(line.recent().1, 0);
        line.lost += 1;
        line.run(100);
        assert!(line.recent().1 > 0);
    }

    #[test]
    fn packets_beside_a_probe_are_no_losses() {
        let mut line = Line::new();
        for step in 0..500 {
            line.overtaken = if step % 3 == 0 { 4 } else { 0 };
            line.slipped = step % 4;
            line.step();
        }
        assert_eq!(line.recent().1, 0);
        // Those that slip by hide as many losses once.
        (line.overtaken, line.slipped) = (0, 0);
        line.lost += 4;
        line.run(100);
        assert!(line.recent().1 > 0);
    }

    #[test]
    fn what_is_sent_again_by_another_path_is_no_loss() {
        let mut line = Line::new();
        line.lost += 1;
        line.run(100);
        assert!(line.recent().1 > 0);
        line.meter.set_copied(true);
        assert_eq!(line.recent().1, 0, "those before are forgiven");
        for _ in 0..20 {
            line.lost += 1;
            line.run(200);
            line.repeated += 1;
            line.run(300);
        }
        assert_eq!(line.recent().1, 0);
        line.lost += 2;
        line.run(500);
        assert!(line.recent().1 > 0, "one that was not repaired");
    }

    #[test]
    fn packets_that_were_sent_again_in_vain_hide_no_losses() {
        let mut line = Line::with_offset(1 << 30);
        line.meter.set_copied(true);
        for _ in 0..20 {
            // It was late alone.
            line.repeated += 1;
            line.run(500);
        }
        assert_eq!(line.recent().1, 0);
        line.lost += 1;
        line.run(500);
        assert!(line.recent().1 > 0);
        // Nor do those that were sent again before the far edge began anew.
        line.lost += 50;
        line.repeated += 50;
        line.run(500);
        line.offset = 0u32.wrapping_sub((line.sent - line.lost) as u32);
        line.run(60_000);
        assert!(line.recent().1 < 10);
        line.lost += 1;
        line.run(500);
        assert!(line.recent().1 > 1_000, "{:?}", line.recent());
    }

    #[test]
    fn a_far_edge_that_begins_anew_has_lost_nothing() {
        let mut line = Line::with_offset(1 << 30);
        line.lost += 1;
        line.run(100);
        let before = line.recent().1;
        line.offset = 0u32.wrapping_sub(line.sent as u32);
        line.step();
        assert_eq!(line.meter.recent(line.now), None, "not enough samples");
        line.run(1_000);
        assert!(line.recent().1 <= before);
        line.lost += 1;
        line.run(100);
        assert!(line.recent().1 > before);
    }
}
