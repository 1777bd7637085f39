//! Whether a layer-3 path works, and how long it is: judged by probes that come back. Pure.
//!
//! - A path **carries** as soon as a probe came back, and no longer when none has for
//!   [`MISSED`] intervals on top of how much later than usual answers may be (SRTT's variation: a queue
//!   that fills lets answers come further apart, and is no failure).
//! - Only time in which questions went out counts: what was never asked cannot be answered.
//! - One that failed carries again after [`SIGNS`] answers in a row, more if it keeps failing, so that one
//!   that is only half there is left out.
//! - Its latency is half the smallest round trip of the last [`WINDOW`] or two.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;
use braid_core::estimate::Rtt;
use braid_core::liveness::FailureHistory;

/// Between two probes of a path.
pub const INTERVAL: Duration = Duration::from_millis(50);
/// Longer without a question, and it was we who were kept from running, not the path that fell silent.
const PAUSE: Duration = INTERVAL.saturating_mul(2);
/// Probes in a row without an answer that make a failure.
const MISSED: u32 = 5;
/// Answers in a row that end a first one.
const SIGNS: u32 = 5;
/// Round trips are compared within one, and with those of the one before.
const WINDOW: Duration = Duration::from_secs(15);
/// An answer that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(3);

/// Judges one path.
#[derive(Debug, Clone)]
pub struct Watch {
    /// Questions without an answer, the oldest first.
    asked: VecDeque<(u64, Time)>,
    rtt: Rtt,
    /// The smallest round trips of this window and the one before, and when this began.
    smallest: [Option<Duration>; 2],
    window: Time,
    /// When the last question went out; before the first one, when probing began.
    questioned: Time,
    /// The last answer; before the first one, when probing began. Time in which nothing was asked
    /// does not count: it is put off by that.
    heard: Time,
    carries: bool,
    /// Answers in a row, of one that does not carry.
    signs: u32,
    failures: FailureHistory,
}

impl Watch {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(now: Time) -> Watch {
        Watch {
            asked: VecDeque::new(),
            rtt: Rtt::default(),
            smallest: [None; 2],
            window: now,
            questioned: now,
            heard: now,
            carries: false,
            signs: 0,
            failures: FailureHistory::default(),
        }
    }

    /// A question goes out.
    pub fn handle_asked(&mut self, now: Time, nonce: u64) {
        while let Some((_, at)) = self.asked.front()
            && now.since(*at) > PATIENCE
        {
            self.asked.pop_front();
        }
        self.asked.push_back((nonce, now));
        let pause = now.since(self.questioned);
        if pause > PAUSE {
            self.heard = (self.heard + (pause - INTERVAL)).min(now);
        }
        self.questioned = now;
    }

    /// An answer is there. One to no question of ours says nothing.
    pub fn handle_answer(&mut self, now: Time, nonce: u64) {
        let Some(place) = self.asked.iter().position(|(asked, _)| *asked == nonce) else {
            return;
        };
        let (_, at) = self.asked[place];
        // Paths are FIFOs: what was asked before will not be answered any more.
        self.asked.drain(..=place);
        if place > 0 {
            self.signs = 0;
        }
        let round_trip = now.since(at);
        self.rtt.handle_sample(round_trip);
        let age = now.since(self.window);
        if age > WINDOW {
            // After a long silence the one before is not this one.
            let before = self.smallest[0].filter(|_| age <= 2 * WINDOW);
            (self.smallest, self.window) = ([None, before], now);
        }
        let smallest = self.smallest[0].map_or(round_trip, |least| least.min(round_trip));
        self.smallest[0] = Some(smallest);
        self.heard = now;
        self.signs += 1;
        self.carries |= self.signs >= self.failures.required_signs(now, SIGNS);
    }

