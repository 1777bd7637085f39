//! The replay guard accepts every authentic packet once, and nothing else, also while keys change.

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use braid_bond::proto::packet::{Header, Kind, STAMP};
use braid_bond::proto::reject::Reject;
use braid_bond::proto::replay_guard::ReplayGuard;
use braid_bond::proto::replay_window::{REPLAY_WINDOW, ReplayError, ReplayWindow};
use braid_bond::proto::session::{
    KEY_LIFETIME, KeyStatus, Keyring, PREVIOUS_KEY_LIFETIME, REKEY_AFTER, REKEY_IDLE,
};
use braid_core::Time;
use braid_multipath::{LinkId, PacketNumber};
use proptest::prelude::*;
use support::World;

const NOW: Time = Time::from_nanos(1);

/// A sender whose numbers continue over changes of keys.
struct Sender {
    keys: Keyring,
    next: [u64; 3],
}

impl Sender {
    fn send(&mut self, now: Time, link: u8) -> Vec<u8> {
        let number = self.next[usize::from(link)];
        self.next[usize::from(link)] += 1;
        self.seal(now, link, number)
    }

    fn seal(&mut self, now: Time, link: u8, number: u64) -> Vec<u8> {
        let session = self.keys.current(now).expect("there are keys");
        let header = Header {
            link: LinkId(link),
            receiver: session.peer(),
            number: number as u32,
        };
        let mut packet = header.to_bytes().to_vec();
        packet.extend([0; STAMP]);
        packet.extend(number.to_be_bytes());
        session.seal(LinkId(link), PacketNumber(number), &mut packet);
        packet
    }
}

/// Client and server with keys; the server's guard knows links 0 to 2.
fn ends(world: &mut World) -> (Sender, ReplayGuard) {
    let (client, server) = world.sessions(NOW, 1);
    let mut sender = Sender {
        keys: Keyring::default(),
        next: [0; 3],
    };
    sender.keys.install(NOW, client.session);
    let mut replay_guard = ReplayGuard::default();
    replay_guard.keys.offer(server);
    (0..3).for_each(|link| replay_guard.allow_link(LinkId(link)));
    (sender, replay_guard)
}

/// Passes a packet through the guard; returns the number sealed in it.
fn pass(replay_guard: &mut ReplayGuard, now: Time, packet: &[u8]) -> Result<(u8, u64), Reject> {
    let Some(Kind::Data(header)) = Kind::of(packet) else {
        return Err(Reject::Malformed);
    };
    let mut packet = packet.to_vec();
    let opened = replay_guard.open(now, header, &mut packet)?;
    let number = opened.plain[STAMP..].try_into().expect("eight bytes");
    let number = u64::from_be_bytes(number);
    assert_eq!(opened.number, PacketNumber(number));
    Ok((opened.link.0, number))
}

#[test]
fn each_invalid_packet_is_refused_with_its_reason() {
    let mut world = World::new();
    let (mut sender, mut replay_guard) = ends(&mut world);
    let packet = sender.send(NOW, 1);
    assert_eq!(pass(&mut replay_guard, NOW, &packet), Ok((1, 0)));
    assert_eq!(
        pass(&mut replay_guard, NOW, &packet),
        Err(Reject::Seen),
        "replayed"
    );

    let mut other_link = sender.send(NOW, 1);
    other_link[0] ^= 3;
    assert_eq!(
        pass(&mut replay_guard, NOW, &other_link),
        Err(Reject::Forged),
        "moved to a link"
    );
    let mut unknown_link = sender.send(NOW, 1);
    unknown_link[0] = 0x40 | 31;
    assert_eq!(
        pass(&mut replay_guard, NOW, &unknown_link),
        Err(Reject::Link)
    );

    let packet = sender.send(NOW, 1);
    for size in 0..packet.len() {
        let refused = pass(&mut replay_guard, NOW, &packet[..size]);
        let short = if size < 27 {
            Reject::Malformed
        } else {
            Reject::Forged
        };
        assert_eq!(refused, Err(short), "cut to {size}");
    }
    let longer = [packet.as_slice(), &[0]].concat();
    assert_eq!(pass(&mut replay_guard, NOW, &longer), Err(Reject::Forged));
    assert_eq!(
        pass(&mut replay_guard, NOW, &packet),
        Ok((1, 3)),
        "refusals changed nothing"
    );

    // Reflected to its sender, which has the same keys in the other direction.
    let mut own = ReplayGuard::default();
    own.allow_link(LinkId(1));
    own.keys = std::mem::take(&mut sender.keys);
    assert_eq!(pass(&mut own, NOW, &packet), Err(Reject::Session));
    let mut readdressed = packet.clone();
    let index = own.keys.peek().expect("current").own();
    readdressed[1..4].copy_from_slice(&index.to_bytes());
    assert_eq!(pass(&mut own, NOW, &readdressed), Err(Reject::Forged));

    // Packets of other sessions: an unknown one, and one that happens to have the same index.
    let (mut stranger, _) = ends(&mut World::new());
    let (_, mut fresh) = ends(&mut world.again());
    let mut foreign = stranger.send(NOW, 1);
    assert_eq!(pass(&mut fresh, NOW, &foreign), Err(Reject::Forged));
    foreign[3] ^= 1;
    assert_eq!(pass(&mut fresh, NOW, &foreign), Err(Reject::Session));
}

