//! Signals that are meant for the program.

use std::fs::File;
use std::future::poll_fn;
use std::task::Poll;

use braid_daemon::user_error::UserError;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};
use tokio::process::Child;
use tokio::signal::unix::{self, SignalKind};

/// What is passed on. Others either cannot be caught, or concern the terminal, which tells the
/// program itself.
const FORWARDED_SIGNALS: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
];

/// Signals caught in the program's place.
pub struct ForwardedSignals(Vec<(Signal, unix::Signal)>);

impl ForwardedSignals {
    /// Catches them from now on.
    ///
    /// # Errors
    /// What the system said.
    pub fn new() -> Result<ForwardedSignals, UserError> {
        let caught = FORWARDED_SIGNALS.map(|signal| {
            let stream = unix::signal(SignalKind::from_raw(signal as i32))
                .map_err(|error| UserError::io("listen for signals", &error))?;
            Ok((signal, stream))
        });
        Ok(ForwardedSignals(
            caught.into_iter().collect::<Result<_, UserError>>()?,
        ))
    }

    /// The next one.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Passes a signal on, unless the program has had it from the terminal already.
pub fn pass(signal: Signal, child: &Child) {
    let typed = matches!(signal, Signal::SIGINT | Signal::SIGQUIT) && in_foreground();
    if typed {
        return;
    }
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid {
        // A program that ended meanwhile needs no signal.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Whether keys of a terminal reach this process, and then its child, which is of the same group.
fn in_foreground() -> bool {
    let Ok(terminal) = File::open("/dev/tty") else {
        return false;
    };
    tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp())
}
