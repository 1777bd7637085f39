//! What the configuration asks for and does not get.

use braid_balance::KernelTime;

use super::REMEMBERED;
use crate::config::WhenDown;
use crate::engine::Engine;
use crate::names::Lie;
use crate::report::Health;
use crate::rules::without_uplink;

/// Rules that match nothing or lack their uplink, uplinks that wait, name servers that lie.
pub(super) fn unmet(engine: &Engine) -> Vec<Health> {
    let mut unmet = Vec::new();
    for (rule, why) in &engine.rules.idle {
        unmet.push(Health {
            code: "rule-idle".into(),
            text: format!("rule {rule} matches nothing: {why}"),
            fix: "make it, then braid reload; or take the rule out of the configuration".into(),
        });
    }
    let members = engine.roster.members().iter();
    let known: Vec<&str> = members.map(|member| member.uplink.name.as_str()).collect();
    for (rule, uplink) in without_uplink(&engine.settings, &known) {
        let meanwhile = match rule.when_down {
            WhenDown::Others => "its flows take the others",
            WhenDown::Block => "its flows are blocked",
        };
        unmet.push(Health {
            code: "rule-without-uplink".into(),
            text: format!(
                "rule {}: there is no uplink {uplink}; {meanwhile}",
                rule.name
            ),
            fix: format!("there are {}", known.join(", ")),
        });
    }
    let standings = engine.standings();
    for uplink in engine.classes.waiting(&standings) {
        unmet.push(Health {
            code: "uplink-waiting".into(),
            text: format!(
                "{} is back and takes no new flows, since failback is never",
                uplink.name
            ),
            fix: "braid failback".into(),
        });
    }
    unmet.extend(lies(engine));
    unmet
}

/// Name servers' answers that were not believed of late.
fn lies(engine: &Engine) -> Option<Health> {
    let lies = engine.names.lies();
    let (lie, server, at) = lies.last()?;
    let recent = KernelTime::now().since(at) < REMEMBERED;
    let all: u64 = Lie::ALL.iter().map(|lie| lies.of(*lie)).sum();
    recent.then(|| Health {
        code: "name-disbelieved".into(),
        text: format!(
            "{all} answers of name servers were not believed, the last from {server}: {lie}"
        ),
        fix: match lie {
            Lie::NotTrusted => {
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
