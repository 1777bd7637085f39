//! Files and sockets that are made with their mode, so that nobody opens them before it is set.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;

use super::check;

/// Returns what `make` returns. The files and directories that it makes lack the mode's bits in `umask`, whatever
/// the process' own umask is: it runs on a thread that shares none with the others.
///
/// # Errors
/// Those of `make`, or the kernel's.
///
/// # Panics
/// If `make` does.
pub fn with_umask<T: Send>(
    umask: u32,
    make: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let made = || {
        // SAFETY: it takes a plain integer only, and concerns this thread alone.
        check(unsafe { libc::unshare(libc::CLONE_FS) })?;
        // SAFETY: it takes a plain integer only, and does not fail.
        unsafe { libc::umask(umask) };
        make()
    };
    thread::scope(|scope| scope.spawn(made).join().expect("no panic"))
}

/// Listens at a new Unix socket that has this mode from the first moment.
///
/// # Errors
/// The system's error.
pub fn bind_with_mode(path: &Path, mode: u32) -> io::Result<UnixListener> {
    with_umask(0o777 & !mode, || UnixListener::bind(path))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

    use super::*;

    #[test]
    fn modes_do_not_depend_on_the_process_umask_and_leave_it_alone() {
        let folder = std::env::temp_dir().join(format!("braid-file-mode-{}", std::process::id()));
        let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        // The umask of the process, as it shows in a file of its own.
        let ours = || {
            let path = folder.join("ours");
            fs::write(&path, "").unwrap();
            let mode = mode_of(&path);
            fs::remove_file(&path).unwrap();
            mode
        };
        let make = || fs::DirBuilder::new().mode(0o777).create(&folder);
        with_umask(0o022, make).unwrap();
        assert_eq!(mode_of(&folder), 0o755);
        let before = ours();
        for mode in [0o600, 0o660, 0o666] {
            let path = folder.join(format!("{mode:o}"));
            let _listener = bind_with_mode(&path, mode).unwrap();
            assert_eq!(mode_of(&path), mode);
        }
        assert_eq!(ours(), before);
        fs::remove_dir_all(&folder).unwrap();
    }
}
