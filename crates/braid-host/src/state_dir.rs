//! State that must outlive a reboot: the joined hub, the usage of the uplinks' quotas, what is paused, the uplinks' history, and the page's
//! login tokens.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::file;
use crate::seal::{SealError, SealKey};
use crate::secret_json;
use crate::user_error::UserError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Default path.
pub const DEFAULT: &str = "/var/lib/braid";

/// A directory readable by root alone, because it contains keys.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
    seal: Option<SealKey>,
}

/// A file of secrets that is sealed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SealedFile {
    /// Base64 of [`SealKey::seal`], under the file's name.
    sealed: String,
}

impl StateDir {
    /// The directory need not exist yet. Secrets in it are not sealed.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> StateDir {
        StateDir {
            path: path.into(),
            seal: None,
        }
    }

    /// Seals secrets by this key, if there is one.
    #[must_use]
    pub fn with_seal(self, seal: Option<SealKey>) -> StateDir {
        StateDir { seal, ..self }
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file of the joined hub; see `braid_daemon::bond`.
    #[must_use]
    pub fn bond(&self) -> PathBuf {
        self.path.join("bond.json")
    }

    /// Returns the file of the uplinks' usage; see `braid_daemon::uplinks::quota`.
    #[must_use]
    pub fn usage(&self) -> PathBuf {
        self.path.join("usage.json")
    }

    /// Returns the file of what somebody has paused; see `braid_daemon`'s pauses.
    #[must_use]
    pub fn pauses(&self) -> PathBuf {
        self.path.join("pauses.json")
    }

    /// Returns the directory of the uplinks' history; see `crate::history`.
    #[must_use]
    pub fn history(&self) -> PathBuf {
        self.path.join("history")
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
        let bytes = bytes_of(path)?;
        bytes.map(|bytes| parse(path, &bytes, fix)).transpose()
    }

    /// Replaces a file atomically and durably, readable by root alone.
    ///
    /// # Errors
    /// The system refused to write it.
    pub fn write(&self, path: &Path, contents: &impl Serialize) -> Result<(), UserError> {
        let json = serde_json::to_vec_pretty(contents);
        self.replace(path, &json.map_err(|error| unwritten(path, &error.into()))?)
    }

    /// Reads a file of secrets; `None` if it does not exist. One that is not sealed, although this machine seals its
    /// secrets, is sealed now.
    ///
    /// # Errors
    /// It cannot be read, opened or parsed; `fix` is the advice if it is invalid.
    pub fn read_secret<T: DeserializeOwned>(
        &self,
        path: &Path,
        fix: &str,
    ) -> Result<Option<T>, UserError> {
        let Some(bytes) = bytes_of(path)? else {
            return Ok(None);
        };
        let bytes = Zeroizing::new(bytes);
        if let Ok(file) = serde_json::from_slice::<SealedFile>(&bytes) {
            let plain = self.open(path, &file);
            let plain = plain.map_err(|error| refused(path, error))?;
            return parse(path, &plain, fix).map(Some);
        }
        let read = parse(path, &bytes, fix)?;
        if self.seal.is_some() {
            self.replace_secret(path, &bytes)?;
            tracing::info!(file = %path.display(), "sealed");
        }
        Ok(Some(read))
    }

    /// Replaces a file of secrets, sealed if this machine seals them; otherwise like [`StateDir::write`].
    ///
    /// # Errors
    /// The system refused to write it.
    pub fn write_secret(&self, path: &Path, contents: &impl Serialize) -> Result<(), UserError> {
        let json = secret_json::to_vec_pretty(contents);
        self.replace_secret(path, &json.map_err(|error| unwritten(path, &error.into()))?)
    }

    fn replace_secret(&self, path: &Path, json: &[u8]) -> Result<(), UserError> {
        let Some(seal) = &self.seal else {
            return self.replace(path, json);
        };
        let sealed = seal.seal(&name_of(path), json);
        let sealed = STANDARD.encode(sealed.map_err(|error| refused(path, error))?);
        self.write(path, &SealedFile { sealed })
    }

    fn open(&self, path: &Path, file: &SealedFile) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let seal = self.seal.as_ref().ok_or(SealError::Missing)?;
        let sealed = STANDARD.decode(&file.sealed);
        seal.open(&name_of(path), &sealed.map_err(|_| SealError::Forged)?)
    }

    fn replace(&self, path: &Path, contents: &[u8]) -> Result<(), UserError> {
        let mut make = DirBuilder::new();
        let made = make.recursive(true).mode(0o700).create(&self.path);
        made.and_then(|()| file::replace(path, contents, 0o600))
            .map_err(|error| unwritten(path, &error))
    }
}

fn unwritten(path: &Path, error: &io::Error) -> UserError {
    UserError::io(format!("write {}", path.display()), error)
}

fn bytes_of(path: &Path) -> Result<Option<Vec<u8>>, UserError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        bytes => bytes
            .map(Some)
            .map_err(|error| UserError::io(format!("read {}", path.display()), &error)),
    }
}

fn parse<T: DeserializeOwned>(path: &Path, json: &[u8], fix: &str) -> Result<T, UserError> {
    serde_json::from_slice(json)
        .map_err(|error| UserError::new("state", format!("{}: {error}", path.display())).fix(fix))
}

/// Name under which a file's contents are sealed.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Adds the file to the error of a seal.
fn refused(path: &Path, error: SealError) -> UserError {
    let failure = UserError::from(error);
    UserError {
        text: format!("{}: {}", path.display(), failure.text),
        ..failure
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::seal;

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

    fn sealing(state: &StateDir, byte: u8) -> StateDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(seal::CREDENTIAL), [byte; 32]).unwrap();
        let seal = SealKey::from_directory(folder.path()).unwrap();
        state.clone().with_seal(seal)
    }

    #[test]
    fn secrets_are_sealed_once_there_is_a_key_and_open_by_it_alone() {
        let folder = tempfile::tempdir().unwrap();
        let plain = StateDir::new(folder.path());
        let path = plain.bond();
        plain.write_secret(&path, &"a secret").unwrap();
        let on_disk = || fs::read_to_string(&path).unwrap();
        assert_eq!(on_disk(), r#""a secret""#);
        // From now on the machine seals its secrets.
        let sealed = sealing(&plain, 1);
        let read = |state: &StateDir| state.read_secret::<String>(&path, "braid leave");
        assert_eq!(read(&sealed).unwrap().unwrap(), "a secret");
        assert!(!on_disk().contains("secret"), "{}", on_disk());
        assert_eq!(read(&sealed).unwrap().unwrap(), "a secret");
        sealed.write_secret(&path, &"another secret").unwrap();
        assert!(!on_disk().contains("secret"), "{}", on_disk());
        assert_eq!(read(&sealed).unwrap().unwrap(), "another secret");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let missing = read(&plain).unwrap_err();
        assert_eq!(missing.code, "seal");
        assert!(
            missing
                .text
                .contains("bond.json: sealed, and there is no credential"),
            "{missing}"
        );
        let other = read(&sealing(&plain, 2)).unwrap_err();
        assert!(other.text.contains("by another credential"), "{other}");
        // A sealed file in another one's place.
        fs::copy(&path, plain.pauses()).unwrap();
        let moved = sealed
            .read_secret::<String>(&plain.pauses(), "")
            .unwrap_err();
        assert_eq!(moved.code, "seal");
    }
}
