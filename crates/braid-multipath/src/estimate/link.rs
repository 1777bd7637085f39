//! The sending end's estimates of one link, derived from reports.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::{Bytes, Rate, Time};

use super::capacity::{MAX_QUEUE_TARGET, Queue};
use super::stall::StallDetector;
use super::{Capacity, Demand, LinkReport, LossEstimator, REPORT_INTERVAL, RecentMin, Rtt, Sample};
use super::{NumberRange, SentAt, SentLog};
use crate::{PacketNumber, RelativeDelay, Stamp};

/// Least span of a sample, in the receiver's time; or half a round trip.
const MIN_SAMPLE_SPAN: Duration = Duration::from_millis(50);

/// Longest span of a sample: an average over a pause is no rate.
const MAX_SAMPLE_SPAN: Duration = Duration::from_millis(150);

/// Span of the mean on an unsteady link, in the receiver's time: several stalls. A longer span
/// would follow a rate that doubles within a second too late.
const MEAN_SPAN: Duration = Duration::from_millis(300);

/// Longest gap between reports that counts in a mean: a longer one is an outage, not a low rate.
const MAX_REPORT_GAP: Duration = Duration::from_millis(100);

/// While delay may be no queue, packets lost when it is longer than its mean by this are lost by a full queue, all others at random.
const MIN_OVERFLOW_S: f64 = 0.02;

/// Packets over which that mean is taken.
const USUAL_PACKETS: f64 = 200.0;

/// Queue target on an unsteady link. On the recorded links that the documentation names, 20 ms
/// leave a tenth of the rate unused, and 50 ms gain 3 %.
const UNSTEADY_QUEUE: Duration = Duration::from_millis(30);

/// Window of an unsteady link as a multiple of what its mean fills, so that it grows where there is
/// more: at 40 ms, 2.5 times the bandwidth-delay product, where BBR has 2.
const UNSTEADY_GAIN: f64 = 1.1;

/// Least delay above the base that is a queue on an unsteady link. In virtual time 5 ms and 12 ms do as well.
const MIN_BUSY_QUEUE: Duration = Duration::from_millis(10);

/// Pacing rate as a multiple of the mean: the window is the limit.
const UNSTEADY_PACE: f64 = 2.0;

/// A link is known to be steady after this time under load without a stall.
const KNOWN_STEADY_SPAN: Duration = Duration::from_secs(10);

/// Longest round trip for which the window grows.
const MAX_TRIP: Duration = Duration::from_millis(400);

/// Queue allowed on a link beyond the packets in transit. More is never put in flight, since past
/// rates do not predict a mobile link.
const MAX_QUEUE: Duration = Duration::from_millis(20);

/// Bytes that may be in flight without eliciting a report: half of [`MIN_WINDOW`].
const MAX_UNREPORTED: Bytes = Bytes::new(7_500);

/// A link whose delay has been above its base by more than [`MAX_OWN_QUEUE`] for this long has a
/// longer route, or somebody else's queue, and is compared with other links by that. It has neither while more than
/// [`OVERFULL_WINDOWS`] of its window are in flight: its rate has fallen, and its own packets are the queue.
const PRESENT_MS: u64 = 500;
const MAX_OWN_QUEUE: Duration = Duration::from_millis(40);
const OVERFULL_WINDOWS: u64 = 2;

/// Highest rate that a report can show: no uplink has 1 Tbit/s, and the rates of all links can be added.
const MAX_RATE: Rate = Rate::from_bits_per_sec(1_000_000_000_000);

/// Most reports remembered. A report is due after 5 ms at the earliest, so that a mean spans 60 of them; the times
/// between them are the other end's word, and one whose clock stands still would have all of them kept.
const MAX_MARKS: usize = 256;

/// Least window, so that a link can always be measured.
const MIN_WINDOW: Bytes = Bytes::new(15_000);

#[derive(Debug, Clone, Copy)]
struct ReportMark {
    received_at: Time,
    bytes: u64,
    packets: u64,
    lost: u64,
    sent: SentAt,
    /// True if the link had a queue all the time since the report before.
    busy: bool,
}

/// Adds a mark; the oldest gives way if there are too many.
fn push_mark(marks: &mut VecDeque<ReportMark>, mark: ReportMark) {
    if marks.len() == MAX_MARKS {
        marks.pop_front();
    }
    marks.push_back(mark);
}

