//! Finds control groups in the cgroup2 hierarchy, which may be mounted anywhere.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns the mount point of the cgroup2 hierarchy: mostly `/sys/fs/cgroup`, or `/sys/fs/cgroup/unified`
/// beside the v1 hierarchies. `None` if it is not mounted.
#[must_use]
pub fn mount() -> Option<PathBuf> {
    find_mount(&fs::read_to_string("/proc/self/mountinfo").ok()?)
}

/// Returns the group of a process, relative to the mount. `None` if it has none that is visible below the
/// mount.
#[must_use]
pub fn of_process(pid: u32) -> Option<PathBuf> {
    find_group(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// Returns the id of a group, as BPF programs see it: the inode number of its directory.
///
/// # Errors
/// The group does not exist or may not be read.
pub fn id(group: &Path) -> io::Result<u64> {
    Ok(fs::metadata(group)?.ino())
}

/// Returns true if a group, or one below it, has processes.
///
/// # Errors
/// The group does not exist or may not be read.
pub fn is_populated(group: &Path) -> io::Result<bool> {
    let events = fs::read_to_string(group.join("cgroup.events"))?;
    Ok(events.lines().any(|line| line == "populated 1"))
}

/// Returns the first mount of type `cgroup2` (proc(5), `/proc/pid/mountinfo`: the type follows a lone dash, the
/// mount point is the fifth field, with spaces as `\040`).
fn find_mount(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let place = before.split(' ').nth(4)?;
        (after.split(' ').next()? == "cgroup2").then(|| PathBuf::from(place.replace(r"\040", " ")))
    })
}

/// The line of the cgroup2 hierarchy has number 0 and no controllers (cgroups(7)).
fn find_group(text: &str) -> Option<PathBuf> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let hidden = path.starts_with("..") || path.ends_with(" (deleted)");
    (!hidden).then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_where_it_is() {
        let hybrid = "\
30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/net_cls rw shared:11 - cgroup cgroup rw,net_cls
";
        let expected = Path::new("/sys/fs/cgroup/unified");
        assert_eq!(find_mount(hybrid).as_deref(), Some(expected));
        let odd = r"40 23 0:30 / /mnt/my\040groups rw - cgroup2 none rw";
        assert_eq!(
            find_mount(odd).as_deref(),
            Some(Path::new("/mnt/my groups"))
        );
        assert_eq!(find_mount("41 23 0:31 / / rw - ext4 /dev/vda rw"), None);
    }

    #[test]
    fn a_process_group_is_relative_to_the_mount() {
        let both = "4:cpu:/x\n0::/user.slice/user-1000.slice\n";
        let expected = Path::new("user.slice/user-1000.slice");
        assert_eq!(find_group(both).as_deref(), Some(expected));
        assert_eq!(find_group("0::/\n").as_deref(), Some(Path::new("")));
        assert_eq!(find_group("0::/../other\n"), None);
        assert_eq!(find_group("4:cpu:/x\n"), None);
    }
}
