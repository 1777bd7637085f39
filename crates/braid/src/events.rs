//! `braid events`: what changed, when and why.

use std::io;
use std::time::Duration;

use braid_daemon::events::Event;
use braid_daemon::report::EventsReport;
use braid_host::config::Paint;
use braid_host::run_dir::RunDir;
use braid_host::user_error::UserError;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::cli::EventsArgs;
use crate::client::{self, NoAnswer};
use crate::table::{Cell, NO_VALUE, Side, Table};
use crate::terminal::{Tint, answer, answer_json, paint, tinted};
use crate::{CommandError, CommandResult, check_uplink, runtime};

/// Longest wait of one request for the next event.
const LONG_POLL_TIME: Duration = Duration::from_secs(30);
/// Time between attempts to reach a daemon that is gone.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Widths of the columns before the text, for lines that are printed one by one.
const KIND_WIDTH: usize = 15;
const UPLINK_WIDTH: usize = 10;

/// Prints past events, and follows new ones if asked to.
pub fn events(run_dir: &RunDir, arguments: &EventsArgs) -> CommandResult {
    runtime()?.block_on(async {
        let mut report = ask(run_dir, 0, Duration::ZERO).await?;
        // The uplink may be gone; its events are still there.
        if let Some(uplink) = &arguments.uplink
            && !report
                .events
                .iter()
                .any(|event| event.uplink.as_ref() == Some(uplink))
        {
            check_uplink(run_dir, uplink).await?;
        }
        select(&mut report, arguments);
        if arguments.follow {
            let first = report.events.first().map(|event| event.number);
            return follow(run_dir, arguments, first.map_or(report.latest, |n| n - 1)).await;
        }
        if arguments.output.json {
            return Ok(answer_json(&report)?);
        }
        Ok(answer(&table(&report, &zone(), paint(&io::stdout())))?)
    })
}

async fn ask(run_dir: &RunDir, after: u64, wait: Duration) -> Result<EventsReport, NoAnswer> {
    let path = format!("/v1/events?after={after}&wait={}", wait.as_secs());
    client::await_news(run_dir, &path, wait).await
}

fn select(report: &mut EventsReport, arguments: &EventsArgs) {
    if let Some(uplink) = &arguments.uplink {
        let about = |event: &Event| event.uplink.as_ref() == Some(uplink);
        report.events.retain(about);
    }
    if let Some(last) = arguments.last {
        let surplus = report.events.len().saturating_sub(last);
        report.events.drain(..surplus);
    }
}

/// Prints a line per event until interrupted or nobody reads.
async fn follow(run_dir: &RunDir, arguments: &EventsArgs, mut after: u64) -> CommandResult {
    let (zone, paint) = (zone(), paint(&io::stdout()));
    let mut away = false;
    loop {
        let mut report = match ask(run_dir, after, LONG_POLL_TIME).await {
            Ok(report) => report,
            Err(NoAnswer::Refused(failure)) if failure.code != "ending" => {
                return Err(CommandError::UserError(failure));
            }
            Err(_) => {
                if !away {
                    eprintln!("braid events: no daemon answers; waiting for one");
                }
                away = true;
                tokio::time::sleep(RETRY_INTERVAL).await;
                continue;
            }
        };
        if away {
            eprintln!("braid events: a daemon answers again");
        }
        away = false;
        if report.latest < after {
            // The run directory is another one: everything was undone and started anew.
            after = 0;
            continue;
        }
        after = report.latest;
        if let Some(uplink) = &arguments.uplink {
            report
                .events
                .retain(|event| event.uplink.as_ref() == Some(uplink));
        }
        for event in &report.events {
            let text = match arguments.output.json {
                true => serde_json::to_string(event)
                    .map_err(|error| UserError::new("json", error.to_string()))?,
                false => line(event, &zone, paint),
            };
            answer(&format!("{text}\n"))?;
        }
    }
}

fn zone() -> TimeZone {
    TimeZone::system()
}

