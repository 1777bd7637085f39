//! Network namespaces by name.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::sched::{CloneFlags, setns};

use super::DriveError;

/// Runs `work` in the named namespace (the caller's, if none), on a thread of its own: a namespace
/// belongs to a thread, and this one ends with the work.
pub(super) fn within<T: Send>(
    name: Option<&str>,
    work: impl FnOnce() -> Result<T, DriveError> + Send,
) -> Result<T, DriveError> {
    let Some(name) = name else { return work() };
    let refuse = |source| DriveError::Namespace {
        name: name.to_owned(),
        source,
    };
    let namespace =
        File::open(Path::new("/run/netns").join(name)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DriveError::NoNamespace {
                name: name.to_owned(),
            },
            _ => refuse(error),
        })?;
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| refuse(errno.into()))?;
            work()
        });
        match inside.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
