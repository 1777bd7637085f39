//! The directory that everything of one instance lives under, and the locks that keep it to one.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::failure::Failure;

/// Where an instance lives if nothing else is said.
pub const DEFAULT: &str = "/run/braid";

/// Abstract Unix socket that a daemon holds while it runs. Its namespace is the *network*
/// namespace, so it keeps two instances with different run directories from sharing one network.
const NETWORK_CLAIM: &[u8] = b"braid-daemon";

/// What a log may grow to, in bytes, before it is put aside: run directories are often in memory.
const LOG_LIMIT: u64 = 1 << 20;

/// How long a daemon that was killed may take to let go of what it holds: the kernel waits for each
/// of its threads, and one that asks about devices may hang for as long as namespaces are torn down.
const LAST_BREATH: Duration = Duration::from_secs(10);
/// From one look to the next at whether it has.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Names of files in a run directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// The directory need not exist yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> RunDir {
        RunDir(path.into())
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The local API's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.0.join("braid.sock")
    }

    /// What was changed and must be undone.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// Output of a daemon in the background.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.0.join("braid.log")
    }

    /// What the log was before it grew too long; only the last one is kept.
    #[must_use]
    pub fn old_log(&self) -> PathBuf {
        self.0.join("braid.log.old")
    }

    /// What changed, when and why; see [`crate::events`].
    #[must_use]
    pub fn events(&self) -> PathBuf {
        self.0.join("events.jsonl")
    }

    /// Programs that run on one uplink; see [`crate::runs`].
    #[must_use]
    pub fn runs(&self) -> PathBuf {
        self.0.join("runs.json")
    }

    /// A state file that could not be read, kept for whoever wants to know what happened.
    #[must_use]
    pub fn broken_state(&self) -> PathBuf {
        self.0.join("state.json.broken")
    }

    /// Puts a log aside that has grown too long. By copying it: a running daemon goes on writing to
    /// the same file, of which its standard error is an appending handle. One that cannot be copied
    /// is dropped.
    ///
    /// # Errors
    /// What the system said.
    pub fn bound_log(&self) -> io::Result<()> {
        let log = self.log();
        match fs::metadata(&log) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(file) if file.len() <= LOG_LIMIT => return Ok(()),
            Ok(_) => {}
        }
        let copied = fs::copy(&log, self.old_log());
        if copied.is_err() {
            // No room: the log must not be what keeps the disk full.
            let _ = fs::remove_file(self.old_log());
        }
        OpenOptions::new().write(true).open(&log)?.set_len(0)?;
        copied.map(drop)
    }

    /// Held by the running daemon; contains its process id.
    #[must_use]
    pub fn lock_file(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// Mount point of the instance's own bpffs.
    #[must_use]
    pub fn bpffs(&self) -> PathBuf {
        self.0.join("bpf")
    }

    /// Where the datapath is pinned: not the mount point itself, because the datapath is built in
    /// a directory beside and renamed into place.
    #[must_use]
    pub fn pins(&self) -> PathBuf {
        self.bpffs().join("balance")
    }

    /// Makes the directory, for root alone to write and for all to look into.
    ///
    /// # Errors
    /// What the system said.
    pub fn create(&self) -> Result<(), Failure> {
        fs::create_dir_all(&self.0)
            .and_then(|()| fs::set_permissions(&self.0, Permissions::from_mode(0o755)))
            .map_err(|error| Failure::io(format!("run directory {}", self.0.display()), &error))
    }

    /// Takes the lock, from a daemon that was killed as soon as it is dead.
    ///
    /// # Errors
    /// Another daemon holds it, or the system refused.
    pub fn lock(&self) -> Result<Lock, Failure> {
        after_the_dying(|| self.try_lock())
    }

    fn try_lock(&self) -> Result<Lock, Refused> {
        let path = self.lock_file();
        let broken = |error: io::Error| Refused::Broken(Failure::io(path.display(), &error));
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644);
        let file = options.open(&path).map_err(broken)?;
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

    /// The process id of the daemon that holds the lock, if one does and is not dying.
    #[must_use]
    pub fn holder(&self) -> Option<u32> {
        let mut file = File::open(self.lock_file()).ok()?;
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Err((_, Errno::EWOULDBLOCK)) => text.trim().parse().ok().filter(|pid| !is_dying(*pid)),
            _ => None,
        }
    }

    /// Mounts the instance's own bpffs unless it is mounted already. Our own, because `/sys/fs/bpf`
    /// is missing in many containers and shared by all instances.
    ///
    /// # Errors
    /// What the system said.
    pub fn mount_bpffs(&self) -> Result<(), Failure> {
        let path = self.bpffs();
        let broken =
            |error: io::Error| Failure::io(format!("mount bpffs at {}", path.display()), &error);
        fs::create_dir_all(&path).map_err(broken)?;
        if self.bpffs_is_mounted() {
            return Ok(());
        }
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("bpf"), &path, Some("bpf"), flags, Some("mode=0700"))
            .map_err(|errno| broken(errno.into()))
    }

    /// Unmounts the instance's bpffs; `false` if there was none.
    ///
    /// # Errors
    /// What the system said.
    pub fn unmount_bpffs(&self) -> Result<bool, Failure> {
        let path = self.bpffs();
        let broken = |error: io::Error| Failure::io(format!("unmount {}", path.display()), &error);
        let mounted = self.bpffs_is_mounted();
        if mounted {
            // Lazily: a `bpftool` that looks around in it must not keep the machine from being
            // left as it was found.
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

    /// Removes what an instance leaves in its directory, and the directory if nothing else is in it.
    ///
    /// # Errors
    /// What the system said.
    pub fn clear(&self) -> Result<(), Failure> {
        for file in [
            self.socket(),
            self.state(),
            self.state().with_extension("json.new"),
            self.broken_state(),
            self.log(),
            self.old_log(),
            self.events(),
            self.events().with_extension("jsonl.old"),
            self.runs(),
            self.runs().with_extension("json.new"),
            self.lock_file(),
        ] {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Failure::io(format!("remove {}", file.display()), &error));
                }
                _ => {}
            }
        }
        match fs::remove_dir(&self.0) {
            // Somebody else's files are in it: then it is not ours to remove.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
            Err(error) => Err(Failure::io(format!("remove {}", self.0.display()), &error)),
            Ok(()) => Ok(()),
        }
    }
}

