//! Facts about Braid's environment on this machine: conflicting programs and system resources. The
//! checks are in `checks::environment`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use braid_uplink::{OWN_DEVICES, Uplink};
use nix::sys::statvfs::statvfs;

use crate::rules::cgroup;

/// Handles of filters of the datapath and of the edge.
const OWN_HANDLES: [&str; 4] = ["0xb10", "0xb11", "0xb12", "0xb2"];

/// Facts about the environment.
#[derive(Clone, Debug, Default)]
pub(super) struct Environment {
    /// Mount point of the cgroup2 hierarchy.
    pub cgroups: Option<PathBuf>,
    /// Names of running programs, each once.
    pub programs: BTreeSet<String>,
    /// NetworkManager is configured to check connectivity by itself.
    pub connectivity_checks: bool,
    /// Programs on the uplinks' hooks that are not Braid's: device and name.
    pub foreign_programs: Vec<(String, String)>,
    /// Number of tracked connections and its maximum, if connections are tracked.
    pub conntrack: Option<(u64, u64)>,
    /// Seconds since 1970 by the machine's clock.
    pub clock: u64,
    /// The run directory, or the one in which it would be created, and its free bytes; `None` if unknown.
    pub run_space: Option<(PathBuf, u64)>,
    /// State of the systemd unit in `systemctl`'s words (`active`, `failed`, …); `None` without
    /// systemd or unit.
    pub unit: Option<String>,
}

pub(super) fn look(uplinks: &[Uplink], run_dir: &Path) -> Environment {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
    let count = number("/proc/sys/net/netfilter/nf_conntrack_count");
    let most = number("/proc/sys/net/netfilter/nf_conntrack_max");
    Environment {
        cgroups: cgroup::mount(),
        programs: programs(),
        connectivity_checks: connectivity_checks(),
        foreign_programs: uplinks
            .iter()
            .flat_map(|uplink| foreign_programs(&uplink.device))
            .collect(),
        conntrack: count.zip(most),
        clock: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        run_space: run_space(run_dir),
        unit: unit(),
    }
}

fn programs() -> BTreeSet<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| {
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        Some(name.trim().to_owned())
    };
    entries.filter_map(name).collect()
}

/// Returns true if a connectivity section sets a page (NetworkManager.conf(5), `[connectivity]`).
fn connectivity_checks() -> bool {
    let folders = [
        "/etc/NetworkManager/conf.d",
        "/usr/lib/NetworkManager/conf.d",
    ];
    let drop_ins = folders.iter().flat_map(|folder| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    });
    let mut files = drop_ins.chain([PathBuf::from("/etc/NetworkManager/NetworkManager.conf")]);
    files.any(|file| asks_a_page(&fs::read_to_string(file).unwrap_or_default()))
}

fn asks_a_page(text: &str) -> bool {
    let mut in_section = false;
    let mut uri = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            in_section = line == "[connectivity]";
        } else if in_section {
            uri |= line.starts_with("uri=");
            if line == "enabled=false" || line == "interval=0" {
                return false;
            }
        }
    }
    uri
}

/// Returns the programs that `tc` shows on both hooks of a device, except Braid's.
fn foreign_programs(device: &str) -> Vec<(String, String)> {
    let on = |side: &str| {
        let output = Command::new("tc")
            .args(["filter", "show", "dev", device, side])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        filter_names(&String::from_utf8_lossy(&text))
    };
    let names = ["ingress", "egress"].into_iter().flat_map(on);
    let ours = |name: &String| OWN_DEVICES.contains(&device) || name.starts_with("braid_");
    names
        .filter(|name| !ours(name))
        .map(|name| (device.to_owned(), name))
        .collect()
}

/// Returns the programs of direct-action filters: the word after the handle.
fn filter_names(text: &str) -> Vec<String> {
    let name = |line: &str| {
        let mut words = line.split_whitespace();
        words.find(|word| *word == "handle")?;
        let (handle, name) = (words.next()?, words.next()?);
        // On kernels without tracing Braid's programs have no names.
        if name == "direct-action" && OWN_HANDLES.contains(&handle) {
            return None;
        }
        line.contains("direct-action").then(|| name.to_owned())
    };
    text.lines().filter_map(name).collect()
}

/// Returns the free space of the directory, or of its nearest existing parent.
fn run_space(run_dir: &Path) -> Option<(PathBuf, u64)> {
    let place = run_dir.ancestors().find(|place| place.is_dir())?;
    let space = statvfs(place).ok()?;
    let free = space
        .blocks_available()
        .saturating_mul(space.fragment_size());
    Some((place.to_owned(), free))
}

fn unit() -> Option<String> {
    if !Path::new("/run/systemd/system").exists() {
        return None;
    }
    let known = ["/etc", "/usr/lib", "/lib"].iter().any(|root| {
        Path::new(root)
            .join("systemd/system/braid.service")
            .exists()
    });
    if !known {
        return None;
    }
    let output = Command::new("systemctl")
        .args(["is-active", "braid.service"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_off_what_tc_shows() {
        let text = "\
filter protocol all pref 1 bpf chain 0
filter protocol all pref 1 bpf chain 0 handle 0x1 shaper.o:[classifier] direct-action not_in_hw id 12 tag a1 jited
filter protocol ip pref 2 u32 chain 0 fh 800::800 order 2048
filter protocol all pref 49 bpf chain 0 handle 0xb11 braid_inbound direct-action not_in_hw id 13
";
        let expected = ["shaper.o:[classifier]", "braid_inbound"];
        assert_eq!(filter_names(text), expected);
    }

    #[test]
    fn a_connectivity_section_may_be_switched_off() {
        let page = "[main]\nuri=no\n[connectivity]\nuri=http://nmcheck.example/\n";
        assert!(asks_a_page(page));
        assert!(!asks_a_page(&format!("{page}enabled=false\n")));
        assert!(!asks_a_page(&format!("{page}interval=0\n")));
        assert!(!asks_a_page("[main]\nplugins=keyfile\n"));
    }
}
