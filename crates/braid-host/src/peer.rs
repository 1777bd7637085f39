//! Access control of the local API.
//!
//! The socket's mode already restricts access. The peer's credentials are checked as well, because a
//! socket's mode is easily changed, and a mistake there must not give away control of the network.
//!
//! Two groups may be configured: one whose members may read (GET), and one whose members may also make
//! changes.

use std::fs::{self, Permissions};
use std::io;
use std::mem;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use nix::unistd::{Gid, Group, Uid, User, getegid, geteuid, getgrouplist};
use tokio::net::UnixStream;

use crate::config::ApiConfig;
use crate::user_error::UserError;

/// Credentials of the peer of a connection; `None` if the kernel does not report them.
#[derive(Clone, Copy, Debug)]
pub struct Peer(Option<(Uid, Gid)>);

impl Peer {
    /// Returns the peer of a connection.
    pub(crate) fn of(stream: &UnixStream) -> Peer {
        let credentials = stream.peer_cred().ok();
        Peer(credentials.map(|cred| (Uid::from_raw(cred.uid()), Gid::from_raw(cred.gid()))))
    }

    /// Returns its user id.
    pub(crate) fn uid(self) -> Option<u32> {
        self.0.map(|(uid, _)| uid.as_raw())
    }
}

/// Kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Change something, or stop the daemon.
    Change,
}

/// Groups whose members may use the API.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// Its members may read.
    read: Option<Group>,
    /// Its members may read and change.
    change: Option<Group>,
}

impl Groups {
    /// Looks up the groups of a configuration.
    ///
    /// # Errors
    /// There is no such group.
    pub fn find(config: &ApiConfig) -> Result<Groups, UserError> {
        Ok(Groups {
            read: find_group("group", config.group.as_deref())?,
            change: find_group("change_group", config.change_group.as_deref())?,
        })
    }

    /// Returns the group and mode of the socket. A socket has one group: with two configured groups
    /// everybody may connect, and the peer's credentials decide.
    fn socket(&self) -> (Gid, u32) {
        match (&self.read, &self.change) {
            (None, None) => (getegid(), 0o660),
            (Some(read), Some(change)) if read.gid != change.gid => (read.gid, 0o666),
            (Some(group), _) | (None, Some(group)) => (group.gid, 0o660),
        }
    }

    fn of(&self, access: Access) -> impl Iterator<Item = &Group> {
        let read = self.read.as_ref().filter(|_| access == Access::Read);
        self.change.iter().chain(read)
    }
}

/// Decides who may use the API: root, the daemon's own user, and the members of its groups. Clones
/// share their groups.
#[derive(Clone, Debug)]
pub struct PeerAuth {
    owner: Uid,
    groups: Arc<RwLock<Groups>>,
}

impl PeerAuth {
    /// Creates the access control for a configuration.
    ///
    /// # Errors
    /// There is no such group.
    pub fn new(config: &ApiConfig) -> Result<PeerAuth, UserError> {
        Ok(PeerAuth {
            owner: geteuid(),
            groups: Arc::new(RwLock::new(Groups::find(config)?)),
        })
    }

    /// Returns the group and mode that the socket must have.
    pub(crate) fn socket(&self) -> (Gid, u32) {
        self.groups().socket()
    }

    /// Gives the socket of a running daemon the group and mode of a new configuration.
    fn apply_to(&self, socket: &Path) -> io::Result<()> {
        let (group, mode) = self.socket();
        chown(socket, None, Some(group.as_raw()))?;
        fs::set_permissions(socket, Permissions::from_mode(mode))
    }

    /// Replaces the groups.
    ///
    /// # Errors
    /// The socket's group cannot be changed; then nothing has changed.
    pub fn set_groups(&self, groups: Groups, socket: &Path) -> Result<(), UserError> {
        let before = mem::replace(
            &mut *self.groups.write().unwrap_or_else(PoisonError::into_inner),
            groups,
        );
        self.apply_to(socket).map_err(|error| {
            *self.groups.write().unwrap_or_else(PoisonError::into_inner) = before;
            UserError::io(format!("socket {}", socket.display()), &error)
        })
    }

