//! What can be told to be missing before anything is changed.

use std::fs;

use crate::failure::Failure;

/// The oldest kernel whose BPF has what the datapath needs (`bpf_redirect_neigh`, 5.10).
const OLDEST_KERNEL: (u32, u32) = (5, 10);

/// Capabilities the daemon uses, with their bits (`linux/capability.h`) and what for.
const CAPABILITIES: [(&str, u32, &str); 2] = [
    ("CAP_NET_ADMIN", 12, "to change routes and attach programs"),
    ("CAP_SYS_ADMIN", 21, "to mount its bpffs and load programs"),
];

/// Checks privileges and kernel.
///
/// # Errors
/// The first thing that lacks, with what to do about it.
pub fn check() -> Result<(), Failure> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|error| Failure::io("read /proc/self/status", &error))?;
    let missing = missing_capabilities(effective(&status));
    if !missing.is_empty() {
        let failure = Failure::new("permission", format!("not permitted: lacks {missing}"));
        return Err(failure.fix("run it as root, for example with sudo"));
    }
    let release = kernel_release();
    if is_too_old(&release) {
        let (major, minor) = OLDEST_KERNEL;
        let text = format!("kernel {release} is too old: {major}.{minor} or newer is needed");
        return Err(Failure::new("kernel-too-old", text).fix("boot a newer kernel"));
    }
    Ok(())
}

/// The running kernel's release, as `uname -r` prints it.
#[must_use]
pub fn kernel_release() -> String {
    nix::sys::utsname::uname().map_or_else(
        |_| "unknown".to_owned(),
        |uname| uname.release().to_string_lossy().into(),
    )
}

fn effective(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn missing_capabilities(effective: u64) -> String {
    let missing = CAPABILITIES
        .iter()
        .filter(|(_, bit, _)| effective & (1 << bit) == 0);
    missing
        .map(|(name, _, why)| format!("{name} ({why})"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// A release that cannot be read is not held against the kernel: loading will tell.
fn is_too_old(release: &str) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < OLDEST_KERNEL,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compared_by_number() {
        assert!(is_too_old("5.9.16-generic"));
        assert!(is_too_old("4.19.0"));
        assert!(!is_too_old("5.10.0-30-amd64"));
        assert!(!is_too_old("6.1"));
        assert!(!is_too_old("unknown"));
    }

    #[test]
    fn what_lacks_is_named_with_its_purpose() {
        let root = effective("Name:\tx\nCapEff:\t000001ffffffffff\n");
        assert_eq!(missing_capabilities(root), "");
        let text = missing_capabilities(effective("CapEff:\t0000000000200000\n"));
        assert_eq!(text, "CAP_NET_ADMIN (to change routes and attach programs)");
    }
}
