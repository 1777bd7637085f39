//! `braid lab` and `braid sdn` are programs of their own, as with git's subcommands.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use braid_host::user_error::UserError;

/// Replaces this process by `braid-NAME`, with this environment besides its own. Returns only if that fails.
pub fn exec_program(
    name: &str,
    arguments: &[OsString],
    environment: &[(&str, &Path)],
) -> UserError {
    let program = format!("braid-{name}");
    let Some(path) = find(&program) else {
        let text = format!("braid {name}: there is no {program}");
        return UserError::new("no-program", text)
            .fix("run make build in the project (it fills .venv/bin), or add its folder to PATH");
    };
    let error = Command::new(&path)
        .args(arguments)
        .envs(environment.iter().copied())
        .exec();
    UserError::io(format!("run {}", path.display()), &error)
}

/// Looks beside this program, in `.venv/bin` of a folder that contains this program or the working
/// directory, and on PATH.
fn find(program: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own
        .iter()
        .filter_map(|own| Some(own.parent()?.join(program)));
    let here = std::env::current_dir().ok();
    let above = own.iter().chain(&here).flat_map(|start| {
        start
            .ancestors()
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
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
