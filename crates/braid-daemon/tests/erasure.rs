//! Secrets of a client that were drawn, stored, loaded and dropped are not in the process's memory any more: its private
//! key, and the secret of its token with the pre-shared key that is made from it.

#[path = "../../braid-bond/tests/support/memory.rs"]
mod memory;

use std::path::Path;

use braid_bond::proto::handshake::{Identity, PublicKey};
use braid_bond::token::{Secret, Token};
use braid_daemon::bond::{Membership, parse_token};
use braid_host::state_dir::StateDir;
use zeroize::Zeroizing;

use memory::{Hidden, SECRET, expect_none, expect_search_to_find, seal};

fn token(secret: Hidden) -> Token {
    Token {
        hub: PublicKey([7; SECRET]),
        secret: Secret::new(secret.key()),
        addresses: vec!["hub.example.org".parse().expect("an address")],
    }
}

/// A client that joins, is accepted, and starts again; its secrets are known before.
fn live(state: &StateDir, [private, secret]: [Hidden; 2]) {
    // As a mail program folds it.
    let word = token(secret).text();
    let mut text = Zeroizing::new(String::with_capacity(2 * word.len()));
    for (at, digit) in word.char_indices() {
        text.push(digit);
        if at % 30 == 29 {
            text.push_str("\r\n");
        }
    }
    let read = parse_token(&text).expect("a token");
    let mut joined = Membership::new(read).expect("random bytes");
    joined.identity = Identity::new(private.key());
    joined.store(state).expect("room");
    drop(joined);

    let again = parse_token(&text).expect("a token");
    let mut joined = Membership::begin(state, again).expect("it is the same token");
    assert_eq!(
        joined.identity.public(),
        Identity::new(private.key()).public()
    );
    joined.accepted = true;
    joined.hub_key = PublicKey([8; SECRET]);
    joined.store(state).expect("room");
    drop(joined);

    let read = Membership::load(state)
        .expect("it is there")
        .expect("it is there");
    assert!(read.accepted && read.token == token(secret));
    // As the bond keeps it while it runs.
    let copy = read.clone();
    assert_eq!(copy.identity.public(), read.identity.public());
}

/// A client that draws its key; that key and its pre-shared key.
fn draw(state: &StateDir, secret: Hidden) -> [Hidden; 2] {
    let drawn = Membership::begin(state, token(secret)).expect("room");
    let psk = drawn.token.secret.psk();
    let hidden = [
        Hidden::of("drawn key", drawn.identity.private()),
        Hidden::of("psk", &psk.0),
    ];
    assert!(Membership::forget(state).expect("it can be removed"));
    hidden
}

fn live_and_draw(folder: &Path, [private, secret, credential]: [Hidden; 3]) -> Vec<Hidden> {
    let plain = StateDir::new(folder.join("plain"));
    live(&plain, [private, secret]);
    let sealed = || plain.clone().with_seal(Some(seal(folder, credential)));
    // The file is not sealed yet, and is from now on.
    let read = Membership::load(&sealed()).expect("it is there");
    assert!(read.is_some());
    live(&sealed(), [private, secret]);
    let other = StateDir::new(folder.join("other"));
    let drawn = [
        draw(&other, secret),
        draw(&other.with_seal(Some(seal(folder, credential))), secret),
    ];
    drawn
        .into_iter()
        .flatten()
        .chain([private, secret, credential])
        .collect()
}

#[test]
fn no_secret_is_left_in_memory() {
    let names = ["private key", "token", "credential"];
    let mut seeds = 1..;
    let secrets = names.map(|name| Hidden::new(name, seeds.next().expect("there are more")));
    let folder = tempfile::tempdir().expect("room");
    expect_search_to_find(&secrets);
    let all = live_and_draw(folder.path(), secrets);
    expect_none(&all);
}
