//! Handshakes: admission, refusal, and their cost.

mod support;

use std::time::Duration;

use braid_bond::proto::entropy::Entropy;
use braid_bond::proto::handshake::mac::MacKey;
use braid_bond::proto::handshake::terms::Refusal;
use braid_bond::proto::handshake::{
    Attempt, Ciphers, HandshakeAction, HandshakeError, Identity, Options, Psk, Reset, Start,
};
use braid_bond::proto::packet::{Header, Kind};
use braid_bond::proto::seal::{Cipher, Forged};
use braid_bond::proto::session::Session;
use braid_core::Time;
use braid_multipath::{LinkId, PacketNumber};
use proptest::prelude::*;
use support::epochs::later_run;
use support::{World, address, index, message1, start};

const NOW: Time = Time::from_nanos(1);

/// Passes one packet between the sessions.
fn passes(from: &mut Session, to: &mut Session) -> Result<(), Forged> {
    let header = Header {
        link: LinkId(2),
        receiver: from.peer(),
        number: 5,
    };
    let mut packet = header.to_bytes().to_vec();
    packet.extend(b"stamp and frames");
    from.seal(LinkId(2), PacketNumber(5), &mut packet);
    assert_eq!(Kind::of(&packet), Some(Kind::Data(header)));
    let plain = to.open(LinkId(2), PacketNumber(5), &mut packet)?;
    assert_eq!(plain, b"stamp and frames");
    Ok(())
}

#[test]
fn both_ends_get_the_same_session() {
    let mut world = World::new();
    let (client, mut server) = world.sessions(NOW, 1);
    assert!(!client.continued);
    let mut client = client.session;
    assert_eq!((client.own(), client.peer()), (server.peer(), server.own()));
    assert_eq!(client.cipher(), Cipher::Aes256Gcm);
    assert_eq!(passes(&mut client, &mut server), Ok(()));
    assert_eq!(passes(&mut server, &mut client), Ok(()));
    let (mut other, _) = world.sessions(NOW, 2);
    assert_eq!(passes(&mut other.session, &mut server), Err(Forged));
}

#[test]
fn a_refusal_is_authentic_and_says_why() {
    let mut world = World::new();
    let mut attempt = world.attempt(start(7, 1));
    let said = message1(&attempt, LinkId(0));
    let Ok(HandshakeAction::Offer(offer)) =
        world.listener.handle_initiation(NOW, address(1), &said)
    else {
        panic!("its key is known")
    };
    let ciphers = Ciphers::preferring(Cipher::Aes256Gcm);
    let refusal = Refusal::Used.to_options();
    let accepted = world
        .listener
        .accept(NOW, *offer, index(9), false, ciphers, &refusal);
    let mut reply = accepted.expect("it is answered").reply;
    assert!(reply.len() <= said.len(), "nothing amplifies");
    let last = reply.len() - 20;
    reply[last] ^= 1;
    assert!(
        attempt.handle_response(NOW, &reply).is_err(),
        "changed on the way"
    );
    reply[last] ^= 1;
    let established = attempt.handle_response(NOW, &reply).expect("genuine");
    assert_eq!(Refusal::read(&established.options), Some(Refusal::Used));
}

