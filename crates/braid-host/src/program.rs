//! Programs that are installed beside Braid's own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Looks for a program beside this one, in `.venv/bin` of a folder that contains this program, and on PATH. It does not look
/// near the working directory: root may stand in a folder that is somebody else's.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own
        .iter()
        .filter_map(|own| Some(own.parent()?.join(program)));
    let above = own.iter().flat_map(|own| {
        own.ancestors()
            .map(|folder| folder.join(".venv/bin").join(program))
    });
    let path = std::env::var_os("PATH").unwrap_or_default();
    let listed: Vec<PathBuf> = std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .collect();
    beside
        .chain(above)
        .chain(listed)
        .find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
