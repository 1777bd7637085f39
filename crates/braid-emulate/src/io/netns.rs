//! Network namespaces by name.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::sched::{CloneFlags, setns};

use super::EmulatorError;

/// Runs `work` in the named namespace (the caller's, if none) on a new thread: a namespace belongs
/// to a thread, and this one ends with the work.
pub(super) fn within<T: Send>(
    name: Option<&str>,
    work: impl FnOnce() -> Result<T, EmulatorError> + Send,
) -> Result<T, EmulatorError> {
    let Some(name) = name else { return work() };
    let refuse = |source| EmulatorError::Namespace {
        name: name.to_owned(),
        source,
    };
    let namespace =
        File::open(Path::new("/run/netns").join(name)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => EmulatorError::NoNamespace {
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
