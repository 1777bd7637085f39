//! Paths of the pins in the BPF file system, and their removal.
//!
//! ```text
//! <pin_dir>/datapath/maps/<map>
//!                    programs/<program>
//!                    links/<program>-<ifindex>        TCX only
//! <pin_dir>/datapath-next/…                            being built; left over only after a crash
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::Error;

/// One set of pins. A bpffs refuses names with dots.
#[derive(Clone, Debug)]
pub(crate) struct Pins(PathBuf);

impl Pins {
    /// The set in use.
    pub(crate) fn current(pin_dir: &Path) -> Self {
        Self(pin_dir.join("datapath"))
    }

    /// The set being built.
    pub(crate) fn next(pin_dir: &Path) -> Self {
        Self(pin_dir.join("datapath-next"))
    }

    pub(crate) fn exist(&self) -> bool {
        self.0.is_dir()
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.0.join("maps").join(name)
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.0.join("programs").join(name)
    }

    pub(crate) fn links(&self) -> PathBuf {
        self.0.join("links")
    }

    /// Makes the empty directories.
    pub(crate) fn create(&self) -> Result<(), Error> {
        for room in ["maps", "programs", "links"] {
            let path = self.0.join(room);
            fs::create_dir_all(&path).map_err(|source| system(&path, source))?;
        }
        Ok(())
    }

    /// Moves this set to where `to` is, which must not exist.
    pub(crate) fn rename(&self, to: &Self) -> Result<(), Error> {
        fs::rename(&self.0, &to.0).map_err(|source| system(&to.0, source))
    }

    /// Unpins everything; returns the number of (links, programs, maps).
    pub(crate) fn remove(&self) -> Result<[usize; 3], Error> {
        let mut counts = [0; 3];
        for (room, count) in ["links", "programs", "maps"].into_iter().zip(&mut counts) {
            let path = self.0.join(room);
            *count = names(&path)?.len();
            remove_tree(&path)?;
        }
        remove_tree(&self.0)?;
        Ok(counts)
    }
}

/// Names in a directory, sorted; none if it does not exist.
pub(crate) fn names(directory: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(system(directory, error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| system(directory, source))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Removes a file that may be gone already.
pub(crate) fn remove_file(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(system(path, error)),
        _ => Ok(()),
    }
}

/// Makes `pin_dir` and makes sure that it is inside a bpffs.
pub(crate) fn prepare(pin_dir: &Path) -> Result<(), Error> {
    fs::create_dir_all(pin_dir).map_err(|source| system(pin_dir, source))?;
    let stat = statfs(pin_dir).map_err(|source| system(pin_dir, source.into()))?;
    if stat.filesystem_type() == BPF_FS_MAGIC {
        return Ok(());
    }
    Err(Error::NotBpffs {
        path: pin_dir.to_owned(),
    })
}

pub(crate) fn system(path: &Path, source: io::Error) -> Error {
    Error::system(path.display().to_string(), source)
}

fn remove_tree(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(system(path, error)),
        _ => Ok(()),
    }
}
