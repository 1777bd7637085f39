//! Programs that run on one uplink (`braid run`), and the rules of their control groups.
//!
//! Rules, and why:
//! - A run is stored before it takes effect, and the next daemon reads it again: a program that was restricted
//!   to one uplink must not use another because the daemon restarted.
//! - The end of a run need not be announced. A run whose group is gone, or whose group is empty while the
//!   process that began it is gone too (killed), is removed by [`Runs::prune`], with the group that `braid run`
//!   made.
//! - The kernel never reuses a group's id, so a rule that outlives its group matches nothing.

use std::fs;
use std::path::{Path, PathBuf};

use braid_host::file;
use braid_host::user_error::UserError;

use crate::config::{Action, RuleConfig};
use crate::report::RunRequest;
use crate::rules::cgroup;

/// Most runs at once. Each takes one of the datapath's rules.
const MAX_RUNS: usize = 64;
/// Prefix of the groups that `braid run` makes; no other group is ever removed.
pub const GROUP_PREFIX: &str = "braid-run-";

/// The runs of an instance.
#[derive(Debug)]
pub struct Runs {
    file: PathBuf,
    mount: Option<PathBuf>,
    runs: Vec<RunRequest>,
}

impl Runs {
    /// Continues with the runs of an earlier daemon. An invalid file is ignored.
    #[must_use]
    pub fn open(file: PathBuf) -> Runs {
        Runs::below(file, cgroup::mount())
    }

    fn below(file: PathBuf, mount: Option<PathBuf>) -> Runs {
        let known = fs::read(&file).unwrap_or_default();
        let runs = match serde_json::from_slice::<Vec<RunRequest>>(&known) {
            Ok(runs) => runs,
            Err(error) => {
                if !known.is_empty() {
                    let file = file.display();
                    tracing::warn!(%file, %error, "runs of an earlier daemon are lost");
                }
                Vec::new()
            }
        };
        let mut runs = Runs { file, mount, runs };
        runs.prune();
        runs
    }

    /// Returns every run, oldest first.
    #[must_use]
    pub fn all(&self) -> &[RunRequest] {
        &self.runs
    }

    /// Returns the rules of all runs, which come before those of the configuration.
    #[must_use]
    pub fn rules(&self) -> Vec<RuleConfig> {
        self.runs.iter().map(rule).collect()
    }

    /// Returns the same with another run, which replaces a run of the same group.
    #[must_use]
    pub fn rules_with(&self, run: &RunRequest) -> Vec<RuleConfig> {
        let others = self.runs.iter().filter(|known| known.id != run.id);
        others.chain([run]).map(rule).collect()
    }

    /// Adds a run.
    ///
    /// # Errors
    /// The group does not exist, or the run cannot be stored.
    pub fn begin(&mut self, run: RunRequest) -> Result<(), UserError> {
        let group = self.group(&run)?;
        match cgroup::id(&group) {
            Ok(id) if id == run.id => {}
            Ok(id) => {
                let text = format!("{} has id {id}, not {}", group.display(), run.id);
                return Err(UserError::new("cgroup", text));
            }
            Err(error) => return Err(UserError::io(group.display(), &error)),
        }
        if self.runs.len() >= MAX_RUNS {
            let failure =
                UserError::new("too-many-runs", format!("{MAX_RUNS} programs run already"));
            return Err(failure.fix("wait for one to end, or write a rule for their user"));
        }
        self.runs.retain(|known| known.id != run.id);
        self.runs.push(run);
        self.store().inspect_err(|_| {
            self.runs.pop();
        })
    }

    /// Ends a run and returns it; `None` if there is none with this id.
    pub fn end(&mut self, id: u64) -> Option<RunRequest> {
        let at = self.runs.iter().position(|run| run.id == id)?;
        let run = self.runs.remove(at);
        self.store_or_tell();
        Some(run)
    }

    /// Removes the runs that ended without notice, and returns them.
    pub fn prune(&mut self) -> Vec<RunRequest> {
        let (over, on): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.runs).into_iter().partition(|run| {
                let group = self.group(run);
                group.map_or(true, |group| is_over(&group, run))
            });
        self.runs = on;
        if !over.is_empty() {
            self.store_or_tell();
        }
        over
    }

    fn group(&self, run: &RunRequest) -> Result<PathBuf, UserError> {
        let mount = self.mount.as_ref().ok_or_else(no_hierarchy)?;
        Ok(mount.join(run.group.relative()))
    }

    fn store(&self) -> Result<(), UserError> {
        let write = || file::replace(&self.file, &serde_json::to_vec(&self.runs)?, 0o644);
        write().map_err(|error| UserError::io(format!("write {}", self.file.display()), &error))
    }

    /// A surplus run on disk matches nothing and is removed by the next daemon.
    fn store_or_tell(&self) {
        if let Err(failure) = self.store() {
            tracing::warn!(%failure, "runs that are over stay on disk");
        }
    }
}

