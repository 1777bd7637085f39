//! An end with valid keys that sends anything.

use std::net::SocketAddr;
use std::time::Duration;

use braid_bond::proto::entropy::Entropy;
use braid_bond::proto::frame::{
    Class as DataClass, Data, Entry, Flush, Fragment, Frame, HeaderContext, Nack, Parity,
    PathResponse, Ping, PolicyFragment, Pong, Range, Report,
};
use braid_bond::proto::handshake::terms::Capabilities;
use braid_bond::proto::handshake::{
    Attempt, Ciphers, HandshakeAction, Listener, Options, Psk, Start,
};
use braid_bond::proto::packet::{Header, SessionIndex};
use braid_bond::proto::policy::{Policy, Rule, Scheduling};
use braid_bond::proto::reject::Reject;
use braid_bond::proto::seal::Cipher;
use braid_bond::proto::session::Session;
use braid_bond::proto::tunnel::{Tunnel, TunnelSettings};
use braid_core::Time;
use braid_multipath::schedule::Parameters;
use braid_multipath::{LinkId, PacketNumber};
use proptest::prelude::*;

use crate::sim::{HUB, client_settings, identity, inner, link, server};

/// A tunnel, and the keys of its other end.
struct Hostile {
    now: Time,
    tunnel: Tunnel,
    session: Session,
    numbers: [u64; 2],
    buffer: Vec<u8>,
}

/// Returns a client's handshake with a hub, and its first message.
fn attempt() -> (Attempt, Vec<u8>) {
    let start = Start {
        index: SessionIndex::new([3, 2, 1]).expect("not zero"),
        continues: None,
        micros: 1,
        ciphers: Ciphers::preferring(Cipher::ChaCha20Poly1305),
        options: Options::new(),
    };
    let (client, hub, psk) = (identity(1), identity(2).public(), Psk::new([7; 32]));
    let attempt = Attempt::new(&client, hub, &psk, start, &mut Entropy::new(&[1; 32]));
    let mut message = Vec::new();
    attempt.append(LinkId(0), &mut message);
    (attempt, message)
}

impl Hostile {
    fn new() -> Hostile {
        let now = Time::from_nanos(1_000_000);
        let entropy = Entropy::new(&[1; 32]);
        let mut tunnel =
            Tunnel::connect(now, client_settings(), TunnelSettings::default(), entropy);
        (0..2).for_each(|id| tunnel.add_link(now, LinkId(id), link()));
        let mut buffer = Vec::new();
        tunnel.poll_transmit(now, &mut buffer).expect("it calls");
        let mut listener = Listener::new(now, identity(2), Entropy::new(&[2; 32]));
        listener.insert(identity(1).public(), Psk::new([7; 32]));
        let from = SocketAddr::from(([192, 0, 2, 9], 9));
        let Ok(HandshakeAction::Offer(offer)) = listener.handle_initiation(now, from, &buffer)
        else {
            panic!("it is genuine")
        };
        let index = SessionIndex::new([1, 2, 3]).expect("not zero");
        let ciphers = Ciphers::preferring(Cipher::ChaCha20Poly1305);
        let mut accepted = listener
            .accept(now, *offer, index, false, ciphers, &Options::new())
            .expect("nothing is against it");
        tunnel
            .handle_datagram(now, (now, HUB), &mut accepted.reply)
            .expect("it is genuine");
        Hostile {
            now,
            tunnel,
            session: accepted.session,
            numbers: [0; 2],
            buffer,
        }
    }

    /// A client with the keys, and the hub's end of its tunnel.
    fn client() -> Hostile {
        let now = Time::from_nanos(1_000_000);
        let (mut attempt, buffer) = attempt();
        let (client, psk) = (identity(1), Psk::new([7; 32]));
        let mut listener = Listener::new(now, identity(2), Entropy::new(&[2; 32]));
        listener.insert(client.public(), psk);
        let Ok(HandshakeAction::Offer(offer)) = listener.handle_initiation(now, HUB, &buffer)
        else {
            panic!("it is genuine")
        };
        let index = SessionIndex::new([1, 2, 3]).expect("not zero");
        let ciphers = Ciphers::preferring(Cipher::ChaCha20Poly1305);
        let accepted = listener
            .accept(now, *offer, index, false, ciphers, &Options::new())
            .expect("nothing is against it");
        let established = attempt.handle_response(now, &accepted.reply);
        let (settings, entropy) = (TunnelSettings::default(), Entropy::new(&[3; 32]));
        let (session, peer) = (accepted.session, Capabilities::OURS);
        Hostile {
            now,
            tunnel: Tunnel::accept(now, session, peer, settings, entropy),
            session: established.expect("it is genuine").session,
            numbers: [0; 2],
            buffer,
        }
    }

