//! Health problems: configuration that is not in effect.

use braid_balance::KernelTime;
use braid_host::report::HealthProblem;

use crate::config::OnDown;
use crate::dns_snoop::DnsReject;
use crate::engine::Engine;
use crate::engine::incidents::COUNTED_PROBLEM_TIME;
use crate::rules::without_uplink;

/// Returns rules that match nothing or lack their uplink, uplinks that wait, and rejected DNS answers.
pub(super) fn unmet(engine: &Engine) -> Vec<HealthProblem> {
    let mut unmet = Vec::new();
    for (rule, why) in &engine.rules.idle {
        unmet.push(HealthProblem {
            code: "rule-idle".into(),
            text: format!("rule {rule} matches nothing: {why}"),
            fix: "make it, then braid reload; or take the rule out of the configuration".into(),
        });
    }
    let records = engine.registry.records().iter();
    let known: Vec<&str> = records.map(|record| record.uplink.name.as_str()).collect();
    for (rule, uplink) in without_uplink(&engine.settings, &known) {
        let meanwhile = match rule.on_down {
            OnDown::Fallback => "its flows take the others",
            OnDown::Block => "its flows are blocked",
        };
        unmet.push(HealthProblem {
            code: "rule-without-uplink".into(),
            text: format!(
                "rule {}: there is no uplink {uplink}; {meanwhile}",
                rule.name
            ),
            fix: format!("there are {}", known.join(", ")),
        });
    }
    let statuses = engine.statuses();
    for uplink in engine.classes.waiting(&statuses) {
        unmet.push(HealthProblem {
            code: "uplink-waiting".into(),
            text: format!(
                "{} is back and takes no new flows, since failback is never",
                uplink.name
            ),
            fix: "braid failback".into(),
        });
    }
    unmet.extend(rejects(engine));
    unmet
}

/// Returns recently rejected answers of name servers.
fn rejects(engine: &Engine) -> Option<HealthProblem> {
    let rejects = engine.names.rejects();
    let (reject, server, at) = rejects.last()?;
    let recent = KernelTime::now().since(at) < COUNTED_PROBLEM_TIME;
    let all: u64 = DnsReject::ALL
        .iter()
        .map(|reject| rejects.of(*reject))
        .sum();
    recent.then(|| HealthProblem {
        code: "dns-answer-rejected".into(),
        text: format!("{all} DNS answers were rejected, the last from {server}: {reject}"),
        fix: match reject {
            DnsReject::NotTrusted => {
                "rules by domain miss such flows; list it in name_servers if you trust it, or have \
                 clients ask this machine's own"
            }
            _ => {
                "rules by domain may miss flows; have clients ask another name server if it goes on"
            }
        }
        .into(),
    })
}
