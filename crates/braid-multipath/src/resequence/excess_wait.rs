//! Excess wait: how much longer a missing segment may take than the paths' latencies explain.

use std::time::Duration;

use braid_core::Time;

/// Delay of an ordinary queue. The wait applies only while a path that should have delivered
/// something is silent: otherwise the packets behind a loss show it.
const MIN_EXCESS: Duration = Duration::from_millis(100);
/// Upper bound: by then TCP's own timer runs.
const MAX_EXCESS: Duration = Duration::from_millis(250);
/// The same while no other path is in use: a sender that takes up another one expects its first
/// segments to arrive in time, and queues are short.
const MIN_EXCESS_OF_IDLE: Duration = Duration::from_millis(10);
/// A wait is remembered for this long, at most twice as long.
const EXCESS_WINDOW: Duration = Duration::from_secs(5);

/// Longest recent wait that was worth it: the segment did arrive, even if after its gap was given
/// up. Queues make waits longer than the latencies.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExcessWait {
    since: Time,
    before: Option<Duration>,
    current: Option<Duration>,
}

impl ExcessWait {
    pub fn new(now: Time) -> ExcessWait {
        ExcessWait {
            since: now,
            before: None,
            current: None,
        }
    }

    /// Takes the wait for a missing segment that arrived; the latencies explain `lag` of it.
    pub fn observe(&mut self, now: Time, waited: Duration, lag: Duration) {
        if now.since(self.since) >= EXCESS_WINDOW {
            self.before = self.recent(now).and(self.current);
            (self.since, self.current) = (now, None);
        }
        let excess = waited.saturating_sub(lag);
        self.current = self.current.max(Some(excess));
    }

    /// Returns how long to wait for a missing segment if the slowest path is `lag` behind.
    pub fn hold(&self, now: Time, lag: Duration) -> Duration {
        let excess = self.recent(now).unwrap_or_default();
        let excess = (excess + excess / 4).clamp(MIN_EXCESS, MAX_EXCESS);
        lag + lag / 4 + excess
    }

    /// The same if nothing has come by any other path lately: a missing segment is most likely lost.
    pub fn hold_for_idle(&self, now: Time, lag: Duration) -> Duration {
        lag + lag / 4 + self.excess(now).max(MIN_EXCESS_OF_IDLE)
    }

    /// Returns the excess observed recently, up to [`MIN_EXCESS`].
    pub fn excess(&self, now: Time) -> Duration {
        self.recent(now).unwrap_or_default().min(MIN_EXCESS)
    }

    fn recent(&self, now: Time) -> Option<Duration> {
        match now.since(self.since) {
            age if age < EXCESS_WINDOW => self.current.max(self.before),
            age if age < 2 * EXCESS_WINDOW => self.current,
            _ => None,
        }
    }
}
