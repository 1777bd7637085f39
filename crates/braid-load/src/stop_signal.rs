//! The stop signal: with SIGTERM the lab tells a waiting role to go on.
//!
//! The signal must be blocked before any thread starts, else it ends the process;
//! [`StopSignal::prepare`] does that.

use crate::error::Error;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use std::os::fd::AsFd;
use std::time::Duration;

/// A pending request to go on.
pub(crate) struct StopSignal(SignalFd);

impl StopSignal {
    /// Blocks SIGTERM and SIGINT in this thread and those it starts, to receive them here.
    pub(crate) fn prepare() -> Result<StopSignal, Error> {
        let explain = |e: nix::Error| Error::new("take over SIGTERM", e.into());
        let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
        signals.thread_block().map_err(explain)?;
        SignalFd::new(&signals).map(StopSignal).map_err(explain)
    }

    /// Waits for the signal, at most for `longest`. The caller goes on in either case.
    pub(crate) fn wait(&self, longest: Duration) -> Result<(), Error> {
        let timeout = PollTimeout::try_from(longest).unwrap_or(PollTimeout::MAX);
        poll(
            &mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)],
            timeout,
        )
        .map(|_| ())
        .map_err(|e| Error::new("wait for SIGTERM", e.into()))
    }
}
