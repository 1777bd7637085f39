//! `braid uplink` and `braid rule`: uplinks that are set aside for maintenance, and rules that are switched off.

use std::time::{SystemTime, UNIX_EPOCH};

use braid_daemon::report::{
    FlowsReport, Pause, RulePauseRequest, RuleReport, RulesReport, UplinkPauseRequest,
    UplinksReport,
};
use braid_host::config::Paint;
use braid_host::run_dir::RunDir;

use crate::cli::{RuleCommand, UplinkCommand};
use crate::client::{self, NoAnswer, path_segment};
use crate::table::{Cell, Side, Table};
use crate::terminal::{Tint, answer_either};
use crate::{CommandError, CommandResult, ask, runtime, show};

/// Sets an uplink aside, or uses it again.
pub fn uplink(run_dir: &RunDir, command: &UplinkCommand) -> CommandResult {
    let path = |name: &str| format!("/v1/uplinks/{}/pause", path_segment(name));
    let (name, answer, output) = match command {
        UplinkCommand::Pause {
            uplink,
            span,
            force,
            now,
            output,
        } => {
            let request = UplinkPauseRequest {
                for_s: *span,
                force: *force,
                now: *now,
            };
            let path = path(uplink);
            let answer = client::create(run_dir, &path, &request);
            (uplink, runtime()?.block_on(answer), output)
        }
        UplinkCommand::Resume { uplink, output } => {
            let path = path(uplink);
            let answer = client::delete(run_dir, &path);
            (uplink, runtime()?.block_on(answer), output)
        }
    };
    let report: UplinksReport = or_not_paused(answer, || ask(run_dir, "/v1/uplinks"))?;
    let question = serde_urlencoded::to_string([("uplink", name.as_str()), ("limit", "0")]);
    let question = question.unwrap_or_default();
    let left = match command {
        UplinkCommand::Pause { .. } if !output.json => {
            ask::<FlowsReport>(run_dir, &format!("/v1/flows?{question}"))?.matching
        }
        _ => 0,
    };
    answer_either(output.json, &report, |paint| {
        let mut text = show::uplinks(&report.uplinks, paint);
        if left > 0 {
            text.push_str(&format!(
                "# flows that are still on {name}: {left} (braid flows --uplink {name})\n"
            ));
        }
        text
    })?;
    Ok(())
}

/// Shows rules, switches one off, or on again.
pub fn rule(run_dir: &RunDir, command: &RuleCommand) -> CommandResult {
    let path = |name: &str| format!("/v1/rules/{}/pause", path_segment(name));
    let (report, output): (RulesReport, _) = match command {
        RuleCommand::List(output) => (ask(run_dir, "/v1/rules")?, output),
        RuleCommand::Pause { name, span, output } => {
            let request = RulePauseRequest { for_s: *span };
            let path = path(name);
            let answer = client::create(run_dir, &path, &request);
            (runtime()?.block_on(answer)?, output)
        }
        RuleCommand::Resume { name, output } => {
            let path = path(name);
            let answer = runtime()?.block_on(client::delete(run_dir, &path));
            let report = or_not_paused(answer, || ask(run_dir, "/v1/rules"))?;
            (report, output)
        }
    };
    answer_either(output.json, &report, |paint| rules(&report, paint))?;
    Ok(())
}

/// Turns the refusal to resume something that is not paused into success, since there is nothing to do, and `asks` for the
/// report.
fn or_not_paused<T>(
    answer: Result<T, NoAnswer>,
    asks: impl FnOnce() -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    match answer {
        Err(NoAnswer::Refused(failure)) if failure.code == "not-paused" => {
            eprintln!("nothing to do: {}", failure.text);
            asks()
        }
        answer => Ok(answer?),
    }
}

fn rules(report: &RulesReport, paint: Paint) -> String {
    if report.rules.is_empty() {
        return "no rules are configured: [[rule]] in the configuration makes one\n".into();
    }
    let mut table = Table::new(&[
        ("RULE", Side::Left),
        ("USE", Side::Left),
        ("STATE", Side::Left),
        ("WHY", Side::Left),
    ]);
    for rule in &report.rules {
        let (state, why) = match &rule.paused {
            None => (Cell::tinted("on", Tint::Good), String::new()),
            Some(pause) => ("paused".into(), in_words(pause)),
        };
        table.row(vec![
            rule.name.as_str().into(),
            rule.action.to_string().into(),
            state,
            why.into(),
        ]);
    }
    table.render(paint)
}

/// Returns a line for each rule that is switched off, for `braid status`.
pub fn paused_rules(rules: &[RuleReport]) -> String {
    let paused = rules.iter().filter_map(|rule| {
        let pause = rule.paused.as_ref()?;
        Some(format!(
            "# rule {} is paused {}\n",
            rule.name,
            in_words(pause)
        ))
    });
    paused.collect()
}

fn in_words(pause: &Pause) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_millis();
    pause.in_words(u64::try_from(now).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_daemon::config::Action;
    use braid_daemon::report::PauseOrigin;

    #[test]
    fn rules_are_listed_with_their_pause() {
        let pause = Pause {
            by: PauseOrigin::Page,
            since_unix_ms: u64::MAX,
            until_unix_ms: None,
            forced: false,
        };
        let rule = |name: &str, paused| RuleReport {
            name: name.into(),
            named: true,
            action: Action::Uplink("lte".into()),
            paused,
        };
        let report = RulesReport {
            rules: vec![rule("bank", Some(pause)), rule("tv", None)],
        };
        let text = "RULE  USE  STATE   WHY\n\
                    bank  lte  paused  on the page, 0 s ago, until it is resumed\n\
                    tv    lte  on\n";
        let plain = rules(&report, Paint::Plain);
        let plain: Vec<&str> = plain.lines().map(str::trim_end).collect();
        assert_eq!(plain, text.lines().collect::<Vec<_>>());
        let line = "# rule bank is paused on the page, 0 s ago, until it is resumed\n";
        assert_eq!(paused_rules(&report.rules), line);
    }
}