fn rule(run: &RunRequest) -> RuleConfig {
    let name = format!("braid run {}", run.pid);
    let action = Action::Uplink(run.uplink.clone());
    RuleConfig {
        cgroup: Some(run.group.clone()),
        on_down: run.on_down,
        ..RuleConfig::everything(name, action)
    }
}

/// Returns the error for a machine without control groups.
#[must_use]
pub fn no_hierarchy() -> UserError {
    let text = "no cgroup2 hierarchy is mounted, so programs cannot be told apart by their group";
    UserError::new("no-cgroup2", text).fix("mount -t cgroup2 none /sys/fs/cgroup")
}

/// Returns true if a run is over. Removes its group if `braid run` could not.
fn is_over(group: &Path, run: &RunRequest) -> bool {
    if cgroup::id(group).ok() != Some(run.id) {
        return true;
    }
    let alive = Path::new("/proc").join(run.pid.to_string()).exists();
    if alive || cgroup::is_populated(group).unwrap_or(true) {
        return false;
    }
    let name = group.file_name().and_then(|name| name.to_str());
    if name.is_some_and(|name| name.starts_with(GROUP_PREFIX))
        && let Err(error) = fs::remove_dir(group)
    {
        tracing::debug!(group = %group.display(), %error, "cannot remove a group");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OnDown;

    /// A directory in place of the cgroup hierarchy.
    struct Groups(tempfile::TempDir);

    impl Groups {
        fn new() -> Groups {
            Groups(tempfile::tempdir().unwrap())
        }

        fn make(&self, name: &str, populated: bool) -> u64 {
            let group = self.0.path().join(name);
            fs::create_dir_all(&group).unwrap();
            let events = format!("populated {}\nfrozen 0\n", u8::from(populated));
            fs::write(group.join("cgroup.events"), events).unwrap();
            cgroup::id(&group).unwrap()
        }

        fn open(&self) -> Runs {
            let mount = Some(self.0.path().to_owned());
            Runs::below(self.0.path().join("runs.json"), mount)
        }
    }

    /// No process has this id: it is above the kernel's limit.
    const NOBODY: u32 = 1 << 30;

    fn run(group: &str, id: u64, pid: u32) -> RunRequest {
        RunRequest {
            uplink: "lte".into(),
            group: format!("/{group}").parse().unwrap(),
            id,
            pid,
            command: "curl".into(),
            on_down: OnDown::Block,
        }
    }

    #[test]
    fn the_next_daemon_knows_the_runs() {
        let groups = Groups::new();
        let id = groups.make("a", true);
        let run = run("a", id, NOBODY);
        groups.open().begin(run.clone()).unwrap();
        let mut next = groups.open();
        assert_eq!(next.all(), [run]);
        let rule = &next.rules()[0];
        assert_eq!(rule.action, Action::Uplink("lte".into()));
        assert_eq!(rule.cgroup.as_ref().unwrap().to_string(), "/a");
        assert!(next.end(id).is_some() && next.end(id).is_none());
        assert!(groups.open().all().is_empty());
    }

    #[test]
    fn a_group_must_be_what_it_is_said_to_be() {
        let groups = Groups::new();
        let id = groups.make("a", true);
        let refused = groups.open().begin(run("a", id + 1, NOBODY)).unwrap_err();
        assert_eq!(refused.code, "cgroup");
        assert!(groups.open().begin(run("b", id, NOBODY)).is_err());
    }

    #[test]
    fn a_run_is_over_when_its_group_or_all_its_processes_are_gone() {
        let groups = Groups::new();
        let mut runs = groups.open();
        let own = std::process::id();
        for (name, populated, pid) in [
            ("busy", true, NOBODY),
            ("about-to-start", false, own),
            ("empty", false, NOBODY),
            ("gone", true, own),
        ] {
            let id = groups.make(name, populated);
            runs.begin(run(name, id, pid)).unwrap();
        }
        fs::remove_dir_all(groups.0.path().join("gone")).unwrap();
        let over: Vec<String> = runs.prune().iter().map(|r| r.group.to_string()).collect();
        assert_eq!(over, ["/empty", "/gone"]);
        assert_eq!(groups.open().all().len(), 2);
    }

    #[test]
    fn a_file_that_is_none_costs_the_runs_alone() {
        let groups = Groups::new();
        fs::write(groups.0.path().join("runs.json"), b"[{\"uplink\"").unwrap();
        assert!(groups.open().all().is_empty());
    }
}
