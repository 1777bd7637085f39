//! The hub gives up what it does not need, whoever has started it.

use std::collections::BTreeMap;

use crate::world::{World, wait_for};

const NET_ADMIN: u64 = 1 << 12;

fn capabilities(fields: &BTreeMap<String, String>, set: &str) -> u64 {
    u64::from_str_radix(&fields[set], 16).expect("hexadecimal")
}

#[test]
fn a_hub_keeps_one_capability_and_its_packet_thread_none() {
    let world = World::new();
    let hub = world.start_hub("");
    let threads = hub.threads();
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
