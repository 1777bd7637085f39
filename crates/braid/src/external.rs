//! `braid lab` and `braid sdn` are programs of their own, as with git's subcommands.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use braid_host::program;
use braid_host::user_error::UserError;

/// Replaces this process by `braid-NAME`, with this environment besides its own. Returns only if that fails.
pub fn exec_program(
    name: &str,
    arguments: &[OsString],
    environment: &[(&str, &Path)],
) -> UserError {
    let wanted = format!("braid-{name}");
    let Some(path) = program::find(&wanted) else {
        let text = format!("braid {name}: there is no {wanted}");
        return UserError::new("no-program", text)
            .fix("run make build in the project (it fills .venv/bin), or add its folder to PATH");
    };
    let error = Command::new(&path)
        .args(arguments)
        .envs(environment.iter().copied())
        .exec();
    UserError::io(format!("run {}", path.display()), &error)
}