/// Returns the times between reports, no pauses among them, each with whether the link was busy.
fn spans(marks: &VecDeque<ReportMark>) -> impl Iterator<Item = (Duration, bool)> + '_ {
    let pairs = marks.iter().zip(marks.iter().skip(1));
    pairs.map(|(a, b)| {
        let span = b.received_at.since(a.received_at).min(MAX_REPORT_GAP);
        (span, b.busy)
    })
}

/// Sender's estimates of one link.
#[derive(Debug, Clone, Default)]
pub struct LinkEstimator {
    sent: SentLog,
    highest: Option<PacketNumber>,
    /// Send time of the highest packet known to have arrived.
    confirmed: Option<Time>,
    /// Time of the last report that covered new packets.
    progressed: Option<Time>,
    rtt: Rtt,
    /// Round trips without the queue on the link.
    trip: Rtt,
    /// Lowest one-way delay.
    base: RecentMin<RelativeDelay>,
    /// The same of the packets that were the newest in a report.
    newest: RecentMin<RelativeDelay>,
    /// The lowest one of the present.
    present: RecentMin<RelativeDelay, PRESENT_MS>,
    /// When more than [`OVERFULL_WINDOWS`] of its window were last in flight.
    overfull_at: Option<Time>,
    delay: Option<f64>,
    jitter: Duration,
    capacity: Capacity,
    loss: LossEstimator,
    marks: VecDeque<ReportMark>,
    stalls: StallDetector,
    /// Reports of the last [`MEAN_SPAN`].
    mean_marks: VecDeque<ReportMark>,
    delivered: Option<Rate>,
    /// Time under load since the last stall.
    steady_for: Duration,
    /// Mean queue in seconds over some [`USUAL_PACKETS`] packets.
    usual_queue: f64,
}

impl LinkEstimator {
    /// Returns the estimates of a new link; `initial` is a good guess of its rate.
    #[must_use]
    pub fn new(initial: Option<Rate>) -> LinkEstimator {
        LinkEstimator {
            capacity: initial.map_or_else(Capacity::default, Capacity::new),
            ..LinkEstimator::default()
        }
    }

    /// Counts a packet sent now, data or not, and returns its number. `elicits` is true if its
    /// arrival makes the far end report. A report does not elicit one, or two idle ends would
    /// report each other's reports for ever.
    pub fn handle_sent(&mut self, now: Time, len: Bytes, elicits: bool) -> PacketNumber {
        self.sent.handle_sent(now, len, elicits)
    }

    /// Adds `len` bytes to the packet last sent.
    pub fn handle_more(&mut self, len: Bytes) {
        self.sent.handle_more(len);
    }

    /// Returns true if a probe is needed to elicit a report. Without it the window would fill with
    /// packets that arrived long ago.
    #[must_use]
    pub fn needs_probe(&self) -> bool {
        self.waiting_since().is_none() && self.in_flight() > MAX_UNREPORTED
    }

    /// Takes a report. One that is older than the last is ignored. Returns true if it covers new
    /// packets.
    pub fn handle_report(&mut self, now: Time, report: &LinkReport, demand: Demand) -> bool {
        // A report about packets that were never sent is not ours.
        if report.highest >= self.sent.next() || Some(report.highest) <= self.highest {
            return false;
        }
        self.highest = Some(report.highest);
        self.progressed = Some(now);
        let trip = Duration::from_micros(Stamp::of(now).0.saturating_sub(report.echo.0));
        let trip = trip.saturating_sub(report.held);
        self.rtt.handle_sample(now, trip);
        self.jitter = report.jitter;
        self.base.handle_value(now, report.delay);
        self.present.handle_value(now, report.delay);
        if self.in_flight().get() > OVERFULL_WINDOWS * self.window().get() {
            self.overfull_at = Some(now);
        }
        let micros = report.delay.0 as f64;
        let smoothed = self.delay.get_or_insert(micros);
        *smoothed += (micros - *smoothed) / 4.0;
        let before = self.queue();
        let base = self.base.min(now).unwrap_or(report.delay);
        // By the two ends' clocks, while reported delays have a zero of their own.
        let newest = RelativeDelay::of(report.echo, report.received_at);
        self.newest.handle_value(now, newest);
        let queue = newest.over(self.newest.min(now).unwrap_or(newest));
        self.trip.handle_sample(now, trip.saturating_sub(queue));
        let sent = self.sent.handle_arrived(report.highest);
        self.confirmed = sent.map(|sent| sent.at).or(self.confirmed);
        let queue = Queue {
            delay: report.delay.over(base),
            jitter: self.jitter,
            rtt_min: self.rtt.min(),
            sent,
        };
        if let Some(last) = self.marks.back() {
            let gap = report.received_at.since(last.received_at);
            self.stalls.handle_gap(now, gap, queue.delay);
            if demand == Demand::Backlog {
                self.steady_for += gap.min(MAX_REPORT_GAP);
            }
        }
        if self.stalls.is_unsteady(now) {
            self.steady_for = Duration::ZERO;
        }
        self.capacity.set_unsteady(self.stalls.is_unsteady(now));
        self.capacity.handle_queue(now, queue, demand);
        if let Some(train) = report.train {
            self.capacity.handle_train(train);
        }
        if let Some(sent) = sent {
            self.handle_mark(now, report, sent, queue.delay, before);
        }
        true
    }

