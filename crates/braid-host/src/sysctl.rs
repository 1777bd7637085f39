//! Sysctls that Braid changes, and their previous values.
//!
//! [`changes`] and [`restoration`] decide; [`read`] and [`Write::apply`] are the only ones that touch the kernel.

mod ports;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use ports::Ports;

const PROC_SYS: &str = "/proc/sys";
const RESERVED_PORTS: &str = "net/ipv4/ip_local_reserved_ports";
const V4_FORWARD: &str = "net/ipv4/ip_forward";
const V6_FORWARD: &str = "net/ipv6/conf/all/forwarding";
const V4_REDIRECTS: &str = "net/ipv4/conf/all/accept_redirects";
const RP_FILTER_ALL: &str = "net/ipv4/conf/all/rp_filter";

/// Previous values of changed sysctls. Store them *before* applying the plan that they came with, and pass them
/// to the next plan and to the removal, also in another process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// In the order of the changes; each key at most once.
    pub sysctls: Vec<SavedSysctl>,
}

/// One changed sysctl.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSysctl {
    /// Slash-separated path below `/proc/sys`, for example `net/ipv4/conf/eth0/rp_filter` (device
    /// names may contain dots).
    pub key: String,
    /// The previous value.
    pub before: String,
    /// The value set. Removal leaves a sysctl alone that someone else has changed since. The same as `before`
    /// for one that must be written again after its master switch is restored.
    pub ours: String,
}

impl Saved {
    fn get(&self, key: &str) -> Option<&SavedSysctl> {
        self.sysctls.iter().find(|s| s.key == key)
    }

    /// Returns the same for renamed devices, given as old and new names: the kernel renames their sysctls with
    /// them.
    #[must_use]
    pub fn renamed(&self, devices: &[(&str, &str)]) -> Saved {
        let mut saved = self.clone();
        for sysctl in &mut saved.sysctls {
            let conf = sysctl.key.split_once("/conf/");
            let of = conf.and_then(|(family, rest)| Some((family, rest.rsplit_once('/')?)));
            let Some((family, (device, name))) = of else {
                continue;
            };
            if let Some((_, new)) = devices.iter().find(|(old, _)| *old == device) {
                sysctl.key = format!("{family}/conf/{new}/{name}");
            }
        }
        saved
    }
}

/// Desired state of the sysctls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Devices that take packets whose source is routed elsewhere.
    pub loose_rp_filter: Vec<String>,
    /// Devices that accept router advertisements although the machine forwards.
    pub accept_ra: Vec<String>,
    /// Forward packets. `false` leaves forwarding alone, on or off.
    pub forward: bool,
    /// Ports that local sockets must not take.
    pub reserved_ports: Vec<RangeInclusive<u16>>,
}

/// A value to write. Displays as the `sysctl` command with the same effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Path below `/proc/sys`.
    pub key: String,
    /// New value.
    pub value: String,
}

impl Write {
    /// Creates it.
    #[must_use]
    pub fn new(key: &str, value: &str) -> Write {
        Write {
            key: key.to_owned(),
            value: value.to_owned(),
        }
    }

    /// Writes the value.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn apply(&self) -> io::Result<()> {
        // The kernel ignores an empty write, so a newline ends it.
        fs::write(
            Path::new(PROC_SYS).join(&self.key),
            format!("{}\n", self.value),
        )
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Write { key, value } = self;
        // Slashes, because device names may contain dots; sysctl(8) takes both.
        match value.contains([',', ' ']) || value.is_empty() {
            true => write!(f, "sysctl -w {key}='{value}'"),
            false => write!(f, "sysctl -w {key}={value}"),
        }
    }
}

/// Errors of reading or writing sysctls.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A sysctl cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Its path.
        path: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused a value.
    #[error("`{write}`: {source}{}", hint(source))]
    Refused {
        /// The value, as a command.
        write: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Returns the likely cause of a refused change, to follow the kernel's answer.
#[must_use]
pub fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => " (needs CAP_NET_ADMIN; see braid doctor)",
        io::ErrorKind::ReadOnlyFilesystem => " (/proc/sys is read-only here, as in a container)",
        _ => "",
    }
}

/// Present values by key; missing sysctls are absent.
pub type Values = BTreeMap<String, String>;

/// Sysctls to write, and those to save.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Steps towards the desired state.
    pub writes: Vec<Write>,
    /// Steps back to the previous state, where it is no longer desired otherwise.
    pub restores: Vec<Write>,
    /// Previous values of the changed sysctls.
    pub saved: Saved,
}

