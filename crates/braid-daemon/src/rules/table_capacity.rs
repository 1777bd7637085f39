//! Checks that the datapath's tables can hold all rules: those of the configuration and those of
//! `braid run`.
//!
//! The count includes rules that match nothing yet: a rule that waits for its user or control group
//! must fit when that appears.

use std::collections::BTreeSet;

use braid_balance::{MAX_CLASSES, MAX_RULES};
use braid_host::user_error::UserError;

use crate::classes::ClassKind;
use crate::config::{Action, RuleConfig, Settings};

/// Maximum number of kinds of treatment besides the common one.
const MAX_KINDS: usize = MAX_CLASSES - 1;

/// Refuses settings whose rules the datapath cannot hold.
///
/// # Errors
/// `too-many-rules` or `too-many-kinds`, with the counts.
pub fn check_table_capacity(settings: &Settings) -> Result<(), UserError> {
    let (file, runs) = (&settings.config.rules, &settings.run_rules);
    let (by_file, by_runs) = (combinations(file), combinations(runs));
    if by_file + by_runs > MAX_RULES {
        let text = format!(
            "there is room for {MAX_RULES} rules: the configuration's come to {by_file}, programs \
             that run on one uplink to {by_runs}"
        );
        let fix = "wait for a program to end, or write wider prefixes or ranges: a rule with lists \
                   is one for each combination of their entries";
        return Err(UserError::new("too-many-rules", text).fix(fix));
    }
    let by_file = kinds(settings, file);
    let both = by_file.union(&kinds(settings, runs)).count();
    if both > MAX_KINDS {
        let text = format!(
            "there is room for {MAX_KINDS} kinds of treatment: the configuration asks for {}, \
             programs that run on one uplink for {} more",
            by_file.len(),
            both - by_file.len()
        );
        let fix = "name an uplink and a --on-down that a rule has already, or give more rules \
                   the same use, on_down and sticky";
        return Err(UserError::new("too-many-kinds", text).fix(fix));
    }
    Ok(())
}

fn combinations(rules: &[RuleConfig]) -> usize {
    let carried_out = rules.iter().filter(|rule| rule.action != Action::None);
    carried_out.map(|rule| rule.entries().len()).sum()
}

fn kinds(settings: &Settings, rules: &[RuleConfig]) -> BTreeSet<ClassKind> {
    let common = ClassKind::common(settings);
    let asked = rules
        .iter()
        .filter_map(|rule| ClassKind::of(settings, rule));
    asked.filter(|kind| *kind != common).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CgroupPath, Config, OnDown, Overrides};

    /// `kinds` kinds of treatment in one rule each, and one rule of `combinations`.
    fn settings(kinds: usize, combinations: usize) -> Settings {
        let mut text = String::new();
        for kind in 1..kinds {
            text.push_str(&format!(
                "[[rule]]\nport = {kind}\nuse = 'rr'\nsticky = '{kind} s'\n"
            ));
        }
        let ports: Vec<_> = (1000..1000 + combinations).collect();
        text.push_str(&format!("[[rule]]\nport = {ports:?}\nuse = 'block'\n"));
        Settings::new(Config::parse("test", &text).unwrap(), &Overrides::default()).unwrap()
    }

    fn run(uplink: &str, on_down: OnDown) -> RuleConfig {
        let group: CgroupPath = "/braid-run-1".parse().unwrap();
        RuleConfig {
            cgroup: Some(group),
            on_down,
            ..RuleConfig::everything("run".to_owned(), Action::Uplink(uplink.to_owned()))
        }
    }

    #[test]
    fn a_run_finds_the_last_kind_and_no_more() {
        let mut settings = settings(62, 1);
        settings.run_rules = vec![run("lte", OnDown::Block), run("lte", OnDown::Block)];
        check_table_capacity(&settings).unwrap();
        settings.run_rules.push(run("lte", OnDown::Fallback));
        let refused = check_table_capacity(&settings).unwrap_err();
        assert_eq!(refused.code, "too-many-kinds");
        assert_eq!(
            refused.text,
            "there is room for 63 kinds of treatment: the configuration asks for 62, programs that \
             run on one uplink for 2 more"
        );
    }

    #[test]
    fn a_run_finds_the_last_rule_and_no_more() {
        let mut settings = settings(1, 254);
        settings.run_rules = vec![run("lte", OnDown::Block)];
        check_table_capacity(&settings).unwrap();
        settings.run_rules.push(run("lte", OnDown::Block));
        let refused = check_table_capacity(&settings).unwrap_err();
        assert_eq!(refused.code, "too-many-rules");
        assert_eq!(
            refused.text,
            "there is room for 255 rules: the configuration's come to 254, programs that run on \
             one uplink to 2"
        );
    }

    #[test]
    fn what_is_common_or_never_seen_takes_no_room() {
        let mut settings = settings(63, 1);
        let common = Action::Policy(settings.config.policy);
        let rules = [
            RuleConfig::everything("common".to_owned(), common),
            RuleConfig::everything("none".to_owned(), Action::None),
        ];
        settings.config.rules.extend(rules);
        check_table_capacity(&settings).unwrap();
    }
}