    /// `delay` is that above the base, and `before` the queue at the report before, without persistent delay.
    fn handle_mark(
        &mut self,
        now: Time,
        report: &LinkReport,
        sent: SentAt,
        delay: Duration,
        before: Duration,
    ) {
        let mark = ReportMark {
            received_at: report.received_at,
            bytes: report.bytes.get(),
            packets: report.packets,
            lost: report.lost,
            sent,
            busy: delay >= MIN_BUSY_QUEUE,
        };
        self.update_mean(mark);
        let mut fresh = (0, 0);
        if let Some(last) = self.marks.back() {
            let lost = mark.lost.saturating_sub(last.lost);
            let arrived = mark.packets.saturating_sub(last.packets);
            let queued = self.is_loss_congestive(before);
            self.loss.handle_loss(now, lost, arrived, queued);
            fresh = (arrived, lost);
            let weight = (arrived.saturating_add(lost) as f64 / USUAL_PACKETS).min(0.5);
            self.usual_queue += weight * (self.queue().as_secs_f64() - self.usual_queue);
        }
        push_mark(&mut self.marks, mark);
        // Scatter of the delay is an error in the time that a sample spans.
        let least = MIN_SAMPLE_SPAN
            .max(self.rtt.min() / 2)
            .max(12 * self.capacity.scatter())
            .min(MAX_SAMPLE_SPAN * 2 / 3);
        let span = |from: &ReportMark| mark.received_at.since(from.received_at);
        while self.marks.get(1).is_some_and(|next| span(next) >= least) {
            self.marks.pop_front();
        }
        let Some(from) = self.marks.front().copied() else {
            return;
        };
        if span(&from) > MAX_SAMPLE_SPAN {
            self.marks.clear();
            self.marks.push_back(mark);
        } else if span(&from) >= least
            && let Some(sample) = sample(&from, &mark)
        {
            let average = self.loss.slow();
            let sample = Sample {
                fresh,
                average,
                ..sample
            };
            self.delivered = Some(sample.delivered);
            self.capacity.handle_sample(now, &sample);
        }
    }

    /// Returns true if what was lost since the report before, with this queue, was dropped by a full queue.
    fn is_loss_congestive(&self, before: Duration) -> bool {
        let queue = self.queue();
        // The end of a burst that overflowed a queue is only missed when the next packet arrives, long after.
        let queued = queue > self.capacity.target() || before > MAX_QUEUE_TARGET;
        let longest = queue.max(before).as_secs_f64();
        queued && (self.capacity.is_delay_queue() || longest > self.usual_queue + MIN_OVERFLOW_S)
    }

    /// Updates the mean over a span longer than the link's stalls.
    fn update_mean(&mut self, mark: ReportMark) {
        push_mark(&mut self.mean_marks, mark);
        let active = |marks: &VecDeque<ReportMark>, from: usize| -> Duration {
            spans(marks).skip(from).map(|(span, _)| span).sum()
        };
        while self.mean_marks.len() > 2 && active(&self.mean_marks, 1) >= MEAN_SPAN {
            self.mean_marks.pop_front();
        }
        let passed = active(&self.mean_marks, 0);
        if passed < MEAN_SPAN {
            return;
        }
        let Some(from) = self.mean_marks.front() else {
            return;
        };
        let delivered = rate(mark.bytes.saturating_sub(from.bytes), passed);
        let sent = mark.sent.at.since(from.sent.at);
        let pauses = mark
            .received_at
            .since(from.received_at)
            .saturating_sub(passed);
        let sent = sent.saturating_sub(pauses).max(MIN_SAMPLE_SPAN);
        let offered = rate(mark.sent.before.get() - from.sent.before.get(), sent);
        let busy = spans(&self.mean_marks).filter(|(_, busy)| *busy);
        let busy: Duration = busy.map(|(span, _)| span).sum();
        let busy = busy.as_secs_f64() / passed.as_secs_f64();
        self.capacity.handle_mean(delivered, offered, busy);
    }