    /// Sends `plain`, stamp included, under a number that is `skip` too high.
    fn say(&mut self, link: u8, skip: u64, plain: &[u8]) {
        let number = self.numbers[usize::from(link)] + skip;
        self.numbers[usize::from(link)] = number + 1;
        let header = Header {
            link: LinkId(link),
            receiver: self.session.peer(),
            number: number as u32,
        };
        let mut packet = header.to_bytes().to_vec();
        packet.extend_from_slice(plain);
        self.session
            .seal(LinkId(link), PacketNumber(number), &mut packet);
        let _ = self
            .tunnel
            .handle_datagram(self.now, (self.now, HUB), &mut packet);
    }

    /// Lets the tunnel run until it is idle.
    fn settle(&mut self, span: Duration) {
        self.now = self.now + span;
        self.tunnel.handle_timeout(self.now);
        let sent = (0..100_000)
            .take_while(|_| {
                let sent = self.tunnel.poll_transmit(self.now, &mut self.buffer);
                sent.is_some_and(|_| self.buffer.len() <= 1472)
            })
            .count();
        assert!(sent < 100_000, "it talks for ever");
        while self.tunnel.poll_inner(self.now).is_some() {}
        while self.tunnel.poll_event().is_some() {}
        assert!(self.tunnel.receiver().occupied() <= 32_768);
    }
}

fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..100,
        (0u32..62).prop_map(|bits| (1 << bits) - 1),
        Just((1 << 62) - 1)
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    let counts = [extreme(), extreme(), extreme(), extreme()];
    let times = any::<[u32; 4]>();
    (
        0u8..3,
        counts,
        times,
        0u32..1 << 24,
        extreme(),
        any::<bool>(),
    )
        .prop_map(
            |(
                link,
                [highest, packets, bytes, lost],
                [age, held, jitter, train],
                echo,
                delay,
                below,
            )| {
                let delay = (delay >> 1) as i64;
                Entry {
                    link: LinkId(link),
                    highest,
                    packets,
                    bytes,
                    lost,
                    age,
                    held,
                    echo,
                    delay: if below { -delay } else { delay },
                    jitter,
                    train,
                }
            },
        )
}

/// Well-formed and absurd frames.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let data = (
        any::<u8>(),
        0u32..1 << 24,
        any::<Option<(u16, bool)>>(),
        0usize..4,
        1usize..400,
        prop_oneof![Just(0x45u8), any::<u8>()],
    );
    let data = data.prop_map(|(lane, number, fragment, class, size, first)| {
        let mut out = Vec::new();
        let data = Data {
            class: DataClass::ALL[class],
            copy: false,
            has_length: true,
            lane: lane % 4,
            number,
            fragment: fragment.map(|(offset, last)| Fragment { offset, last }),
            content: &vec![first; size],
        };
        data.append(&mut out);
        out
    });
    let report = (extreme(), entry()).prop_map(|(number, entry)| {
        let mut out = Vec::new();
        Report::write(number, &[entry], &mut out);
        out
    });
    let nack = (0u8..3, extreme(), extreme()).prop_map(|(link, a, b)| {
        let mut out = Vec::new();
        let range = Range {
            first: a.min(b),
            last: a.max(b),
        };
        Nack::write(LinkId(link), &[range], &mut out);
        out
    });
    let small = prop_oneof![
        any::<u32>().prop_map(|token| Frame::Ping(Ping { token })),
        any::<u16>().prop_map(|token| Frame::Pong(Pong {
            token: token.into()
        })),
        (0u8..4, 0u32..1 << 24).prop_map(|(lane, highest)| Frame::Flush(Flush { lane, highest })),
        any::<[u8; 8]>().prop_map(|token| Frame::PathResponse(PathResponse { token })),
    ];
    let small = small.prop_map(|frame| {
        let mut out = Vec::new();
        frame.append(&mut out);
        out
    });
    let header = (
        0u8..4,
        any::<u8>(),
        prop::collection::vec(any::<u8>(), 1..80),
    );
    let header = header.prop_map(|(lane, number, content)| {
        let mut out = Vec::new();
        let content = &match content.len() % 2 {
            0 => content,
            _ => inner(7, 0, 100)[..28].to_vec(),
        };
        let frame = Frame::Header(HeaderContext {
            lane,
            number,
            content,
        });
        frame.append(&mut out);
        out
    });
    let noise = prop::collection::vec(any::<u8>(), 0..60);
    prop_oneof![3 => data, 3 => report, 2 => nack, 2 => small, 2 => header, 2 => policy(), 1 => noise]
}

