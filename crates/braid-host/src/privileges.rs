//! Privileges that a daemon gives up by itself, whoever has started it: capabilities, new privileges by programs with
//! set-user-id, and files that it does not need.
//!
//! All of it belongs to the calling thread, and to the threads and processes that it begins afterwards. So a daemon
//! gives up privileges while it has one thread.

use std::io;
use std::path::Path;

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus,
};
use nix::sys::prctl::set_no_new_privs;

use crate::user_error::UserError;

/// The version of landlock whose rights are asked for: that of Linux 6.2. Older kernels enforce what they know.
const LANDLOCK: ABI = ABI::V3;

/// Directories of programs, libraries, and the machine's configuration, which child processes need, too.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc"];

/// Files that a daemon opens while it runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files<'a> {
    /// Files, and directories with all below them, that are only read.
    pub read: &'a [&'a Path],
    /// Files, and directories with all below them, in which it writes.
    pub write: &'a [&'a Path],
    /// Directories below which it removes empty directories.
    pub prune: &'a [&'a Path],
}

/// The degree to which the kernel keeps a daemon to its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// As asked.
    Full,
    /// As far as the kernel's version of landlock goes.
    Partial,
    /// The kernel has no landlock, or it is off.
    None,
}

/// Gives up all capabilities but those `kept` that the thread has, for good: no program that it executes gets others.
/// Of those the programs get the `inherited` ones alone.
///
/// # Errors
/// The kernel refused.
pub fn keep_capabilities(kept: &[Capability], inherited: &[Capability]) -> Result<(), UserError> {
    let refused =
        |error: CapsError| UserError::new("capabilities", format!("give up capabilities: {error}"));
    set_no_new_privs()
        .map_err(|errno| UserError::io("give up new privileges", &io::Error::from(errno)))?;
    let has = caps::read(None, CapSet::Permitted).map_err(refused)?;
    // A service manager that has limited the set already may not allow it to be changed.
    if has.contains(&Capability::CAP_SETPCAP) {
        for capability in caps::read(None, CapSet::Bounding).map_err(refused)? {
            if !inherited.contains(&capability) {
                caps::drop(None, CapSet::Bounding, capability).map_err(refused)?;
            }
        }
    }
    let left: CapsHashSet = kept
        .iter()
        .copied()
        .filter(|each| has.contains(each))
        .collect();
    // The ambient set is a part of the inheritable one, which is a part of nothing else.
    caps::clear(None, CapSet::Ambient).map_err(refused)?;
    caps::set(None, CapSet::Effective, &left).map_err(refused)?;
    caps::set(None, CapSet::Permitted, &left).map_err(refused)?;
    caps::clear(None, CapSet::Inheritable).map_err(refused)
}

/// Keeps the thread, and all that it begins, to these files and to those of the system, for good. New privileges must
/// have been given up ([`keep_capabilities`]).
///
/// # Errors
/// A path cannot be opened, or the kernel refused.
pub fn keep_files(files: Files<'_>) -> Result<Confinement, UserError> {
    let refused =
        |error: RulesetError| UserError::new("landlock", format!("give up other files: {error}"));
    let read = AccessFs::from_read(LANDLOCK);
    let all = AccessFs::from_all(LANDLOCK);
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)
        .map_err(refused)?;
    let mut ruleset = ruleset.create().map_err(refused)?;
    let system = SYSTEM.map(Path::new);
    let system = system.iter().copied().filter(|path| path.exists());
    let read = files
        .read
        .iter()
        .copied()
        .chain(system)
        .map(|path| (path, read));
    let write = files.write.iter().copied().map(|path| (path, all));
    let prune = files.prune.iter().copied();
    let prune = prune.map(|path| (path, AccessFs::RemoveDir.into()));
    for (path, access) in read.chain(write).chain(prune) {
        let opened = PathFd::new(path).map_err(|error| {
            UserError::new("landlock", format!("open {}: {error}", path.display()))
        })?;
        // Rights of directories do not apply to a file.
        let access = if path.is_dir() {
            access
        } else {
            access & AccessFs::from_file(LANDLOCK)
        };
        ruleset = ruleset
            .add_rule(PathBeneath::new(opened, access))
            .map_err(refused)?;
    }
    let status = ruleset.restrict_self().map_err(refused)?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Confinement::Full,
        RulesetStatus::PartiallyEnforced => Confinement::Partial,
        RulesetStatus::NotEnforced => Confinement::None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tests' threads share a process, so each gives up its own privileges on a thread of its own.
    fn apart<T: Send>(body: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(body).join().expect("no panic"))
    }

    #[test]
    fn capabilities_are_gone_for_the_thread_and_its_children() {
        let (own, child) = apart(|| {
            let kept = [Capability::CAP_NET_ADMIN, Capability::CAP_CHOWN];
            keep_capabilities(&kept, &kept[..1]).unwrap();
            let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mut command = std::process::Command::new("cat");
            let child = command.arg("/proc/self/status").output().unwrap().stdout;
            (own, String::from_utf8(child).unwrap())
        });
        let field = |status: &str, name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_once('\t').unwrap().1.to_owned()
        };
        let (chown, net_admin) = (1_u64, 1_u64 << 12);
        let (both, alone) = (
            format!("{:016x}", chown | net_admin),
            format!("{net_admin:016x}"),
        );
        assert_eq!(field(&own, "CapEff"), both);
        assert_eq!(field(&own, "CapPrm"), both);
        assert_eq!(field(&child, "CapEff"), alone);
        for status in [&own, &child] {
            assert_eq!(field(status, "CapBnd"), alone);
            assert_eq!(field(status, "NoNewPrivs"), "1");
        }
    }

    #[test]
    fn files_that_are_not_named_are_out_of_reach() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["read", "write", "other"] {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("file"), name).unwrap();
        }
        let confined = apart(|| {
            keep_capabilities(&[], &[]).unwrap();
            let confined = keep_files(Files {
                read: &[&at("read")],
                write: &[&at("write")],
                prune: &[],
            });
            let confined = confined.unwrap();
            let file = |name: &str| at(name).join("file");
            std::fs::read(file("read")).unwrap();
            std::fs::read(file("write")).unwrap();
            std::fs::write(file("write"), "new").unwrap();
            std::fs::rename(file("write"), at("write").join("renamed")).unwrap();
            std::fs::read("/etc/passwd").unwrap();
            if confined != Confinement::None {
                assert!(std::fs::read(file("other")).is_err());
                assert!(std::fs::write(file("read"), "new").is_err());
                assert!(std::fs::write(at("read").join("new"), "").is_err());
            }
            confined
        });
        let listed = std::fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
        assert!(
            confined != Confinement::None || !listed.contains("landlock"),
            "{listed}"
        );
        assert_eq!(
            std::fs::read(at("other").join("file")).unwrap(),
            b"other",
            "another thread"
        );
    }
}
