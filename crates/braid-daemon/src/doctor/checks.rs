//! Checks of the facts. Pure.

mod environment;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

use braid_host::sysctl::Ports;
use braid_uplink::{Discovery, Uplink};

use super::facts::{Facts, PORT_RANGE, RP_FILTER_ALL, TUN, V4_FORWARD, V6_FORWARD, rp_filter};
use super::{Finding, Level};
use crate::doctor::preflight;

/// The first kernel with TCX links.
const MIN_TCX_KERNEL: (u32, u32) = (6, 6);
/// Fix for a kernel that refuses programs.
pub(super) const OTHER_KERNEL_FIX: &str = "boot another kernel, such as Debian's from 5.10 on, and report these lines with \
                                       the output of uname -a";
/// Fewer ephemeral ports than this are soon exhausted on an ordinary host.
const MIN_LOCAL_PORTS: u32 = 4096;

pub(super) fn run(facts: &Facts, ports: &[RangeInclusive<u16>]) -> Vec<Finding> {
    let mut findings = vec![
        capabilities(facts),
        kernel(facts),
        bpf(facts),
        sysctls(facts),
        devices(facts),
        tun(facts),
    ];
    findings.extend(programs(facts));
    match &facts.discovery {
        Ok(discovery) => {
            findings.push(uplinks(discovery));
            findings.push(reverse_path(facts, &discovery.uplinks));
            findings.push(forwarding(facts));
            findings.extend(local_ports(facts, ports));
            findings.extend(earlier_rules(facts));
            findings.extend(firewall(facts, &discovery.uplinks));
        }
        Err(error) => {
            findings.push(fail(
                "uplinks",
                format!("the kernel does not tell: {error}"),
                "",
            ));
        }
    }
    findings.extend(clashes(facts));
    findings.extend(environment::checks(facts));
    findings
}

fn finding(code: &str, level: Level, text: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding {
        code: code.to_owned(),
        level,
        text: text.into(),
        fix: fix.into(),
    }
}

fn ok(code: &str, text: impl Into<String>) -> Finding {
    finding(code, Level::Ok, text, "")
}

fn warn(code: &str, text: impl Into<String>, fix: impl Into<String>) -> Finding {
    finding(code, Level::Warn, text, fix)
}

fn fail(code: &str, text: impl Into<String>, fix: impl Into<String>) -> Finding {
    finding(code, Level::Fail, text, fix)
}

fn capabilities(facts: &Facts) -> Finding {
    match preflight::missing_capabilities(facts.capabilities) {
        Some(missing) => fail(
            "capabilities",
            format!("lacks {missing}"),
            "sudo braid doctor",
        ),
        None => ok(
            "capabilities",
            "may change the network and load BPF programs",
        ),
    }
}

fn kernel(facts: &Facts) -> Finding {
    let release = &facts.release;
    if let Some(text) = preflight::too_old(release) {
        return fail("kernel", text, "boot a newer kernel");
    }
    match preflight::version(release) {
        Some(version) if version < MIN_TCX_KERNEL => ok(
            "kernel",
            format!("kernel {release}: programs attach by clsact (TCX from 6.6 on)"),
        ),
        Some(_) => ok(
            "kernel",
            format!("kernel {release}: programs attach by TCX"),
        ),
        None => warn(
            "kernel",
            format!("kernel {release:?} has no version that I can read"),
            "",
        ),
    }
}

fn bpf(facts: &Facts) -> Finding {
    if !facts.bpf {
        let text = "the kernel was built without BPF (no bpf in /proc/filesystems)";
        return fail(
            "bpf",
            text,
            "boot a kernel with CONFIG_BPF_SYSCALL=y, as distributions' are",
        );
    }
    if !facts.btf {
        let text = "the kernel has BPF and its file system, and no BTF: functions that take packets are \
                    verified where they are called";
        return ok("bpf", text);
    }
    ok("bpf", "the kernel has BPF, its file system and BTF")
}

fn programs(facts: &Facts) -> Option<Finding> {
    let refused = facts.refused.as_ref()?;
    Some(match refused.as_slice() {
        [] => ok("programs", "the kernel takes the datapath's programs"),
        refused => fail(
            "programs",
            format!(
                "the kernel refuses the datapath's programs: {}",
                refused.join("; ")
            ),
            OTHER_KERNEL_FIX,
        ),
    })
}

