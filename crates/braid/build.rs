//! Passes the commit to the program if it is built from a repository, and tells the linker to write
//! a build id.

use std::env;
use std::process::Command;

fn main() {
    // The log of HEAD grows with every commit, switch and merge.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    if let Some(commit) = git(&["rev-parse", "HEAD"]) {
        println!("cargo::rustc-env=BRAID_COMMIT={commit}");
    }
    // Separate debug symbols are found by the build id, and not every linker writes one by default.
    let number = "--build-id=sha1";
    let bare = env::var("RUSTC_LINKER").is_ok_and(|linker| linker.ends_with("lld"));
    println!(
        "cargo::rustc-link-arg-bins={}{number}",
        if bare { "" } else { "-Wl," }
    );
}

/// Returns git's output, if there is a git and a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
