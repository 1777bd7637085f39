//! A hub whose disk is full for a while.

use std::process::Command;

use braid_bond::proto::frame::Reason;
use braid_bond::proto::handshake::terms::Refusal;
use braid_bond::proto::tunnel::Event;

use crate::world::{HUB, Hub, World, error};

/// Part of a file that a hub can write on a full disk: its log fits, and the store's records are behind it.
const FULL: &str = "8192";

/// Has a hub's writes beyond this size of a file fail.
fn limit_files(hub: &Hub, bytes: &str) {
    let limited = Command::new("prlimit")
        .arg(format!("--pid={}", hub.pid()))
        .arg(format!("--fsize={bytes}:"))
        .status()
        .expect("prlimit is of util-linux");
    assert!(limited.success());
}

/// A failed write ended the store until the next start, and kept who was revoked in.
#[test]
fn who_is_revoked_while_the_disk_is_full_is_out_and_stays_out() {
    let world = World::new();
    let hub = world.start_hub("");
    let client = world.join(0, &world.invite("attic", &[]), 1);
    client.until_in();
    let rotated = world.braid(&["rotate-key", "--overlap", "2 h"]);
    assert!(rotated.status.success(), "{}", error(&rotated));

    limit_files(&hub, FULL);
    let invited = world.braid(&["invite", "barn", "--address", HUB]);
    assert_eq!(invited.status.code(), Some(1), "{}", error(&invited));
    let revoked = world.braid(&["revoke", "attic"]);
    let told = error(&revoked);
    assert!(revoked.status.success(), "{told}");
    assert!(
        told.contains("it is out now, but that is not on disk yet"),
        "{told}"
    );
    client.until(|event| (*event == Event::Closed(Reason::Revoked)).then_some(()));
    assert_eq!(client.until_refused(), Refusal::Revoked);
    let ended = world.braid(&["rotate-key", "--end-overlap"]);
    let told = error(&ended);
    assert!(ended.status.success(), "{told}");
    assert!(told.contains("not yet erased from the disk"), "{told}");
    let health = world.json(&["status"])["health"].to_string();
    assert!(health.contains("the store cannot be written"), "{health}");

    // There is room again; the hub goes on without a restart.
    limit_files(&hub, "unlimited");
    world.invite("barn", &[]);
    let health = world.json(&["status"])["health"].to_string();
    assert!(!health.contains("the store cannot be written"), "{health}");
    hub.kill();
    let _hub = world.start_hub("");
    assert_eq!(world.client("attic")["state"], "revoked");
    assert!(world.json(&["status"])["previous_key"].is_null());
    assert_eq!(world.client("barn")["state"], "invited");
}
