//! When what was learnt of the ways by an uplink counts no more.

use super::*;

/// The epochs of all uplinks, in their order.
fn epochs(roster: &Roster) -> Vec<u32> {
    let members = roster.members().iter();
    members.map(|member| roster.epoch(member)).collect()
}

#[test]
fn an_epoch_ends_with_the_way_or_with_a_failure() {
    let mut roster = Roster::default();
    let settings = settings("race");
    let both = [uplink("a", 1, true), uplink("b", 2, false)];
    let (found, snapshot) = seen(&both);
    roster.update(&found, &snapshot, &settings);
    let first = epochs(&roster);
    assert_ne!(first[0], first[1]);
    roster.update(&found, &snapshot, &settings);
    roster.judge(|_| Some(look(Verdict::Up, true, true)));
    roster.judge(|_| Some(look(Verdict::Degraded, true, true)));
    assert_eq!(epochs(&roster), first, "nothing has happened");

    // Judged dead: at once, and no more when it is back.
    let dead = |id: UplinkId| match id.0 {
        0 => Some(look(Verdict::Dead, false, false)),
        _ => Some(look(Verdict::Up, true, true)),
    };
    roster.judge(dead);
    let second = epochs(&roster);
    assert!(second[0] != first[0] && second[1] == first[1]);
    roster.judge(|_| Some(look(Verdict::Up, true, true)));
    assert_eq!(epochs(&roster), second);
    // One family alone.
    roster.judge(|_| Some(look(Verdict::Up, true, false)));
    let third = epochs(&roster);
    assert!(third[0] != second[0] && third[1] == second[1]);

    // Carrier lost and found.
    let (found, snapshot) = seen(&both[..1]);
    roster.update(&found, &snapshot, &settings);
    let (found, snapshot) = seen(&both);
    roster.update(&found, &snapshot, &settings);
    assert_ne!(epochs(&roster)[1], third[1]);

    // Another gateway, and the old one again.
    let before = epochs(&roster);
    let mut moved = both.clone();
    moved[0].v4.as_mut().unwrap().gateway = Some([192, 0, 2, 253].into());
    let (found, snapshot) = seen(&moved);
    roster.update(&found, &snapshot, &settings);
    assert_ne!(epochs(&roster)[0], before[0]);
    let (found, snapshot) = seen(&both);
    roster.update(&found, &snapshot, &settings);
    assert_eq!(epochs(&roster)[0], before[0], "it leads where it led");

    // The next daemon goes on with the same.
    let mut next = Roster::new(roster.remembered().to_vec());
    next.update(&found, &snapshot, &settings);
    assert_eq!(epochs(&next), epochs(&roster));
}
