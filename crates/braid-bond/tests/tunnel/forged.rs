//! An attacker who knows the hub's public key and sees the client's packets on one uplink.

use std::time::Duration;

use braid_bond::proto::handshake::mac::MacKey;
use braid_bond::proto::tunnel::Event;
use braid_core::Time;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use crate::line::Lines;
use crate::sim::{End, HUB, Pair, identity};

const INITIATION: u8 = 1;
const COOKIE_REPLY: u8 = 3;

fn lines() -> Vec<Lines> {
    vec![Lines::new(0, 50, 15), Lines::new(1, 20, 40)]
}

/// A cookie reply to this initiation, made without the hub's private key.
fn cookie_reply(initiation: &[u8], plain: &[u8], salt: u8) -> Vec<u8> {
    let salt = [salt; 16];
    let mac1 = &initiation[initiation.len() - 32..initiation.len() - 16];
    let secret = MacKey::of_cookies(identity(2).public()).sign_whole(&[&salt, mac1]);
    let key = UnboundKey::new(&CHACHA20_POLY1305, &secret).expect("32 bytes");
    let mut sealed = plain.to_vec();
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    let tag = LessSafeKey::new(key)
        .seal_in_place_separate_tag(nonce, Aad::empty(), &mut sealed)
        .expect("it is short");
    let mut reply = vec![COOKIE_REPLY, initiation[1]];
    reply.extend_from_slice(&salt);
    reply.extend_from_slice(&sealed);
    reply.extend_from_slice(tag.as_ref());
    reply
}

/// Answers every initiation on link 0 by `times` forged cookie replies that arrive before the hub's
/// reply. Returns the number of initiations that the client sent.
fn attack(pair: &mut Pair, until: Time, plain: &[u8], times: u8) -> usize {
    pair.recorded = Some(Vec::new());
    let mut initiations = 0;
    pair.run(until, |pair| {
        let from = pair.lines[0].client;
        let sent = pair.recorded.replace(Vec::new()).unwrap_or_default();
        for (source, datagram) in sent {
            if datagram[0] != INITIATION {
                continue;
            }
            initiations += 1;
            for salt in 0..times {
                if source == from {
                    let forged = cookie_reply(&datagram, plain, salt);
                    pair.inject(End::Client, HUB, forged);
                }
            }
        }
    });
    initiations
}

fn established(pair: &Pair) -> usize {
    let is = |event: &Event| matches!(event, Event::Established { .. });
    pair.client_events
        .iter()
        .filter(|(_, event)| is(event))
        .count()
}

#[test]
fn a_forged_cookie_reply_moves_no_clock() {
    // A cookie, and a time that cannot be exceeded: the format of an earlier draft of the protocol.
    let mut plain = vec![7; 16];
    plain.extend_from_slice(&(u64::MAX - 1).to_be_bytes());
    let mut pair = Pair::new(21, lines());
    let second = Time::ZERO + Duration::from_secs(1);
    let initiations = attack(&mut pair, second, &plain, 1);
    assert_eq!(established(&pair), 1);
    assert_eq!(initiations, 2, "one on each link");
    assert_eq!(pair.server.listener().counters().stale, 0);
    // The hub has not learned a time that later handshakes cannot exceed.
    let later = pair.now + Duration::from_secs(3600);
    pair.run(later, |_| {});
    assert!(pair.client.session().is_some());
    assert_eq!(pair.server.listener().counters().stale, 0);
}

#[test]
fn forged_cookies_cost_one_repetition_a_link() {
    let mut pair = Pair::new(22, lines());
    let second = Time::ZERO + Duration::from_secs(1);
    let initiations = attack(&mut pair, second, &[7; 16], 100);
    assert_eq!(established(&pair), 1);
    assert!(initiations <= 3, "{initiations} initiations");
}
