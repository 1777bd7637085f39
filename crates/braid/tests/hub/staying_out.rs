//! Restrictions on clients, and configurations that the hub refuses.

use crate::world::{World, error, own, wait_for};

#[test]
fn a_client_cannot_speak_as_another() {
    let world = World::new();
    let _hub = world.start_hub("");
    let client = world.join(0, &world.invite("attic", &[]), 1);
    client.until_in();
    assert!(client.reaches("10.73.0.1"));
    client.run("ip addr add 10.73.0.99/32 dev bond0");
    assert!(client.does_not_reach("-I 10.73.0.99 10.73.0.1"));
    let shown = world.client("attic");
    assert!(shown["spoofed_packets"].as_u64().unwrap() >= 3, "{shown}");
    assert!(client.reaches("10.73.0.1"), "its own packets pass");
}

#[test]
fn clients_reach_each_other_if_the_hub_says_so() {
    for (config, together) in [("", false), ("between_clients = true", true)] {
        let world = World::new();
        let _hub = world.start_hub(config);
        let one = world.join(0, &world.invite("one", &[]), 1);
        let two = world.join(1, &world.invite("two", &[]), 2);
        one.until_in();
        let two_is = own(&two.until_in(), true).to_string();
        assert!(one.reaches("10.73.0.1") && two.reaches("10.73.0.1"));
        let apart = one.does_not_reach(&two_is);
        assert_eq!(!apart, together, "{config:?}");
    }
}

/// A private network around the hub, a cloud's metadata service there, and a service on the hub itself.
fn surround(world: &World) -> std::net::TcpListener {
    world.internet.ip("addr add 192.168.77.1/24 dev eth0");
    world.internet.ip("addr add 169.254.169.254/32 dev eth0");
    world.internet.ip("addr add fd77::1/64 dev eth0 nodad");
    world.hub.ip("addr add 192.168.77.2/24 dev up0");
    world.hub.ip("addr add fd77::2/64 dev up0 nodad");
    world.hub.ip("route add 169.254.169.254/32 dev up0");
    world.internet.ip("route add 10.73.0.0/16 via 203.0.113.2");
    let service = || std::net::TcpListener::bind("0.0.0.0:8080");
    world.hub.enter(service).expect("a service")
}

fn connects(client: &crate::world::Client<'_>, address: &str) -> bool {
    let address = format!("{address}:8080").parse().expect("an address");
    let patience = std::time::Duration::from_secs(2);
    let connect = || std::net::TcpStream::connect_timeout(&address, patience);
    client.namespace().enter(connect).is_ok()
}

const AROUND: [&str; 3] = ["192.168.77.1", "169.254.169.254", "fd77::1"];

#[test]
fn a_client_reaches_the_internet_and_nothing_around_the_hub() {
    let world = World::new();
    let _service = surround(&world);
    let _hub = world.start_hub("");
    let client = world.join(0, &world.invite("attic", &[]), 1);
    let own = own(&client.until_in(), true);
    for network in ["192.168.77.0/24", "169.254.169.254/32", "fd77::/64"] {
        client.run(&format!("ip route replace {network} dev bond0"));
    }
    assert!(client.reaches("203.0.113.1"), "the internet");
    assert!(client.reaches("10.73.0.1"), "the hub answers to a ping");
    for address in AROUND {
        assert!(client.does_not_reach(address), "{address}");
    }
    for address in ["10.73.0.1", "203.0.113.2", "192.168.77.2"] {
        assert!(!connects(&client, address), "{address} is the hub itself");
    }
    // A neighbour of the hub cannot open a connection to a client.
    let ping = format!("ping -c 2 -i 0.2 -W 1 {own}");
    assert!(!world.internet.succeeds(&ping));
}

#[test]
fn a_client_reaches_what_the_configuration_names() {
    let world = World::new();
    let _service = surround(&world);
    let _hub = world.start_hub("reach = [\"hub\", \"192.168.77.0/24\"]");
    let client = world.join(0, &world.invite("attic", &[]), 1);
    client.until_in();
    for network in ["192.168.77.0/24", "169.254.169.254/32"] {
        client.run(&format!("ip route replace {network} dev bond0"));
    }
    assert!(client.reaches("203.0.113.1"), "the internet");
    assert!(client.reaches("192.168.77.1"), "a network that is named");
    assert!(connects(&client, "10.73.0.1"), "the hub itself");
    assert!(client.does_not_reach("169.254.169.254"), "not named");
}

#[test]
fn one_client_reaches_more_than_another_until_the_configuration_says_otherwise() {
    let world = World::new();
    let _service = surround(&world);
    let reach = "[[client]]\nname = \"attic\"\nreach = [\"hub\", \"192.168.77.0/24\"]";
    let hub = world.start_hub(reach);
    let attic = world.join(0, &world.invite("attic", &[]), 1);
    let cellar = world.join(1, &world.invite("cellar", &[]), 2);
    for client in [&attic, &cellar] {
        client.until_in();
        client.run("ip route replace 192.168.77.0/24 dev bond0");
        assert!(client.reaches("203.0.113.1"), "the internet");
    }
    assert!(attic.reaches("192.168.77.1") && connects(&attic, "10.73.0.1"));
    assert!(cellar.does_not_reach("192.168.77.1") && !connects(&cellar, "10.73.0.1"));
    // A reloaded configuration takes effect at once; an unreadable one changes nothing.
    hub.reload(&world, "reach = [\"nowhere\"]");
    wait_for(
        || hub.log().contains("is neither \"hub\" nor a network"),
        || hub.log(),
    );
    let status = world.braid(&["status"]).stdout;
    let status = String::from_utf8_lossy(&status);
    assert!(
        status.contains("hub.toml:2:10: `reach` cannot be \"nowhere\""),
        "{status}"
    );
    assert!(connects(&attic, "10.73.0.1"));
    hub.reload(&world, &reach.replace("attic", "cellar"));
    wait_for(|| connects(&cellar, "10.73.0.1"), || hub.log());
    assert!(cellar.reaches("192.168.77.1"));
    assert!(attic.does_not_reach("192.168.77.1") && !connects(&attic, "10.73.0.1"));
    // A client that reuses a revoked client's name gets another address.
    assert!(world.braid(&["revoke", "cellar"]).status.success());
    let table = || world.hub.run("nft list table inet braid_hub");
    wait_for(|| !table().contains("192.168.77.0/24"), table);
    world.invite("cellar", &[]);
    let rule = "ip saddr 10.73.0.4 ip daddr 192.168.77.0/24 accept";
    wait_for(|| table().contains(rule), table);
}