pub(super) fn edge_programs(refused: &[String]) -> Finding {
    match refused {
        [] => ok(
            "edge-programs",
            "an edge can run: the kernel takes its programs",
        ),
        refused => warn(
            "edge-programs",
            format!("no edge can run: {}", refused.join("; ")),
            OTHER_KERNEL_FIX,
        ),
    }
}

/// Only a bond needs it.
fn tun(facts: &Facts) -> Finding {
    match &facts.no_tun {
        None => ok("tun", "a hub can be joined: the kernel has TUN devices"),
        Some(why) => warn(
            "tun",
            format!("no hub can be joined: {TUN}: {why}"),
            "modprobe tun",
        ),
    }
}

fn sysctls(facts: &Facts) -> Finding {
    match &facts.sysctls_locked {
        None => ok("sysctl", "settings below /proc/sys/net can be changed"),
        Some(why) => fail(
            "sysctl",
            format!("settings below /proc/sys/net cannot be changed: {why}"),
            "run as root; in a container: mount -o remount,rw /proc/sys",
        ),
    }
}

fn devices(facts: &Facts) -> Finding {
    match facts.foreign_device {
        Some(device) => fail(
            "device-name",
            format!("a device named {device} exists and is not braid's"),
            format!("ip link set {device} down; ip link set {device} name {device}-old"),
        ),
        None if facts.running => ok("device-name", "braid0 exists and is braid's: braid is up"),
        None => ok("device-name", "the names braid0 and braid1 are free"),
    }
}

fn uplinks(discovery: &Discovery) -> Finding {
    let rejected: String = discovery
        .rejected
        .iter()
        .map(|r| format!("; {r}"))
        .collect();
    let names = |u: &Uplink| format!("{} ({})", u.name, u.why);
    let found: Vec<String> = discovery.uplinks.iter().map(names).collect();
    match found.as_slice() {
        [] if rejected.is_empty() => fail(
            "uplinks",
            "no uplink: the main routing table has no default route",
            "ip route add default via GATEWAY dev DEVICE",
        ),
        [] => fail(
            "uplinks",
            format!("no uplink{rejected}"),
            "connect one of them, or name others in the configuration",
        ),
        [only] => warn(
            "uplinks",
            format!("only one uplink: {only}{rejected}: there is nothing to balance"),
            "connect a second line and give it a default route with another metric",
        ),
        all => ok(
            "uplinks",
            format!("{} uplinks: {}{rejected}", all.len(), all.join(", ")),
        ),
    }
}

fn reverse_path(facts: &Facts, uplinks: &[Uplink]) -> Finding {
    let value = |key: &str| facts.sysctls.get(key).map_or("0", String::as_str);
    let all = value(RP_FILTER_ALL);
    let effective = |u: &&Uplink| value(&rp_filter(&u.device)).max(all) == "1";
    let strict: Vec<_> = uplinks
        .iter()
        .filter(effective)
        .map(|u| u.device.as_str())
        .collect();
    if strict.is_empty() {
        return ok(
            "rp-filter",
            "reverse path filtering is not strict on any uplink",
        );
    }
    let text = format!(
        "reverse path filtering is strict on {}: braid makes it loose while it runs",
        strict.join(", ")
    );
    ok("rp-filter", text)
}

fn is_on(facts: &Facts, key: &str) -> bool {
    facts.sysctls.get(key).is_some_and(|value| value != "0")
}

fn forwarding(facts: &Facts) -> Finding {
    let text = match (is_on(facts, V4_FORWARD), is_on(facts, V6_FORWARD)) {
        (true, true) => "this machine forwards IPv4 and IPv6: clients behind it are balanced too",
        (true, false) => "this machine forwards IPv4: clients behind it are balanced too",
        (false, true) => "this machine forwards IPv6: clients behind it are balanced too",
        (false, false) => "this machine does not forward: only its own traffic is balanced",
    };
    ok("forwarding", text)
}

