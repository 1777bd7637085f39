//! `braid hub rotate-key`: clients follow by themselves, and one that was away is told.

use std::process::Output;

use braid_bond::proto::handshake::PublicKey;
use braid_bond::proto::handshake::terms::current_key;
use braid_bond::proto::tunnel::Event;
use braid_hub::store::{Embedded, Store, StoredIdentity};
use serde_json::{Value, json};

use crate::world::{Client, World, error, wait_for};

fn status(world: &World) -> Value {
    world.json(&["status"])
}

fn public(text: &Value) -> PublicKey {
    let text = text.as_str().expect("a key");
    text.parse().expect("a key")
}

/// Waits for the key that the hub tells the client, and keeps it in the client.
fn follow(client: &Client<'_>) -> PublicKey {
    let key = client.until(|event| match event {
        Event::Established { options, .. } => current_key(options),
        _ => None,
    });
    client.set_hub(key);
    key
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", error(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn clients_follow_the_hub_to_another_key_also_over_its_restart() {
    let world = World::new();
    let hub = world.start_hub("");
    let client = world.join(0, &world.invite("attic", &[]), 1);
    client.until_in();
    assert!(client.reaches("203.0.113.1"));
    let old = status(&world)["key"].clone();
    assert_eq!(status(&world)["previous_key"], Value::Null);

    let said = succeeds(&world.braid(&["rotate-key", "--overlap", "100 h"]));
    assert!(
        said.contains("is valid for 4 days more; not followed yet: attic"),
        "{said}"
    );
    let new = status(&world)["key"].clone();
    assert_ne!(new, old);
    assert_eq!(status(&world)["previous_key"]["key"], old);
    // Its session goes on, and the hub forgets neither key when it is killed.
    assert!(client.reaches("203.0.113.1"));
    hub.kill();
    let hub = world.start_hub("");
    assert_eq!(status(&world)["key"], new);
    assert_eq!(status(&world)["previous_key"]["clients"], json!(["attic"]));
    assert!(client.reaches("203.0.113.1"));
    assert_eq!(follow(&client), public(&new));
    wait_for(
        || status(&world)["previous_key"]["clients"] == json!([]),
        || status(&world).to_string(),
    );
    assert_eq!(world.invite("cellar", &[]).hub, public(&new));
    assert_eq!(status(&world)["health"], json!([]));

    let twice = world.braid(&["rotate-key"]);
    assert_eq!(twice.status.code(), Some(1), "{}", error(&twice));
    assert!(error(&twice).contains("--end-overlap"), "{}", error(&twice));
    let ended = world.braid(&["rotate-key", "--end-overlap"]);
    assert_eq!(error(&ended), "", "nobody is shut out");
    assert!(succeeds(&ended).contains("previous    not valid any more"));
    assert_eq!(status(&world)["previous_key"], Value::Null);
    assert!(client.reaches("203.0.113.1"));
    hub.kill();
    let _hub = world.start_hub("");
    assert!(client.reaches("203.0.113.1"), "by the new key alone");
    assert_eq!(world.client("attic")["connected"], true);
    assert_eq!(status(&world)["handshakes"]["retired-key"], 0);
}

#[test]
fn a_client_that_was_away_all_the_time_is_told_and_so_is_the_operator() {
    let world = World::new();
    let _hub = world.start_hub("");
    let token = world.invite("attic", &["--valid", "200 h"]);
    let unused = world.invite("cellar", &["--valid", "200 h"]);
    let client = world.join(0, &token, 1);
    client.until_in();
    drop(client);
    let rotated = world.braid(&["rotate-key", "--overlap", "100 h"]);
    succeeds(&rotated);
    assert!(
        error(&rotated).contains("cellar: its token"),
        "{}",
        error(&rotated)
    );
    assert!(!error(&rotated).contains("attic"), "{}", error(&rotated));
    let ended = world.braid(&["rotate-key", "--end-overlap"]);
    succeeds(&ended);
    for name in ["attic", "cellar"] {
        let fix = format!("braid hub revoke {name}, and invite it again");
        assert!(error(&ended).contains(&fix), "{}", error(&ended));
    }
    let problems = status(&world)["health"].clone();
    assert_eq!(problems.as_array().map(Vec::len), Some(2), "{problems}");
    assert_eq!(problems[0]["code"], "key-missed");

    for (machine, token, key) in [(0, &token, 1), (1, &unused, 2)] {
        let client = world.join(machine, token, key);
        client.until(|event| match event {
            Event::KeyRetired => Some(()),
            Event::Established { .. } => panic!("by a key that is erased"),
            _ => None,
        });
    }
    assert!(status(&world)["handshakes"]["retired-key"].as_u64() >= Some(2));
    assert_eq!(status(&world)["handshakes"]["mac"], 0);
    // The fix that both ends name.
    for name in ["attic", "cellar"] {
        succeeds(&world.braid(&["revoke", name]));
    }
    let client = world.join(0, &world.invite("attic", &[]), 3);
    client.until_in();
    assert!(client.reaches("203.0.113.1"));
    assert_eq!(status(&world)["health"], json!([]));
}

