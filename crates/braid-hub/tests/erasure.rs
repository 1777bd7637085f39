//! Secrets of a hub that were loaded, replaced, stored and dropped are not in the process's memory any more.
//!
//! The store is sealed here: of one that is not, its engine keeps records in memory.

#[path = "../../braid-bond/tests/support/memory.rs"]
mod memory;

use std::path::Path;

use braid_bond::proto::handshake::{EpochKey, EpochKeys, Psk};
use braid_bond::token::Secret;
use braid_host::quota::Used;
use braid_hub::client::{Client, State};
use braid_hub::store::{Embedded, Store, StoredIdentity};

use memory::{Hidden, SECRET, expect_none, expect_search_to_find, seal};

fn client(psk: Hidden) -> Client {
    Client {
        id: 1,
        name: "attic".parse().expect("a name"),
        invitation: Secret::new([0; SECRET]).id(),
        psk: Psk::new(psk.key()),
        addresses: Vec::new(),
        cap: None,
        created: 1,
        state: State::Invited { until: 2 },
        seen: None,
        received: 0,
        sent: 0,
        used: Used::default(),
        hub_key: None,
    }
}

/// The life of a hub's secrets, over two runs.
fn live(folder: &Path, [first, second, epoch, psk, credential]: [Hidden; 5]) {
    let path = folder.join("hub.redb");
    let open = || Embedded::open(&path, Some(seal(folder, credential))).expect("a store");
    let mut store = open();
    let new = StoredIdentity::new(first.key(), [0; 5]);
    let identity = store.load_or_create(new).expect("room");
    let epochs = EpochKeys::new(EpochKey::new(epoch.key()), store.epochs().expect("none"));
    store.put_epochs(&epochs).expect("room");
    store.put(&[&client(psk)], &[]).expect("room");
    let rotated = identity.rotated(second.key(), 10, 20);
    store.put_identity(&rotated).expect("room");
    let keys = rotated.keys_at(15);
    drop((store, identity, rotated, epochs));

    let mut store = open();
    let identity = store.load_or_create(StoredIdentity::new([0; SECRET], [0; 5]));
    let identity = identity.expect("it is there");
    assert_eq!(identity.keys().current.public(), keys.current.public());
    let read = (store.epochs().expect("one"), store.load().expect("one"));
    assert_eq!((read.0.len(), read.1.len()), (1, 1));
    store.put_identity(&identity.retired()).expect("room");
}

#[test]
fn no_secret_is_left_in_memory() {
    let names = ["first key", "second key", "epoch", "psk", "credential"];
    let mut seeds = 1..;
    let secrets = names.map(|name| Hidden::new(name, seeds.next().expect("there are more")));
    let folder = tempfile::tempdir().expect("room");
    expect_search_to_find(&secrets);
    live(folder.path(), secrets);
    expect_none(&secrets);
}
