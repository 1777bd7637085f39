//! A client with a token is admitted, and gets what it is entitled to.

use std::net::SocketAddr;

use braid_bond::proto::frame::Reason;
use braid_bond::proto::handshake::terms::Refusal;
use braid_bond::proto::tunnel::Event;
use braid_bond::token::Token;

use crate::net::{Client as Connection, serve};
use crate::world::{INTERNET, OUTSIDE, World, error, own, wait_for};

#[test]
fn a_token_is_all_it_takes_to_reach_the_internet() {
    let world = World::new();
    let _hub = world.start_hub("");
    let token = world.invite("attic", &[]);
    assert_eq!(world.client("attic")["state"], "invited");
    let client = world.join(0, &token, 1);
    let terms = client.until_in();
    assert_eq!(terms.name.as_deref(), Some("attic"));
    assert_eq!(own(&terms, true).to_string(), "10.73.0.2");
    for address in &terms.hub {
        assert!(client.reaches(&address.to_string()), "{address}");
    }
    for (server, outside) in INTERNET.into_iter().zip(OUTSIDE) {
        assert!(client.reaches(server), "{server}");
        // The internet has no route to the inner networks: it sees the hub's address.
        let server = SocketAddr::new(server.parse().unwrap(), 7);
        serve(&world.internet, server.ip(), server.port());
        let seen = client.namespace().enter(|| {
            let mut connection = Connection::connect(server);
            connection.echo(&vec![7; 300_000]);
            connection.seen
        });
        assert_eq!(seen.ip().to_string(), outside);
    }
    let shown = world.client("attic");
    assert_eq!(
        (shown["state"].as_str(), shown["connected"].as_bool()),
        (Some("joined"), Some(true))
    );
    let used = shown["links"].as_array().unwrap().iter();
    assert_eq!(used.filter(|link| link["in_use"] == true).count(), 2);
}

#[test]
fn another_machine_with_the_token_is_refused_and_the_first_may_come_again() {
    let world = World::new();
    let _hub = world.start_hub("");
    let token = world.invite("attic", &[]);
    let first = world.join(0, &token, 1);
    let terms = first.until_in();
    let second = world.join(1, &token, 2);
    assert_eq!(second.until_refused(), Refusal::Used);
    drop(second);
    // Both ends say so.
    let status = world.braid(&["status"]);
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    assert_eq!(status.status.code(), Some(4), "{said}");
    assert!(
        said.contains("attic: another machine came with its token"),
        "{said}"
    );
    assert!(first.reaches("10.73.0.1"));
    // The first client has restarted, with nothing but its token and key.
    drop(first);
    let again = world.join(0, &token, 1);
    assert_eq!(again.until_in(), terms);
    assert!(again.reaches("10.73.0.1"));
}

#[test]
fn a_revoked_client_is_out_at_once_and_told_why() {
    let world = World::new();
    let _hub = world.start_hub("");
    let token = world.invite("attic", &[]);
    let client = world.join(0, &token, 1);
    client.until_in();
    assert!(client.reaches("10.73.0.1"));
    let revoked = world.braid(&["revoke", "attic"]);
    assert!(revoked.status.success(), "{}", error(&revoked));
    client.until(|event| (*event == Event::Closed(Reason::Revoked)).then_some(()));
    assert_eq!(client.until_refused(), Refusal::Revoked);
    assert!(client.does_not_reach("10.73.0.1"));
    assert_eq!(world.client("attic")["state"], "revoked");
    // The name may be invited again, as a new client.
    drop(client);
    let token = world.invite("attic", &[]);
    let client = world.join(0, &token, 3);
    let terms = client.until_in();
    assert_eq!(own(&terms, true).to_string(), "10.73.0.3");
    assert!(client.reaches("10.73.0.1"));
}

#[test]
fn a_token_names_where_the_hub_is() {
    let world = World::new();
    let token = |words: &[&str]| -> Vec<String> {
        let output = world.braid(&[&["invite"], words].concat());
        assert!(output.status.success(), "{}", error(&output));
        let said = String::from_utf8(output.stdout).expect("text");
        let token: Token = said.parse().expect("a token and nothing else");
        token.addresses.iter().map(ToString::to_string).collect()
    };
    let hub = world.start_hub("listen = 500");
    // The public ones of its own.
    assert_eq!(token(&["a"]), ["203.0.113.2:500", "[2001:db8:5::2]:500"]);
    let two = [
        "b",
        "--address",
        "hub.example.org",
        "--address",
        "192.0.2.9:600",
    ];
    assert_eq!(token(&two), ["hub.example.org:500", "192.0.2.9:600"]);
    assert!(hub.end());
    let _hub = world.start_hub("listen = 600\naddress = \"hub.example.org\"");
    assert_eq!(token(&["c"]), ["hub.example.org:600"]);
}

#[test]
fn a_client_keeps_to_its_rate() {
    let world = World::new();
    let _hub = world.start_hub("client_rate = \"200 kbit/s\"");
    let token = world.invite("attic", &[]);
    let client = world.join(0, &token, 1);
    assert_eq!(client.until_in().cap, Some("200 kbit/s".parse().unwrap()));
    assert!(client.reaches("10.73.0.1"));
    client.expect_held_back(&world, "attic");
}

#[test]
fn a_limit_that_is_changed_counts_at_once_and_a_broken_file_changes_nothing() {
    let world = World::new();
    let hub = world.start_hub("");
    let token = world.invite("attic", &[]);
    let client = world.join(0, &token, 1);
    client.until_in();
    assert!(client.reaches("10.73.0.1"));
    let rate = || world.client("attic")["rate"].clone();
    assert!(rate().is_null());
    let limit = "[[client]]\nname = \"attic\"\nrate = \"200 kbit/s\"\n";
    hub.reload(&world, limit);
    wait_for(|| !rate().is_null(), || hub.log());
    client.expect_held_back(&world, "attic");
    // A file with any error is rejected as a whole, and the status says so.
    let health = || world.json(&["status"])["health"].clone();
    hub.reload(&world, "[[client]]\nname = \"attic\"\nrate = \"fast\"\n");
    wait_for(|| health()[0]["code"] == "configuration", || hub.log());
    assert!(!rate().is_null());
    // The file is corrected, with another key that takes effect only after a restart.
    hub.reload(&world, "mtu = 1400\n");
    wait_for(|| rate().is_null(), || hub.log());
    assert_eq!(health().as_array().map(Vec::len), Some(0));
    wait_for(
        || hub.log().contains("takes effect at the next start"),
        || hub.log(),
    );
    assert!(client.reaches("10.73.0.1"), "the session goes on");
}
