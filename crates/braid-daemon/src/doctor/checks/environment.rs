//! Checks of the environment. Pure.

use super::{Facts, Finding, fail, ok, warn};
use crate::doctor::environment_facts::Environment;
use crate::doctor::targets::TargetResults;

/// Programs that also decide which uplink traffic takes, by process name, and the command that stops
/// each.
const CONFLICTING_PROGRAMS: [(&str, &str); 6] = [
    (
        "mwan3track",
        "/etc/init.d/mwan3 stop; /etc/init.d/mwan3 disable",
    ),
    (
        "mwan3rtmon",
        "/etc/init.d/mwan3 stop; /etc/init.d/mwan3 disable",
    ),
    ("lsm", "systemctl disable --now lsm"),
    ("wan_lb", "delete load-balancing wan"),
    ("mptcpd", "systemctl disable --now mptcp"),
    ("openmptcprouter", "/etc/init.d/openmptcprouter stop"),
];
/// 2025-01-01: an earlier clock was never set.
const EARLIEST_UNIX_TIME: u64 = 1_735_689_600;
/// Space that a daemon's log, events and state may need.
const MIN_RUN_DIR_BYTES: u64 = 4 << 20;

pub(super) fn checks(facts: &Facts) -> Vec<Finding> {
    let environment = &facts.environment;
    let mut findings = vec![groups(environment), clock(environment)];
    findings.extend(space(environment));
    findings.extend(unit(environment, facts.running));
    findings.extend(conntrack(environment));
    findings.extend(foreign(environment));
    findings.extend(conflicting_programs(environment));
    findings.extend(facts.targets.iter().flat_map(targets));
    findings
}

fn groups(environment: &Environment) -> Finding {
    match &environment.cgroups {
        Some(mount) => ok(
            "cgroup2",
            format!(
                "cgroup2 is mounted at {}: braid run and rules by control group work",
                mount.display()
            ),
        ),
        None => warn(
            "cgroup2",
            "no cgroup2 hierarchy is mounted: braid run and rules by control group do not work",
            "mkdir -p /sys/fs/cgroup/unified; mount -t cgroup2 none /sys/fs/cgroup/unified",
        ),
    }
}

fn clock(environment: &Environment) -> Finding {
    if environment.clock < EARLIEST_UNIX_TIME {
        let text =
            "the clock was never set: the times of events are wrong (nothing else depends on it)";
        return warn("clock", text, "timedatectl set-ntp true");
    }
    ok("clock", "the clock is set")
}

fn space(environment: &Environment) -> Option<Finding> {
    let (place, free) = environment.run_space.as_ref()?;
    let place = place.display();
    let megabytes = free / 1_000_000;
    Some(match *free {
        0 => fail(
            "run-space",
            format!("{place} is full: a daemon cannot note what it changes"),
            format!("df {place}"),
        ),
        free if free < MIN_RUN_DIR_BYTES => warn(
            "run-space",
            format!("{place} has {megabytes} MB left: log and events may be cut short"),
            format!("df {place}"),
        ),
        _ => ok("run-space", format!("{place} has {megabytes} MB left")),
    })
}

fn unit(environment: &Environment, running: bool) -> Option<Finding> {
    let state = environment.unit.as_deref()?;
    Some(match (state, running) {
        ("active" | "reloading", _) => ok("unit", "systemd looks after braid.service"),
        ("activating", _) => warn(
            "unit",
            "braid.service is starting, or over and over",
            "journalctl -u braid -n 20",
        ),
        ("failed", _) => warn(
            "unit",
            "braid.service has failed",
            "journalctl -u braid -n 20; systemctl restart braid",
        ),
        (_, true) => ok(
            "unit",
            "braid is up; braid.service is not running, so nobody restarts a daemon that dies",
        ),
        (_, false) => ok("unit", "braid.service is not running"),
    })
}

fn conntrack(environment: &Environment) -> Option<Finding> {
    let (count, most) = environment.conntrack?;
    let text = format!("the firewall tracks {count} of at most {most} connections");
    Some(if count.saturating_mul(10) > most.saturating_mul(8) {
        let fix = format!(
            "sysctl -w net.netfilter.nf_conntrack_max={}",
            most.saturating_mul(4)
        );
        warn(
            "conntrack",
            format!("{text}: new ones of a LAN will soon be dropped"),
            fix,
        )
    } else {
        ok("conntrack", text)
    })
}

fn foreign(environment: &Environment) -> Option<Finding> {
    let named: Vec<String> = environment
        .foreign_programs
        .iter()
        .map(|(device, program)| format!("{program} on {device}"))
        .collect();
    (!named.is_empty()).then(|| {
        let text = format!(
            "programs that are not braid's are where its own go: {}",
            named.join(", ")
        );
        warn(
            "foreign-program",
            text,
            "tc filter del dev DEVICE ingress, or coexist = true in [datapath] to share the hook",
        )
    })
}

fn conflicting_programs(environment: &Environment) -> Vec<Finding> {
    let running = CONFLICTING_PROGRAMS
        .iter()
        .filter(|(name, _)| environment.programs.contains(*name));
    let mut findings: Vec<Finding> = running
        .map(|(name, fix)| {
            let text = format!(
                "{name} runs: it also decides which line traffic takes, and its rules come first"
            );
            warn("conflicting-program", text, *fix)
        })
        .collect();
    if environment.connectivity_checks && environment.programs.contains("NetworkManager") {
        let text = "NetworkManager checks connectivity by itself, through whatever uplink its question takes, \
                    and raises the metric of devices that fail: an uplink may come and go by its word";
        let fix = "printf '[connectivity]\\nenabled=false\\n' > /etc/NetworkManager/conf.d/90-braid.conf; nmcli general reload";
        findings.push(warn("networkmanager", text, fix));
    }
    findings
}

/// Checks for targets that answer on no uplink, and for uplinks on which no target answers.
fn targets(tried: &TargetResults) -> Vec<Finding> {
    let mut findings = Vec::new();
    let silent = tried.silent_everywhere();
    if tried.targets().is_empty() {
        return findings;
    }
    if silent.len() == tried.targets().len() {
        let text = format!(
            "no target answers on any uplink ({}): whether one works is judged by traffic alone",
            silent.join(", ")
        );
        findings.push(warn(
            "targets",
            text,
            "name targets in [liveness] that answer, and let the firewall pass them",
        ));
    } else if !silent.is_empty() {
        let text = format!(
            "targets that answer on no uplink count for nothing: {}",
            silent.join(", ")
        );
        findings.push(warn(
            "targets",
            text,
            "take them out of [liveness] targets, or name others",
        ));
    } else {
        findings.push(ok(
            "targets",
            format!("{} targets answer", tried.targets().len()),
        ));
    }
    if silent.len() < tried.targets().len() {
        for uplink in tried.silent_uplinks() {
            let text = format!("{uplink}: nothing answers there that answers on another uplink");
            findings.push(warn(
                "uplink-silent",
                text,
                "see whether that line works at all",
            ));
        }
    }
    findings
}
