//! The run directory of an instance, and the locks against a second one.

mod lock;
mod name_claim;

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::file;
use crate::user_error::UserError;

pub use lock::{Lock, NetworkClaim};
pub use name_claim::{NameClaim, NameClaimError};

/// Default run directory.
pub const DEFAULT: &str = "/run/braid";

/// Size at which a log is rotated: run directories are often in memory.
const MAX_LOG_BYTES: u64 = 1 << 20;

/// Longest path of a Unix socket, in bytes: `sockaddr_un` less the zero at its end (unix(7)).
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Names of files in a run directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// Wraps a path; the directory need not exist yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> RunDir {
        RunDir(path.into())
    }

    /// Returns the directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the local API's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.0.join("braid.sock")
    }

    /// Returns the state file: changes that must be undone.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// Returns the log file of a background daemon.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.0.join("braid.log")
    }

    /// Returns the rotated log; only the last one is kept.
    #[must_use]
    pub fn old_log(&self) -> PathBuf {
        self.0.join("braid.log.old")
    }

    /// Returns the event file; one event a line.
    #[must_use]
    pub fn events(&self) -> PathBuf {
        self.0.join("events.jsonl")
    }

    /// Returns the file of programs that run on one uplink.
    #[must_use]
    pub fn runs(&self) -> PathBuf {
        self.0.join("runs.json")
    }

    /// Returns the saved path cache, kept between two instances.
    #[must_use]
    pub fn path_cache(&self) -> PathBuf {
        self.0.join("path-cache.json")
    }

    /// Returns the file of raised alarms and of messages that wait, kept between two daemons.
    #[must_use]
    pub fn alarms(&self) -> PathBuf {
        self.0.join("alarms.json")
    }

    /// Returns the file that says that an OpenFlow bridge is at work.
    #[must_use]
    pub fn openflow_record(&self) -> PathBuf {
        self.0.join("openflow.json")
    }

    /// Returns the socket on which the daemon tells the OpenFlow controller the desired state.
    #[must_use]
    pub fn openflow_socket(&self) -> PathBuf {
        self.0.join("openflow.sock")
    }

    /// Returns the log file of the OpenFlow controller.
    #[must_use]
    pub fn openflow_log(&self) -> PathBuf {
        self.0.join("openflow.log")
    }

    /// Returns all files of the OpenFlow datapath, the record last.
    #[must_use]
    pub fn openflow_files(&self) -> [PathBuf; 4] {
        [
            self.openflow_socket(),
            self.0.join("openflow.lock"),
            self.openflow_log(),
            self.openflow_record(),
        ]
    }

    /// Returns the path to which an unreadable state file is moved, for inspection.
    #[must_use]
    pub fn broken_state(&self) -> PathBuf {
        self.0.join("state.json.broken")
    }

    /// Rotates a log that has grown too long, by copying it: a running daemon keeps writing to the same
    /// file through its standard error, an appending handle. A log that cannot be copied is dropped.
    ///
    /// # Errors
    /// The system's error.
    pub fn bound_log(&self) -> io::Result<()> {
        let log = self.log();
        match fs::metadata(&log) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(file) if file.len() <= MAX_LOG_BYTES => return Ok(()),
            Ok(_) => {}
        }
        let copied = fs::copy(&log, self.old_log());
        if copied.is_err() {
            // No space left: the log must not be what fills the disk.
            let _ = fs::remove_file(self.old_log());
        }
        OpenOptions::new().write(true).open(&log)?.set_len(0)?;
        copied.map(drop)
    }

    /// Returns the lock file, held by the running daemon; it contains the process id.
    #[must_use]
    pub fn lock_file(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// Returns the mount point of the instance's own bpffs.
    #[must_use]
    pub fn bpffs(&self) -> PathBuf {
        self.0.join("bpf")
    }

    /// Returns the directory of the datapath's pins. It is not the mount point itself, because the datapath
    /// is built in a directory beside it and renamed into place.
    #[must_use]
    pub fn pins(&self) -> PathBuf {
        self.bpffs().join("balance")
    }

    /// Creates the directory, writable by root and readable by all.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(&self) -> Result<(), UserError> {
        let title = format!("run directory {}", self.0.display());
        if self.socket().as_os_str().len() > MAX_SOCKET_PATH_BYTES {
            let most =
                MAX_SOCKET_PATH_BYTES + self.0.as_os_str().len() - self.socket().as_os_str().len();
            let text = format!("{title}: a socket in it would have too long a name");
            return Err(UserError::new("usage", text).fix(format!(
                "--run-dir names a directory of {most} bytes at most"
            )));
        }
        let made = braid_device::with_umask(0o022, || fs::create_dir_all(&self.0));
        made.map_err(|error| {
            let failure = UserError::io(title, &error);
            match failure.fix {
                Some(_) => failure,
                None => failure.fix("--run-dir names a directory that exists or can be made"),
            }
        })
    }

    /// Mounts the instance's own bpffs unless it is mounted already. `/sys/fs/bpf` is missing in many
    /// containers and shared by all instances.
    ///
    /// # Errors
    /// The system's error.
    pub fn mount_bpffs(&self) -> Result<(), UserError> {
        let path = self.bpffs();
        let broken =
            |error: io::Error| UserError::io(format!("mount bpffs at {}", path.display()), &error);
        fs::create_dir_all(&path).map_err(broken)?;
        if self.bpffs_is_mounted() {
            return Ok(());
        }
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("bpf"), &path, Some("bpf"), flags, Some("mode=0700"))
            .map_err(|errno| broken(errno.into()))
    }

    /// Unmounts the instance's bpffs. Returns `false` if there was none.
    ///
    /// # Errors
    /// The system's error.
    pub fn unmount_bpffs(&self) -> Result<bool, UserError> {
        let path = self.bpffs();
        let broken =
            |error: io::Error| UserError::io(format!("unmount {}", path.display()), &error);
        let mounted = self.bpffs_is_mounted();
        if mounted {
            // Lazily: a `bpftool` that has files open in it must not keep the machine from being
            // restored.
            umount2(&path, MntFlags::MNT_DETACH).map_err(|errno| broken(errno.into()))?;
        }
        match fs::remove_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(broken(error)),
            _ => Ok(mounted),
        }
    }

    fn bpffs_is_mounted(&self) -> bool {
        statfs(&self.bpffs()).is_ok_and(|fs| fs.filesystem_type() == BPF_FS_MAGIC)
    }

    /// Removes the instance's files, and the directory if nothing else is in it.
    ///
    /// # Errors
    /// The system's error.
    pub fn clear(&self) -> Result<(), UserError> {
        for file in [
            self.socket(),
            self.state(),
            file::fresh(&self.state()),
            self.broken_state(),
            self.log(),
            self.old_log(),
            self.events(),
            self.events().with_extension("jsonl.old"),
            self.runs(),
            file::fresh(&self.runs()),
            self.path_cache(),
            self.alarms(),
            file::fresh(&self.alarms()),
            self.lock_file(),
        ] {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(UserError::io(format!("remove {}", file.display()), &error));
                }
                _ => {}
            }
        }
        match fs::remove_dir(&self.0) {
            // It contains other files, so it is kept.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
            Err(error) => Err(UserError::io(
                format!("remove {}", self.0.display()),
                &error,
            )),
            Ok(()) => Ok(()),
        }
    }
}

