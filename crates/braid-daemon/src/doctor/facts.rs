//! Facts about the machine, without any assessment.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use braid_uplink::{Discovery, OWN_DEVICES, Selection, choose, netlink};
use nix::unistd::{AccessFlags, access};

use super::environment_facts::Environment;
use super::targets::TargetResults;
use crate::doctor::preflight::{capabilities, kernel_release, missing_capabilities};
use crate::plumbing::{ForeignRule, Plumbing};

/// All facts that are checked.
#[derive(Debug)]
pub(super) struct Facts {
    /// `CapEff` of this process.
    pub capabilities: u64,
    /// As `uname -r` prints it.
    pub release: String,
    /// The kernel supports the file system `bpf`.
    pub bpf: bool,
    /// The kernel describes its own types (`/sys/kernel/btf/vmlinux`).
    pub btf: bool,
    /// The kernel's messages about those of the datapath's programs that it refuses; `None` if they were
    /// not tried, for lack of permission or of BPF.
    pub refused: Option<Vec<String>>,
    /// Error of creating a TUN device; `None` if that works.
    pub no_tun: Option<String>,
    /// Error of writing a sysctl; `None` if that works.
    pub sysctls_locked: Option<String>,
    /// Uplinks, or the error of finding them.
    pub discovery: Result<Discovery, String>,
    /// A foreign device with one of Braid's names.
    pub foreign_device: Option<&'static str>,
    /// Braid's own devices exist.
    pub running: bool,
    /// Routing rules that precede Braid's.
    pub earlier_rules: Vec<ForeignRule>,
    /// Values of sysctls by path below `/proc/sys`.
    pub sysctls: BTreeMap<String, String>,
    /// Lines of the firewall (`nft list ruleset`, `iptables-save`).
    pub firewall: Vec<String>,
    /// `/usr/sbin/mwan3` exists.
    pub mwan3: bool,
    /// systemd-networkd runs, and its configuration does not tell it to leave foreign rules alone.
    pub networkd_removes_rules: bool,
    /// The environment.
    pub environment: Environment,
    /// Answers of probe targets; `None` if there was nothing to probe.
    pub targets: Option<TargetResults>,
}

pub(super) const PORT_RANGE: &str = "net/ipv4/ip_local_port_range";
pub(super) const V4_FORWARD: &str = "net/ipv4/ip_forward";
pub(super) const V6_FORWARD: &str = "net/ipv6/conf/all/forwarding";
pub(super) const RP_FILTER_ALL: &str = "net/ipv4/conf/all/rp_filter";
pub(super) const TUN: &str = "/dev/net/tun";
const RESERVED_PORTS: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

pub(super) fn rp_filter(device: &str) -> String {
    format!("net/ipv4/conf/{device}/rp_filter")
}

pub(super) async fn gather(selection: &Selection) -> Facts {
    let bpf = words("/proc/filesystems").iter().any(|word| word == "bpf");
    let may_load = missing_capabilities(capabilities()).is_none();
    let mut facts = Facts {
        capabilities: capabilities(),
        release: kernel_release(),
        bpf,
        refused: (bpf && may_load).then(|| {
            let errors = braid_balance::dry_run();
            errors.iter().map(ToString::to_string).collect()
        }),
        btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
        no_tun: fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(TUN)
            .err()
            .map(|e| e.to_string()),
        sysctls_locked: access(RESERVED_PORTS, AccessFlags::W_OK)
            .err()
            .map(|e| e.to_string()),
        firewall: firewall(),
        mwan3: Path::new("/usr/sbin/mwan3").exists(),
        networkd_removes_rules: networkd_removes_rules(),
        discovery: Ok(Discovery::default()),
        foreign_device: None,
        running: false,
        earlier_rules: Vec::new(),
        sysctls: BTreeMap::new(),
        environment: Environment::default(),
        targets: None,
    };
    match netlink::read().await {
        Ok(snapshot) => {
            let present = |name: &&str| snapshot.link_named(name).is_some();
            let named = OWN_DEVICES.into_iter().find(present);
            facts.discovery = Ok(choose(&snapshot, selection));
            match look_at_ours().await {
                Ok((ours, earlier)) => {
                    facts.running = ours;
                    facts.foreign_device = named.filter(|_| !ours);
                    facts.earlier_rules = earlier;
                }
                Err(error) => facts.discovery = Err(error.to_string()),
            }
        }
        Err(error) => facts.discovery = Err(error.to_string()),
    }
    let mut keys = [PORT_RANGE, V4_FORWARD, V6_FORWARD, RP_FILTER_ALL]
        .map(str::to_owned)
        .to_vec();
    let uplinks = facts.discovery.iter().flat_map(|d| &d.uplinks);
    keys.extend(uplinks.map(|u| rp_filter(&u.device)));
    let read = |key: String| {
        let text = fs::read_to_string(Path::new("/proc/sys").join(&key)).ok()?;
        Some((key, text.trim().to_owned()))
    };
    facts.sysctls = keys.into_iter().filter_map(read).collect();
    facts
}

async fn look_at_ours() -> Result<(bool, Vec<ForeignRule>), crate::plumbing::Error> {
    let plumbing = Plumbing::open()?;
    let ours = plumbing.steer_ifindex().await?.is_some();
    Ok((ours, plumbing.earlier_rules().await?))
}

fn words(path: &str) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the lines of both kinds of firewall; empty without one, or without permission.
fn firewall() -> Vec<String> {
    let commands: [(&str, &[&str]); 3] = [
        ("nft", &["list", "ruleset"]),
        ("iptables-legacy-save", &[]),
        ("ip6tables-legacy-save", &[]),
    ];
    let mut lines = Vec::new();
    for (program, arguments) in commands {
        lines.extend(
            output(program, arguments)
                .unwrap_or_default()
                .lines()
                .map(trimmed),
        );
    }
    lines
}

fn trimmed(line: &str) -> String {
    line.trim().to_owned()
}

fn output(program: &str, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn networkd_removes_rules() -> bool {
    if !Path::new("/run/systemd/netif/state").exists() {
        return false;
    }
    let drop_ins = ["/etc", "/run", "/usr/lib"].into_iter().flat_map(|root| {
        let folder = format!("{root}/systemd/networkd.conf.d");
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|e| e.path()).collect::<Vec<_>>()
    });
    let mut files = drop_ins.chain([Path::new("/etc/systemd/networkd.conf").to_owned()]);
    !files.any(|file| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines()
            .any(|l| l.trim() == "ManageForeignRoutingPolicyRules=no")
    })
}
