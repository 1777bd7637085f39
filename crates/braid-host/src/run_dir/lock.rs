//! Locks against a second daemon: on the run directory, and on the network namespace.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::RunDir;
use super::name_claim::{NameClaim, NameClaimError};
use crate::user_error::UserError;

/// Abstract Unix socket that a daemon holds while it runs. Its namespace is the *network*
/// namespace, so it keeps two instances with different run directories from sharing one network.
const NETWORK_CLAIM: &str = "braid-daemon";

/// Mode of the lock file: who can open it, even to read, can lock it.
const LOCK_MODE: u32 = 0o600;

/// Longest wait for a killed daemon to release its locks: the kernel waits for each of its threads,
/// and a thread that queries devices may hang while namespaces are torn down.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between attempts.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);

impl RunDir {
    /// Takes the lock; waits for a killed daemon to exit.
    ///
    /// # Errors
    /// Another daemon holds it, or the system refused.
    pub fn lock(&self) -> Result<Lock, UserError> {
        retry_while_holder_exits(|| self.try_lock())
    }

    fn try_lock(&self) -> Result<Lock, Refused> {
        let path = self.lock_file();
        let broken = |error: io::Error| Refused::Broken(UserError::io(path.display(), &error));
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(LOCK_MODE);
        let file = options.open(&path).map_err(broken)?;
        // Earlier versions made it for all to read.
        let restricted = file.set_permissions(Permissions::from_mode(LOCK_MODE));
        restricted.map_err(broken)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut file) => {
                let written = file
                    .set_len(0)
                    .and_then(|()| file.seek(SeekFrom::Start(0)))
                    .and_then(|_| writeln!(file, "{}", std::process::id()));
                written.map_err(broken)?;
                Ok(Lock { _file: file })
            }
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut holder = String::new();
                file.read_to_string(&mut holder).map_err(broken)?;
                let place = self.0.display();
                let why = format!("it runs in {place}");
                Err(second_daemon(holder.trim().parse().ok(), &why))
            }
            Err((_, errno)) => Err(broken(errno.into())),
        }
    }

    /// Returns the process id of the daemon that holds the lock, unless it is exiting.
    #[must_use]
    pub fn holder(&self) -> Option<u32> {
        let mut file = File::open(self.lock_file()).ok()?;
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Err((_, Errno::EWOULDBLOCK)) => {
                text.trim().parse().ok().filter(|pid| !is_exiting(*pid))
            }
            _ => None,
        }
    }
}

/// Held while a daemon runs; the kernel releases it however the daemon ends.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
}

/// Held while a daemon runs in this network namespace.
#[derive(Debug)]
pub struct NetworkClaim {
    _name: NameClaim,
}

impl NetworkClaim {
    /// Claims the calling thread's network namespace.
    ///
    /// # Errors
    /// Another daemon has it, or the system refused.
    pub fn take() -> Result<NetworkClaim, UserError> {
        retry_while_holder_exits(NetworkClaim::try_take)
    }

    fn try_take() -> Result<NetworkClaim, Refused> {
        match NameClaim::take(NETWORK_CLAIM) {
            Ok(name) => Ok(NetworkClaim { _name: name }),
            Err(NameClaimError::Held(holder)) => Err(second_daemon(
                holder,
                "it serves this network from another run directory",
            )),
            Err(NameClaimError::Broken(error)) => {
                Err(Refused::Broken(UserError::io("claim this network", &error)))
            }
        }
    }
}

/// Reason why a lock could not be taken.
enum Refused {
    /// Another process holds it: its id, if known.
    Held(Option<u32>, UserError),
    Broken(UserError),
}

/// Retries while the holder is exiting.
fn retry_while_holder_exits<T>(attempt: impl Fn() -> Result<T, Refused>) -> Result<T, UserError> {
    let latest = Instant::now() + EXIT_TIMEOUT;
    loop {
        match attempt() {
            Ok(taken) => return Ok(taken),
            Err(Refused::Held(Some(pid), _)) if is_exiting(pid) && Instant::now() < latest => {
                sleep(EXIT_POLL_INTERVAL);
            }
            Err(Refused::Held(_, failure) | Refused::Broken(failure)) => return Err(failure),
        }
    }
}

/// Returns true if a process has exited. Its other threads may still hold its locks.
fn is_exiting(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X'])),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn second_daemon(holder: Option<u32>, why: &str) -> Refused {
    let process = holder.map_or("unknown".to_owned(), |pid| pid.to_string());
    let text = format!("a daemon is running already, process {process}: {why}");
    let failure = UserError::new("second-daemon", text);
    Refused::Held(
        holder,
        failure.fix("braid status shows what it does; braid down ends it"),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    const NOBODY: u32 = 65_534;

    /// Returns true if another user can lock a file.
    fn others_lock(path: &std::path::Path) -> bool {
        let mut flock = Command::new("flock");
        let flock = flock.args(["--nonblock", "--shared"]).arg(path).arg("true");
        flock
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .unwrap()
            .status
            .success()
    }

    /// A lock needs no right to write: any local user could keep the daemon from starting.
    #[test]
    fn others_cannot_lock_the_lock_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let run_dir = RunDir::new(folder.path().join("run"));
        run_dir.create().unwrap();
        let path = run_dir.lock_file();
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        drop(run_dir.lock().unwrap());
        assert_eq!(mode(), LOCK_MODE);
        assert!(!others_lock(&path));
        // One of an earlier version.
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(others_lock(&path), "that was the way");
        let lock = run_dir.lock().unwrap();
        assert_eq!(mode(), LOCK_MODE);
        drop(lock);
        assert!(!others_lock(&path));
    }

    #[test]
    fn a_second_lock_names_the_first_holder() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path().join("run"));
        run_dir.create().unwrap();
        assert_eq!(run_dir.holder(), None);
        let lock = run_dir.lock().unwrap();
        let refused = run_dir.lock().unwrap_err();
        assert_eq!(refused.code, "second-daemon");
        assert!(
            refused
                .text
                .contains(&format!("process {}", std::process::id())),
            "{refused}"
        );
        assert_eq!(run_dir.holder(), Some(std::process::id()));
        drop(lock);
        assert_eq!(run_dir.holder(), None);
        drop(run_dir.lock().unwrap());
        run_dir.clear().unwrap();
        assert!(!run_dir.path().exists());
    }

    #[test]
    fn a_dead_daemon_is_waited_for_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let lock = run_dir.lock().unwrap();
        // No process has such a number (the kernel's highest is 4,194,304).
        fs::write(run_dir.lock_file(), "4194305\n").unwrap();
        assert_eq!(run_dir.holder(), None);
        let second = std::thread::spawn({
            let run_dir = run_dir.clone();
            move || run_dir.lock().map(drop)
        });
        assert!(run_dir.try_lock().is_err());
        drop(lock);
        second.join().unwrap().unwrap();
        let mut sleeper = std::process::Command::new("sleep");
        let mut sleeper = sleeper.arg("1000").spawn().unwrap();
        assert!(!is_exiting(sleeper.id()));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(is_exiting(sleeper.id()));
    }
}