#[test]
fn numbers_before_the_window_are_refused_and_jumps_ahead_are_accepted() {
    let (mut sender, mut replay_guard) = ends(&mut World::new());
    let first = sender.seal(NOW, 0, 0);
    let edge = sender.seal(NOW, 0, 1);
    let jump = sender.seal(NOW, 0, REPLAY_WINDOW);
    assert_eq!(pass(&mut replay_guard, NOW, &jump), Ok((0, REPLAY_WINDOW)));
    assert_eq!(pass(&mut replay_guard, NOW, &first), Err(Reject::Old));
    assert_eq!(pass(&mut replay_guard, NOW, &edge), Ok((0, 1)));
    let far = (1 << 31) - 1;
    let packet = sender.seal(NOW, 0, far);
    assert_eq!(pass(&mut replay_guard, NOW, &packet), Ok((0, far)));
    let over = sender.seal(NOW, 0, far + (1 << 31));
    assert_eq!(
        pass(&mut replay_guard, NOW, &over),
        Ok((0, far + (1 << 31))),
        "beyond 32 bits"
    );
}

#[test]
fn numbers_that_no_report_can_name_are_refused() {
    let last = (1 << 62) - 1;
    let mut window = ReplayWindow::default();
    assert_eq!(window.take(PacketNumber(last)), Ok(()));
    let beyond = window.take(PacketNumber(last + 1));
    assert_eq!(beyond, Err(ReplayError::Unnameable));
    assert_eq!(window.take(PacketNumber(last - 1)), Ok(()));
}

#[test]
fn the_responder_sends_by_new_keys_only_after_they_were_confirmed() {
    let mut world = World::new();
    let (mut sender, mut replay_guard) = ends(&mut world);
    assert!(
        replay_guard.keys.current(NOW).is_none(),
        "nothing has arrived"
    );
    pass(&mut replay_guard, NOW, &sender.send(NOW, 0)).expect("authentic");
    let old = replay_guard.keys.current(NOW).expect("confirmed").own();

    let (client, server) = world.sessions(NOW, 2);
    let new = server.own();
    replay_guard.keys.offer(server);
    pass(&mut replay_guard, NOW, &sender.send(NOW, 0)).expect("by the old keys");
    assert_eq!(replay_guard.keys.current(NOW).expect("keys").own(), old);
    let straggler = sender.send(NOW, 0);
    sender.keys.install(NOW, client.session);
    let mut packet = sender.send(NOW, 0);
    let Some(Kind::Data(header)) = Kind::of(&packet) else {
        panic!("it is data")
    };
    let opened = replay_guard
        .open(NOW, header, &mut packet)
        .expect("authentic");
    assert_eq!(
        (opened.key_status, opened.number),
        (KeyStatus::Confirmed, PacketNumber(3))
    );
    assert_eq!(replay_guard.keys.current(NOW).expect("keys").own(), new);
    assert_eq!(
        pass(&mut replay_guard, NOW, &straggler),
        Ok((0, 2)),
        "under way when keys changed"
    );
    let late = sender.keys.indices().count();
    assert_eq!(late, 2);
    let end = NOW + PREVIOUS_KEY_LIFETIME;
    replay_guard.keys.handle_timeout(end);
    assert_eq!(replay_guard.keys.indices().collect::<Vec<_>>(), [new]);
}

#[test]
fn keys_are_changed_by_time_and_die_of_age() {
    let (mut sender, _) = ends(&mut World::new());
    let session = sender.keys.current(NOW).expect("keys");
    let due = |busy, after| session.is_rekey_due(NOW + after, busy);
    assert!(!due(true, REKEY_AFTER - Duration::from_nanos(1)) && due(true, REKEY_AFTER));
    assert!(!due(false, REKEY_IDLE - Duration::from_nanos(1)) && due(false, REKEY_IDLE));
    assert!(sender.keys.current(NOW + KEY_LIFETIME).is_none());
}

/// Fates of packets.
#[derive(Clone, Debug)]
enum Step {
    Send {
        link: u8,
        fate: Fate,
    },
    /// The n-th packet in flight arrives.
    Arrive(usize),
    /// New keys at the initiator; the responder has had them since message 1.
    Rekey,
    /// A copy of the n-th packet that ever arrived comes again.
    Replay(usize),
    /// The n-th packet in flight comes with a bit flipped, and stays in flight.
    Corrupt(usize, usize),
}

