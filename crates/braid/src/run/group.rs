//! The control group of a program on one uplink.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use braid_daemon::config::CgroupPath;
use braid_daemon::rules::cgroup;
use braid_daemon::runs::{GROUP_PREFIX, no_hierarchy};
use braid_host::user_error::UserError;
use tokio::process::{Child, Command};

/// Number of attempts to empty a group whose program keeps forking.
const MAX_NAME_ATTEMPTS: usize = 100;

/// A control group, removed on drop if nothing else removed it.
pub struct Group {
    mount: PathBuf,
    /// The group that this process is in.
    home: PathBuf,
    /// The new one.
    leaf: PathBuf,
    id: u64,
}

impl Group {
    /// Creates a group below that of this process, so that the session's limits and accounts apply to
    /// the program too.
    ///
    /// # Errors
    /// There are no control groups, or making one is not permitted.
    pub fn make() -> Result<Group, UserError> {
        let mount = cgroup::mount().ok_or_else(no_hierarchy)?;
        let own = std::process::id();
        let home = cgroup::of_process(own).map(|path| mount.join(path));
        let home = home.filter(|home| home.is_dir()).unwrap_or(mount.clone());
        let leaf = home.join(format!("{GROUP_PREFIX}{own}"));
        let refused = |error: io::Error| {
            let failure = UserError::io(format!("control group {}", leaf.display()), &error);
            match error.kind() {
                io::ErrorKind::PermissionDenied => failure
                    .fix("sudo braid run … (in it, sudo -u USER COMMAND to be yourself again)"),
                _ => failure,
            }
        };
        match fs::create_dir(&leaf) {
            // Left behind by an earlier process with this id that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                empty(&leaf, &home).map_err(refused)?;
                fs::create_dir(&leaf).map_err(refused)?;
            }
            outcome => outcome.map_err(refused)?,
        }
        let id = cgroup::id(&leaf).map_err(refused)?;
        Ok(Group {
            mount,
            home,
            leaf,
            id,
        })
    }

    /// The group's id in the kernel.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The group's path below the mount.
    ///
    /// # Errors
    /// The path has characters that the API cannot represent.
    pub fn path(&self) -> Result<CgroupPath, UserError> {
        let relative = self.leaf.strip_prefix(&self.mount).unwrap_or(&self.leaf);
        let text = format!("/{}", relative.display());
        text.parse()
            .map_err(|why| UserError::new("cgroup", format!("control group {text:?}: {why}")))
    }

    /// Starts a program in the group. This process moves there for a moment, because a child starts in
    /// its parent's group.
    ///
    /// # Errors
    /// `not-found` and `not-executable` for the program, else the system's error about the group.
    pub fn spawn(&self, command: &mut Command) -> Result<Child, UserError> {
        let own = std::process::id();
        let moved = |error: io::Error| UserError::io("change the control group", &error);
        put(own, &self.leaf).map_err(moved)?;
        let child = command.spawn();
        put(own, &self.home).map_err(moved)?;
        child.map_err(|error| {
            let program = command
                .as_std()
                .get_program()
                .to_string_lossy()
                .into_owned();
            let code = match error.kind() {
                io::ErrorKind::NotFound => "not-found",
                _ => "not-executable",
            };
            UserError::new(code, format!("{program}: {error}"))
        })
    }

    /// Removes the group and moves its remaining processes to the group of this one. Returns their
    /// number.
    ///
    /// # Errors
    /// The system's error.
    pub fn dissolve(&self) -> Result<usize, UserError> {
        empty(&self.leaf, &self.home).map_err(|error| {
            let place = self.leaf.display();
            UserError::io(format!("remove control group {place}"), &error)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Needed after a panic; after `dissolve` there is nothing left to do.
        let _ = empty(&self.leaf, &self.home);
    }
}

fn put(pid: u32, group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), pid.to_string())
}

/// Removes a group and those below it, after moving their processes to another.
fn empty(group: &Path, to: &Path) -> io::Result<usize> {
    let mut moved = 0;
    for _ in 0..MAX_NAME_ATTEMPTS {
        match fs::remove_dir(group) {
            Ok(()) => return Ok(moved),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(moved),
            Err(_) => {}
        }
        for entry in fs::read_dir(group)?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                moved += empty(&entry.path(), to)?;
            }
        }
        for pid in fs::read_to_string(group.join("cgroup.procs"))?.lines() {
            // A process that has ended meanwhile needs no move.
            if pid.parse().is_ok_and(|pid| put(pid, to).is_ok()) {
                moved += 1;
            }
        }
    }
    fs::remove_dir(group).map(|()| moved)
}