    fn groups(&self) -> Groups {
        self.groups
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns true if a peer is root or the daemon's own user.
    pub(crate) fn is_own(&self, peer: Peer) -> bool {
        peer.0
            .is_some_and(|(uid, _)| uid.is_root() || uid == self.owner)
    }

    /// Checks a peer's access.
    ///
    /// # Errors
    /// The peer may not use the API.
    pub fn admit(&self, peer: Peer, access: Access) -> Result<(), UserError> {
        let Some((uid, gid)) = peer.0 else {
            return Err(UserError::new(
                "forbidden",
                "the kernel does not say who is asking",
            ));
        };
        let groups = self.groups();
        if self.is_own(peer) || groups.of(access).any(|g| is_member(uid, gid, g)) {
            return Ok(());
        }
        let (what, key) = match access {
            Access::Read => ("use", "group"),
            Access::Change => ("change anything by", "change_group"),
        };
        let failure = UserError::new("forbidden", format!("user {uid} may not {what} this API"));
        Err(match groups.of(access).last() {
            Some(group) => failure.fix(format!("add the user to group {}", group.name)),
            None => failure.fix(format!(
                "use sudo, or name a {key} in [api] of the configuration"
            )),
        })
    }
}

/// Returns true if a user is in a group, by the process' own group or by the user database (the kernel
/// reports only a peer's first group).
fn is_member(uid: Uid, gid: Gid, group: &Group) -> bool {
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

fn find_group(key: &str, name: Option<&str>) -> Result<Option<Group>, UserError> {
    let Some(name) = name else { return Ok(None) };
    let found = Group::from_name(name).map_err(|errno| {
        UserError::io(
            format!("look up group {name:?}"),
            &std::io::Error::from(errno),
        )
    })?;
    let found = found.ok_or_else(|| {
        let failure = UserError::new("no-group", format!("[api] {key} {name:?} does not exist"));
        failure.fix(format!("groupadd --system {name}, or name another group"))
    });
    found.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const OWNER: u32 = 1234;
    const READERS: u32 = 70_001;
    const CHANGERS: u32 = 70_002;

    fn peer(uid: u32, gid: u32) -> Peer {
        Peer(Some((Uid::from_raw(uid), Gid::from_raw(gid))))
    }

    /// Groups that no machine needs to have, by their ids.
    fn groups(read: Option<u32>, change: Option<u32>) -> Groups {
        let group = |gid: u32| Group {
            name: format!("group{gid}"),
            passwd: std::ffi::CString::default(),
            gid: Gid::from_raw(gid),
            mem: Vec::new(),
        };
        Groups {
            read: read.map(group),
            change: change.map(group),
        }
    }

    fn auth(read: Option<u32>, change: Option<u32>) -> PeerAuth {
        PeerAuth {
            owner: Uid::from_raw(OWNER),
            groups: Arc::new(RwLock::new(groups(read, change))),
        }
    }

    #[test]
    fn a_group_that_may_look_may_not_change_anything() {
        let both = auth(Some(READERS), Some(CHANGERS));
        for access in [Access::Read, Access::Change] {
            both.admit(peer(0, 0), access).unwrap();
            both.admit(peer(OWNER, 1), access).unwrap();
            both.admit(peer(99_999, CHANGERS), access).unwrap();
            assert!(both.admit(peer(99_999, 99_999), access).is_err());
            assert!(both.admit(Peer(None), access).is_err());
        }
        let reader = peer(99_999, READERS);
        both.admit(reader, Access::Read).unwrap();
        let refused = both.admit(reader, Access::Change).unwrap_err();
        assert_eq!(refused.code, "forbidden");
        assert_eq!(
            refused.text,
            "user 99999 may not change anything by this API"
        );
        assert_eq!(
            refused.fix.as_deref(),
            Some("add the user to group group70002")
        );
        let refused = auth(Some(READERS), None)
            .admit(reader, Access::Change)
            .unwrap_err();
        let fix = "use sudo, or name a change_group in [api] of the configuration";
        assert_eq!(refused.fix.as_deref(), Some(fix));
    }

    #[test]
    fn other_groups_take_the_place_of_those_before() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        std::fs::write(&socket, "").unwrap();
        let shown = || {
            let status = std::fs::metadata(&socket).unwrap();
            (status.gid(), status.mode() & 0o777)
        };
        let auth = auth(Some(READERS), None);
        let everywhere = auth.clone();
        let read = Access::Read;
        auth.set_groups(groups(Some(CHANGERS), None), &socket)
            .unwrap();
        everywhere.admit(peer(99_999, CHANGERS), read).unwrap();
        assert!(everywhere.admit(peer(99_999, READERS), read).is_err());
        assert_eq!(shown(), (CHANGERS, 0o660));
        let nowhere = folder.path().join("nowhere");
        assert!(auth.set_groups(groups(None, None), &nowhere).is_err());
        everywhere.admit(peer(99_999, CHANGERS), read).unwrap();
        auth.set_groups(groups(Some(READERS), Some(CHANGERS)), &socket)
            .unwrap();
        assert_eq!(shown(), (READERS, 0o666), "the kernel says who it is");
        auth.set_groups(groups(None, Some(CHANGERS)), &socket)
            .unwrap();
        assert_eq!(shown(), (CHANGERS, 0o660));
        auth.set_groups(groups(None, None), &socket).unwrap();
        assert!(everywhere.admit(peer(99_999, CHANGERS), read).is_err());
        assert_eq!(shown(), (getegid().as_raw(), 0o660));
    }

    #[test]
    fn a_group_is_found_by_its_name_and_one_that_does_not_exist_is_named() {
        let named = |group: Option<&str>, change: Option<&str>| {
            Groups::find(&ApiConfig {
                group: group.map(str::to_owned),
                change_group: change.map(str::to_owned),
            })
        };
        let ours = Group::from_gid(getegid())
            .unwrap()
            .expect("our own group has a name");
        let found = named(Some(&ours.name), None).unwrap();
        assert_eq!(found.read, Some(ours));
        assert_eq!(found.change, None);
        let refused = named(Some("no-such-group"), None).unwrap_err();
        assert_eq!(refused.text, "[api] group \"no-such-group\" does not exist");
        let refused = named(None, Some("no-such-group")).unwrap_err();
        assert_eq!(
            refused.text,
            "[api] change_group \"no-such-group\" does not exist"
        );
    }
}
