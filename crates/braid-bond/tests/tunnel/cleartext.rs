//! Cleartext data, as GRE: when it is sent, and what an attacker can do with it.

use std::net::SocketAddr;
use std::time::Duration;

use braid_bond::proto::frame::{Class, Close, Data, Frame, Ping, Reason};
use braid_bond::proto::gre;
use braid_bond::proto::packet::Header;
use braid_bond::proto::reject::Reject;
use braid_bond::proto::replay_window::REPLAY_WINDOW;
use braid_multipath::LinkId;

use crate::line::Lines;
use crate::sim::{End, HUB, Pair, inner, number};

const TICK: Duration = Duration::from_millis(1);

/// A pair in which either end wants GRE, or not.
fn pair(seed: u64, client: bool, hub: bool) -> Pair {
    let lines = (0..2).map(|index| Lines::new(index, 50, 10)).collect();
    let mut pair = Pair::wanting(seed, lines, client);
    pair.server.set_gre(pair.peer, hub);
    pair.recorded = Some(Vec::new());
    pair.connect();
    pair
}

/// Sends for two seconds in both directions, less than the lines carry; returns the numbers of
/// packets that arrived at the hub and at the client.
fn talk(pair: &mut Pair, from: u64) -> (usize, usize) {
    let before = (pair.at_hub.len(), pair.at_client.len());
    pair.tick(Duration::from_secs(2), TICK, |pair, count| {
        for _ in 0..6 {
            pair.inner_at_client(inner(1, from + count, 1200));
            pair.inner_at_hub(inner(2, from + count, 1200));
        }
    });
    pair.run_for(Duration::from_secs(1));
    let at_hub = pair.at_hub.split_off(before.0);
    let at_client = pair.at_client.split_off(before.1);
    let ordered = at_hub.iter().map(|(_, packet)| number(packet).1);
    assert!(ordered.is_sorted(), "they come in order");
    (at_hub.len(), at_client.len())
}

/// The client's cleartext packets, and all of the size of inner packets.
fn sent(pair: &Pair) -> (usize, usize) {
    let recorded = pair.recorded.as_ref().expect("it is kept");
    let large = recorded.iter().filter(|(_, packet)| packet.len() > 1100);
    let clear = recorded.iter().filter(|(_, packet)| gre::is_gre(packet));
    (clear.count(), large.count())
}

#[test]
fn data_goes_in_the_clear_where_both_ends_want_that() {
    let mut pair = pair(1, true, true);
    assert_eq!(talk(&mut pair, 0), (12_000, 12_000));
    for link in [LinkId(0), LinkId(1)] {
        assert!(pair.client.is_cleartext(link) && pair.hub().is_cleartext(link));
    }
    let (clear, large) = sent(&pair);
    println!("{clear} of {large}");
    assert!(clear > 11_900 && large < 12_300, "{clear} of {large}");
    assert!(pair.lines.iter().all(|lines| lines.up.packets > 1000));
    assert_eq!(pair.client.rejects().total(), 0);
    assert_eq!(pair.hub().rejects().total(), 0);
}

#[test]
fn one_end_alone_gets_nothing_sent_in_the_clear() {
    for (client, hub) in [(true, false), (false, true)] {
        let mut pair = pair(2, client, hub);
        assert_eq!(talk(&mut pair, 0), (12_000, 12_000));
        assert_eq!(sent(&pair).0, 0);
        assert!(!pair.hub().is_cleartext(LinkId(0)));
    }
}

#[test]
fn a_line_that_passes_no_gre_carries_sealed_packets() {
    let lines = (0..2).map(|index| Lines::new(index, 50, 10)).collect();
    let mut pair = Pair::wanting(3, lines, true);
    pair.server.set_gre(pair.peer, true);
    pair.lines[1].both(|line| line.gre = false);
    pair.connect();
    assert_eq!(talk(&mut pair, 0), (12_000, 12_000));
    assert!(pair.client.is_cleartext(LinkId(0)) && !pair.client.is_cleartext(LinkId(1)));
    // If the other line stops passing GRE, packets in flight are lost and requested again.
    pair.lines[0].both(|line| line.gre = false);
    talk(&mut pair, 10_000);
    talk(&mut pair, 20_000);
    assert!(!pair.client.is_cleartext(LinkId(0)) && !pair.hub().is_cleartext(LinkId(0)));
    assert_eq!(talk(&mut pair, 30_000), (12_000, 12_000));
    pair.lines[0].both(|line| line.gre = true);
    pair.run_for(Duration::from_secs(60));
    assert!(pair.client.is_cleartext(LinkId(0)) && pair.hub().is_cleartext(LinkId(0)));
}

