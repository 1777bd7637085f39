//! A hub whose secrets are sealed by a credential of the service manager.

use std::fs;

use braid_host::seal::CREDENTIAL;

use crate::world::{Hub, World, error};

/// Gives the hub this credential from its next start on.
fn give(world: &World, credential: &[u8]) {
    fs::create_dir_all(world.credentials()).expect("room");
    fs::write(world.credentials().join(CREDENTIAL), credential).expect("room");
}

/// Returns true if the store shows these bytes anywhere.
fn shows(world: &World, part: &str) -> bool {
    let store = fs::read(world.store()).expect("a store");
    store
        .windows(part.len())
        .any(|window| window == part.as_bytes())
}

/// Starts a hub that cannot run, and returns its log.
fn refused(world: &World) -> String {
    let hub = world.try_start_hub("");
    let log = hub.log.clone();
    assert!(!hub.wait(), "it runs");
    fs::read_to_string(log).expect("a log")
}

#[test]
fn a_sealed_hub_does_its_work_and_a_thief_of_its_disk_cannot_start_it() {
    let world = World::new();
    give(&world, &[1; 32]);
    let hub = world.start_hub("");
    let client = world.join(0, &world.invite("attic", &[]), 1);
    client.until_in();
    let status = world.json(&["status"]);
    assert_eq!(status["is_sealed"], true);
    // The key is replaced, and kept over a crash.
    let rotated = world.braid(&["rotate-key", "--overlap", "2 h"]);
    assert!(rotated.status.success(), "{}", error(&rotated));
    let key = world.json(&["status"])["key"].clone();
    assert_ne!(key, status["key"]);
    hub.kill();
    assert!(!shows(&world, "attic") && !shows(&world, "private"));

    fs::remove_dir_all(world.credentials()).expect("it is there");
    let told = refused(&world);
    assert!(
        told.contains("sealed, and there is no credential braid.seal"),
        "{told}"
    );
    give(&world, &[1; 31]);
    let told = refused(&world);
    assert!(told.contains("has 31 bytes, and 32 are needed"), "{told}");
    give(&world, &[2; 32]);
    let told = refused(&world);
    assert!(told.contains("by another credential braid.seal"), "{told}");

    give(&world, &[1; 32]);
    let _hub = world.start_hub("");
    assert_eq!(world.json(&["status"])["key"], key);
    assert!(client.reaches("203.0.113.1"));
}

#[test]
fn a_hub_is_sealed_when_it_gets_a_credential() {
    let world = World::new();
    let hub: Hub = world.start_hub("");
    let client = world.join(0, &world.invite("attic", &[]), 1);
    client.until_in();
    let status = world.json(&["status"]);
    assert_eq!(status["is_sealed"], false);
    assert!(hub.end());
    assert!(shows(&world, "attic"));
    give(&world, &[1; 32]);
    let hub = world.start_hub("");
    assert_eq!(world.json(&["status"])["key"], status["key"]);
    assert_eq!(world.json(&["status"])["is_sealed"], true);
    assert!(client.reaches("203.0.113.1"));
    assert!(hub.end());
    fs::remove_dir_all(world.credentials()).expect("it is there");
    assert!(refused(&world).contains("sealed"));
}