/// Returns the keys whose values [`changes`] needs, besides those already saved.
///
/// # Errors
/// The kernel's list of devices cannot be read.
pub fn keys(desired: &Desired) -> Result<Vec<String>, Error> {
    let mut keys = vec![RESERVED_PORTS.to_owned(), RP_FILTER_ALL.to_owned()];
    keys.extend(
        desired
            .loose_rp_filter
            .iter()
            .map(|device| rp_filter(device)),
    );
    keys.extend(desired.accept_ra.iter().map(|device| accept_ra(device)));
    if desired.forward {
        keys.extend([V4_FORWARD, V6_FORWARD, V4_REDIRECTS].map(str::to_owned));
        for directory in ["net/ipv4/conf", "net/ipv6/conf"] {
            let devices = entries(directory)?.into_iter();
            keys.extend(devices.map(|device| format!("{directory}/{device}/forwarding")));
        }
    }
    Ok(keys)
}

/// Returns the names in a directory of sysctls; none if the kernel does not have it.
fn entries(directory: &str) -> Result<Vec<String>, Error> {
    let path = Path::new(PROC_SYS).join(directory);
    let names = || -> io::Result<Vec<String>> {
        fs::read_dir(&path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    match names() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        names => names.map_err(|source| unreadable(&path, source)),
    }
}

/// Reads sysctls.
///
/// # Errors
/// One that exists cannot be read.
pub fn read(keys: impl IntoIterator<Item = String>) -> Result<Values, Error> {
    let mut values = Values::new();
    for key in keys {
        let path = Path::new(PROC_SYS).join(&key);
        match fs::read_to_string(&path) {
            Ok(text) => {
                values.insert(key, text.trim().to_owned());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(unreadable(&path, source)),
        }
    }
    Ok(values)
}

fn unreadable(path: &Path, source: io::Error) -> Error {
    Error::Read {
        path: path.display().to_string(),
        source,
    }
}

/// Compares the present with the desired state.
#[must_use]
pub fn changes(desired: &Desired, values: &Values, saved: &Saved) -> Changes {
    let mut changes = Changes::default();
    for wish in desired_values(desired, values, saved) {
        if values.get(&wish.key) != Some(&wish.ours) {
            changes.writes.push(Write::new(&wish.key, &wish.ours));
        }
        changes.saved.sysctls.push(wish);
    }
    let undone = saved
        .sysctls
        .iter()
        .filter(|s| changes.saved.get(&s.key).is_none());
    let (restores, kept) = restore(undone.cloned().collect(), values);
    changes.restores = restores;
    changes.saved.sysctls.extend(kept);
    changes
}

/// Returns the steps back to the previous state.
#[must_use]
pub fn restoration(values: &Values, saved: &Saved) -> Changes {
    let (restores, kept) = restore(saved.sysctls.clone(), values);
    Changes {
        writes: Vec::new(),
        restores,
        saved: Saved { sysctls: kept },
    }
}

/// Returns the steps back for these, and those of them that have to stay saved until the steps are taken.
fn restore(mut undone: Vec<SavedSysctl>, values: &Values) -> (Vec<Write>, Vec<SavedSysctl>) {
    // Writing a master switch overwrites the sysctls below it, so the switches go first.
    undone.sort_by_key(|s| !is_switch(&s.key));
    let mut steps = Vec::new();
    let mut switched = Vec::new();
    undone.retain(|s| {
        let Some(now) = values.get(&s.key) else {
            return false;
        };
        let again = switched
            .iter()
            .any(|switch: &String| governs(switch, &s.key));
        let value = match before(s, now) {
            Some(value) if *now != value || again => value,
            _ => return false,
        };
        steps.push(Write::new(&s.key, &value));
        switched.extend(is_switch(&s.key).then(|| s.key.clone()));
        true
    });
    (steps, undone)
}

/// Returns the value to restore; `None` if someone else has changed it since.
fn before(saved: &SavedSysctl, now: &str) -> Option<String> {
    if saved.key == RESERVED_PORTS {
        return Some(found_ports(saved, now)?.to_string());
    }
    (now == saved.ours || now == saved.before).then(|| saved.before.clone())
}

/// Returns the reserved ports without Braid's: others may add and remove theirs meanwhile.
fn found_ports(saved: &SavedSysctl, now: &str) -> Option<Ports> {
    let added = Ports::parse(&saved.ours)?.without(&Ports::parse(&saved.before)?);
    Some(Ports::parse(now)?.without(&added))
}

/// Returns every sysctl that should differ from its previous value, in the order of writing.
fn desired_values(desired: &Desired, values: &Values, saved: &Saved) -> Vec<SavedSysctl> {
    let found = |key: &str| {
        let now = values.get(key)?;
        let ours = saved.get(key).filter(|s| s.ours == *now);
        Some(ours.map_or_else(|| now.clone(), |s| s.before.clone()))
    };
    let mut desired_values = Vec::new();
    let mut wish = |key: String, expected: &str, ours: &str| {
        if found(&key).as_deref() == Some(expected) {
            desired_values.push(SavedSysctl {
                key,
                before: expected.to_owned(),
                ours: ours.to_owned(),
            });
        }
    };

    // Packets to the inner address arrive on an uplink whose routes lead elsewhere: strict reverse
    // path filtering (1) would drop them, loose (2) does not. The kernel takes the larger of the
    // device's value and that of `all`.
    let all_strict = found(RP_FILTER_ALL).as_deref() == Some("1");
    for device in &desired.loose_rp_filter {
        let key = rp_filter(device);
        wish(key.clone(), "1", "2");
        if all_strict {
            wish(key, "0", "2");
        }
    }
    // A router ignores router advertisements and forgets what it learned from them, unless accept_ra is 2,
    // so that is set before the switch.
    for device in &desired.accept_ra {
        wish(accept_ra(device), "1", "2");
    }
    if desired.forward {
        wish(V4_FORWARD.to_owned(), "0", "1");
        wish(V6_FORWARD.to_owned(), "0", "1");
        let switches: Vec<_> = desired_values
            .iter()
            .filter(|w| is_switch(&w.key))
            .cloned()
            .collect();
        for switch in switches {
            desired_values.extend(governed(&switch.key, values, saved));
        }
    }
    desired_values.extend(ports(desired, values, saved));
    desired_values
}

fn ports(desired: &Desired, values: &Values, saved: &Saved) -> Option<SavedSysctl> {
    let now = values.get(RESERVED_PORTS)?;
    let found = match saved.get(RESERVED_PORTS) {
        Some(saved) => found_ports(saved, now)?,
        None => Ports::parse(now)?,
    };
    let wanted = found.union(&Ports::new(desired.reserved_ports.iter().cloned()));
    (wanted != found).then(|| SavedSysctl {
        key: RESERVED_PORTS.to_owned(),
        before: found.to_string(),
        ours: wanted.to_string(),
    })
}

/// Returns the sysctls that a master switch overwrites with a value other than the previous one: forwarding per
/// device where it was on although the switch was off, and the refusal of redirects where it was on although
/// the machine was no router.
fn governed(switch: &str, values: &Values, saved: &Saved) -> Vec<SavedSysctl> {
    if saved
        .get(switch)
        .is_some_and(|s| values.get(switch) == Some(&s.ours))
    {
        let known = saved.sysctls.iter().filter(|s| governs(switch, &s.key));
        return known.cloned().collect();
    }
    let surviving = |key: &str, value: &str| match key {
        V4_REDIRECTS => value == "0",
        _ => value == "1",
    };
    values
        .iter()
        .filter(|(key, value)| governs(switch, key) && surviving(key, value))
        .map(|(key, value)| SavedSysctl {
            key: key.clone(),
            before: value.clone(),
            ours: value.clone(),
        })
        .collect()
}

/// Returns true if these writes switch IPv4 forwarding for every device.
#[must_use]
pub fn switches_forwarding(writes: &[Write]) -> bool {
    writes.iter().any(|write| write.key == V4_FORWARD)
}

fn is_switch(key: &str) -> bool {
    key == V4_FORWARD || key == V6_FORWARD
}

fn governs(switch: &str, key: &str) -> bool {
    let per_device = |prefix| key.starts_with(prefix) && key.ends_with("/forwarding");
    match switch {
        V4_FORWARD => key == V4_REDIRECTS || per_device("net/ipv4/conf/"),
        V6_FORWARD => key != V6_FORWARD && per_device("net/ipv6/conf/"),
        _ => false,
    }
}

fn rp_filter(device: &str) -> String {
    format!("net/ipv4/conf/{device}/rp_filter")
}

fn accept_ra(device: &str) -> String {
    format!("net/ipv6/conf/{device}/accept_ra")
}
