//! How the lab tells a role that waits to go on: by SIGTERM.
//!
//! The signal must be blocked before any thread starts, else it ends the process; that is what
//! [`StopSignal::prepare`] is for.

use crate::error::Error;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use std::os::fd::AsFd;
use std::time::Duration;

/// A pending request to go on.
pub(crate) struct StopSignal(SignalFd);

impl StopSignal {
    /// Takes SIGTERM and SIGINT over, for this thread and those it starts.
    pub(crate) fn prepare() -> Result<StopSignal, Error> {
        let explain = |e: nix::Error| Error::new("take over SIGTERM", e.into());
        let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
        signals.thread_block().map_err(explain)?;
        SignalFd::new(&signals).map(StopSignal).map_err(explain)
    }

    /// Waits for the signal, `longest` at most. Whichever comes first, the caller goes on.
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
