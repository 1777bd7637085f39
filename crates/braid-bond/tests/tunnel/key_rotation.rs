//! A hub that replaces its key.

use std::time::Duration;

use braid_bond::proto::handshake::mac::MacKey;
use braid_bond::proto::handshake::terms::current_key;
use braid_bond::proto::handshake::{HubKeys, PublicKey};
use braid_bond::proto::reject::Reject;
use braid_bond::proto::tunnel::Event;
use braid_multipath::LinkId;

use crate::line::Lines;
use crate::sim::{End, HUB, Pair, identity, inner, restarted};

/// Longer than the interval of handshakes on an idle bond.
const IDLE_INTERVAL: Duration = Duration::from_secs(1_900);

fn lines() -> Vec<Lines> {
    vec![Lines::new(0, 50, 15), Lines::new(1, 20, 40)]
}

fn overlap() -> HubKeys {
    HubKeys {
        current: identity(3),
        previous: Some(identity(2)),
        retired: None,
    }
}

fn retired() -> HubKeys {
    HubKeys {
        previous: None,
        retired: Some(identity(2).public()),
        ..overlap()
    }
}

fn is_established(event: &Event) -> bool {
    matches!(event, Event::Established { .. })
}

/// The keys that the client has been told.
fn told(pair: &Pair) -> Vec<PublicKey> {
    let options = pair
        .client_events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Established { options, .. } => Some(options),
            _ => None,
        });
    options.filter_map(current_key).collect()
}

fn carries(pair: &mut Pair) {
    pair.at_hub.clear();
    for number in 0..20 {
        pair.inner_at_client(inner(1, number, 500));
    }
    pair.run_for(Duration::from_secs(2));
    assert_eq!(pair.at_hub.len(), 20);
}

#[test]
fn a_client_follows_within_its_session_once_it_has_stored_the_key() {
    let mut pair = Pair::new(31, lines());
    pair.connect();
    assert_eq!(told(&pair), []);
    pair.server.set_keys(overlap());
    carries(&mut pair);
    pair.run_for(IDLE_INTERVAL);
    let new = identity(3).public();
    assert!(!told(&pair).is_empty() && told(&pair).iter().all(|key| *key == new));
    let came_by = |pair: &Pair| pair.server.listener().came_by(pair.peer);
    assert_eq!(
        came_by(&pair),
        Some(identity(2).public()),
        "nothing is used before it is stored"
    );
    let handshakes = told(&pair).len();
    pair.client.set_hub(pair.now, new);
    pair.run_for(Duration::from_secs(1));
    assert_eq!(came_by(&pair), Some(new), "at once");
    // The same again changes nothing.
    pair.client.set_hub(pair.now, new);
    pair.server.set_keys(retired());
    carries(&mut pair);
    pair.run_for(IDLE_INTERVAL);
    carries(&mut pair);
    assert_eq!(told(&pair).len(), handshakes, "it knows");
    let events = pair.client_events.iter();
    let again = events.filter(|(_, event)| {
        matches!(
            event,
            Event::Established {
                continued: false,
                ..
            } | Event::HandshakeTimeout
        )
    });
    assert_eq!(again.count(), 1, "the session has gone on since its begin");
    assert_eq!(pair.server.listener().counters().retired, 0);
}

#[test]
fn a_restarted_hub_resets_sessions_of_both_keys() {
    for (seed, keys) in [(32, None), (33, Some(overlap()))] {
        let mut pair = Pair::new(seed, lines());
        if let Some(keys) = keys {
            pair.server.set_keys(keys);
        }
        pair.connect();
        pair.client_events.clear();
        pair.server = restarted(pair.hub_now(), 7);
        pair.server.set_keys(overlap());
        pair.inner_at_client(inner(1, 0, 500));
        pair.run_for(Duration::from_secs(2));
        let events = pair.client_events.iter();
        assert_eq!(events.filter(|(_, event)| is_established(event)).count(), 1);
        assert!(pair.server.listener().counters().resets > 0);
        assert_eq!(told(&pair), [identity(3).public()]);
        carries(&mut pair);
    }
}

#[test]
fn a_client_that_was_away_is_told_and_goes_on_trying() {
    let mut pair = Pair::new(34, lines());
    pair.server.set_keys(retired());
    pair.run_for(Duration::from_secs(25));
    let count = |pair: &Pair, wanted: &Event| {
        let events = pair.client_events.iter();
        events.filter(|(_, event)| event == wanted).count()
    };
    assert_eq!(count(&pair, &Event::KeyRetired), 3, "once a handshake");
    assert_eq!(count(&pair, &Event::HandshakeTimeout), 2);
    assert!(pair.server.listener().counters().retired >= 6);
    assert!(pair.client.session().is_none());
    // Its hub is there after all, as after a notice that somebody has forged.
    pair.server.set_keys(overlap());
    pair.connect();
    carries(&mut pair);
}

#[test]
fn a_forged_notice_is_words_and_nothing_else() {
    let notice = |key: PublicKey, initiation: &[u8]| {
        let mac1 = &initiation[initiation.len() - 32..initiation.len() - 16];
        let keyed = braid_bond::proto::handshake::mac::hash(
            &[b"braid retired".as_slice(), &key.0].concat(),
        );
        let mut datagram = vec![5, initiation[1]];
        datagram.extend_from_slice(&MacKey::secret(&keyed).sign(&[mac1]));
        datagram
    };
    for (knows, hears) in [(identity(2).public(), 1), (identity(9).public(), 0)] {
        let mut pair = Pair::new(35, lines());
        pair.recorded = Some(Vec::new());
        pair.run_for(Duration::from_micros(1));
        let sent = pair.recorded.take().expect("it records");
        for (_, datagram) in sent.iter().filter(|(_, datagram)| datagram[0] == 1) {
            for _ in 0..3 {
                pair.inject(End::Client, HUB, notice(knows, datagram));
            }
        }
        pair.connect();
        carries(&mut pair);
        let told = pair.client_events.iter();
        let told = told
            .filter(|(_, event)| *event == Event::KeyRetired)
            .count();
        assert_eq!(told, hears);
        assert_eq!(
            pair.client.rejects().of(Reject::Handshake) > 0,
            hears == 0,
            "a sender that does not know the hub's key is not believed"
        );
        assert!(pair.client.max_payload(LinkId(0)).is_some());
    }
}
