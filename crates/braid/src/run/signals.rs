//! Signals that are forwarded to the program.

use std::fs::File;
use std::future::poll_fn;
use std::task::Poll;

use braid_host::user_error::UserError;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};
use tokio::process::Child;
use tokio::signal::unix::{self, SignalKind};

/// Signals to forward. Others either cannot be caught or concern the terminal, which signals the
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

/// Streams of the caught signals.
pub struct ForwardedSignals(Vec<(Signal, unix::Signal)>);

impl ForwardedSignals {
    /// Starts to catch them.
    ///
    /// # Errors
    /// The system's error.
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

    /// Waits for the next signal.
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

/// Forwards a signal, unless the program has received it from the terminal already.
pub fn pass(signal: Signal, child: &Child) {
    let typed = matches!(signal, Signal::SIGINT | Signal::SIGQUIT) && in_foreground();
    if typed {
        return;
    }
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid {
        // The program may have ended meanwhile.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Returns true if signals of a terminal's keys reach this process, and with it its child, which is in
/// the same process group.
fn in_foreground() -> bool {
    let Ok(terminal) = File::open("/dev/tty") else {
        return false;
    };
    tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp())
}