    /// Returns the pacing rate: the send rate, or more where the window is the limit and at the
    /// start.
    #[must_use]
    pub fn pace(&self) -> Rate {
        let factor = match self.capacity.is_unsteady() {
            true => UNSTEADY_PACE * self.capacity.dry_gain(),
            false => self.capacity.start_gain(),
        };
        Rate::from_bits_per_sec((self.rate().bits_per_sec() as f64 * factor) as u64)
    }

    /// Returns true if the link has been under load for long without a stall.
    #[must_use]
    pub fn is_known_steady(&self) -> bool {
        self.steady_for >= KNOWN_STEADY_SPAN
    }

    /// Returns the current send rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.capacity.rate()
    }

    /// Returns the rate controller.
    #[must_use]
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Returns the last delivered rate, over 50 to 150 ms; none before the first sample.
    #[must_use]
    pub fn delivered(&self) -> Option<Rate> {
        self.delivered
    }

    /// Returns the bytes sent after the highest packet known to have arrived.
    #[must_use]
    pub fn in_flight(&self) -> Bytes {
        self.sent.in_flight(self.highest)
    }

    /// Returns the window, the most bytes that may be in flight: those the link carries in its
    /// lowest round trip, or its usual one at the start of a link that jitters, and until the next
    /// report, and 20 ms of queue.
    #[must_use]
    pub fn window(&self) -> Bytes {
        if self.capacity.is_unsteady() {
            return self.unsteady_window();
        }
        let persistent_delay = self.capacity.persistent_delay();
        let lowest = self.rtt.min() + persistent_delay;
        // Persistent delay is not known yet at the start of a link that jitters. Without it the
        // window would keep the link from showing more than it does.
        let trip = match self.capacity.is_doubtful() {
            true => lowest.max(self.rtt.smoothed().min(MAX_TRIP)),
            false => lowest,
        };
        let span = trip + REPORT_INTERVAL + MAX_QUEUE + 4 * self.jitter;
        let rate = self.rate().max(self.capacity.proven());
        rate.bytes_in(span).max(MIN_WINDOW)
    }

    /// Returns the window of an unsteady link: those bytes that fill the current round trip of
    /// reports, and a queue. It does not shrink for a delay: while the link stalls it fills, and
    /// then everything in it arrives at once.
    fn unsteady_window(&self) -> Bytes {
        let trip = self.trip.smoothed() + self.trip.variation();
        let trip = trip.max(self.rtt.min()).min(MAX_TRIP);
        let span = trip + REPORT_INTERVAL + UNSTEADY_QUEUE;
        let bytes = self.capacity.proven().bytes_in(span).get() as f64 * UNSTEADY_GAIN;
        let bytes = bytes * self.capacity.dry_gain();
        Bytes::new(bytes as u64).max(MIN_WINDOW)
    }

    /// Returns true if `len` more bytes fit into the window.
    #[must_use]
    pub fn fits_window(&self, len: Bytes) -> bool {
        self.in_flight() + len <= self.window()
    }

    /// Returns the time in which the link carries what is in flight beyond its window.
    #[must_use]
    pub fn excess_time(&self) -> Duration {
        let excess = self.in_flight().get().saturating_sub(self.window().get());
        let time = self.rate().time_of(Bytes::new(excess));
        time.unwrap_or_default()
    }

    /// Returns the current one-way delay with the queue, smoothed over a few reports; none before
    /// the first.
    #[must_use]
    pub fn delay(&self) -> Option<RelativeDelay> {
        self.delay.map(|delay| RelativeDelay(delay as i64))
    }

    /// Returns the longest recent stall; zero on a link that does not stall.
    #[must_use]
    pub fn stall(&self, now: Time) -> Duration {
        self.stalls.stall(now)
    }

    /// Returns the base delay: the lowest one-way delay of the last 20 s, or that of the last 0.5 s if it is higher than any queue
    /// of ours, as after a change of route.
    #[must_use]
    pub fn base(&self, now: Time) -> Option<RelativeDelay> {
        let base = self.base.min(now)?;
        let present = self.present.min(now).unwrap_or(base);
        let span = Duration::from_millis(PRESENT_MS);
        let is_own = (self.overfull_at).is_some_and(|overfull_at| now.since(overfull_at) < span);
        Some(match present.over(base) > MAX_OWN_QUEUE && !is_own {
            true => present,
            false => base,
        })
    }

    /// Returns the lowest one-way delay of the last 20 s: that of the route, unless it has changed.
    #[must_use]
    pub fn route_delay(&self, now: Time) -> Option<RelativeDelay> {
        self.base.min(now)
    }

    /// Returns the queue on the link: delay above the base delay, without persistent delay.
    #[must_use]
    pub fn queue(&self) -> Duration {
        self.capacity.queue()
    }

    /// Returns the mean deviation of the delay between neighbouring packets.
    #[must_use]
    pub fn jitter(&self) -> Duration {
        self.jitter
    }

    /// Notes that another link has fallen silent. It may have been the one that brought the reports
    /// of this link soonest.
    pub fn handle_silence(&mut self) {
        self.rtt.forget_min();
    }

    /// Returns the round-trip times of this link's packets, whatever link carried the report.
    #[must_use]
    pub fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// Returns the loss estimates.
    #[must_use]
    pub fn loss(&self) -> &LossEstimator {
        &self.loss
    }

    /// Restarts loss and rate, as for a link that returns: earlier losses are over, and packets
    /// that arrived while next to nothing was sent say nothing about its rate.
    pub fn restart(&mut self) {
        self.loss.restart();
        self.capacity.restart();
        self.marks.clear();
        self.mean_marks.clear();
    }

    /// Returns the highest packet known to have arrived.
    #[must_use]
    pub fn highest(&self) -> Option<PacketNumber> {
        self.highest
    }

    /// Returns the send time of the highest packet known to have arrived; none before the first
    /// report.
    #[must_use]
    pub fn confirmed(&self) -> Option<Time> {
        self.confirmed
    }

    /// Returns the packets sent no later than `at` that no report has covered; none if there are
    /// none.
    #[must_use]
    pub fn unreported(&self, at: Time) -> Option<NumberRange> {
        self.sent.range_until(self.highest, at)
    }

    /// Returns when a report last covered new packets.
    #[must_use]
    pub fn progressed(&self) -> Option<Time> {
        self.progressed
    }

    /// Returns the send time of the oldest packet that should have been reported and was not; none
    /// if there is none.
    #[must_use]
    pub fn waiting_since(&self) -> Option<Time> {
        self.sent.first_eliciting(self.highest)
    }

    /// Returns the packets and bytes sent on this link in total.
    #[must_use]
    pub fn sent(&self) -> (PacketNumber, Bytes) {
        (self.sent.next(), self.sent.total())
    }
}

