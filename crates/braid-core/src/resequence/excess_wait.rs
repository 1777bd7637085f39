//! How much longer than paths' latencies explain a missing segment may be under way.

use std::time::Duration;

use crate::Time;

/// What a queue of ordinary length adds. It is only waited for where a path that should have brought
/// something is silent: losses are known by what comes behind them.
const MIN_EXCESS: Duration = Duration::from_millis(100);
/// Never more: by then TCP's own clock runs.
const MAX_EXCESS: Duration = Duration::from_millis(250);
/// How long a wait is remembered, once over and at most twice.
const EXCESS_WINDOW: Duration = Duration::from_secs(5);

/// The longest of the waits of late that were worth it: the segment did come, be it after its gap
/// was given up. Queues make them longer than the latencies tell.
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

    /// A missing segment came `waited` after it was missed, `lag` of which the latencies explain.
    pub fn observe(&mut self, now: Time, waited: Duration, lag: Duration) {
        if now.since(self.since) >= EXCESS_WINDOW {
            self.before = self.recent(now).and(self.current);
            (self.since, self.current) = (now, None);
        }
        let excess = waited.saturating_sub(lag);
        self.current = self.current.max(Some(excess));
    }

    /// How long to wait for what is missing, if the slowest path is `lag` behind.
    pub fn hold(&self, now: Time, lag: Duration) -> Duration {
        let excess = self.recent(now).unwrap_or_default();
        let excess = (excess + excess / 4).clamp(MIN_EXCESS, MAX_EXCESS);
        lag + lag / 4 + excess
    }

    /// How much longer than the latencies tell something may be under way, as far as was seen.
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
