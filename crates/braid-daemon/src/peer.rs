//! Who may use the local API.
//!
//! The socket's mode keeps strangers out already; the kernel's word on who connected is asked all
//! the same, because a socket's mode is easily changed and a mistake there must not hand out the
//! network.

use std::io;
use std::mem;
use std::os::unix::fs::chown;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use nix::unistd::{Gid, Group, Uid, User, getegid, geteuid, getgrouplist};
use tokio::net::UnixListener;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;

use crate::failure::Failure;

/// The process at the other end of a connection; `None` if the kernel does not tell.
#[derive(Clone, Copy, Debug)]
pub struct Peer(Option<(Uid, Gid)>);

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let credentials = stream.io().peer_cred().ok();
        Peer(credentials.map(|cred| (Uid::from_raw(cred.uid()), Gid::from_raw(cred.gid()))))
    }
}

/// Decides who may use the API: root, the daemon's own user, and the members of one group. Clones
/// are one and the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    owner: Uid,
    group: Arc<RwLock<Option<Group>>>,
}

impl Gate {
    /// A gate for the members of `group`, if one is named.
    ///
    /// # Errors
    /// There is no such group.
    pub fn new(group: Option<&str>) -> Result<Gate, Failure> {
        Ok(Gate {
            owner: geteuid(),
            group: Arc::new(RwLock::new(find_group(group)?)),
        })
    }

    /// Gives the API's socket to the group.
    ///
    /// # Errors
    /// What the system said.
    pub fn give(&self, socket: &Path) -> io::Result<()> {
        let gid = self.group().map_or_else(getegid, |group| group.gid);
        chown(socket, None, Some(gid.as_raw()))
    }

    /// Lets another group in from now on, and the one before no more.
    ///
    /// # Errors
    /// The socket cannot be given to it; then nothing has changed.
    pub fn admit_group(&self, group: Option<Group>, socket: &Path) -> Result<(), Failure> {
        let before = mem::replace(
            &mut *self.group.write().unwrap_or_else(PoisonError::into_inner),
            group,
        );
        self.give(socket).map_err(|error| {
            *self.group.write().unwrap_or_else(PoisonError::into_inner) = before;
            Failure::io(format!("socket {}", socket.display()), &error)
        })
    }

    fn group(&self) -> Option<Group> {
        self.group
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Lets a peer in or says why not.
    ///
    /// # Errors
    /// The peer may not use the API.
    pub fn admit(&self, peer: Peer) -> Result<(), Failure> {
        let Some((uid, gid)) = peer.0 else {
            return Err(Failure::new(
                "forbidden",
                "the kernel does not say who is asking",
            ));
        };
        if uid.is_root() || uid == self.owner || self.is_member(uid, gid) {
            return Ok(());
        }
        let failure = Failure::new("forbidden", format!("user {uid} may not use this API"));
        Err(match self.group() {
            Some(group) => failure.fix(format!("add the user to group {}", group.name)),
            None => failure.fix("use sudo, or name a group in [api] of the configuration"),
        })
    }

    /// Whether a user is in the group, by the process' own group or by the user database (the
    /// kernel tells a peer's first group only).
    fn is_member(&self, uid: Uid, gid: Gid) -> bool {
        let Some(group) = self.group() else {
            return false;
        };
        if gid == group.gid {
            return true;
        }
        let Ok(Some(user)) = User::from_uid(uid) else {
            return false;
        };
        let Ok(name) = std::ffi::CString::new(user.name) else {
            return false;
        };
        getgrouplist(&name, user.gid).is_ok_and(|groups| groups.contains(&group.gid))
    }
}

/// The group of a configuration, if it names one.
///
/// # Errors
/// There is no such group.
pub fn find_group(name: Option<&str>) -> Result<Option<Group>, Failure> {
    let Some(name) = name else { return Ok(None) };
    let found = Group::from_name(name).map_err(|errno| {
        Failure::io(
            format!("look up group {name:?}"),
            &std::io::Error::from(errno),
        )
    })?;
    let found = found.ok_or_else(|| {
        let failure = Failure::new("no-group", format!("[api] group {name:?} does not exist"));
        failure.fix(format!("groupadd --system {name}, or name another group"))
    });
    found.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn peer(uid: u32, gid: u32) -> Peer {
        Peer(Some((Uid::from_raw(uid), Gid::from_raw(gid))))
    }

    #[test]
    fn root_the_owner_and_the_group_are_let_in() {
        let adm = find_group(Some("adm")).unwrap().unwrap();
        let gate = Gate {
            owner: Uid::from_raw(1234),
            ..Gate::new(Some("adm")).unwrap()
        };
        gate.admit(peer(0, 0)).unwrap();
        gate.admit(peer(1234, 1)).unwrap();
        gate.admit(peer(99_999, adm.gid.as_raw())).unwrap();
        let refused = gate.admit(peer(99_999, 99_999)).unwrap_err();
        assert_eq!(refused.code, "forbidden");
        assert_eq!(refused.fix.as_deref(), Some("add the user to group adm"));
        assert!(gate.admit(Peer(None)).is_err());
    }

    #[test]
    fn another_group_takes_the_place_of_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        std::fs::write(&socket, "").unwrap();
        let gid = |name| find_group(Some(name)).unwrap().unwrap().gid.as_raw();
        let gate = Gate::new(Some("adm")).unwrap();
        let everywhere = gate.clone();
        let daemons = find_group(Some("daemon")).unwrap();
        gate.admit_group(daemons.clone(), &socket).unwrap();
        everywhere.admit(peer(99_999, gid("daemon"))).unwrap();
        assert!(everywhere.admit(peer(99_999, gid("adm"))).is_err());
        assert_eq!(std::fs::metadata(&socket).unwrap().gid(), gid("daemon"));
        assert!(gate.admit_group(None, Path::new("/nonexistent")).is_err());
        everywhere.admit(peer(99_999, gid("daemon"))).unwrap();
        gate.admit_group(None, &socket).unwrap();
        assert!(everywhere.admit(peer(99_999, gid("daemon"))).is_err());
        assert_eq!(
            std::fs::metadata(&socket).unwrap().gid(),
            getegid().as_raw()
        );
    }

    #[test]
    fn a_group_that_does_not_exist_is_named() {
        let refused = Gate::new(Some("no-such-group")).unwrap_err();
        assert_eq!(refused.text, "[api] group \"no-such-group\" does not exist");
    }
}
