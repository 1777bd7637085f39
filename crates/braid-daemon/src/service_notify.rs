//! What a service manager is told (`sd_notify(3)`): ready, reloading, stopping, a line of status,
//! and that the loop is alive.
//!
//! The watchdog is fed only by [`ServiceNotifier::worked`], which the loop calls after it has really read
//! the datapath's counters and judged the uplinks: a loop that turns without doing that, or that
//! hangs in something, is restarted. Without a service manager all of this does nothing.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The loop tells that it is alive this many times within the manager's timeout.
const KEEPALIVES_PER_TIMEOUT: u32 = 4;

/// The line to the service manager.
#[derive(Debug)]
pub struct ServiceNotifier {
    /// How often the watchdog is to be fed; `None`: there is none.
    pace: Option<Duration>,
    fed: Option<Instant>,
    status: String,
    send: fn(&[NotifyState<'_>]),
}

impl ServiceNotifier {
    /// As the environment says (`NOTIFY_SOCKET`, `WATCHDOG_USEC`).
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

    /// All that was asked for is in the kernel and the API answers; also after a reload.
    pub fn ready(&self) {
        (self.send)(&[NotifyState::Ready]);
    }

    /// The configuration is being read again; [`ServiceNotifier::ready`] must follow whatever comes of it.
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => (self.send)(&[NotifyState::Reloading, now]),
            // Without the time a newer manager would end the daemon.
            Err(error) => tracing::debug!(%error, "no clock for the service manager"),
        }
    }

    /// The daemon ends.
    pub fn stopping(&self) {
        (self.send)(&[NotifyState::Stopping]);
    }

    /// The loop has done its work at `now`. `status` is made into the manager's line of status where
    /// it differs from the last one.
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

/// A manager that does not listen is no reason to stop working.
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