/// A start with a clock far ahead erased the previous key for good, and shut out for ever who had not followed.
#[test]
fn a_key_whose_time_is_over_by_the_clock_is_kept_for_a_while() {
    let world = World::new();
    let hub = world.start_hub("");
    let old = public(&status(&world)["key"]);
    let token = world.invite("attic", &["--valid", "200 h"]);
    succeeds(&world.braid(&["rotate-key", "--overlap", "100 h"]));
    assert!(hub.end());
    // The same as a clock that is ahead: the overlap has ended long ago.
    let stored = |change: &dyn Fn(StoredIdentity) -> StoredIdentity| {
        let mut store = Embedded::open(&world.store(), None).expect("a store");
        let made_up = StoredIdentity::new([0; 32], [0; 5]);
        let identity = store.load_or_create(made_up).expect("a key");
        let identity = change(identity);
        store.put_identity(&identity).expect("room");
        let previous = identity.keys().previous;
        (
            previous.map(|key| key.public()),
            identity.previous.as_ref().map(|key| key.until),
        )
    };
    let set_end = |until| {
        stored(&|mut identity| {
            identity.previous.as_mut().expect("an overlap").until = until;
            identity
        })
    };
    let (_, until) = stored(&|identity| identity);
    set_end(1_000);
    let hub = world.start_hub("");
    assert_eq!(status(&world)["previous_key"], Value::Null);
    let client = world.join(0, &token, 1);
    client.until(|event| matches!(event, Event::KeyRetired).then_some(()));
    drop(client);
    let problems = status(&world)["health"].clone();
    assert_eq!(problems[0]["code"], "key-missed", "{problems}");
    let fix = problems[0]["fix"].as_str().expect("text");
    assert!(fix.contains("clock is wrong, set it within 1"), "{fix}");
    let again = world.braid(&["rotate-key"]);
    assert!(error(&again).contains("is kept for 1"), "{}", error(&again));
    assert!(hub.end());
    assert_eq!(stored(&|identity| identity), (Some(old), Some(1_000)));

    // The clock is right at the next start.
    set_end(until.expect("an overlap"));
    let hub = world.start_hub("");
    assert_eq!(public(&status(&world)["previous_key"]["key"]), old);
    let client = world.join(0, &token, 1);
    client.until_in();
    drop(client);
    assert!(hub.end());

    // The operator need not wait.
    set_end(1_000);
    let hub = world.start_hub("");
    succeeds(&world.braid(&["rotate-key", "--end-overlap"]));
    assert!(hub.end());
    assert_eq!(stored(&|identity| identity), (None, None));
}

#[test]
fn an_overlap_in_which_nobody_could_follow_is_refused() {
    let world = World::new();
    let _hub = world.start_hub("");
    let key = status(&world)["key"].clone();
    for overlap in ["0 s", "59 min", "8785 h"] {
        let refused = world.braid(&["rotate-key", "--overlap", overlap]);
        assert_eq!(refused.status.code(), Some(2), "{}", error(&refused));
        assert!(
            error(&refused).contains("1 h to 366 days"),
            "{}",
            error(&refused)
        );
    }
    let none = world.braid(&["rotate-key", "--end-overlap"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(error(&none).contains("one key only"), "{}", error(&none));
    assert_eq!(status(&world)["key"], key);
}
