//! The driver on real packets: a client and a hub in network namespaces, with two lines between them.
//! Needs root.

mod life;
#[path = "../../../braid-balance/tests/support/net.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod net;
mod packets;
mod world;

use std::process::Command;

/// Runs a command line; its failure is the test's.
fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let program = words.next().expect("a command");
    let output = Command::new(program).args(words).output().expect(program);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