/// The machine's own filter decides then, but the hub still keeps its clients apart.
#[test]
fn clients_are_apart_without_a_filter() {
    let world = World::new();
    world.hub.sysctl("net.ipv4.ip_forward", "1");
    let _hub = world.start_hub("forward = \"off\"");
    let one = world.join(0, &world.invite("one", &[]), 1);
    let two = world.join(1, &world.invite("two", &[]), 2);
    one.until_in();
    let two_is = own(&two.until_in(), true).to_string();
    assert!(one.reaches("10.73.0.1") && two.reaches("10.73.0.1"));
    assert!(one.does_not_reach(&two_is));
}

#[test]
fn what_cannot_be_is_refused_in_words_and_nothing_changes() {
    let world = World::new();
    let _hub = world.start_hub("pool = \"10.73.0.0/29\"");
    for (words, code, said) in [
        (&["revoke", "nobody"][..], 2, "there is no client nobody"),
        (
            &["invite", "not a name"],
            2,
            "\"not a name\" is no name for a client",
        ),
        (&["invite", "x", "--address", "a:b"], 2, "\"b\" is no port"),
        (
            &["invite", "x", "--inner", "10.74.0.2"],
            1,
            "10.74.0.2 is not an address for a client",
        ),
        (
            &[
                "invite",
                "x",
                "--inner",
                "10.73.0.5",
                "--inner",
                "10.73.0.5",
            ],
            1,
            "a client has one inner address per IP version",
        ),
        (
            &["invite", "x", "--valid", "1 s"],
            2,
            "a token cannot be valid for 1 s",
        ),
    ] {
        let output = world.braid(words);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{words:?}: {}",
            error(&output)
        );
        assert!(
            error(&output).contains(said),
            "{words:?}: {}",
            error(&output)
        );
        assert!(output.stdout.is_empty());
    }
    for number in 1..=5 {
        world.invite(&format!("client-{number}"), &[]);
    }
    let taken = world.braid(&["invite", "client-3"]);
    assert!(error(&taken).contains("client-3 has been invited or has joined already"));
    let somebodys = world.braid(&["invite", "one-more", "--inner", "10.73.0.4"]);
    assert_eq!(somebodys.status.code(), Some(1));
    let said = error(&somebodys);
    assert!(
        said.contains("inner address 10.73.0.4 belongs to client-3"),
        "{said}"
    );
    let full = world.braid(&["invite", "one-more"]);
    assert_eq!(full.status.code(), Some(1));
    assert!(
        error(&full).contains("all 5 addresses of the pool are in use"),
        "{}",
        error(&full)
    );
    assert!(error(&full).contains("larger network"), "{}", error(&full));
    world.braid(&["revoke", "client-2"]);
    let token = world.invite("one-more", &["--inner", "10.73.0.3"]);
    let client = world.join(0, &token, 1);
    assert_eq!(own(&client.until_in(), true).to_string(), "10.73.0.3");
}

#[test]
fn a_hub_that_cannot_run_says_why_and_leaves_nothing() {
    let world = World::new();
    let away = world.braid(&["status"]);
    assert_eq!(away.status.code(), Some(3));
    assert!(error(&away).contains("no hub at "), "{}", error(&away));
    for (config, said) in [
        ("listen = 0", "any port, so nobody finds it"),
        (
            "pool = \"203.0.113.0/25\"",
            "the inner network 203.0.113.0/25 overlaps 203.0.113.0/24 of up0",
        ),
        (
            "[api]\ngroup = \"no-such-group\"",
            "[api] group \"no-such-group\" does not exist",
        ),
        ("listen = \"198.51.100.1:500\"", "198.51.100.1:500"),
        ("device = \"up0\"", "up0"),
    ] {
        let hub = world.try_start_hub(config);
        let log = hub.log.clone();
        assert!(!hub.wait(), "{config}");
        let said_all = std::fs::read_to_string(&log).unwrap();
        assert!(said_all.contains(said), "{config}: {said_all}");
        std::fs::remove_file(&log).unwrap();
        assert!(!world.hub.succeeds("ip link show braid-hub"), "{config}");
        assert_eq!(crate::world::filter(&world), "", "{config}");
        let forwarding = world.hub.run("sysctl -n net.ipv4.ip_forward");
        assert_eq!(forwarding.trim(), "0", "{config}");
    }
    let first = world.start_hub("");
    let second = world.try_start_hub("");
    assert!(!second.wait());
    wait_for(|| first.log().contains("already"), || first.log());
    assert!(first.is_alive());
}
