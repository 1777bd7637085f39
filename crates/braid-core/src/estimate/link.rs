//! The sending end's view of one link, made of reports.

use std::collections::VecDeque;
use std::time::Duration;

use super::capacity::{Queue, TARGET_MOST};
use super::{Capacity, DelayBase, Demand, LinkReport, LossSplit, REPORT_INTERVAL, Rtt, Sample};
use super::{SentAt, SentLog};
use crate::{Bytes, PacketNumber, Rate, RelativeDelay, Stamp, Time};

/// A sample covers at least this much of the receiver's time, or half a round trip.
const SAMPLE_LEAST: Duration = Duration::from_millis(50);

/// And no more than this: a pause in between is nobody's rate.
const SAMPLE_MOST: Duration = Duration::from_millis(150);

/// Queue that may stand on a link beyond what is under way; more is never put in flight, since on
/// mobile links past rates alone fail.
const QUEUE_MOST: Duration = Duration::from_millis(20);

/// Half of that may be in flight without anybody being asked whether it arrived.
const UNHEARD_MOST: Bytes = Bytes::new(7_500);

/// A link may always have so much in flight, or it could never be measured.
const WINDOW_LEAST: Bytes = Bytes::new(15_000);

#[derive(Debug, Clone, Copy)]
struct Mark {
    received_at: Time,
    bytes: u64,
    packets: u64,
    lost: u64,
    sent: SentAt,
}

/// One link, as its sender knows it.
#[derive(Debug, Clone, Default)]
pub struct LinkEstimator {
    sent: SentLog,
    highest: Option<PacketNumber>,
    /// When a report last told of a packet that no earlier one had told of.
    progressed: Option<Time>,
    rtt: Rtt,
    base: DelayBase,
    delay: Option<f64>,
    jitter: Duration,
    capacity: Capacity,
    loss: LossSplit,
    marks: VecDeque<Mark>,
    delivered: Option<Rate>,
}

impl LinkEstimator {
    /// A link of which nothing is known, or of which `initial` is a good guess.
    #[must_use]
    pub fn new(initial: Option<Rate>) -> LinkEstimator {
        LinkEstimator {
            capacity: initial.map_or_else(Capacity::default, Capacity::new),
            ..LinkEstimator::default()
        }
    }

    /// Counts a packet that is sent now, data or not, and gives it its number. `elicits` says
    /// whether its arrival makes the far end report; a report's does not, or two idle ends would
    /// report each other's reports for ever.
    pub fn handle_sent(&mut self, now: Time, len: Bytes, elicits: bool) -> PacketNumber {
        self.sent.handle_sent(now, len, elicits)
    }

    /// The packet last sent takes so many bytes more.
    pub fn handle_more(&mut self, len: Bytes) {
        self.sent.handle_more(len);
    }

    /// Whether so much was sent that nobody will report of that a probe should be sent: else the
    /// window fills with packets that arrived long ago.
    #[must_use]
    pub fn is_unheard(&self) -> bool {
        self.waiting_since().is_none() && self.in_flight() > UNHEARD_MOST
    }

    /// Takes what the receiver saw. Reports that came late say nothing new and are passed over;
    /// returns whether this one told of new packets.
    pub fn handle_report(&mut self, now: Time, report: &LinkReport, demand: Demand) -> bool {
        // Nobody can have received what was not sent: not a report of ours.
        if report.highest >= self.sent.next() || Some(report.highest) <= self.highest {
            return false;
        }
        self.highest = Some(report.highest);
        self.progressed = Some(now);
        let trip = Duration::from_micros(Stamp::of(now).0.saturating_sub(report.echo.0));
        self.rtt.handle_sample(trip.saturating_sub(report.held));
        self.jitter = report.jitter;
        self.base.handle_delay(now, report.delay);
        let micros = report.delay.0 as f64;
        let smoothed = self.delay.get_or_insert(micros);
        *smoothed += (micros - *smoothed) / 4.0;
        let before = self.queue();
        let base = self.base.base(now).unwrap_or(report.delay);
        let sent = self.sent.handle_arrived(report.highest);
        let queue = Queue {
            delay: report.delay.over(base),
            jitter: self.jitter,
            rtt_min: self.rtt.min(),
            sent,
        };
        self.capacity.handle_queue(now, queue, demand);
        if let Some(train) = report.train {
            self.capacity.handle_train(train);
        }
        if let Some(sent) = sent {
            self.handle_mark(now, report, sent, before);
        }
        true
    }

