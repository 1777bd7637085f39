//! Limits of single clients.

use std::net::SocketAddr;

use serde_json::Value;

use crate::net::{Client as Connection, serve};
use crate::world::{INTERNET, World, wait_for};

const CONFIG: &str = "[[client]]\nname = \"attic\"\nquota = \"1 MB/month\"\n\
                      [[client]]\nname = \"atik\"\nrate = \"1 Mbit/s\"\n";

fn used(client: &Value) -> u64 {
    client["quota_used_bytes"].as_u64().expect("it has a quota")
}

fn health(world: &World) -> String {
    let status = world.braid(&["status"]);
    assert_eq!(status.status.code(), Some(4));
    String::from_utf8(status.stdout).expect("text")
}

#[test]
fn a_client_whose_quota_is_used_up_is_slow_and_stays_so_over_a_restart() {
    let world = World::new();
    let hub = world.start_hub(CONFIG);
    let token = world.invite("attic", &[]);
    let client = world.join(0, &token, 1);
    client.until_in();
    let said = health(&world);
    assert!(
        said.contains("[[client]] atik: no client has that name"),
        "{said}"
    );
    assert!(!said.contains("quota"), "{said}");
    assert_eq!(world.client("attic")["rate"], Value::Null);

    let server = SocketAddr::new(INTERNET[0].parse().expect("an address"), 7);
    serve(&world.internet, server.ip(), server.port());
    // Both directions count.
    client.namespace().enter(|| {
        Connection::connect(server).echo(&vec![7; 600_000]);
    });
    let shown = || world.client("attic");
    wait_for(
        || shown()["rate"] == "128 kbit/s",
        || format!("the quota to be used up: {}", shown()),
    );
    assert!(used(&shown()) >= 1_200_000, "{}", shown());
    let said = health(&world);
    let line = "attic: its quota of 1 MB/month is used up; it has 128 kbit/s";
    assert!(said.contains(line), "{said}");
    let table = world.braid(&["clients"]);
    let table = String::from_utf8(table.stdout).expect("text");
    assert!(table.contains("used up: 1 MB/month"), "{table}");
    // The client is slowed down, not cut off.
    client.expect_held_back(&world, "attic");
    assert!(client.reaches(INTERNET[0]));

    let before = used(&shown());
    assert!(hub.end());
    let hub = world.start_hub(CONFIG);
    assert!(used(&shown()) >= before);
    assert_eq!(shown()["rate"], "128 kbit/s");
    // A larger quota takes effect at once.
    hub.reload(&world, &CONFIG.replace("1 MB", "1 GB"));
    wait_for(
        || shown()["rate"] == Value::Null,
        || format!("the larger quota to count: {}", shown()),
    );
    assert!(client.reaches(INTERNET[0]));
}
