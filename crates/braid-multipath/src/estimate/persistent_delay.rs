//! Persistent delay: delay that stays on a link however little is sent, told from a queue by
//! draining it.
//!
//! On a link where each packet waits for the latest one before it, as on radio links that
//! retransmit, many packets take longer than few: under load the delay stays at the upper end of
//! its idle scatter. Measured against the minimum delay this looks like a queue; a sender that
//! backs off for it never recovers.
//!
//! A queue shrinks by the packets that are not sent. So the link is *drained*: the sender stays
//! clearly below the rate that the link last delivered, and the reports about that time decide:
//! - the delay fell by the time that was not sent: it was a queue, and the rate delivered then is
//!   the link's rate;
//! - it did not fall: the rest is *persistent* delay, from which queues are measured.
//!
//! A queue that has not been empty for long is drained as well, since it would become its own base
//! delay.

use std::time::Duration;

use braid_core::Time;

use super::SentAt;

/// Share of the delivered rate that is sent during a drain.
const DRAIN_RATE_SHARE: f64 = 0.7;

/// Time's worth of packets to withhold before a drain has a result: more than the delay scatters
/// between reports.
const MIN_WITHHELD_S: f64 = 0.025;

/// Reports that must cover the second half of the withheld time.
const MIN_AFTER_REPORTS: u32 = 3;

/// A queue falls by at least this part of the withheld time.
const MIN_FALL_SHARE: f64 = 0.4;

/// Time for which a link may be full with a queue before it is drained: at first, and after a drain
/// that found more persistent delay than was known, since there may be more still.
const MIN_DRAIN_INTERVAL: Duration = Duration::from_millis(500);

/// The same at most, and on a quiet link: it owes its queue to this sender, and is drained only to
/// keep the base delay, which is remembered for [`RECENT_MIN_WINDOW`](super::RECENT_MIN_WINDOW).
const MAX_DRAIN_INTERVAL: Duration = Duration::from_secs(8);

/// A drain ends this long after its first packet, with the queue empty or not.
const MAX_DRAIN: Duration = Duration::from_millis(400);

/// A link is quiet if its delay scatters by less than this under load, where the control's own steps
/// add scatter. Above it, delay may be persistent.
const MAX_QUIET_SCATTER_S: f64 = 0.003;

/// The same for an idle link.
const MAX_QUIET_IDLE_SCATTER_S: f64 = 0.0015;

/// Decay time of the recent maximum of the scatter.
const ROUGHNESS_FADE_S: f64 = 1.0;

/// Longest gap between reports that counts as full.
const MAX_REPORT_GAP: Duration = Duration::from_millis(50);

/// Below this a queue counts as empty.
const MAX_EMPTY_QUEUE: Duration = Duration::from_millis(2);

/// A link that was found to have a queue is not drained again for this long at first. Each further
/// queue doubles the time.
const MIN_DRAIN_BACKOFF: Duration = Duration::from_secs(1);

/// The same at most.
const MAX_DRAIN_BACKOFF: Duration = Duration::from_secs(16);

/// Result of a drain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum DrainResult {
    /// There was a queue: this is the rate delivered then, in bit/s, and so the link's rate.
    Queue(f64),
    /// There was no queue: the delay is persistent.
    Persistent,
}

/// Estimate of a link's persistent delay. Times compared with noise are in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct PersistentDelay {
    /// The persistent delay, above the base delay.
    level: Duration,
    /// The last two delays above the base.
    last: [Duration; 2],
    /// Mean distance in seconds of a delay from the line through the two before it.
    scatter: f64,
    /// The same, while the link was not full.
    idle: f64,
    /// Recent maximum of both, relative to the quiet limits: from 1 on, delay may be persistent.
    rough: f64,
    /// Time of the last report.
    reported: Time,
    /// Time for which the link has been full with a queue.
    full: Duration,
    /// The link is drained once it has been full for this long.
    drain_interval: Duration,
    drain: Option<Drain>,
    /// The link is not drained before this.
    next_drain: Time,
    /// Time until the next drain after one that finds a queue.
    drain_backoff: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Drain {
    since: Time,
    /// Rate delivered at its beginning, in bit/s.
    carried: f64,
    /// Delay above the base before the first packet of the drain is reported.
    before: Duration,
    /// The lowest delay above the base since then.
    lowest: Duration,
    /// Send time of the first reported packet.
    began: Option<Time>,
    /// First reported packet of the drain, or of the part of it that is judged.
    first: Option<SentAt>,
    /// Sum and count of delays above the base in the second half of the drain.
    after: (Duration, u32),
    /// True if the drain goes on until the queue is empty.
    empties: bool,
}

impl Default for PersistentDelay {
    fn default() -> PersistentDelay {
        PersistentDelay {
            level: Duration::ZERO,
            last: [Duration::ZERO; 2],
            scatter: 0.0,
            idle: 0.0,
            rough: 0.0,
            reported: Time::ZERO,
            full: Duration::ZERO,
            drain_interval: MIN_DRAIN_INTERVAL,
            drain: None,
            next_drain: Time::ZERO,
            drain_backoff: MIN_DRAIN_BACKOFF,
        }
    }
}

