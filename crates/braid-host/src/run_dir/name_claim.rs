//! Names of a network namespace that one process of ours has at a time: abstract Unix sockets.
//!
//! They end with their process, however it ends. They have no owner and no mode, so every local user can take one first:
//! a name that a process of another user has keeps nobody from starting.

use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket,
    sockopt::PeerCredentials,
};
use nix::unistd::geteuid;

/// A name, held until this is dropped; not held if another user's process has it.
#[derive(Debug)]
pub struct NameClaim {
    _listener: Option<UnixListener>,
}

/// Reason why a name is not ours.
#[derive(Debug)]
pub enum NameClaimError {
    /// A process of root or of our user has it: its id, if the kernel says it.
    Held(Option<u32>),
    /// The system refused.
    Broken(io::Error),
}

impl NameClaim {
    /// Claims a name in the calling thread's network namespace.
    ///
    /// # Errors
    /// See [`NameClaimError`].
    pub fn take(name: &str) -> Result<NameClaim, NameClaimError> {
        let address = SocketAddr::from_abstract_name(name).map_err(NameClaimError::Broken)?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(NameClaim {
                _listener: Some(listener),
            }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match holder(name) {
                Some((uid, pid)) if uid == 0 || uid == geteuid().as_raw() => {
                    Err(NameClaimError::Held(u32::try_from(pid).ok()))
                }
                holder => {
                    let uid = holder.map(|(uid, _)| uid);
                    tracing::warn!(
                        name,
                        ?uid,
                        "another user's process has the name that would keep a second instance away"
                    );
                    Ok(NameClaim { _listener: None })
                }
            },
            Err(error) => Err(NameClaimError::Broken(error)),
        }
    }
}

/// Returns user and process id of the process that listens at a name. None if nothing listens, or its queue of
/// connections is full: every process of ours listens at once, and a handful of others ever connect to it.
fn holder(name: &str) -> Option<(u32, i32)> {
    // A connection to a full queue would wait for ever.
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    let address = UnixAddr::new_abstract(name.as_bytes()).ok()?;
    connect(stream.as_raw_fd(), &address).ok()?;
    let peer = getsockopt(&stream, PeerCredentials).ok()?;
    Some((peer.uid(), peer.pid()))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    const NOBODY: u32 = 65_534;

    /// Starts a process of another user that has a name, until it is killed.
    fn occupy(name: &str, then: &str) -> Child {
        let program = format!(
            "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind('\\0{name}'); {then}; \
             print(flush=True); sys.stdin.read()"
        );
        let mut command = Command::new("python3");
        let command = command
            .args(["-c", &program])
            .uid(NOBODY)
            .gid(NOBODY)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let output = child.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "it has begun");
        child
    }

    #[test]
    fn a_name_of_ours_is_held_once() {
        let name = format!("braid-test-own-{}", std::process::id());
        let claim = NameClaim::take(&name).unwrap();
        let refused = NameClaim::take(&name).unwrap_err();
        assert!(
            matches!(refused, NameClaimError::Held(Some(pid)) if pid == std::process::id()),
            "{refused:?}"
        );
        drop(claim);
        // Another test's child holds a copy of every descriptor until it runs its own program.
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Err(error) = NameClaim::take(&name) {
            assert!(Instant::now() < deadline, "{error:?}");
            thread::yield_now();
        }
    }

    /// Any local user could keep the daemon from starting.
    #[test]
    fn another_users_process_keeps_nobody_from_starting() {
        for (number, then) in [
            "s.listen()",
            "pass",
            // Its queue is full.
            "s.listen(0); c = socket.socket(socket.AF_UNIX); c.connect(s.getsockname())",
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("braid-test-other-{}-{number}", std::process::id());
            let mut other = occupy(&name, then);
            let claimed = NameClaim::take(&name);
            other.kill().unwrap();
            other.wait().unwrap();
            assert!(claimed.unwrap()._listener.is_none(), "{then}");
        }
    }
}