fn sample(from: &ReportMark, to: &ReportMark) -> Option<Sample> {
    let received = to.received_at.since(from.received_at);
    let sent = to.sent.at.since(from.sent.at);
    if received.is_zero() || sent.is_zero() {
        return None;
    }
    Some(Sample {
        delivered: rate(to.bytes.saturating_sub(from.bytes), received),
        offered: rate(to.sent.before.get() - from.sent.before.get(), sent),
        arrived: to.packets.saturating_sub(from.packets),
        lost: to.lost.saturating_sub(from.lost),
        fresh: (0, 0),
        average: 0.0,
    })
}

/// Returns the rate of these bytes, of which a peer may claim any number.
fn rate(bytes: u64, span: Duration) -> Rate {
    let bits = u128::from(bytes) * 8_000_000_000 / span.as_nanos().max(1);
    u64::try_from(bits).map_or(MAX_RATE, |bits| Rate::from_bits_per_sec(bits).min(MAX_RATE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkId;

    #[test]
    fn reports_of_a_clock_that_stands_still_or_goes_back_take_bounded_memory() {
        for step in [0, 1] {
            let mut link = LinkEstimator::default();
            for index in 0..5_000 {
                let now = Time::from_nanos(1_000_000_000 + index * 1_000_000);
                let highest = link.handle_sent(now, Bytes::new(1_000), true);
                let report = LinkReport {
                    link: LinkId(0),
                    highest,
                    echo: Stamp::of(now),
                    held: Duration::ZERO,
                    received_at: Time::from_nanos(1_000_000_000 - step * index * 1_000),
                    packets: index,
                    bytes: Bytes::new(index * 1_000),
                    lost: 0,
                    delay: RelativeDelay(0),
                    jitter: Duration::ZERO,
                    train: None,
                };
                assert!(link.handle_report(now, &report, Demand::Backlog));
            }
            assert!(link.marks.len() <= MAX_MARKS, "{}", link.marks.len());
            let mean = link.mean_marks.len();
            assert!(mean <= MAX_MARKS, "{mean}");
        }
    }
}
