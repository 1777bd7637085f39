//! Tests of the validity of path cache entries.

use super::*;

/// The epochs of all uplinks, in their order.
fn epochs(registry: &UplinkRegistry) -> Vec<u32> {
    let records = registry.records().iter();
    records.map(|record| registry.epoch(record)).collect()
}

#[test]
fn an_epoch_ends_with_the_way_or_with_a_failure() {
    let mut registry = UplinkRegistry::default();
    let settings = settings("race");
    let both = [uplink("a", 1, true), uplink("b", 2, false)];
    let (found, snapshot) = seen(&both);
    registry.update(&found, &snapshot, &settings);
    let first = epochs(&registry);
    assert_ne!(first[0], first[1]);
    registry.update(&found, &snapshot, &settings);
    registry.judge(|_| Some(look(Verdict::Up, true, true)));
    registry.judge(|_| Some(look(Verdict::Degraded, true, true)));
    assert_eq!(epochs(&registry), first, "nothing has happened");

    // Judged dead: at once, and no more when it is back.
    let dead = |id: UplinkId| match id.0 {
        0 => Some(look(Verdict::Dead, false, false)),
        _ => Some(look(Verdict::Up, true, true)),
    };
    registry.judge(dead);
    let second = epochs(&registry);
    assert!(second[0] != first[0] && second[1] == first[1]);
    registry.judge(|_| Some(look(Verdict::Up, true, true)));
    assert_eq!(epochs(&registry), second);
    // One family alone.
    registry.judge(|_| Some(look(Verdict::Up, true, false)));
    let third = epochs(&registry);
    assert!(third[0] != second[0] && third[1] == second[1]);

    // Carrier lost and found.
    let (found, snapshot) = seen(&both[..1]);
    registry.update(&found, &snapshot, &settings);
    let (found, snapshot) = seen(&both);
    registry.update(&found, &snapshot, &settings);
    assert_ne!(epochs(&registry)[1], third[1]);

    // Another gateway, and the old one again.
    let before = epochs(&registry);
    let mut moved = both.clone();
    moved[0].v4.as_mut().unwrap().gateway = Some([192, 0, 2, 253].into());
    let (found, snapshot) = seen(&moved);
    registry.update(&found, &snapshot, &settings);
    assert_ne!(epochs(&registry)[0], before[0]);
    let (found, snapshot) = seen(&both);
    registry.update(&found, &snapshot, &settings);
    assert_eq!(epochs(&registry)[0], before[0], "it leads where it led");

    // The next daemon goes on with the same.
    let mut next = UplinkRegistry::new(registry.numbers().to_vec());
    next.update(&found, &snapshot, &settings);
    assert_eq!(epochs(&next), epochs(&registry));
}
