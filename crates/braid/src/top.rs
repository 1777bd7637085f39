//! `braid top`: a live view of uplinks, flows and reasons.
//!
//! The data comes from the same requests that `braid status` and `braid flows` make. The model
//! ([`model`]) turns two answers into rates and has no clock; [`draw`] depends on the model alone.
//! This module handles the terminal, the keys and the time.

mod draw;
mod model;

use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use braid_daemon::report::{FlowsReport, StatusReport};
use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;
use model::Model;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::client::{self, NoAnswer};
use crate::{CommandResult, runtime};

/// Flow count above which flows are counted but not listed: reading them all every second would
/// cost the daemon too much.
const MAX_LISTED_FLOWS: u64 = 20_000;

/// Runs the live view until the user quits.
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
    // The first request precedes the terminal set-up, so that a missing daemon is a plain error.
    let mut model = Model::new(every);
    runtime.block_on(look(run_dir, &mut model))?;
    let mut terminal =
        ratatui::try_init().map_err(|error| UserError::io("take the terminal over", &error))?;
    // `try_init` has installed a panic hook that restores the terminal.
    let outcome = runtime.block_on(watch(run_dir, &mut terminal, &mut model, every));
    ratatui::restore();
    // The key thread is blocked in a read; it ends with the process.
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
                // A resized terminal is redrawn above.
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

/// Queries the daemon once.
async fn look(run_dir: &RunDir, model: &mut Model) -> Result<(), NoAnswer> {
    let status: StatusReport = client::get(run_dir, "/v1/status").await?;
    let flows = match status.flows.established + status.flows.embryonic {
        n if n > MAX_LISTED_FLOWS => None,
        _ => Some(client::get::<FlowsReport>(run_dir, "/v1/flows").await?),
    };
    model.update(Instant::now(), status, flows);
    Ok(())
}

/// Handles a key. Returns true if it ends the view.
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

/// Returns terminal events, read on a thread of its own because that read blocks.
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