impl PersistentDelay {
    /// Takes the delay above the base from a report, and the highest packet that it covers.
    /// `loaded` is true if the link was sent its estimated rate.
    pub fn handle_delay(
        &mut self,
        now: Time,
        above: Duration,
        sent: Option<SentAt>,
        loaded: bool,
    ) -> Option<DrainResult> {
        let passed = now.since(self.reported);
        self.reported = now;
        self.handle_scatter(above, passed, loaded);
        if loaded {
            self.full += passed.min(MAX_REPORT_GAP);
        }
        let least = above + 2 * self.scatter();
        if least < self.level && (loaded || self.drain.is_some()) {
            self.level = (self.level * 3 + least) / 4;
        }
        // Delay known as persistent may be a queue by now: a drain goes below it.
        let known = above < MAX_EMPTY_QUEUE || self.drain.is_none();
        if known && self.queue(above) < MAX_EMPTY_QUEUE {
            self.end_drain(self.longer_interval());
            return None;
        }
        let drain = self.drain.as_mut()?;
        if drain
            .began
            .is_some_and(|began| now.since(began) >= MAX_DRAIN)
        {
            self.end_drain(self.longer_interval());
            return None;
        }
        let withheld = MIN_WITHHELD_S.max(6.0 * self.scatter);
        let sent = sent?;
        let answer = drain.handle_delay(above, sent, withheld)?;
        match answer {
            DrainResult::Queue(_) => {
                self.next_drain = now + self.drain_backoff;
                self.drain_backoff = (self.drain_backoff * 2).min(MAX_DRAIN_BACKOFF);
                // Delay that fell was not persistent.
                self.level = self.level.min(drain.lowest);
                if drain.empties {
                    drain.judge_rest(sent, above);
                } else {
                    self.end_drain(self.longer_interval());
                }
            }
            DrainResult::Persistent => {
                let (before, after) = (self.level, drain.mean());
                self.level = after;
                self.drain_backoff = MIN_DRAIN_BACKOFF;
                let more = after > before + MAX_EMPTY_QUEUE.max(self.scatter());
                self.end_drain(match more {
                    true => MIN_DRAIN_INTERVAL,
                    false => self.longer_interval(),
                });
            }
        }
        Some(answer)
    }

    fn handle_scatter(&mut self, above: Duration, passed: Duration, loaded: bool) {
        let pointed = 2.0 * self.last[0].as_secs_f64() - self.last[1].as_secs_f64();
        let off = (above.as_secs_f64() - pointed).abs() / 2.0;
        self.last = [above, self.last[0]];
        self.scatter += (off - self.scatter) / 16.0;
        if !loaded && self.drain.is_none() {
            self.idle += (off - self.idle) / 16.0;
        }
        let rough = (self.scatter / MAX_QUIET_SCATTER_S).max(self.idle / MAX_QUIET_IDLE_SCATTER_S);
        let fades = (passed.as_secs_f64() / ROUGHNESS_FADE_S).min(1.0);
        self.rough = (self.rough * (1.0 - fades)).max(rough);
    }

    /// Ends a drain, if there is one, and notes that the link is as empty as it gets.
    fn end_drain(&mut self, next_interval: Duration) {
        self.full = Duration::ZERO;
        if self.drain.take().is_some() {
            self.drain_interval = next_interval;
        }
    }

    /// Returns the interval after a drain that found nothing new.
    fn longer_interval(&self) -> Duration {
        (self.drain_interval * 2).min(MAX_DRAIN_INTERVAL)
    }

    /// Returns the queue in a delay above the base.
    pub fn queue(&self, above: Duration) -> Duration {
        above.saturating_sub(self.level)
    }

    /// Returns the persistent delay.
    pub fn level(&self) -> Duration {
        self.level
    }

    /// Returns the scatter of the delay between reports. A queue that grows or shrinks evenly does
    /// not count.
    pub fn scatter(&self) -> Duration {
        Duration::from_secs_f64(self.scatter)
    }

    /// Returns true if the delay scatters too little to be persistent; `packet` is the time of a
    /// full packet.
    pub fn is_quiet(&self, packet: f64) -> bool {
        self.level < MAX_EMPTY_QUEUE && self.rough < 1.0 + packet / MAX_QUIET_SCATTER_S
    }

    /// Returns true if a queue has been there for long enough to be drained.
    pub fn is_due(&self, packet: f64) -> bool {
        let drain_interval = match self.is_quiet(packet) {
            true => MAX_DRAIN_INTERVAL,
            false => self.drain_interval,
        };
        self.drain.is_none() && self.full >= drain_interval
    }

