//! State that must outlive a reboot: the joined hub, the usage of the uplinks' quotas, what is paused, the uplinks' history, and the page's
//! login tokens.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::file;
use crate::user_error::UserError;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Default path.
pub const DEFAULT: &str = "/var/lib/braid";

/// A directory readable by root alone, because it contains keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// The directory need not exist yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> StateDir {
        StateDir(path.into())
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the file of the joined hub; see `braid_daemon::bond`.
    #[must_use]
    pub fn bond(&self) -> PathBuf {
        self.0.join("bond.json")
    }

    /// Returns the file of the uplinks' usage; see `braid_daemon::uplinks::quota`.
    #[must_use]
    pub fn usage(&self) -> PathBuf {
        self.0.join("usage.json")
    }

    /// Returns the file of what somebody has paused; see `braid_daemon`'s pauses.
    #[must_use]
    pub fn pauses(&self) -> PathBuf {
        self.0.join("pauses.json")
    }

    /// Returns the directory of the uplinks' history; see `crate::history`.
    #[must_use]
    pub fn history(&self) -> PathBuf {
        self.0.join("history")
    }

    /// Reads a file; `None` if it does not exist.
    ///
    /// # Errors
    /// It cannot be read or is invalid; `fix` is the advice in the error.
    pub fn read<T: DeserializeOwned>(
        &self,
        path: &Path,
        fix: &str,
    ) -> Result<Option<T>, UserError> {
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => {
                bytes.map_err(|error| UserError::io(format!("read {}", path.display()), &error))?
            }
        };
        let read = serde_json::from_slice(&bytes);
        read.map(Some).map_err(|error| {
            UserError::new("state", format!("{}: {error}", path.display())).fix(fix)
        })
    }

    /// Replaces a file atomically and durably, readable by root alone.
    ///
    /// # Errors
    /// The system refused to write it.
    pub fn write(&self, path: &Path, contents: &impl Serialize) -> Result<(), UserError> {
        let write = || {
            let mut make = DirBuilder::new();
            make.recursive(true).mode(0o700).create(&self.0)?;
            file::replace(path, &serde_json::to_vec_pretty(contents)?, 0o600)
        };
        write().map_err(|error| UserError::io(format!("write {}", path.display()), &error))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_written_is_for_root_alone_and_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::new(folder.path().join("deep/down"));
        assert_eq!(state.read::<u32>(&state.bond(), "").unwrap(), None);
        fs::create_dir_all(state.path()).unwrap();
        fs::write(file::fresh(&state.bond()), "left by a crash").unwrap();
        state.write(&state.bond(), &7).unwrap();
        assert_eq!(state.read(&state.bond(), "").unwrap(), Some(7));
        let mode = fs::metadata(state.bond()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(state.bond(), "{").unwrap();
        let broken = state.read::<u32>(&state.bond(), "braid leave").unwrap_err();
        assert_eq!(broken.fix.as_deref(), Some("braid leave"));
    }
}