/// Fragments of valid, invalid and incomplete policies.
fn policy() -> impl Strategy<Value = Vec<u8>> {
    let numbers = prop::collection::vec(any::<u32>(), 5);
    let links = prop::collection::vec((0u8..40, any::<u32>()), 0..4);
    let written = (0u8..3, numbers, links).prop_map(|(kind, numbers, links)| {
        let links = links
            .into_iter()
            .map(|(link, weight)| (LinkId(link), weight));
        let scheduling = match kind {
            0 => Scheduling::Adaptive,
            1 => {
                let report = Duration::from_millis(u64::from(numbers[2] % 2_000));
                let parameters = Parameters {
                    k: f64::from(numbers[0]) / 1000.0,
                    t_dwd: report * (numbers[1] % 50),
                    t_report: report,
                    w_fixed: numbers[3].into(),
                    w_max: numbers[4].into(),
                };
                Scheduling::Overflow(parameters, links.map(|(link, _)| link).collect())
            }
            _ => Scheduling::Weighted(numbers[0], links.collect()),
        };
        let rule = Rule {
            ports: Some(1..=u16::MAX),
            class: DataClass::ALL[(numbers[1] % 4) as usize].into(),
            ..Rule::default()
        };
        let rules = vec![rule; (numbers[2] % 300) as usize];
        let mut out = Vec::new();
        let policy = Policy {
            scheduling,
            rules,
            ..Policy::default()
        };
        policy.append(&mut out);
        out
    });
    let content = prop_oneof![2 => written, 1 => prop::collection::vec(any::<u8>(), 1..1200)];
    let version = prop_oneof![4 => 1u64..40, 1 => extreme()];
    (version, 0u8..3, 0u8..20, content).prop_map(|(version, fragment, more, content)| {
        let mut out = Vec::new();
        let last = if more < 10 { fragment } else { fragment + more };
        let frame = Frame::Policy(PolicyFragment {
            version,
            fragment,
            last,
            content: &content,
        });
        frame.append(&mut out);
        out
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_hostile_peer_cannot_exhaust_memory_or_time(
        by_client: bool,
        packets in prop::collection::vec(
            (0u8..2, prop_oneof![4 => Just(0u64), 1 => 0u64..100_000], any::<[u8; 3]>(),
             prop::collection::vec(frames(), 0..4), 0u64..200),
            1..80,
        ),
    ) {
        let mut hostile = match by_client {
            true => Hostile::client(),
            false => Hostile::new(),
        };
        for (number, (link, skip, stamp, frames, millis)) in packets.into_iter().enumerate() {
            let plain = [stamp.as_slice(), frames.concat().as_slice()].concat();
            hostile.say(link, skip, &plain);
            hostile.tunnel.handle_inner(hostile.now, inner(7, number as u64, 1500));
            hostile.settle(Duration::from_millis(millis));
        }
        // Everything was handled, except for what followed a CLOSE in the noise.
        let rejects = hostile.tunnel.rejects();
        let expected = [Reject::Frame, Reject::Old, Reject::Session, Reject::Header];
        let expected: u64 = expected.map(|reason| rejects.of(reason)).iter().sum();
        prop_assert_eq!(rejects.total(), expected, "{:?}", rejects);
    }
}

/// A DATA frame of lane 0.
fn data(number: u32, size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let data = Data {
        class: DataClass::Ordered,
        copy: false,
        has_length: true,
        lane: 0,
        number,
        fragment: None,
        content: &vec![0x45; size],
    };
    data.append(&mut out);
    out
}

/// A PARITY frame of lane 0, with the sum of all lengths and `content`.
fn parity((first, count): (u32, u8), lengths: u16, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let parity = Parity {
        lane: 0,
        first,
        count,
        power: 0,
        lengths,
        content,
    };
    Frame::Parity(parity).append(&mut out);
    out
}

impl Hostile {
    fn say_frames(&mut self, frames: &[Vec<u8>]) {
        let stamp = (self.now.as_nanos() / 1_000) as u32;
        let stamp = &stamp.to_be_bytes()[1..];
        self.say(0, 0, &[stamp, &frames.concat()].concat());
    }
}

/// There was room for 32,768 of them, 2 GB, and a buffer that had been large for one remained so.
#[test]
fn packets_that_wait_take_bounded_memory_and_are_delivered() {
    let mut hostile = Hostile::client();
    let (count, size) = (5_000, 60_000);
    let mut delivered = 0;
    for number in 1..=count {
        // Each comes behind a gap.
        hostile.say_frames(&[data(2 * number, size)]);
        let [_, received] = hostile.tunnel.packet_memory();
        assert!(received <= 129 << 20, "{received} bytes after {number}");
        while let Some(packet) = hostile.tunnel.poll_inner(hostile.now) {
            assert_eq!(packet.len(), size);
            delivered += 1;
        }
    }
    let waiting = hostile.tunnel.receiver().occupied();
    assert!((1..2_300).contains(&waiting), "{waiting} packets wait");
    assert!(delivered > 2_000, "{delivered} packets");
}

#[test]
fn what_the_hub_has_to_send_takes_bounded_memory() {
    let mut hostile = Hostile::client();
    for number in 0..5_000 {
        let packet = inner(7, number, 60_000);
        hostile.tunnel.handle_inner(hostile.now, packet);
        let [sent, _] = hostile.tunnel.packet_memory();
        assert!(sent <= 129 << 20, "{sent} bytes after {number}");
    }
}

/// Each of them cost a solution and up to 254 sums.
#[test]
fn repair_symbols_are_solved_once_a_datagram() {
    let mut hostile = Hostile::client();
    // The first symbol makes the receiver keep packets.
    hostile.say_frames(&[parity((1 << 20, 2), 0, &[0])]);
    for number in (0..254).filter(|number| *number != 100) {
        hostile.say_frames(&[data(number, 1)]);
    }
    hostile.settle(Duration::from_millis(5));
    let symbols: Vec<Vec<u8>> = (0..50)
        .map(|count| parity((0, 200 + count), 7, &[1]))
        .collect();
    hostile.say_frames(&symbols);
    hostile.settle(Duration::from_millis(5));
    let solved = hostile.tunnel.receiver().rebuilt();
    assert_eq!(solved, 1, "symbols that contradict each other are dropped");
}

/// A symbol could have 254 full packets summed up, 360 kB, and be contradicted by the next.
#[test]
fn what_has_arrived_pays_for_sums() {
    let mut hostile = Hostile::client();
    hostile.say_frames(&[parity((1 << 20, 2), 0, &[0])]);
    for number in (0..254).filter(|number| *number != 100) {
        hostile.say_frames(&[data(number, 1_400)]);
    }
    let late = |hostile: &Hostile| {
        let counters = hostile.tunnel.receiver().counters();
        counters.late.iter().sum::<u64>()
    };
    let mut symbol = |lengths: u16| {
        hostile.say_frames(&[parity((0, 254), lengths, &[0; 1_400])]);
        hostile.settle(Duration::from_millis(20));
        late(&hostile)
    };
    // No packet has these lengths: twelve of them use up 4 MB.
    for _ in 0..12 {
        assert_eq!(symbol(0xffff), 0);
    }
    // A sound one rebuilds the packet once these 24 have paid for what those left.
    let tries = (1..100).find(|_| symbol(0) == 1).expect("it is rebuilt");
    assert!((10..=16).contains(&tries), "rebuilt at the {tries}th");
}

/// A hub kept the tunnel of each client that never came back.
#[test]
fn a_session_that_nobody_proves_is_dropped() {
    for (waits, comes_in) in [(3_599, true), (3_601, false)] {
        let now = Time::from_nanos(1_000_000);
        let client = identity(1);
        let (mut attempt, mut buffer) = attempt();
        let mut hub = server(now, 5);
        let from = SocketAddr::from(([192, 0, 2, 9], 9));
        let taken = hub.handle_datagram(now, (now, from), &mut buffer);
        assert_eq!(taken, Ok(None));
        assert_eq!(hub.poll_transmit(now, &mut buffer), Some(from));
        let established = attempt.handle_response(now, &buffer);
        let mut session = established.expect("it is genuine").session;
        let later = now + Duration::from_secs(waits);
        assert!(
            hub.poll_timeout()
                .is_some_and(|at| at <= now + Duration::from_secs(3_600))
        );
        hub.handle_timeout(later);
        let header = Header {
            link: LinkId(0),
            receiver: session.peer(),
            number: 0,
        };
        let mut packet = header.to_bytes().to_vec();
        packet.extend_from_slice(&[0; 4]);
        session.seal(LinkId(0), PacketNumber(0), &mut packet);
        let taken = hub.handle_datagram(later, (later, from), &mut packet);
        let expected = match comes_in {
            true => Ok(Some((client.public(), LinkId(0)))),
            false => Err(Reject::Session),
        };
        assert_eq!(taken, expected);
        assert_eq!(hub.tunnel(client.public()).is_some(), comes_in);
        if !comes_in {
            assert_eq!(hub.poll_timeout(), None, "nothing is left to do");
        }
    }
}