    /// `before` is the queue that the report before told of.
    fn handle_mark(&mut self, now: Time, report: &LinkReport, sent: SentAt, before: Duration) {
        let mark = Mark {
            received_at: report.received_at,
            bytes: report.bytes.get(),
            packets: report.packets,
            lost: report.lost,
            sent,
        };
        let mut fresh = (0, 0);
        if let Some(last) = self.marks.back() {
            let lost = mark.lost.saturating_sub(last.lost);
            let arrived = mark.packets.saturating_sub(last.packets);
            // The end of a burst that did not fit is missed when the next packet comes, long after.
            let target = self.capacity.target();
            let queued = self.queue() > target || before > TARGET_MOST;
            self.loss.handle_loss(now, lost, arrived, queued);
            fresh = (arrived, lost);
        }
        self.marks.push_back(mark);
        // What delay scatters by is an error of the time that a sample covers.
        let least = SAMPLE_LEAST
            .max(self.rtt.min() / 2)
            .max(12 * self.capacity.scatter())
            .min(SAMPLE_MOST * 2 / 3);
        let span = |from: &Mark| mark.received_at.since(from.received_at);
        while self.marks.get(1).is_some_and(|next| span(next) >= least) {
            self.marks.pop_front();
        }
        let Some(from) = self.marks.front().copied() else {
            return;
        };
        if span(&from) > SAMPLE_MOST {
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

    /// What to send at now.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.capacity.rate()
    }

    /// What the link has proven to carry, and how it is steered.
    #[must_use]
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// What arrived last, over 50 to 150 ms; none before there was so much.
    #[must_use]
    pub fn delivered(&self) -> Option<Rate> {
        self.delivered
    }

    /// Bytes sent after the highest packet that is known to have arrived.
    #[must_use]
    pub fn in_flight(&self) -> Bytes {
        self.sent.in_flight(self.highest)
    }

    /// Most bytes that may be in flight: what the link carries in its lowest round trip and until
    /// the next report, and 20 ms of queue.
    #[must_use]
    pub fn window(&self) -> Bytes {
        let standing = self.capacity.standing();
        let span = self.rtt.min() + REPORT_INTERVAL + QUEUE_MOST + 4 * self.jitter + standing;
        let rate = self.rate().max(self.capacity.proven());
        rate.bytes_in(span).max(WINDOW_LEAST)
    }

    /// Whether so many bytes more may be put in flight.
    #[must_use]
    pub fn has_room(&self, len: Bytes) -> bool {
        self.in_flight() + len <= self.window()
    }

    /// One-way delay now, queue included, smoothed over a few reports; none before the first.
    #[must_use]
    pub fn delay(&self) -> Option<RelativeDelay> {
        self.delay.map(|delay| RelativeDelay(delay as i64))
    }

    /// One-way delay of the empty link: the lowest of the last 20 s.
    #[must_use]
    pub fn base(&self, now: Time) -> Option<RelativeDelay> {
        self.base.base(now)
    }

    /// The queue on the link: delay above the lowest of the last 20 s, without what stands there
    /// however little is sent.
    #[must_use]
    pub fn queue(&self) -> Duration {
        self.capacity.queue()
    }

    /// Mean deviation of the delay between neighbouring packets.
    #[must_use]
    pub fn jitter(&self) -> Duration {
        self.jitter
    }

    /// Round trips, of this link's packets and whatever link the report took back.
    #[must_use]
    pub fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// Loss.
    #[must_use]
    pub fn loss(&self) -> &LossSplit {
        &self.loss
    }

    /// Begins to measure anew, as for a link that returns: what was lost before is over, and what came
    /// while next to nothing was sent says nothing about its rate.
    pub fn forgive(&mut self) {
        self.loss.restart();
        self.capacity.restart();
        self.marks.clear();
    }

    /// The highest packet that is known to have arrived.
    #[must_use]
    pub fn highest(&self) -> Option<PacketNumber> {
        self.highest
    }

    /// When a report last told of new packets.
    #[must_use]
    pub fn progressed(&self) -> Option<Time> {
        self.progressed
    }

    /// When the oldest packet was sent that should be reported and was not; none if there is none.
    #[must_use]
    pub fn waiting_since(&self) -> Option<Time> {
        self.sent.first_eliciting(self.highest)
    }

    /// Packets and bytes sent on this link in total.
    #[must_use]
    pub fn sent(&self) -> (PacketNumber, Bytes) {
        (self.sent.next(), self.sent.total())
    }
}

fn sample(from: &Mark, to: &Mark) -> Option<Sample> {
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

fn rate(bytes: u64, span: Duration) -> Rate {
    let bits = u128::from(bytes) * 8_000_000_000 / span.as_nanos().max(1);
    Rate::from_bits_per_sec(u64::try_from(bits).unwrap_or(u64::MAX))
}