/// Held while a daemon runs; the kernel lets go of it however the daemon ends.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
}

/// Held while a daemon runs in this network namespace.
#[derive(Debug)]
pub struct NetworkClaim {
    _listener: UnixListener,
}

impl NetworkClaim {
    /// Claims the calling thread's network namespace.
    ///
    /// # Errors
    /// Another daemon has it, or the system refused.
    pub fn take() -> Result<NetworkClaim, Failure> {
        after_the_dying(NetworkClaim::try_take)
    }

    fn try_take() -> Result<NetworkClaim, Refused> {
        let broken = |error: io::Error| Refused::Broken(Failure::io("claim this network", &error));
        let address = SocketAddr::from_abstract_name(NETWORK_CLAIM).map_err(broken)?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(NetworkClaim {
                _listener: listener,
            }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let peer = UnixStream::connect_addr(&address).ok();
                let holder = peer.and_then(|peer| getsockopt(&peer, PeerCredentials).ok());
                let holder = holder.and_then(|peer| u32::try_from(peer.pid()).ok());
                Err(second_daemon(
                    holder,
                    "it serves this network from another run directory",
                ))
            }
            Err(error) => Err(broken(error)),
        }
    }
}

/// Why something that one daemon at a time may hold was not to be had.
enum Refused {
    /// This process has it, as far as known.
    Held(Option<u32>, Failure),
    Broken(Failure),
}

/// Tries for as long as whoever holds it is dying.
fn after_the_dying<T>(attempt: impl Fn() -> Result<T, Refused>) -> Result<T, Failure> {
    let latest = Instant::now() + LAST_BREATH;
    loop {
        match attempt() {
            Ok(taken) => return Ok(taken),
            Err(Refused::Held(Some(pid), _)) if is_dying(pid) && Instant::now() < latest => {
                sleep(LOOK_AGAIN);
            }
            Err(Refused::Held(_, failure) | Refused::Broken(failure)) => return Err(failure),
        }
    }
}

/// Whether a process is over. Its other threads may still hold what it held.
fn is_dying(pid: u32) -> bool {
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
    let failure = Failure::new("second-daemon", text);
    Refused::Held(
        holder,
        failure.fix("braid status shows what it does; braid down ends it"),
    )
}

/// The calling thread's network namespace: device and inode number of its file.
///
/// # Errors
/// `/proc` is not to be had.
pub fn network_namespace() -> Result<String, Failure> {
    let link = fs::read_link("/proc/thread-self/ns/net");
    let link = link.map_err(|error| Failure::io("read /proc/thread-self/ns/net", &error))?;
    Ok(link.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!is_dying(sleeper.id()));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(is_dying(sleeper.id()));
    }

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
        let long = vec![b'x'; LOG_LIMIT as usize];
        writer.write_all(&long).unwrap();
        run_dir.bound_log().unwrap();
        assert!(!run_dir.old_log().exists());
        writer.write_all(b"y").unwrap();
        run_dir.bound_log().unwrap();
        writer.write_all(b"new").unwrap();
        assert_eq!(fs::read(run_dir.log()).unwrap(), b"new");
        let old = fs::metadata(run_dir.old_log()).unwrap();
        assert_eq!(old.len(), LOG_LIMIT + 1);
        run_dir.clear().unwrap();
        assert!(!run_dir.old_log().exists());
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
