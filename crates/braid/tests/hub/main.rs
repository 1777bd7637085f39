//! The real `braid hub` on real packets: clients of `braid_bond::drive` behind two lines each, and an
//! internet that does not know the inner networks. Needs root.

mod attacked;
mod coming_in;
#[path = "../../../braid-balance/tests/support/net.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod net;
mod running;
mod staying_out;
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