    /// Returns true if the link may be drained: no recent drain found a queue.
    pub fn may_drain(&self, now: Time) -> bool {
        now >= self.next_drain
    }

    /// Begins to drain the link, which just delivered `carried` bit/s.
    pub fn drain(&mut self, now: Time, carried: f64, empties: bool) {
        self.drain.get_or_insert(Drain {
            since: now,
            carried,
            before: self.last[0],
            lowest: Duration::MAX,
            began: None,
            first: None,
            after: (Duration::ZERO, 0),
            empties,
        });
    }

    /// Returns the highest rate during a drain in bit/s; none outside of one.
    pub fn max_rate(&self) -> Option<f64> {
        self.drain.map(|drain| drain.carried * DRAIN_RATE_SHARE)
    }
}

impl Drain {
    /// Judges what is sent from now on by itself: the delay that is left may be persistent.
    fn judge_rest(&mut self, sent: SentAt, above: Duration) {
        self.before = above;
        self.lowest = Duration::MAX;
        self.first = Some(sent);
        self.after = (Duration::ZERO, 0);
    }

    fn handle_delay(
        &mut self,
        above: Duration,
        sent: SentAt,
        withheld: f64,
    ) -> Option<DrainResult> {
        if sent.at < self.since {
            self.before = (self.before + above) / 2;
            return None;
        }
        self.lowest = self.lowest.min(above);
        let first = *self.first.get_or_insert(sent);
        self.began.get_or_insert(first.at);
        let bits = (sent.before.get() - first.before.get()) as f64 * 8.0;
        let missing = sent.at.since(first.at).as_secs_f64() - bits / self.carried;
        if missing >= withheld / 2.0 {
            self.after.0 += above;
            self.after.1 += 1;
        }
        if missing < withheld || self.after.1 < MIN_AFTER_REPORTS {
            return None;
        }
        let fell = self.before.as_secs_f64() - self.mean().as_secs_f64();
        Some(match fell >= MIN_FALL_SHARE * missing {
            true => DrainResult::Queue(self.carried),
            false => DrainResult::Persistent,
        })
    }

    fn mean(&self) -> Duration {
        self.after.0 / self.after.1.max(1)
    }
}

#[cfg(test)]
mod tests {
    use braid_core::Bytes;

    use super::*;

    /// The persistent delay and the results that a drain finds, for a queue above a persistent delay, a round trip, and
    /// delay that alternates by some scatter, in ms.
    fn drained(queue: f64, persistent: f64, trip: u64, scatter: f64) -> (f64, Vec<DrainResult>) {
        const CARRIED: f64 = 50e6;
        const REPORT_MS: u64 = 10;
        let (mut delay, mut queue) = (PersistentDelay::default(), queue);
        let mut results = Vec::new();
        delay.last = [Duration::from_secs_f64((queue + persistent) / 1e3); 2];
        delay.drain(Time::ZERO, CARRIED, true);
        for report in 1.. {
            let now = Time::from_nanos(report * REPORT_MS * 1_000_000);
            let sent_at = now.before(Duration::from_millis(trip));
            let bits = CARRIED * DRAIN_RATE_SHARE * sent_at.since(Time::ZERO).as_secs_f64();
            let newest = SentAt {
                at: sent_at,
                before: Bytes::new((bits / 8.0) as u64),
            };
            if sent_at > Time::ZERO {
                queue = f64::max(queue - REPORT_MS as f64 * (1.0 - DRAIN_RATE_SHARE), 0.0);
            }
            let above = queue + persistent + if report % 2 == 0 { scatter } else { 0.0 };
            let above = Duration::from_secs_f64(above / 1e3);
            results.extend(delay.handle_delay(now, above, Some(newest), true));
            if delay.max_rate().is_none() {
                break;
            }
        }
        (delay.level().as_secs_f64() * 1e3, results)
    }

    #[test]
    fn a_drain_that_empties_a_queue_finds_what_stays_below_it() {
        for (queue, persistent, trip, scatter) in [
            (0.0, 25.0, 0, 0.0),
            (30.0, 12.0, 0, 0.0),
            (50.0, 15.0, 0, 0.0),
            (50.0, 15.0, 60, 0.0),
            (30.0, 25.0, 150, 0.0),
            (30.0, 25.0, 150, 4.0),
        ] {
            let (level, results) = drained(queue, persistent, trip, scatter);
            let case = format!("{queue}, {persistent}, {trip}, {scatter}: {level}, {results:?}");
            let queued = matches!(results[0], DrainResult::Queue(_));
            assert_eq!(queued, queue > 0.0, "{case}");
            assert_eq!(results.last(), Some(&DrainResult::Persistent), "{case}");
            assert!((level - persistent).abs() <= 4.0 + scatter / 2.0, "{case}");
        }
        let (level, results) = drained(50.0, 0.0, 0, 0.0);
        assert_eq!(level, 0.0);
        assert!(matches!(results.as_slice(), [.., DrainResult::Queue(_)]));
    }
}
