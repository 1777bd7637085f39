//! Health problems, with their consequences and fixes.

mod bond;
mod unmet_config;

use braid_host::report::HealthProblem;
use braid_uplink::liveness::Verdict;

use crate::config::FailMode;
use crate::engine::Engine;
use crate::uplinks::registry::{FAMILIES, UplinkRecord};

/// Returns all health problems.
#[must_use]
pub fn health_problems(engine: &Engine) -> Vec<HealthProblem> {
    let mut health = Vec::new();
    let records = engine.registry.records();
    if engine.registry.usable().next().is_none() {
        health.push(HealthProblem {
            code: "no-uplink".into(),
            text: "no uplink is usable: new flows leave as they would without Braid".into(),
            fix: "see braid uplinks for what is down and why".into(),
        });
    }
    for record in records {
        // The bond is reported separately. An uplink that the user removed from the configuration is not
        // a problem.
        // A paused one is as somebody wants it.
        if record.is_bond() || record.pause.is_some() {
            continue;
        }
        let wanted = engine.settings.selects(&record.uplink.device);
        if let Some(why) = record.down.as_ref().filter(|_| wanted) {
            let name = &record.uplink.name;
            health.push(HealthProblem {
                code: "uplink-down".into(),
                text: format!("{name}: {why}; new flows take the other uplinks"),
                fix: String::new(),
            });
        }
    }
    health.extend(records.iter().filter_map(|record| judged(engine, record)));
    health.extend(withheld(engine));
    health.extend(bond::bond(engine));
    health.extend(bond::quotas(engine));
    if !engine.settings.config.uplinks.is_empty() {
        let paused = |device: &str| {
            let mut uplinks = engine.settings.config.uplinks.iter();
            let uplink = uplinks.find(|uplink| uplink.device == device);
            uplink.is_some_and(|uplink| engine.pauses.uplinks().contains_key(&uplink.name))
        };
        let missing = engine.skipped.iter();
        let missing = missing.filter(|rejected| !paused(&rejected.candidate.device));
        health.extend(missing.map(|rejected| HealthProblem {
            code: "uplink-missing".into(),
            text: format!("{rejected}; it is taken as soon as it can be"),
            fix: String::new(),
        }));
    }
    for device in engine
        .wanted_lans()
        .iter()
        .filter(|device| !device_exists(device))
    {
        health.push(HealthProblem {
            code: "lan-missing".into(),
            text: format!("[lan] device {device} does not exist: its clients are not served"),
            fix: "connect it, or take it out of the configuration".into(),
        });
    }
    if let Some(why) = engine.datapath.problem() {
        let new = match engine.settings.config.datapath.fail_mode {
            FailMode::Secure => "wait",
            FailMode::Standalone => "take the best uplink",
        };
        health.push(HealthProblem {
            code: "openflow-controller".into(),
            text: format!("{why}: flows go on, new ones {new}"),
            fix: "see openflow.log in the run directory, and ovs-vsctl show".into(),
        });
    }
    for (code, text, fix) in engine.datapath.bridge_problems() {
        health.push(HealthProblem {
            code: code.into(),
            text,
            fix,
        });
    }
    health.extend(unmet_config::unmet(engine));
    if let Some(failure) = &engine.incidents.reconcile_error {
        health.push(HealthProblem {
            code: "network-change-failed".into(),
            text: format!("a change of the network could not be followed: {failure}"),
            fix: failure.fix.clone().unwrap_or_default(),
        });
    }
    if engine.incidents.reload_error.is_some() {
        health.push(HealthProblem {
            code: "reload-refused".into(),
            text: "the last reload was refused: the configuration before it is at work".into(),
            fix: "braid reload shows what is wrong".into(),
        });
    }
    if let Some(why) = &engine.incidents.state_error {
        health.push(HealthProblem {
            code: "state-lost".into(),
            text: format!("what sysctls were before Braid is lost, they will stay: {why}"),
            fix: "compare them with your own settings after braid down".into(),
        });
    }
    if let Some(why) = &engine.incidents.persist_error {
        health.push(HealthProblem {
            code: "state-not-saved".into(),
            text: format!(
                "what Braid changed is not on disk: a daemon that is killed now loses it: {why}"
            ),
            fix: "free some room in the run directory's file system".into(),
        });
    }
    if let Some(why) = &engine.pauses.error {
        health.push(HealthProblem {
            code: "pauses-not-saved".into(),
            text: format!("what is paused is not on disk as it should be: {why}"),
            fix: why
                .fix
                .clone()
                .unwrap_or_else(|| "free some room there".into()),
        });
    }
    if let Some(why) = engine.events.file_error() {
        health.push(HealthProblem {
            code: "events-not-saved".into(),
            text: format!("events are only kept in memory: {why}"),
            fix: "free some room in the run directory's file system".into(),
        });
    }
    if let Some(why) = &engine.incidents.metrics_error {
        health.push(HealthProblem {
            code: "metrics".into(),
            text: format!("{why}: nobody can ask for metrics there"),
            fix: "free that address or name another, then braid reload".into(),
        });
    }
    if let Some(why) = &engine.incidents.web_error {
        health.push(HealthProblem {
            code: "web".into(),
            text: format!("{why}: nobody sees the page for browsers"),
            fix: "free that address, name another, or mend the certificate, then braid reload"
                .into(),
        });
    }
    health.extend(engine.incidents.counted_problems());
    health.extend(engine.alarms.problems());
    health.extend(engine.history.problems());
    health
}

/// Returns the problem of an uplink that is present but does not work well.
fn judged(engine: &Engine, record: &UplinkRecord) -> Option<HealthProblem> {
    let works = record.down.is_none() && record.pause.is_none();
    let look = record.health.as_ref().filter(|_| works)?;
    let (code, means) = match look.verdict {
        Verdict::Up => return None,
        Verdict::Degraded => ("uplink-degraded", "fewer new flows take it"),
        verdict => (
            match verdict {
                Verdict::Portal => "uplink-portal",
                _ => "uplink-dead",
            },
            match engine.registry.has_alternative(record) {
                true => "new flows take the other uplinks",
                false => "no other uplink works, so new flows still take it",
            },
        ),
    };
    let fix = match look.verdict {
        Verdict::Portal => "log in to the network behind it, with a browser",
        _ => "",
    };
    Some(HealthProblem {
        code: code.into(),
        text: format!("{}: {}; {means}", record.uplink.name, look.evidence),
        fix: fix.into(),
    })
}

/// Returns the problem that nothing carries new flows while an uplink that works is paused by force.
fn withheld(engine: &Engine) -> Option<HealthProblem> {
    let mut records = engine.registry.records().iter();
    let answers = |record: &UplinkRecord| FAMILIES.iter().any(|family| record.answers(*family));
    let record = records.find(|record| {
        let forced = record.pause.as_ref().is_some_and(|pause| pause.forced);
        forced && answers(record) && !engine.registry.has_alternative(record)
    })?;
    let name = &record.uplink.name;
    Some(HealthProblem {
        code: "uplink-paused".into(),
        text: format!("{name}: paused by force, and no other uplink works"),
        fix: format!("braid uplink resume {name}"),
    })
}

fn device_exists(device: &str) -> bool {
    nix::net::if_::if_nametoindex(device).is_ok()
}
