//! Files that a crash never leaves half written.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Replaces a file atomically and durably: readers see the old or the new contents, also after a power cut. `mode` is
/// that of the new file, less the umask.
///
/// # Errors
/// The system refused; the old file is unchanged.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let fresh = fresh(path);
    let write = || {
        // A file left by a crash may have other permissions.
        remove(&fresh)?;
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&fresh)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
        match path.parent() {
            Some(folder) if folder != Path::new("") => File::open(folder)?.sync_all(),
            _ => Ok(()),
        }
    };
    write().inspect_err(|_| {
        // Half a file on a full disk is of no use.
        let _ = fs::remove_file(&fresh);
    })
}

/// Returns the path of the new contents until they replace the old ones.
#[must_use]
pub fn fresh(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".new");
    name.into()
}

/// Removes a file; a missing one is no error.
///
/// # Errors
/// The system refused.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn contents_are_replaced_as_a_whole_with_the_given_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(fresh(&path), "left by a crash").unwrap();
        replace(&path, b"one", 0o600).unwrap();
        replace(&path, b"two", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!fresh(&path).exists());
    }

    #[test]
    fn a_refused_replacement_leaves_the_old_contents_and_nothing_beside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), "kept").unwrap();
        replace(&path, b"new", 0o600).unwrap_err();
        assert!(path.join("inside").exists());
        assert!(!fresh(&path).exists());
    }
}