/// Formats an event's local time to the millisecond.
fn time(event: &Event, zone: &TimeZone) -> String {
    let at = i64::try_from(event.unix_ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map_or_else(
        || NO_VALUE.to_owned(),
        |at| {
            let local = at.to_zoned(zone.clone());
            local.strftime("%Y-%m-%d %H:%M:%S%.3f").to_string()
        },
    )
}

/// Returns the word that `--json` uses for the kind.
fn kind(event: &Event) -> String {
    let word = serde_json::to_value(event.kind);
    word.ok()
        .and_then(|word| word.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn table(report: &EventsReport, zone: &TimeZone, paint: Paint) -> String {
    let mut table = Table::new(&[
        ("TIME", Side::Left),
        ("KIND", Side::Left),
        ("UPLINK", Side::Left),
        ("WHAT", Side::Left),
        ("WHY", Side::Left),
    ]);
    for event in &report.events {
        table.row(vec![
            time(event, zone).into(),
            kind(event).into(),
            event.uplink.as_deref().unwrap_or(NO_VALUE).into(),
            Cell::from(event.text.as_str()),
            event.evidence.as_deref().unwrap_or_default().into(),
        ]);
    }
    table.render(paint)
}

fn line(event: &Event, zone: &TimeZone, paint: Paint) -> String {
    let evidence = event.evidence.as_deref().unwrap_or_default();
    let evidence = match evidence {
        "" => String::new(),
        evidence => format!(" ({evidence})"),
    };
    let uplink = event.uplink.as_deref().unwrap_or(NO_VALUE);
    format!(
        "{}  {:KIND_WIDTH$}  {}  {}{evidence}",
        time(event, zone),
        kind(event),
        tinted(&format!("{uplink:UPLINK_WIDTH$}"), Tint::Bold, paint),
        event.text
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_daemon::events::EventKind;

    fn event(number: u64, uplink: Option<&str>, text: &str, evidence: Option<&str>) -> Event {
        Event {
            number,
            unix_ms: 1_767_225_600_000 + number,
            kind: EventKind::Verdict,
            uplink: uplink.map(str::to_owned),
            text: text.into(),
            evidence: evidence.map(str::to_owned),
        }
    }

    fn report() -> EventsReport {
        EventsReport {
            events: vec![
                event(1, None, "at work", None),
                event(
                    2,
                    Some("dsl"),
                    "dead",
                    Some("3 of 3 targets silent for 214 ms"),
                ),
                event(3, Some("lte"), "degraded", None),
            ],
            latest: 3,
        }
    }

    #[test]
    fn events_are_a_table_with_the_evidence() {
        let expected = "\
TIME                     KIND     UPLINK  WHAT      WHY
2026-01-01 00:00:00.001  verdict  –       at work
2026-01-01 00:00:00.002  verdict  dsl     dead      3 of 3 targets silent for 214 ms
2026-01-01 00:00:00.003  verdict  lte     degraded
";
        assert_eq!(table(&report(), &TimeZone::UTC, Paint::Plain), expected);
    }

    #[test]
    fn a_followed_event_is_a_line() {
        let events = report().events;
        assert_eq!(
            line(&events[1], &TimeZone::UTC, Paint::Plain),
            "2026-01-01 00:00:00.002  verdict          dsl         dead (3 of 3 targets silent for 214 ms)"
        );
    }

    #[test]
    fn the_last_of_one_uplink() {
        let mut report = report();
        let arguments = EventsArgs {
            follow: false,
            last: Some(1),
            uplink: Some("dsl".into()),
            output: crate::cli::Output { json: false },
        };
        select(&mut report, &arguments);
        let numbers: Vec<u64> = report.events.iter().map(|event| event.number).collect();
        assert_eq!(numbers, [2]);
    }

    #[test]
    fn a_clock_beyond_all_calendars_is_no_panic() {
        let mut odd = event(1, None, "at work", None);
        odd.unix_ms = u64::MAX;
        assert_eq!(time(&odd, &TimeZone::UTC), NO_VALUE);
    }
}