    /// Looks whether it has fallen silent.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.carries && now.since(self.heard) > self.silence() {
            self.failures.add(now);
            (self.carries, self.signs) = (false, 0);
        }
    }

    /// Whether packets should go by it.
    #[must_use]
    pub fn carries(&self) -> bool {
        self.carries
    }

    /// One way, if probes have come back.
    #[must_use]
    pub fn latency(&self) -> Option<Duration> {
        let [now, before] = self.smallest;
        now.into_iter().chain(before).min().map(|least| least / 2)
    }

    fn silence(&self) -> Duration {
        INTERVAL * MISSED + self.rtt.variation() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path of 40 ms there and back that answers between two times or not, probed for so long.
    struct Path {
        watch: Watch,
        now: Time,
        nonce: u64,
        under_way: VecDeque<(Time, u64)>,
    }

    const ROUND_TRIP: Duration = Duration::from_millis(40);

    impl Path {
        fn new() -> Path {
            Path {
                watch: Watch::new(Time::ZERO),
                now: Time::ZERO,
                nonce: 0,
                under_way: VecDeque::new(),
            }
        }

        fn probe(&mut self, count: u32, answers: bool) {
            for _ in 0..count {
                self.nonce += 1;
                self.watch.handle_asked(self.now, self.nonce);
                if answers {
                    let due = self.now + ROUND_TRIP;
                    self.under_way.push_back((due, self.nonce));
                }
                self.now = self.now + INTERVAL;
                while let Some((due, nonce)) =
                    self.under_way.pop_front_if(|(due, _)| *due <= self.now)
                {
                    self.watch.handle_answer(due, nonce);
                }
                self.watch.handle_timeout(self.now);
            }
        }
    }

    #[test]
    fn one_answer_is_enough_for_a_new_path() {
        let mut path = Path::new();
        path.probe(3, false);
        assert!(!path.watch.carries());
        path.probe(1, true);
        assert!(path.watch.carries());
        assert_eq!(path.watch.latency(), Some(ROUND_TRIP / 2));
    }

    #[test]
    fn silence_is_noticed_within_a_third_of_a_second() {
        let mut path = Path::new();
        path.probe(100, true);
        path.probe(4, false);
        assert!(path.watch.carries(), "four in a row may be lost");
        path.probe(3, false);
        assert!(!path.watch.carries());
    }

    #[test]
    fn a_pause_of_our_own_is_no_silence_of_the_path() {
        let mut path = Path::new();
        path.probe(100, true);
        path.now = path.now + Duration::from_secs(2);
        path.nonce += 1;
        path.watch.handle_asked(path.now, path.nonce);
        path.watch.handle_timeout(path.now);
        assert!(path.watch.carries(), "nothing was asked for 2 s");
        // One that died meanwhile is noticed as soon as any other.
        path.now = path.now + Duration::from_secs(2);
        path.probe(3, false);
        assert!(path.watch.carries());
        path.probe(4, false);
        assert!(!path.watch.carries());
    }

    #[test]
    fn silence_is_noticed_also_by_who_is_kept_from_asking_again_and_again() {
        let mut path = Path::new();
        path.probe(100, true);
        let asked = (1..40).find(|_| {
            path.now = path.now + INTERVAL * 3;
            path.probe(1, false);
            !path.watch.carries()
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
            3 * (WINDOW.as_millis() / INTERVAL.as_millis()) as u32,
            false,
        );
        assert_eq!(path.watch.latency(), Some(ROUND_TRIP / 2), "all there is");
        path.watch.handle_asked(path.now, 0);
        path.watch.handle_answer(path.now + 2 * ROUND_TRIP, 0);
        assert_eq!(path.watch.latency(), Some(ROUND_TRIP), "another route");
    }

    #[test]
    fn one_that_keeps_failing_has_to_prove_itself_for_longer() {
        let mut path = Path::new();
        path.probe(100, true);
        let mut wanted = Vec::new();
        for _ in 0..3 {
            path.probe(10, false);
            assert!(!path.watch.carries());
            let mut answers = 0;
            while !path.watch.carries() {
                path.probe(1, true);
                answers += 1;
            }
            wanted.push(answers);
        }
        assert_eq!(wanted, [5, 10, 20]);
    }

    #[test]
    fn answers_that_are_not_asked_for_say_nothing() {
        let mut watch = Watch::new(Time::ZERO);
        watch.handle_asked(Time::ZERO, 7);
        watch.handle_answer(Time::ZERO + ROUND_TRIP, 8);
        assert!(!watch.carries());
        watch.handle_answer(Time::ZERO + ROUND_TRIP, 7);
        watch.handle_answer(Time::ZERO + ROUND_TRIP * 9, 7);
        assert_eq!(watch.latency(), Some(ROUND_TRIP / 2));
    }
}
