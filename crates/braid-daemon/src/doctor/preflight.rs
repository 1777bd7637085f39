//! Checks for missing requirements before anything is changed. A start ends with the first one;
//! [`crate::doctor`] lists them.

use std::fs;

use braid_host::user_error::UserError;

/// The oldest kernel whose BPF is sufficient for the datapath (`bpf_redirect_neigh`, 5.10).
const OLDEST_KERNEL: (u32, u32) = (5, 10);

/// Capabilities that the daemon uses, with their bits (`linux/capability.h`) and purposes. `CAP_BPF` (5.8) does
/// not replace the second one: mounting needs that all the same.
const CAPABILITIES: [(&str, u32, &str); 2] = [
    ("CAP_NET_ADMIN", 12, "to change routes and attach programs"),
    ("CAP_SYS_ADMIN", 21, "to mount its bpffs and load programs"),
];

/// Checks privileges and kernel.
///
/// # Errors
/// The first missing requirement, with advice.
pub fn check() -> Result<(), UserError> {
    if let Some(missing) = missing_capabilities(capabilities()) {
        let failure = UserError::new("permission", format!("not permitted: lacks {missing}"));
        return Err(failure.fix("run it as root, for example with sudo"));
    }
    if let Some(text) = too_old(&kernel_release()) {
        return Err(UserError::new("kernel-too-old", text).fix("boot a newer kernel"));
    }
    Ok(())
}

/// Checks the one privilege of a daemon that only changes the network: devices, addresses, forwarding.
///
/// # Errors
/// The privilege is missing.
pub fn check_network() -> Result<(), UserError> {
    let (name, bit, _) = CAPABILITIES[0];
    if capabilities() & (1 << bit) != 0 {
        return Ok(());
    }
    let text = format!("not permitted: lacks {name} (to make devices and change addresses)");
    Err(UserError::new("permission", text).fix("run it as root, for example with sudo"))
}

/// `CapEff` of this process; none if that cannot be read.
pub(crate) fn capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective(&status)
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

/// Returns the missing capabilities and their purposes; `None` if all are there.
pub(crate) fn missing_capabilities(effective: u64) -> Option<String> {
    let missing = CAPABILITIES
        .iter()
        .filter(|(_, bit, _)| effective & (1 << bit) == 0);
    let missing: Vec<_> = missing
        .map(|(name, _, why)| format!("{name} ({why})"))
        .collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// Returns the objection to a kernel that is too old. A release that cannot be parsed is accepted: loading will
/// show.
pub(crate) fn too_old(release: &str) -> Option<String> {
    let (major, minor) = OLDEST_KERNEL;
    let too_old = version(release)? < OLDEST_KERNEL;
    too_old.then(|| format!("kernel {release} is too old: {major}.{minor} or newer is needed"))
}

/// Major and minor number of a kernel release such as `6.1.0-18-amd64`.
pub(crate) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compared_by_number() {
        let text = "kernel 5.9.16-generic is too old: 5.10 or newer is needed";
        assert_eq!(too_old("5.9.16-generic").as_deref(), Some(text));
        assert!(too_old("4.19.0").is_some());
        assert_eq!(too_old("5.10.0-30-amd64"), None);
        assert_eq!(too_old("6.1"), None);
        assert_eq!(too_old("unknown"), None);
    }

    #[test]
    fn what_lacks_is_named_with_its_purpose() {
        let root = effective("Name:\tx\nCapEff:\t000001ffffffffff\n");
        assert_eq!(missing_capabilities(root), None);
        let text = missing_capabilities(effective("CapEff:\t0000000000200000\n"));
        let expected = "CAP_NET_ADMIN (to change routes and attach programs)";
        assert_eq!(text.as_deref(), Some(expected));
    }
}
