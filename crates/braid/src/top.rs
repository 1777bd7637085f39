//! `braid top`: uplinks, flows and reasons as they change.
//!
//! What is shown comes from the same questions that `braid status` and `braid flows` ask. The model
//! ([`model`]) turns two answers into rates and knows no clock; drawing ([`draw`]) knows the model
//! alone. Here are the terminal, the keys and the time.

mod draw;
mod model;
mod spark;

use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use braid_daemon::report::{FlowsReport, StatusReport};
use braid_daemon::run_dir::RunDir;
use braid_daemon::user_error::UserError;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::client::{self, NoAnswer};
use crate::{CommandResult, runtime};

use model::Model;

/// More flows than this are counted and not listed: reading them all every second would cost the
/// daemon more than it is worth.
const MAX_LISTED_FLOWS: u64 = 20_000;

/// Shows until somebody has seen enough.
pub fn top(run_dir: &RunDir, every: Duration) -> CommandResult {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let failure = UserError::new(
            "no-terminal",
            "braid top draws on a terminal, and this is none",
        );
        return Err(failure
            .fix("braid status and braid flows print, also with --json")
            .into());
    }
    let runtime = runtime()?;
    // Asked before the terminal is taken over, so that a daemon that is not there is a plain error.
    let mut model = Model::new(every);
    runtime.block_on(look(run_dir, &mut model))?;
    let mut terminal =
        ratatui::try_init().map_err(|error| UserError::io("take the terminal over", &error))?;
    // A panic puts the terminal back too: `try_init` has seen to that.
    let outcome = runtime.block_on(watch(run_dir, &mut terminal, &mut model, every));
    ratatui::restore();
    // The thread that waits for keys is in the middle of reading: it ends with the process.
    runtime.shutdown_background();
    Ok(outcome?)
}

async fn watch(
    run_dir: &RunDir,
    terminal: &mut DefaultTerminal,
    model: &mut Model,
    every: Duration,
) -> Result<(), UserError> {
    let broken = |error: io::Error| UserError::io("draw on the terminal", &error);
    let listen = |kind| signal(kind).map_err(|error| UserError::io("listen for signals", &error));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut keys = keys();
    let mut looks = interval(every);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        terminal
            .draw(|frame| draw::draw(frame, model))
            .map_err(broken)?;
        tokio::select! {
            _ = looks.tick() => {
                if let Err(no_answer) = look(run_dir, model).await {
                    model.lost(match no_answer {
                        NoAnswer::Unreachable(failure) | NoAnswer::Refused(failure) => failure,
                    });
                }
            }
            event = keys.recv() => match event {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    if press(model, key) {
                        return Ok(());
                    }
                }
                // A terminal of another size is drawn anew above.
                Some(_) => {}
                // The terminal is gone.
                None => return Ok(()),
            },
            _ = terminate.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    }
}

/// One look at the daemon.
async fn look(run_dir: &RunDir, model: &mut Model) -> Result<(), NoAnswer> {
    let status: StatusReport = client::get(run_dir, "/v1/status").await?;
    let flows = match status.flows.established + status.flows.embryonic {
        n if n > MAX_LISTED_FLOWS => None,
        _ => Some(client::get::<FlowsReport>(run_dir, "/v1/flows").await?),
    };
    model.update(Instant::now(), status, flows);
    Ok(())
}

/// Whether that was the key that ends it.
fn press(model: &mut Model, key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Char('c') if control => return true,
        KeyCode::Down | KeyCode::Char('j') => model.scroll(1),
        KeyCode::Up | KeyCode::Char('k') => model.scroll(-1),
        KeyCode::PageDown | KeyCode::Char(' ') => model.scroll(10),
        KeyCode::PageUp => model.scroll(-10),
        KeyCode::Home => model.scroll(isize::MIN),
        _ => {}
    }
    false
}

/// What the terminal tells, from a thread of its own: reading it cannot be waited for otherwise.
fn keys() -> mpsc::UnboundedReceiver<Event> {
    let (tell, told) = mpsc::unbounded_channel();
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if tell.send(event).is_err() {
                return;
            }
        }
    });
    told
}