/// A cleartext packet as an observer can forge it.
fn forged(pair: &Pair, ahead: u64, frames: &[Frame<'_>]) -> Vec<u8> {
    let receiver = pair.client.session().expect("it is connected").peer();
    let recorded = pair.recorded.as_ref().expect("it is kept");
    let of_link = recorded
        .iter()
        .filter(|(from, _)| *from == pair.lines[0].client);
    let numbers = of_link.filter_map(|(_, packet)| Some(gre::parse(packet)?.0.number));
    let header = Header {
        link: LinkId(0),
        receiver,
        number: numbers.max().expect("some went so") + ahead as u32,
    };
    let mut packet = Vec::new();
    gre::begin(header, &mut packet);
    packet.extend([0; 3]);
    frames.iter().for_each(|frame| frame.append(&mut packet));
    packet
}

#[test]
fn strangers_say_nothing_but_inner_packets_and_shut_nobody_out() {
    let mut pair = pair(4, true, true);
    talk(&mut pair, 0);
    let client = pair.lines[0].client;
    let elsewhere = SocketAddr::from(([10, 0, 7, 7], 4000));
    let ping = Frame::Ping(Ping { token: 7 });
    let close = Frame::Close(Close {
        reason: Reason::Revoked,
    });
    let refused = [
        (elsewhere, forged(&pair, 10, &[ping])),
        (client, forged(&pair, 11, &[close])),
        (client, forged(&pair, 12, &[ping, close])),
        (client, forged(&pair, 2 * REPLAY_WINDOW, &[ping])),
    ];
    let before = pair.hub().rejects().of(Reject::Cleartext);
    for (from, packet) in refused {
        pair.inject(End::Hub, from, packet);
    }
    pair.run_for(Duration::from_millis(1));
    assert_eq!(pair.hub().rejects().of(Reject::Cleartext), before + 4);
    assert!(pair.hub().session().is_some() && pair.client.session().is_some());
    // Attacks that succeed: adding an inner packet, and using up numbers of the window.
    let content = inner(9, 5, 200);
    let data = Frame::Data(Data {
        class: Class::Unordered,
        copy: false,
        has_length: false,
        lane: 77,
        number: 0,
        fragment: None,
        content: &content,
    });
    let ahead = forged(&pair, REPLAY_WINDOW - 3000, &[data]);
    pair.inject(End::Hub, client, ahead.clone());
    pair.inject(End::Hub, client, ahead);
    pair.run_for(Duration::from_millis(50));
    assert_eq!(pair.hub().rejects().of(Reject::Seen), 1);
    let (at_hub, at_client) = talk(&mut pair, 10_000);
    // The skipped numbers count as lost.
    println!("{at_hub} {at_client}");
    assert!(at_hub > 10_000 && at_client == 12_000);
    assert_eq!(pair.hub().rejects().of(Reject::Old), 0);
    assert!(pair.client.is_cleartext(LinkId(0)));
    assert_eq!(pair.client.remote(LinkId(0)), Some(HUB));
}

#[test]
fn forged_packets_confirm_no_session() {
    let mut pair = pair(5, true, true);
    talk(&mut pair, 0);
    let unknown = forged(&pair, 1, &[Frame::Ping(Ping { token: 7 })]);
    let mut other = unknown.clone();
    other[5] ^= 1;
    let before = pair.server.rejects().of(Reject::Session);
    pair.inject(End::Hub, pair.lines[0].client, other);
    pair.run_for(Duration::from_millis(1));
    assert_eq!(pair.server.rejects().of(Reject::Session), before + 1);
    assert_eq!(pair.client.rejects().total(), 0, "and no reset was sent");
}
