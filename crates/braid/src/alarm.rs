//! `braid alarm`: alarms and their destinations.

use braid_alarm::Destination;
use braid_alarm::delivery::ATTEMPT_TIMEOUT;
use braid_core::units::duration;
use braid_daemon::config::AlarmCondition;
use braid_daemon::report::{
    AlarmReport, AlarmTarget, AlarmTestQuestion, AlarmTestReport, AlarmsReport,
};
use braid_host::config::Paint;
use braid_host::run_dir::RunDir;

use crate::cli::{AlarmCommand, Output};
use crate::client;
use crate::show::seconds;
use crate::table::{Cell, NO_VALUE, Side, Table};
use crate::terminal::{Tint, answer_either, tinted};
use crate::{CommandError, CommandResult, ask, runtime};

/// Shows alarms, or tries their destinations.
pub fn alarm(run_dir: &RunDir, command: AlarmCommand) -> CommandResult {
    match command {
        AlarmCommand::List(output) => list(run_dir, output),
        AlarmCommand::Test { name, output } => test(run_dir, name, output),
    }
}

fn list(run_dir: &RunDir, output: Output) -> CommandResult {
    let report: AlarmsReport = ask(run_dir, "/v1/alarms")?;
    answer_either(output.json, &report, |paint| text(&report, paint))?;
    let raised = report.alarms.iter().any(|alarm| !alarm.raised.is_empty());
    match raised || !report.failing.is_empty() {
        true => Err(CommandError::Degraded),
        false => Ok(()),
    }
}

fn test(run_dir: &RunDir, name: Option<String>, output: Output) -> CommandResult {
    let question = AlarmTestQuestion { name };
    let words = serde_urlencoded::to_string(&question).unwrap_or_default();
    let path = format!("/v1/alarms/test?{words}");
    let answer = runtime()?.block_on(client::post_and_wait(run_dir, &path, ATTEMPT_TIMEOUT));
    let report: AlarmTestReport = answer?;
    answer_either(output.json, &report, |paint| {
        let lines = report.results.iter().map(|result| match &result.error {
            None => format!(
                "{} {}\n",
                tinted("taken ", Tint::Good, paint),
                result.destination
            ),
            Some(error) => format!(
                "{} {}: {error}\n",
                tinted("failed", Tint::Bad, paint),
                result.destination
            ),
        });
        lines.collect()
    })?;
    match report.results.iter().all(|result| result.error.is_none()) {
        true => Ok(()),
        false => Err(CommandError::Degraded),
    }
}

fn text(report: &AlarmsReport, paint: Paint) -> String {
    if report.alarms.is_empty() {
        return "no alarms are configured: [[alarm]] in the configuration makes one\n".into();
    }
    let mut table = Table::new(&[
        ("ALARM", Side::Left),
        ("WHEN", Side::Left),
        ("TELLS", Side::Left),
        ("STATE", Side::Left),
        ("FOR s", Side::Right),
        ("WHY", Side::Left),
    ]);
    for alarm in &report.alarms {
        if alarm.raised.is_empty() {
            let state = Cell::tinted("at rest", Tint::Good);
            table.row(row(alarm, state, NO_VALUE.into(), NO_VALUE.into()));
        }
        for target in &alarm.raised {
            let AlarmTarget { subject, text, .. } = target;
            let state = match target.unstable {
                true => "unstable",
                false => "RAISED",
            };
            let why = format!("{subject}: {text}");
            let state = Cell::tinted(state, Tint::Bad);
            table.row(row(alarm, state, seconds(target.age_ms), why));
        }
    }
    let mut text = table.render(paint);
    for failing in &report.failing {
        let line = format!(
            "{} takes no messages: {}\n",
            failing.destination, failing.error
        );
        text.push_str(&tinted(&line, Tint::Bad, paint));
    }
    text
}

fn row(alarm: &AlarmReport, state: Cell, age: String, why: String) -> Vec<Cell> {
    let config = &alarm.config;
    let tells: Vec<String> = config
        .destinations()
        .map(|one| Destination::display(&one))
        .collect();
    let uplink = config.uplink.as_deref().map(|uplink| format!(" {uplink}"));
    let limit = config.at.map(|limit| format!(" {limit}"));
    let when = format!(
        "{}{}{} for {}",
        AlarmCondition::as_str(config.when),
        uplink.unwrap_or_default(),
        limit.unwrap_or_default(),
        duration::display(config.hold),
    );
    vec![
        config.name.as_str().into(),
        when.into(),
        tells.join(", ").into(),
        state,
        age.into(),
        why.into(),
    ]
}