fn local_ports(facts: &Facts, ports: &[RangeInclusive<u16>]) -> Option<Finding> {
    let text = facts.sysctls.get(PORT_RANGE)?;
    let (first, last) = text.split_once(char::is_whitespace)?;
    let range = first.trim().parse().ok()?..=last.trim().parse().ok()?;
    let (local, ours) = (Ports::new([range]), Ports::new(ports.iter().cloned()));
    let rest = local.without(&ours);
    if rest == local {
        return Some(ok(
            "port-range",
            format!("local sockets use ports {local}, braid {ours}"),
        ));
    }
    let text = format!(
        "local sockets use ports {local}, of which braid takes {ours}: {} remain for them",
        rest.count()
    );
    let fix = "sysctl -w net.ipv4.ip_local_port_range='32768 60999'";
    Some(match rest.count() {
        0 => fail("port-range", text, fix),
        n if n < MIN_LOCAL_PORTS => warn("port-range", text, fix),
        _ => ok("port-range", text),
    })
}

fn earlier_rules(facts: &Facts) -> Option<Finding> {
    let rules: Vec<_> = facts
        .earlier_rules
        .iter()
        .map(ToString::to_string)
        .collect();
    (!rules.is_empty()).then(|| {
        let text = format!(
            "routing rules that come before braid's; what matches them is not balanced: {}",
            rules.join("; ")
        );
        warn(
            "earlier-rules",
            text,
            "if they are not from a VPN that is meant to win: ip rule del pref …",
        )
    })
}

fn firewall(facts: &Facts, uplinks: &[Uplink]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let translates = |line: &&String| {
        let word = |w: &str| {
            line.split([' ', ';'])
                .any(|part| part.eq_ignore_ascii_case(w))
        };
        word("masquerade") && outgoing(line).is_none()
    };
    if let Some(line) = facts.firewall.iter().find(translates) {
        let text = format!(
            "the firewall translates addresses of whatever leaves (`{line}`): clients of the LAN \
             look like one, and source hashing cannot tell them apart"
        );
        findings.push(warn(
            "masquerade",
            text,
            "restrict it to devices other than braid0",
        ));
    }
    let names = |line: &&String| {
        line.split(' ')
            .any(|word| word.eq_ignore_ascii_case("accept"))
            && uplinks.iter().any(|u| leaves_by(line, &u.device))
    };
    if is_on(facts, V4_FORWARD) || is_on(facts, V6_FORWARD) {
        let line = facts.firewall.iter().find(names);
        findings.extend(line.map(|line| {
            let text = format!(
                "the firewall accepts by the device that packets leave by (`{line}`): while braid \
                 runs, forwarded packets leave by braid0"
            );
            warn(
                "firewall",
                text,
                "accept the same for braid0, for example: oifname \"braid0\" accept",
            )
        }));
    }
    findings
}

/// Returns the outgoing device that a firewall rule matches, in nft's or iptables' syntax.
fn outgoing(line: &str) -> Option<&str> {
    let rest = ["oifname ", "oif ", "-o "].iter().find_map(|word| {
        let (before, rest) = line.split_once(word)?;
        (before.is_empty() || before.ends_with(' ')).then_some(rest)
    })?;
    match rest.strip_prefix('{') {
        Some(set) => set.split('}').next(),
        None => rest.split(' ').next(),
    }
}

fn leaves_by(line: &str, device: &str) -> bool {
    let devices = outgoing(line).unwrap_or_default();
    devices.split([' ', '"', ',']).any(|word| word == device)
}

fn clashes(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if facts.mwan3 {
        let text = "mwan3 is installed: it also spreads flows, and its rules come first";
        findings.push(warn(
            "mwan3",
            text,
            "/etc/init.d/mwan3 stop; /etc/init.d/mwan3 disable",
        ));
    }
    if facts.networkd_removes_rules {
        let text = "systemd-networkd removes routing rules that it does not know when it restarts; \
                    braid puts them back, but connections may miss them for a moment";
        let fix = "set ManageForeignRoutingPolicyRules=no under [Network] in \
                   /etc/systemd/networkd.conf, then: systemctl restart systemd-networkd";
        findings.push(warn("networkd", text, fix));
    }
    findings
}
