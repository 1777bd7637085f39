//! Liveness and latency of one layer-3 path, by replies to probes. Pure.
//!
//! - A path is **up** after its first reply, and down when no reply has arrived for
//!   [`MAX_MISSED_PROBES`] intervals plus four times the RTT variation: a queue that fills delays
//!   replies, and is no failure.
//! - Time in which no probe was sent does not count.
//! - A failed path is up again after [`REPLIES_TO_RECOVER`] replies in a row, more if it keeps failing, so
//!   that a flapping path is left out.
//! - Its latency is half the minimum RTT of the current and the last [`MIN_RTT_WINDOW`].

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;
use braid_multipath::estimate::Rtt;
use braid_multipath::liveness::FailureHistory;

/// Time between two probes of a path.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(50);
/// A longer gap between probes means that this process did not run, not that the path failed.
const MAX_PROBE_GAP: Duration = PROBE_INTERVAL.saturating_mul(2);
/// Consecutive unanswered probes that make a failure.
const MAX_MISSED_PROBES: u32 = 5;
/// Consecutive replies that end a first failure.
const REPLIES_TO_RECOVER: u32 = 5;
/// Length of a window of the minimum RTT.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(15);
/// Later replies are ignored.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Monitor of one path.
#[derive(Debug, Clone)]
pub struct PathMonitor {
    /// Nonce and time of unanswered probes, the oldest first.
    outstanding: VecDeque<(u64, Time)>,
    rtt: Rtt,
    /// Minimum RTT of this window and of the one before.
    min_rtt: [Option<Duration>; 2],
    window_start: Time,
    /// Time of the last probe; before the first one, the start of probing.
    last_probe: Time,
    /// Time of the last reply; before the first one, the start of probing. Gaps without probes are added.
    last_reply: Time,
    is_up: bool,
    /// Consecutive replies of a path that is down.
    replies: u32,
    failures: FailureHistory,
}

impl PathMonitor {
    /// Creates the monitor of a path that is not up yet.
    #[must_use]
    pub fn new(now: Time) -> PathMonitor {
        PathMonitor {
            outstanding: VecDeque::new(),
            rtt: Rtt::default(),
            min_rtt: [None; 2],
            window_start: now,
            last_probe: now,
            last_reply: now,
            is_up: false,
            replies: 0,
            failures: FailureHistory::default(),
        }
    }

    /// Records a probe that is being sent.
    pub fn handle_probe_sent(&mut self, now: Time, nonce: u64) {
        while let Some((_, at)) = self.outstanding.front()
            && now.since(*at) > PROBE_TIMEOUT
        {
            self.outstanding.pop_front();
        }
        self.outstanding.push_back((nonce, now));
        let pause = now.since(self.last_probe);
        if pause > MAX_PROBE_GAP {
            self.last_reply = (self.last_reply + (pause - PROBE_INTERVAL)).min(now);
        }
        self.last_probe = now;
    }

    /// Takes in a reply. Replies to no outstanding probe are ignored.
    pub fn handle_reply(&mut self, now: Time, nonce: u64) {
        let Some(place) = self
            .outstanding
            .iter()
            .position(|(asked, _)| *asked == nonce)
        else {
            return;
        };
        let (_, at) = self.outstanding[place];
        // Paths are FIFOs: earlier probes will not be answered any more.
        self.outstanding.drain(..=place);
        if place > 0 {
            self.replies = 0;
        }
        let round_trip = now.since(at);
        self.rtt.handle_sample(now, round_trip);
        let age = now.since(self.window_start);
        if age > MIN_RTT_WINDOW {
            // After a long silence the last window is older than one window.
            let before = self.min_rtt[0].filter(|_| age <= 2 * MIN_RTT_WINDOW);
            (self.min_rtt, self.window_start) = ([None, before], now);
        }
        let min_rtt = self.min_rtt[0].map_or(round_trip, |least| least.min(round_trip));
        self.min_rtt[0] = Some(min_rtt);
        self.last_reply = now;
        self.replies += 1;
        self.is_up |= self.replies >= self.failures.required_signs(now, REPLIES_TO_RECOVER);
    }

