//! A hub's lifecycle: its changes to the machine, their removal, and its persistent state.

use std::time::Instant;

use crate::world::{Hub, World, filter};

#[test]
fn it_leaves_the_machine_as_it_was() {
    let world = World::new();
    let state = || {
        let keys = "net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.ipv4.conf.up0.forwarding \
                    net.ipv6.conf.up0.forwarding net.ipv4.conf.all.accept_redirects";
        world.hub.run(&format!("sysctl {keys}")) + &world.hub.ip("route") + &filter(&world)
    };
    world.hub.sysctl("net.ipv6.conf.up0.forwarding", "1");
    let before = state();
    let hub = world.start_hub("");
    let at_work = state();
    assert_ne!(at_work, before);
    // A stopped hub leaves its set-up in place for the next one.
    assert!(hub.end());
    assert!(world.hub.succeeds("ip link show braid-hub"));
    assert_ne!(filter(&world), "");
    let program = env!("CARGO_BIN_EXE_braid");
    let run_dir = world.folder.path().join("run");
    let words = format!("{program} --run-dir {} hub down", run_dir.display());
    let down = || world.hub.run(&words);
    down();
    assert_eq!(state(), before);
    assert!(!world.hub.succeeds("ip link show braid-hub"));
    assert!(!world.folder.path().join("run/hub").exists());
    // A crash in between does not change that, and neither does a running hub.
    world.start_hub("").kill();
    let hub = world.start_hub("");
    down();
    assert!(hub.wait());
    assert_eq!(state(), before);
    // Nor do other configurations after it.
    world.start_hub("").kill();
    let hub = world.start_hub("forward = \"off\"");
    assert_eq!(filter(&world), "");
    assert!(hub.end());
    assert!(world.start_hub("device = \"other\"").end());
    assert!(!world.hub.succeeds("ip link show braid-hub"));
    assert!(
        world
            .start_hub("device = \"other\"\npool = \"10.99.0.0/24\"")
            .end()
    );
    assert!(!world.hub.ip("address").contains("10.73."));
    down();
    assert_eq!(state(), before);
}

#[test]
fn a_killed_hub_has_forgotten_nothing_and_its_clients_go_on() {
    let world = World::new();
    let hub = world.start_hub("");
    let token = world.invite("attic", &[]);
    let client = world.join(0, &token, 1);
    let terms = client.until_in();
    assert!(client.reaches("203.0.113.1"));
    let key = world.json(&["status"])["key"].clone();
    // Acknowledged immediately before the crash.
    let later = world.invite("cellar", &[]);
    hub.kill();
    let dead = world.braid(&["status"]);
    assert_eq!(dead.status.code(), Some(3));
    let _hub = world.start_hub("");
    assert_eq!(world.json(&["status"])["key"], key);
    // The client notices by itself. Its address stays the same, so connections inside would continue.
    assert!(client.reaches("203.0.113.1"));
    let shown = world.client("attic");
    assert_eq!(shown["addresses"][0], terms.addresses[0].0.to_string());
    assert_eq!(shown["connected"], true);
    let other = world.join(1, &later, 2);
    other.until_in();
    assert!(other.reaches("203.0.113.1"));
}

#[test]
fn a_hub_that_stopped_is_called_again() {
    let world = World::new();
    let hub = world.start_hub("");
    let client = world.join(0, &world.invite("attic", &[]), 1);
    client.until_in();
    assert!(client.reaches("203.0.113.1"));
    assert!(hub.end());
    let _hub = world.start_hub("");
    assert!(client.reaches("203.0.113.1"));
}

#[test]
fn invitations_survive_whenever_it_is_killed() {
    let world = World::new();
    let mut acknowledged = Vec::new();
    for round in 0..5 {
        let hub = world.start_hub("");
        // Ever later in the middle of it all.
        std::thread::scope(|scope| {
            let inviting = scope.spawn(|| {
                let mut names = Vec::new();
                for number in 0.. {
                    let name = format!("client-{round}-{number}");
                    let words = ["invite", &name, "--address", crate::world::HUB];
                    if !world.braid(&words).status.success() {
                        return names;
                    }
                    names.push(name);
                }
                names
            });
            std::thread::sleep(std::time::Duration::from_millis(100 + 37 * round));
            hub.kill();
            acknowledged.extend(inviting.join().unwrap());
        });
    }
    let _hub = world.start_hub("");
    let clients = world.json(&["clients"]);
    let known: Vec<&str> = clients["clients"]
        .as_array()
        .unwrap()
        .iter()
        .map(|client| client["name"].as_str().unwrap())
        .collect();
    let lost: Vec<_> = acknowledged
        .iter()
        .filter(|name| !known.contains(&name.as_str()))
        .collect();
    assert!(!acknowledged.is_empty());
    assert!(lost.is_empty(), "{lost:?} of {}", acknowledged.len());
    let mut addresses: Vec<String> = clients["clients"]
        .as_array()
        .unwrap()
        .iter()
        .map(|client| client["addresses"][0].to_string())
        .collect();
    let all = addresses.len();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), all, "nobody has another's address");
}

#[test]
fn figures_are_there_for_a_monitoring_system() {
    let world = World::new();
    let _hub = world.start_hub("[metrics]\nlisten = \"127.0.0.1:9495\"");
    let client = world.join(0, &world.invite("attic", &[]), 1);
    client.until_in();
    assert!(client.reaches("10.73.0.1"));
    let text = world.hub.run("curl -s http://127.0.0.1:9495/metrics");
    for line in [
        "braid_hub_clients{state=\"connected\"} 1.0",
        "braid_hub_client_connected{client=\"attic\"} 1.0",
        "braid_hub_handshakes_total{outcome=\"accepted\"} 1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// Times that the packet thread has waited for something to do.
fn waits(hub: &Hub) -> u64 {
    let packets = &hub.threads()["braid-hub"];
    let waits = packets["voluntary_ctxt_switches"].trim().parse();
    waits.expect("a count")
}

/// It copied the state of all peers for each request, and packets waited meanwhile.
#[test]
fn however_many_read_its_state_the_packet_thread_tells_it_ten_times_a_second() {
    let world = World::new();
    let hub = world.start_hub("");
    let (start, before) = (Instant::now(), waits(&hub));
    std::thread::scope(|scope| {
        for path in ["/v1/status", "/v1/clients", "/v1/metrics"].repeat(6) {
            let world = &world;
            scope.spawn(move || (0..15).for_each(|_| _ = world.get(path)));
        }
        // An answer is as new as its request, and a change does not wait.
        for number in 1..=5 {
            world.invite(&format!("client-{number}"), &[]);
            assert_eq!(world.json(&["status"])["clients"]["invited"], number);
        }
    });
    let (took, woken) = (start.elapsed().as_secs_f64(), waits(&hub) - before);
    // The loop reads it every two seconds, too.
    let told = 10.0 * took + took / 2.0 + 4.0;
    assert!(
        (woken as f64) < told,
        "woken {woken} times in {took:.2} s by 270 requests"
    );
}