/// Returns the calling thread's network namespace: device and inode number of its file.
///
/// # Errors
/// `/proc` cannot be read.
pub fn network_namespace() -> Result<String, UserError> {
    let link = fs::read_link("/proc/thread-self/ns/net");
    let link = link.map_err(|error| UserError::io("read /proc/thread-self/ns/net", &error))?;
    Ok(link.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_log_that_grew_too_long_is_put_aside_under_its_writer() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        run_dir.bound_log().unwrap();
        let mut options = OpenOptions::new();
        let mut writer = options
            .append(true)
            .create(true)
            .open(run_dir.log())
            .unwrap();
        let long = vec![b'x'; MAX_LOG_BYTES as usize];
        writer.write_all(&long).unwrap();
        run_dir.bound_log().unwrap();
        assert!(!run_dir.old_log().exists());
        writer.write_all(b"y").unwrap();
        run_dir.bound_log().unwrap();
        writer.write_all(b"new").unwrap();
        assert_eq!(fs::read(run_dir.log()).unwrap(), b"new");
        let old = fs::metadata(run_dir.old_log()).unwrap();
        assert_eq!(old.len(), MAX_LOG_BYTES + 1);
        run_dir.clear().unwrap();
        assert!(!run_dir.old_log().exists());
    }

    #[test]
    fn a_directory_that_cannot_be_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        let below = file.join("below");
        let long = folder.path().join("x".repeat(120));
        for (path, code) in [(&file, "io"), (&below, "io"), (&long, "usage")] {
            let failure = RunDir::new(path).create().unwrap_err();
            assert_eq!(failure.code, code, "{failure:?}");
            assert!(failure.text.contains(&path.display().to_string()));
            assert!(failure.fix.unwrap().contains("--run-dir"));
        }
        assert!(!long.exists());
    }

    #[test]
    fn clearing_leaves_other_peoples_files() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        fs::write(run_dir.path().join("theirs"), "x").unwrap();
        fs::write(run_dir.state(), "{}").unwrap();
        run_dir.clear().unwrap();
        assert!(run_dir.path().join("theirs").exists());
        assert!(!run_dir.state().exists());
    }
}
