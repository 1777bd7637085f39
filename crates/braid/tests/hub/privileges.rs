//! The hub gives up what it does not need, whoever has started it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::world::{Hub, World, wait_for};

const NET_ADMIN: u64 = 1 << 12;

/// A thread's name, and the fields of its /proc/PID/task/TID/status.
fn threads(hub: &Hub) -> BTreeMap<String, BTreeMap<String, String>> {
    let tasks: PathBuf = format!("/proc/{}/task", hub.pid()).into();
    let status = |task: PathBuf| {
        let text = fs::read_to_string(task.join("status")).expect("a thread");
        let fields = text.lines().filter_map(|line| line.split_once(":\t"));
        fields
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect::<BTreeMap<_, _>>()
    };
    let tasks = fs::read_dir(tasks).expect("a process");
    let all = tasks.map(|task| status(task.expect("a thread").path()));
    all.map(|fields| (fields["Name"].clone(), fields)).collect()
}

fn capabilities(fields: &BTreeMap<String, String>, set: &str) -> u64 {
    u64::from_str_radix(&fields[set], 16).expect("hexadecimal")
}

#[test]
fn a_hub_keeps_one_capability_and_its_packet_thread_none() {
    let world = World::new();
    let hub = world.start_hub("");
    let threads = threads(&hub);
    assert_eq!(threads.len(), 2, "{:?}", threads.keys());
    for (name, kept) in [("braid", NET_ADMIN), ("braid-hub", 0)] {
        let fields = &threads[name];
        for set in ["CapEff", "CapPrm"] {
            assert_eq!(capabilities(fields, set), kept, "{name}: {set}");
        }
        assert_eq!(capabilities(fields, "CapBnd"), NET_ADMIN, "{name}");
        for set in ["CapInh", "CapAmb"] {
            assert_eq!(capabilities(fields, set), 0, "{name}: {set}");
        }
        assert_eq!(fields["NoNewPrivs"], "1", "{name}");
    }
}

/// Clients come, a filter follows them, the configuration is reloaded, and data goes in the clear, all without what was
/// given up.
#[test]
fn a_hub_without_privileges_does_its_work() {
    let world = World::new();
    let hub = world.start_hub("gre = true");
    let client = world.join(0, &world.invite("attic", &[]), 1);
    client.until_in();
    assert!(client.reaches("203.0.113.1"));
    assert!(!hub.log().contains("cannot open GRE"), "{}", hub.log());
    hub.reload(&world, "gre = true\nreach = [\"10.9.9.0/24\"]");
    let rules = || world.hub.run("nft list table inet braid_hub");
    wait_for(|| rules().contains("10.9.9.0/24"), || rules() + &hub.log());
    assert!(hub.end());
}