    /// Declares the path down if replies are overdue.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.is_up && now.since(self.last_reply) > self.reply_timeout() {
            self.failures.add(now);
            (self.is_up, self.replies) = (false, 0);
        }
    }

    /// Returns true if the path may be used.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Returns the one-way latency, if there was a reply.
    #[must_use]
    pub fn latency(&self) -> Option<Duration> {
        let [now, before] = self.min_rtt;
        now.into_iter().chain(before).min().map(|least| least / 2)
    }

    fn reply_timeout(&self) -> Duration {
        PROBE_INTERVAL * MAX_MISSED_PROBES + self.rtt.variation() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path of 40 ms there and back that answers between two times or not, probed for so long.
    struct Path {
        monitor: PathMonitor,
        now: Time,
        nonce: u64,
        under_way: VecDeque<(Time, u64)>,
    }

    const ROUND_TRIP: Duration = Duration::from_millis(40);

    impl Path {
        fn new() -> Path {
            Path {
                monitor: PathMonitor::new(Time::ZERO),
                now: Time::ZERO,
                nonce: 0,
                under_way: VecDeque::new(),
            }
        }

        fn probe(&mut self, count: u32, answers: bool) {
            for _ in 0..count {
                self.nonce += 1;
                self.monitor.handle_probe_sent(self.now, self.nonce);
                if answers {
                    let due = self.now + ROUND_TRIP;
                    self.under_way.push_back((due, self.nonce));
                }
                self.now = self.now + PROBE_INTERVAL;
                while let Some((due, nonce)) =
                    self.under_way.pop_front_if(|(due, _)| *due <= self.now)
                {
                    self.monitor.handle_reply(due, nonce);
                }
                self.monitor.handle_timeout(self.now);
            }
        }
    }

    #[test]
    fn one_answer_is_enough_for_a_new_path() {
        let mut path = Path::new();
        path.probe(3, false);
        assert!(!path.monitor.is_up());
        path.probe(1, true);
        assert!(path.monitor.is_up());
        assert_eq!(path.monitor.latency(), Some(ROUND_TRIP / 2));
    }

    #[test]
    fn silence_is_noticed_within_a_third_of_a_second() {
        let mut path = Path::new();
        path.probe(100, true);
        path.probe(4, false);
        assert!(path.monitor.is_up(), "four in a row may be lost");
        path.probe(3, false);
        assert!(!path.monitor.is_up());
    }

    #[test]
    fn a_pause_of_our_own_is_no_silence_of_the_path() {
        let mut path = Path::new();
        path.probe(100, true);
        path.now = path.now + Duration::from_secs(2);
        path.nonce += 1;
        path.monitor.handle_probe_sent(path.now, path.nonce);
        path.monitor.handle_timeout(path.now);
        assert!(path.monitor.is_up(), "nothing was asked for 2 s");
        // One that died meanwhile is noticed as soon as any other.
        path.now = path.now + Duration::from_secs(2);
        path.probe(3, false);
        assert!(path.monitor.is_up());
        path.probe(4, false);
        assert!(!path.monitor.is_up());
    }

    #[test]
    fn silence_is_noticed_also_by_who_is_kept_from_asking_again_and_again() {
        let mut path = Path::new();
        path.probe(100, true);
        let asked = (1..40).find(|_| {
            path.now = path.now + PROBE_INTERVAL * 3;
            path.probe(1, false);
            !path.monitor.is_up()
        });
        // Each counts as an interval and what PAUSE lets pass.
        assert!(
            asked.is_some_and(|asked| (4..=7).contains(&asked)),
            "{asked:?}"
        );
    }

    #[test]
    fn round_trips_from_before_a_long_silence_are_forgotten() {
        let mut path = Path::new();
        path.probe(100, true);
        path.probe(
            3 * (MIN_RTT_WINDOW.as_millis() / PROBE_INTERVAL.as_millis()) as u32,
            false,
        );
        assert_eq!(path.monitor.latency(), Some(ROUND_TRIP / 2), "all there is");
        path.monitor.handle_probe_sent(path.now, 0);
        path.monitor.handle_reply(path.now + 2 * ROUND_TRIP, 0);
        assert_eq!(path.monitor.latency(), Some(ROUND_TRIP), "another route");
    }

    #[test]
    fn one_that_keeps_failing_has_to_prove_itself_for_longer() {
        let mut path = Path::new();
        path.probe(100, true);
        let mut wanted = Vec::new();
        for _ in 0..3 {
            path.probe(10, false);
            assert!(!path.monitor.is_up());
            let mut answers = 0;
            while !path.monitor.is_up() {
                path.probe(1, true);
                answers += 1;
            }
            wanted.push(answers);
        }
        assert_eq!(wanted, [5, 10, 20]);
    }

    #[test]
    fn answers_that_are_not_asked_for_say_nothing() {
        let mut monitor = PathMonitor::new(Time::ZERO);
        monitor.handle_probe_sent(Time::ZERO, 7);
        monitor.handle_reply(Time::ZERO + ROUND_TRIP, 8);
        assert!(!monitor.is_up());
        monitor.handle_reply(Time::ZERO + ROUND_TRIP, 7);
        monitor.handle_reply(Time::ZERO + ROUND_TRIP * 9, 7);
        assert_eq!(monitor.latency(), Some(ROUND_TRIP / 2));
    }
}
