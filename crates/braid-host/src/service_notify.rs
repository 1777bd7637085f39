//! Notifications to the service manager (`sd_notify(3)`): ready, reloading, stopping, a status line,
//! and the watchdog's keepalives.
//!
//! Only [`ServiceNotifier::worked`] sends keepalives. The loop calls it after it has read the
//! datapath's counters and evaluated the uplinks, so that a loop that hangs or spins without doing that
//! is restarted. Without a service manager nothing is sent.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Number of keepalives within the watchdog's timeout.
const KEEPALIVES_PER_TIMEOUT: u32 = 4;

/// Sends notifications to the service manager.
#[derive(Debug)]
pub struct ServiceNotifier {
    /// Interval of keepalives; `None`: there is no watchdog.
    pace: Option<Duration>,
    fed: Option<Instant>,
    status: String,
    send: fn(&[NotifyState<'_>]),
}

impl ServiceNotifier {
    /// Creates it from the environment (`NOTIFY_SOCKET`, `WATCHDOG_USEC`).
    #[must_use]
    pub fn from_environment() -> ServiceNotifier {
        ServiceNotifier::new(sd_notify::watchdog_enabled(), send)
    }

    fn new(timeout: Option<Duration>, send: fn(&[NotifyState<'_>])) -> ServiceNotifier {
        ServiceNotifier {
            pace: timeout.map(|timeout| timeout / KEEPALIVES_PER_TIMEOUT),
            fed: None,
            status: String::new(),
            send,
        }
    }

    /// Reports that the configuration is in the kernel and the API answers; also after a reload.
    pub fn ready(&self) {
        (self.send)(&[NotifyState::Ready]);
    }

    /// Reports that a reload has begun; [`ServiceNotifier::ready`] must follow whatever its outcome.
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => (self.send)(&[NotifyState::Reloading, now]),
            // Without the time a newer manager would stop the daemon.
            Err(error) => tracing::debug!(%error, "no clock for the service manager"),
        }
    }

    /// Reports that the daemon is stopping.
    pub fn stopping(&self) {
        (self.send)(&[NotifyState::Stopping]);
    }

    /// Reports that the loop has done its work at `now`, and sends `status` as the status line if it has
    /// changed.
    pub fn worked(&mut self, now: Instant, status: String) {
        if self.status != status {
            (self.send)(&[NotifyState::Status(&status)]);
            self.status = status;
        }
        let hungry = |pace| self.fed.is_none_or(|fed| now.duration_since(fed) >= pace);
        if self.pace.is_some_and(hungry) {
            (self.send)(&[NotifyState::Watchdog]);
            self.fed = Some(now);
        }
    }
}

/// Sends notifications. Errors are only logged.
fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager does not listen");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        static SENT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    fn record(states: &[NotifyState<'_>]) {
        let words = states.iter().map(ToString::to_string);
        SENT.with_borrow_mut(|sent| sent.extend(words));
    }

    #[test]
    fn the_watchdog_is_fed_by_work_alone_and_no_more_than_needed() {
        let mut notifier = ServiceNotifier::new(Some(Duration::from_secs(8)), record);
        let start = Instant::now();
        for tick in 0..100 {
            let now = start + tick * Duration::from_millis(50);
            notifier.worked(now, "2 of 2 uplinks up".into());
        }
        let sent = SENT.take();
        assert_eq!(
            sent,
            [
                "STATUS=2 of 2 uplinks up",
                "WATCHDOG=1",
                "WATCHDOG=1",
                "WATCHDOG=1"
            ]
        );
    }

    #[test]
    fn no_watchdog_is_not_fed() {
        let mut notifier = ServiceNotifier::new(None, record);
        notifier.worked(Instant::now(), String::new());
        assert_eq!(SENT.take(), [""; 0]);
    }
}