#[test]
fn a_copy_over_another_link_is_answered_the_same_without_computing() {
    let mut world = World::new();
    let mut attempt = world.attempt(start(7, 1));
    let (mut server, first) = world.accept(NOW, &message1(&attempt, LinkId(0)), 9);
    let copy = message1(&attempt, LinkId(5));
    let answer = world.listener.handle_initiation(NOW, address(2), &copy);
    let Ok(HandshakeAction::Reply(second)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!((first[1], second[1]), (0, 5));
    assert_eq!(first[2..first.len() - 16], second[2..second.len() - 16]);
    assert!(second.len() <= copy.len(), "nothing amplifies");
    let counters = world.listener.counters();
    assert_eq!((counters.accepted, counters.repeated), (1, 1));
    let mut client = attempt.handle_response(NOW, &second).expect("genuine");
    assert_eq!(passes(&mut client.session, &mut server), Ok(()));
}

#[test]
fn a_recorded_initiation_begins_nothing_and_a_clock_behind_is_told_the_time() {
    let mut world = World::new();
    let old = world.attempt(start(7, 1000));
    world.accept(NOW, &message1(&old, LinkId(0)), 9);
    let newer = world.attempt(start(8, 2000));
    world.accept(NOW, &message1(&newer, LinkId(0)), 10);
    // A recorded message is replayed.
    let replay = world
        .listener
        .handle_initiation(NOW, address(3), &message1(&old, LinkId(0)));
    assert!(
        matches!(replay, Ok(HandshakeAction::Reply(_))),
        "{replay:?}"
    );
    assert_eq!(world.listener.counters().stale, 1);
    // A client whose clock was set back.
    let mut late = world.attempt(start(11, 1500));
    let said = message1(&late, LinkId(1));
    let Ok(HandshakeAction::Reply(reply)) =
        world.listener.handle_initiation(NOW, address(1), &said)
    else {
        panic!("it is told")
    };
    assert!(reply.len() < said.len());
    let told = late.handle_response(NOW, &reply).expect("genuine");
    assert_eq!(Refusal::read(&told.options), Some(Refusal::Clock(2000)));
    let mut again = world.attempt(start(12, 2001));
    let (_, reply) = world.accept(NOW, &message1(&again, LinkId(0)), 13);
    assert!(again.handle_response(NOW, &reply).is_ok());
}

#[test]
fn a_time_far_ahead_is_not_kept_and_a_clock_ahead_is_told_the_time() {
    const HERE: u64 = 1_700_000_000_000_000;
    const DAY: u64 = 86_400_000_000;
    let mut world = World::new();
    world.listener.set_clock(HERE);
    for ahead in [HERE + DAY + 1, u64::MAX - 1, u64::MAX] {
        let mut early = world.attempt(start(7, ahead));
        let said = message1(&early, LinkId(0));
        let answer = world.listener.handle_initiation(NOW, address(1), &said);
        let Ok(HandshakeAction::Reply(reply)) = answer else {
            panic!("{answer:?}")
        };
        let told = early.handle_response(NOW, &reply).expect("genuine");
        assert_eq!(Refusal::read(&told.options), Some(Refusal::Clock(HERE)));
    }
    let attempt = world.attempt(start(8, HERE + 1));
    world.accept(NOW, &message1(&attempt, LinkId(0)), 9);
}

#[test]
fn inserting_a_peer_again_keeps_its_replay_protection() {
    let mut world = World::new();
    let said = message1(&world.attempt(start(7, 1000)), LinkId(0));
    world.accept(NOW, &said, 9);
    let newer = message1(&world.attempt(start(8, 2000)), LinkId(0));
    let (_, first) = world.accept(NOW, &newer, 10);
    let (client, psk) = (world.client.public(), world.psk.clone());
    world.listener.insert(client, psk);
    let replay = world.listener.handle_initiation(NOW, address(3), &said);
    assert!(
        matches!(replay, Ok(HandshakeAction::Reply(_))),
        "{replay:?}"
    );
    assert_eq!(world.listener.counters().stale, 1);
    let copy = world.listener.handle_initiation(NOW, address(3), &newer);
    assert!(matches!(copy, Ok(HandshakeAction::Reply(reply)) if reply == first));
    assert_eq!(world.listener.counters().repeated, 1);
    // Another pre-shared key makes a new agreement.
    world.listener.insert(client, Psk::new([9; 32]));
    let heard = world.listener.handle_initiation(NOW, address(3), &said);
    assert!(matches!(heard, Ok(HandshakeAction::Offer(_))), "{heard:?}");
}

#[test]
fn under_load_a_cookie_is_wanted_and_proves_one_address() {
    let mut world = World::new();
    let stranger = Identity::new([9; 32]);
    let mut entropy = Entropy::new(&[8; 32]);
    let mut wanted = 0;
    for micros in 1..=300 {
        let flood = Attempt::new(
            &stranger,
            world.server,
            &Psk::default(),
            start(3, micros),
            &mut entropy,
        );
        let said = message1(&flood, LinkId(0));
        match world.listener.handle_initiation(NOW, address(66), &said) {
            Err(HandshakeError::Peer) => {}
            Ok(HandshakeAction::Reply(reply)) => {
                wanted += 1;
                assert!(reply.len() * 3 < said.len());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.listener.counters().unknown_peers, 200);
    assert_eq!(wanted, 100);

    let mut attempt = world.attempt(start(7, 1));
    let said = message1(&attempt, LinkId(4));
    let Ok(HandshakeAction::Reply(reply)) =
        world.listener.handle_initiation(NOW, address(1), &said)
    else {
        panic!("a cookie is wanted")
    };
    assert_eq!(attempt.handle_cookie(&reply), Ok(LinkId(4)));
    let proven = message1(&attempt, LinkId(4));
    let elsewhere = world.listener.handle_initiation(NOW, address(67), &proven);
    assert!(
        matches!(elsewhere, Ok(HandshakeAction::Reply(_))),
        "another address"
    );
    let (_, reply) = world.accept(NOW, &proven, 9);
    assert!(attempt.handle_response(NOW, &reply).is_ok());
}

#[test]
fn proven_addresses_of_one_network_do_not_use_up_what_others_have() {
    let mut world = World::new();
    // A known client, from an address of its own.
    let known = world.attempt(start(7, 1));
    world.accept(NOW, &message1(&known, LinkId(0)), 9);
    let stranger = Identity::new([9; 32]);
    let mut entropy = Entropy::new(&[8; 32]);
    let psk = Psk::default();
    let mut flood = Attempt::new(&stranger, world.server, &psk, start(3, 1), &mut entropy);
    let said = message1(&flood, LinkId(0));
    while !matches!(
        world.listener.handle_initiation(NOW, address(66), &said),
        Ok(HandshakeAction::Reply(_))
    ) {}
    // Returns true if the hub computes for a client that proves this address.
    let computes = |world: &mut World, attempt: &mut Attempt, from: std::net::SocketAddr| {
        let said = message1(attempt, LinkId(0));
        let asked = world.listener.handle_initiation(NOW, from, &said);
        let Ok(HandshakeAction::Reply(reply)) = asked else {
            panic!("{from}: {asked:?}")
        };
        attempt.handle_cookie(&reply).expect("genuine");
        let proven = message1(attempt, LinkId(0));
        match world.listener.handle_initiation(NOW, from, &proven) {
            Err(HandshakeError::Peer) | Ok(HandshakeAction::Offer(_)) => true,
            Err(HandshakeError::Cookie) => false,
            other => panic!("{from}: {other:?}"),
        }
    };
    let from = |site: u16, net: u16| {
        std::net::SocketAddr::from(([0x2001, 0xdb8, site, net, 0, 0, 0, 1], 9))
    };
    let computed = (0..2000).filter(|net| computes(&mut world, &mut flood, from(0, *net)));
    assert_eq!(computed.count(), 160, "of 2,000 networks of one /48");
    assert!(computes(&mut world, &mut flood, from(1, 0)), "another /48");
    let computed = (2..2000).filter(|site| computes(&mut world, &mut flood, from(*site, 0)));
    assert!(computed.count() < 600, "there is a limit for all");
    // The client is admitted from its familiar address; elsewhere it has to wait.
    let mut again = world.attempt(start(8, 2));
    assert!(!computes(&mut world, &mut again, address(200)));
    let mut again = world.attempt(start(8, 2));
    assert!(computes(&mut world, &mut again, address(1)));
}

#[test]
fn unknown_clients_and_wrong_keys_get_nothing() {
    let mut world = World::new();
    let mut entropy = Entropy::new(&[6; 32]);
    let stranger = Identity::new([9; 32]);
    let mut say = |own: &Identity, peer, psk: &Psk, micros| {
        Attempt::new(own, peer, psk, start(7, micros), &mut entropy)
    };
    let (client, server) = (world.client.clone(), world.server);

    let unknown = say(&stranger, server, &world.psk, 1);
    let heard = world
        .listener
        .handle_initiation(NOW, address(1), &message1(&unknown, LinkId(0)));
    assert_eq!(heard.err(), Some(HandshakeError::Peer));

    let misdirected = say(&client, stranger.public(), &world.psk, 1);
    let said = message1(&misdirected, LinkId(0));
    let heard = world.listener.handle_initiation(NOW, address(1), &said);
    assert_eq!(heard.err(), Some(HandshakeError::Mac));

    // The pre-shared key comes in with message 2, so the client notices the difference.
    let mut keyless = say(&client, server, &Psk::default(), 1);
    let (_, reply) = world.accept(NOW, &message1(&keyless, LinkId(0)), 9);
    let heard = keyless.handle_response(NOW, &reply);
    assert_eq!(heard.err(), Some(HandshakeError::Forged));

    // Revoked.
    world.listener.remove(client.public());
    let revoked = say(&client, server, &world.psk, 5);
    let heard = world
        .listener
        .handle_initiation(NOW, address(1), &message1(&revoked, LinkId(0)));
    assert_eq!(heard.err(), Some(HandshakeError::Peer));
    let counters = world.listener.counters();
    assert_eq!((counters.unknown_peers, counters.macs_wrong), (2, 1));
}

#[test]
fn forged_answers_are_computed_on_only_so_often() {
    forge(false);
    forge(true);
}

fn forge(unreachable: bool) {
    let mut world = World::new();
    let mut attempt = world.attempt(start(7, 1));
    let (_, reply) = world.accept(NOW, &message1(&attempt, LinkId(0)), 9);
    // Without having seen the initiation: refused before any computation.
    let mut blind = reply.clone();
    blind[20] ^= 1;
    let heard = attempt.handle_response(NOW, &blind);
    assert_eq!(heard.err(), Some(HandshakeError::Mac));
    // Having seen it: the attempt tolerates sixteen forgeries.
    let (body, _) = reply
        .split_last_chunk::<16>()
        .expect("it ends with the MAC");
    let mut seen = body.to_vec();
    seen[40] ^= 1;
    let ephemeral = &message1(&attempt, LinkId(0))[3..35];
    let mac = MacKey::of(world.client.public()).sign(&[&seen, ephemeral]);
    seen.extend(mac);
    for _ in 0..15 {
        let heard = attempt.handle_response(NOW, &seen);
        assert_eq!(heard.err(), Some(HandshakeError::Forged));
    }
    if unreachable {
        assert!(attempt.handle_response(NOW, &seen).is_err());
        let heard = attempt.handle_response(NOW, &reply);
        assert_eq!(heard.err(), Some(HandshakeError::Forged));
    } else {
        assert!(attempt.handle_response(NOW, &reply).is_ok());
    }
}

#[test]
fn the_cipher_is_what_both_can_do_fast() {
    use Cipher::{Aes256Gcm, ChaCha20Poly1305};
    let prefer = Ciphers::preferring;
    let only = |cipher: Cipher| Ciphers {
        offered: cipher.code(),
        preferred: cipher,
    };
    let cases = [
        (prefer(Aes256Gcm), prefer(Aes256Gcm), Some(Aes256Gcm)),
        (
            prefer(Aes256Gcm),
            prefer(ChaCha20Poly1305),
            Some(ChaCha20Poly1305),
        ),
        (only(Aes256Gcm), prefer(ChaCha20Poly1305), Some(Aes256Gcm)),
        (only(Aes256Gcm), only(ChaCha20Poly1305), None),
    ];
    for (a, b, expected) in cases {
        assert_eq!(a.choose(b), expected, "{a:?} {b:?}");
        assert_eq!(b.choose(a), expected, "{b:?} {a:?}");
    }
}

#[test]
fn a_reset_is_believed_from_the_responder_alone_and_survives_its_restarts() {
    let mut world = World::new();
    world.listener.set_epochs(later_run(7));
    let (client, _) = world.sessions(NOW, 1);
    let session = client.session;
    let mut restarted = World::new();
    for epoch in 8..=11 {
        restarted.listener.set_epochs(later_run(epoch));
        let genuine = (0..64).find_map(|second| {
            let now = NOW + Duration::from_secs(second);
            let reset = restarted.listener.reset(now, address(1), session.peer())?;
            let reset = Reset::parse(&reset).expect("well formed");
            assert_eq!(reset.index, session.peer());
            reset.verify(session.reset_token()).is_ok().then_some(reset)
        });
        assert!(genuine.is_some(), "epoch {epoch}");
    }
    let reset = Reset {
        index: session.peer(),
        token: *session.reset_token(),
    };
    assert_eq!(reset.verify(session.reset_token()), Ok(()));
    let forged = Reset {
        token: [0; 16],
        ..reset
    };
    assert_eq!(
        forged.verify(session.reset_token()),
        Err(HandshakeError::Forged)
    );
    let later = NOW + Duration::from_secs(100);
    let mut sent = |from| {
        let sent = (0..1000).filter_map(|_| restarted.listener.reset(later, from, session.peer()));
        sent.count()
    };
    assert_eq!(sent(address(2)), 20, "there is a limit");
    assert_eq!(sent(address(3)), 20, "of one address's own");
}

#[test]
fn no_reset_token_of_a_current_or_future_session_is_issued() {
    let mut world = World::new();
    let wanted = index(0x0b_0001);
    assert_eq!(world.listener.reset(NOW, address(9), wanted), None);
    world.listener.set_epochs(later_run(3));
    // Before the session begins, during it, and from many addresses.
    let mut tokens = Vec::new();
    let mut ask = |world: &mut World| {
        for last in 0..=255 {
            let reset = world.listener.reset(NOW, address(last), wanted);
            tokens.extend(reset.map(|reset| Reset::parse(&reset).expect("well formed")));
        }
    };
    ask(&mut world);
    let (client, _) = world.sessions(NOW, 1);
    assert_eq!(client.session.peer(), wanted);
    ask(&mut world);
    assert!(tokens.len() > 200);
    for token in tokens {
        assert!(token.verify(client.session.reset_token()).is_err());
    }
}

#[test]
fn options_reach_the_other_end() {
    let mut world = World::new();
    let mut options = Options::new();
    assert!(options.push(1, &[10, 0, 0, 1]) && options.push(200, &[]));
    assert!(!options.push(0, &[1]) && !options.push(3, &[0; 200]));
    let mut attempt = world.attempt(Start {
        options: options.clone(),
        continues: Some(index(77)),
        ..start(7, 1)
    });
    let said = message1(&attempt, LinkId(0));
    let answer = world.listener.handle_initiation(NOW, address(1), &said);
    let Ok(HandshakeAction::Offer(offer)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(offer.options(), &options);
    assert_eq!(
        (offer.peer(), offer.continues()),
        (world.client.public(), Some(index(77)))
    );
    let mut full = Options::new();
    assert!(full.push(9, &[7; 126]) && !full.push(9, &[]));
    let ciphers = Ciphers::preferring(Cipher::ChaCha20Poly1305);
    let accepted = world
        .listener
        .accept(NOW, *offer, index(9), true, ciphers, &full)
        .expect("nothing is against it");
    assert!(accepted.reply.len() <= said.len(), "nothing amplifies");
    let heard = attempt
        .handle_response(NOW, &accepted.reply)
        .expect("genuine");
    assert!(heard.continued);
    assert_eq!(heard.options, full);
    assert_eq!(heard.session.cipher(), Cipher::ChaCha20Poly1305);
}

#[test]
fn cookies_live_as_long_as_they_should() {
    let mut world = World::new();
    let mut attempt = world.attempt(start(7, 1));
    // Uses up the limit for requests without a cookie, by the client's own copies.
    let drain = |world: &mut World, now, said: &[u8]| loop {
        match world.listener.handle_initiation(now, address(9), said) {
            Ok(HandshakeAction::Reply(reply)) if reply[0] == 3 => break reply,
            _ => {}
        }
    };
    let stranger = Identity::new([9; 32]);
    let mut entropy = Entropy::new(&[8; 32]);
    let psk = Psk::default();
    let noise = Attempt::new(&stranger, world.server, &psk, start(3, 1), &mut entropy);
    let noise = message1(&noise, LinkId(0));
    drain(&mut world, NOW, &noise);
    let said = message1(&attempt, LinkId(0));
    let Ok(HandshakeAction::Reply(reply)) =
        world.listener.handle_initiation(NOW, address(1), &said)
    else {
        panic!("a cookie is wanted")
    };
    attempt.handle_cookie(&reply).expect("genuine");
    let proven = message1(&attempt, LinkId(0));
    for (seconds, good) in [(100, true), (190, true), (400, false)] {
        let now = NOW + Duration::from_secs(seconds);
        drain(&mut world, now, &noise);
        let answer = world.listener.handle_initiation(now, address(1), &proven);
        let computed = matches!(answer, Ok(HandshakeAction::Offer(_)));
        assert_eq!(computed, good, "after {seconds} s: {answer:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_flipped_bit_invalidates_message_1(bit in any::<prop::sample::Index>()) {
        let mut world = World::new();
        let attempt = world.attempt(start(7, 1));
        let mut said = message1(&attempt, LinkId(0));
        // mac2 is not checked without load.
        let bit = bit.index((said.len() - 16) * 8);
        said[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(world.listener.handle_initiation(NOW, address(1), &said).is_err());
    }

    #[test]
    fn a_flipped_bit_invalidates_message_2(bit in any::<prop::sample::Index>()) {
        let mut world = World::new();
        let mut attempt = world.attempt(start(7, 1));
        let (_, mut reply) = world.accept(NOW, &message1(&attempt, LinkId(0)), 9);
        let bit = bit.index(reply.len() * 8);
        reply[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(attempt.handle_response(NOW, &reply).is_err());
        reply[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(attempt.handle_response(NOW, &reply).is_ok());
    }

    #[test]
    fn messages_cut_short_or_made_up_are_refused(
        size in any::<prop::sample::Index>(),
        kind in 0u8..5,
        made_up in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut world = World::new();
        let mut attempt = world.attempt(start(7, 1));
        let said = message1(&attempt, LinkId(0));
        let cut = &said[..size.index(said.len())];
        prop_assert!(world.listener.handle_initiation(NOW, address(1), cut).is_err());
        let (_, reply) = world.accept(NOW, &said, 9);
        let cut = &reply[..size.index(reply.len())];
        prop_assert!(attempt.handle_response(NOW, cut).is_err());
        let made_up = [&[kind], made_up.as_slice()].concat();
        prop_assert!(world.listener.handle_initiation(NOW, address(1), &made_up).is_err());
        prop_assert!(attempt.handle_response(NOW, &made_up).is_err());
        prop_assert!(attempt.handle_cookie(&made_up).is_err());
    }
}
