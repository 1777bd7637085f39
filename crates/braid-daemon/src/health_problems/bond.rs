//! Health problems of the bond and of quotas.

use braid_host::report::HealthProblem;

use crate::config::Fallback;
use crate::engine::Engine;
use crate::report::{BondLinkState, BondState};

/// Returns the problems of the bond and its links.
pub(super) fn bond(engine: &Engine) -> Vec<HealthProblem> {
    if !engine.bond.is_joined() {
        return Vec::new();
    }
    let report = engine.bond.report(engine.settings.config.bond);
    let meanwhile = match report.config.fallback {
        Fallback::Balance => "its new flows are shared out over the uplinks",
        Fallback::Block => "its flows are blocked",
    };
    let (code, fix) = match report.state {
        BondState::None | BondState::Up => ("", ""),
        BondState::Connecting | BondState::Lost => (
            "bond-unreachable",
            "see braid bond for what was tried; is braid hub running, and its UDP port open?",
        ),
        BondState::Refused => (
            "bond-refused",
            "braid leave, then join with a new token (braid hub invite NAME, on the hub)",
        ),
        BondState::Stopped => ("bond-stopped", "braid doctor shows what is missing"),
    };
    let mut health = Vec::new();
    if !code.is_empty() {
        let tried: Vec<String> = report
            .links
            .iter()
            .map(|link| format!("{} to {}", link.uplink, link.hub))
            .collect();
        let tried = match (report.state, tried.is_empty()) {
            (BondState::Connecting | BondState::Lost, true) => "; no uplink leads to it".to_owned(),
            (BondState::Connecting | BondState::Lost, false) => {
                format!("; tried {}", tried.join(", "))
            }
            _ => String::new(),
        };
        health.push(HealthProblem {
            code: code.into(),
            text: format!("bond: {}{tried}; {meanwhile}", report.why),
            fix: fix.into(),
        });
    }
    let silent = report.links.iter().filter(|link| {
        let bad = [BondLinkState::Suspect, BondLinkState::Quarantined];
        report.state == BondState::Up && bad.contains(&link.state)
    });
    health.extend(silent.map(|link| HealthProblem {
        code: "bond-link".into(),
        text: format!(
            "bond: {} {}; {}",
            link.uplink,
            link.state.as_str(),
            link.why
        ),
        fix: String::new(),
    }));
    health.extend(report.problems.into_iter().map(|text| HealthProblem {
        code: "bond-problem".into(),
        text,
        fix: String::new(),
    }));
    health
}

/// Returns exhausted quotas, and an error of saving the accounts.
pub(super) fn quotas(engine: &Engine) -> Vec<HealthProblem> {
    let records = engine.registry.records().iter();
    let spent = records.filter(|record| engine.is_spent(&record.uplink.name));
    let mut health: Vec<HealthProblem> = spent
        .map(|record| HealthProblem {
            code: "quota-exhausted".into(),
            text: format!(
                "{}: its quota is used up; it carries what no other can",
                record.uplink.name
            ),
            fix: "raise its quota, or wait until it begins anew".into(),
        })
        .collect();
    if let Some(why) = &engine.quotas.unwritten {
        health.push(HealthProblem {
            code: "quota-not-saved".into(),
            text: format!("what uplinks have carried of their quotas is not on disk: {why}"),
            fix: "free some room there".into(),
        });
    }
    health
}