#[derive(Clone, Debug)]
enum Fate {
    Lost,
    UnderWay,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..3, prop_oneof![1 => Just(Fate::Lost), 5 => Just(Fate::UnderWay)])
            .prop_map(|(link, fate)| Step::Send { link, fate }),
        5 => any::<usize>().prop_map(Step::Arrive),
        1 => Just(Step::Rekey),
        1 => any::<usize>().prop_map(Step::Replay),
        1 => any::<(usize, usize)>().prop_map(|(which, bit)| Step::Corrupt(which, bit)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn over_loss_reordering_and_changes_of_keys_each_packet_passes_once(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut world = World::new();
        let (mut sender, mut replay_guard) = ends(&mut world);
        let mut under_way: Vec<(usize, Vec<u8>)> = Vec::new();
        let mut arrived: Vec<Vec<u8>> = Vec::new();
        let mut passed = BTreeSet::new();
        // The responder has three: the newest offered, the last confirmed, and those confirmed
        // before. Keys 0 do not exist.
        let (mut keys, mut confirmed, mut before) = (1, 0, 0);
        for step in steps {
            match step {
                Step::Send { link, fate } => {
                    let packet = sender.send(NOW, link);
                    if matches!(fate, Fate::UnderWay) {
                        under_way.push((keys, packet));
                    }
                }
                Step::Arrive(which) if !under_way.is_empty() => {
                    let (made, packet) = under_way.remove(which % under_way.len());
                    let result = pass(&mut replay_guard, NOW, &packet);
                    let known = [keys, confirmed, before].contains(&made);
                    if made > confirmed && known {
                        before = std::mem::replace(&mut confirmed, made);
                    }
                    if known {
                        prop_assert!(passed.insert(result.expect("authentic")));
                        arrived.push(packet);
                    } else {
                        prop_assert_eq!(result, Err(Reject::Session));
                    }
                }
                Step::Rekey => {
                    keys += 1;
                    let (client, server) = world.sessions(NOW, keys as u64);
                    replay_guard.keys.offer(server);
                    sender.keys.install(NOW, client.session);
                }
                Step::Replay(which) if !arrived.is_empty() => {
                    let packet = &arrived[which % arrived.len()];
                    let result = pass(&mut replay_guard, NOW, packet);
                    prop_assert!(matches!(result, Err(Reject::Seen | Reject::Session)), "{result:?}");
                }
                Step::Corrupt(which, bit) if !under_way.is_empty() => {
                    let mut packet = under_way[which % under_way.len()].1.clone();
                    let bit = bit % (packet.len() * 8);
                    packet[bit / 8] ^= 1 << (bit % 8);
                    prop_assert!(pass(&mut replay_guard, NOW, &packet).is_err());
                }
                _ => {}
            }
        }
    }
}

/// Cleartext numbers are accepted up to a window beyond the sealed ones: so the next sealed packet
/// is never too old.
#[test]
fn numbers_in_the_clear_are_bounded_by_the_sealed_ones_and_taken_once() {
    let mut world = World::new();
    let (mut sender, mut replay_guard) = ends(&mut world);
    let receiver = sender.keys.current(NOW).expect("there are keys").peer();
    let clear = |link, number: u64| Header {
        link: LinkId(link),
        receiver,
        number: number as u32,
    };
    assert_eq!(
        replay_guard.admit_cleartext(NOW, clear(1, 0)),
        Err(Reject::Link),
        "nothing sealed came on it"
    );
    let packet = sender.seal(NOW, 1, 100);
    assert_eq!(pass(&mut replay_guard, NOW, &packet), Ok((1, 100)));
    assert_eq!(
        replay_guard.admit_cleartext(NOW, clear(1, 100)),
        Err(Reject::Seen),
        "one space of numbers"
    );
    let furthest = 100 + REPLAY_WINDOW;
    assert_eq!(
        replay_guard.admit_cleartext(NOW, clear(1, furthest + 1)),
        Err(Reject::Cleartext)
    );
    assert_eq!(
        replay_guard.admit_cleartext(NOW, clear(1, furthest)),
        Ok(PacketNumber(furthest))
    );
    assert_eq!(
        replay_guard.admit_cleartext(NOW, clear(1, furthest)),
        Err(Reject::Seen)
    );
    let next = sender.seal(NOW, 1, 101);
    assert_eq!(pass(&mut replay_guard, NOW, &next), Ok((1, 101)));
    replay_guard.refuse_link(LinkId(1));
    assert_eq!(
        replay_guard.admit_cleartext(NOW, clear(1, 102)),
        Err(Reject::Link)
    );
}
