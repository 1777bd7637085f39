//! Test vectors of `docs/protocol.md`, made from fixed keys and compared with the document.
//! `BLESS=1` rewrites them; a difference is a change of the protocol.

mod support;

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use braid_bond::proto::entropy::Entropy;
use braid_bond::proto::frame::{
    Challenge, Class, Close, Data, Entry, Flush, Fragment, Frame, HeaderAck, HeaderContext,
    LinkParams, Nack, Padding, Parity, PathResponse, Ping, PolicyAck, PolicyFragment, Pong, Range,
    Reason, Report,
};
use braid_bond::proto::handshake::terms::{self, Refusal, Terms};
use braid_bond::proto::handshake::{
    Attempt, Ciphers, EpochKey, EpochKeys, HandshakeAction, Identity, Listener, Options, Psk, Start,
};
use braid_bond::proto::header_compression::{Compressor, ContextOutcome, Decompressor};
use braid_bond::proto::packet::{Header, stamp_bits};
use braid_bond::proto::policy::{Policy, Rule, Scheduling};
use braid_bond::proto::seal::Cipher;
use braid_bond::proto::session::Session;
use braid_bond::token::{Secret, Token};
use braid_core::units::Rate;
use braid_core::{Prefix, Time};
use braid_multipath::resequence::Reordering;
use braid_multipath::schedule::{self, Parameters};
use braid_multipath::{LaneId, LinkId, PacketNumber, Stamp};
use braid_packet::{build, checksum};
use support::{address, index, message1};

const FILE: &str = "../../docs/protocol-vectors.txt";

#[derive(Default)]
struct Vectors(String);

impl Vectors {
    fn title(&mut self, title: &str) {
        writeln!(self.0, "\n# {title}").expect("text grows");
    }

    fn add(&mut self, name: &str, bytes: &[u8]) {
        writeln!(self.0, "{name} = {}", hex(bytes)).expect("text grows");
    }

    fn frame(&mut self, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        write(&mut out);
        self.add(name, &out);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("text grows");
        text
    })
}

#[test]
fn the_document_shows_what_the_code_does() {
    let mut vectors = Vectors::default();
    vectors
        .0
        .push_str("# Test vectors of the bond's protocol, version 1: see protocol.md. All numbers are hexadecimal.\n");
    handshake(&mut vectors, Cipher::Aes256Gcm);
    handshake(&mut vectors, Cipher::ChaCha20Poly1305);
    frames(&mut vectors);
    policies(&mut vectors);
    headers(&mut vectors);
    token(&mut vectors);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    if env::var_os("BLESS").is_some() {
        fs::write(&path, &vectors.0).expect("the folder is there");
    }
    let shown = fs::read_to_string(&path).expect("the file is there");
    for (shown, now) in shown.lines().zip(vectors.0.lines()) {
        assert_eq!(shown, now);
    }
    assert_eq!(shown, vectors.0);
}

fn token(vectors: &mut Vectors) {
    vectors.title("token and options");
    let secret = Secret::new([0x44; 32]);
    vectors.add("secret", secret.bytes());
    vectors.add("invitation's number", &secret.id().0);
    vectors.add("pre-shared key of the secret", &*secret.psk().0);
    let addresses = ["198.51.100.7", "[2001:db8::7]:500", "hub.example.org:51"];
    let token = Token {
        hub: Identity::new([0x22; 32]).public(),
        secret: secret.clone(),
        addresses: addresses.map(|text| text.parse().expect("good")).into(),
    };
    writeln!(vectors.0, "token for {} = {token}", addresses.join(" ")).expect("text grows");
    let options = terms::enrol(secret.id());
    vectors.add("options of who was invited", options.as_bytes());
    let address = |text: &str| text.parse().expect("good");
    let terms = Terms {
        addresses: vec![(address("10.73.0.2"), 16), (address("fd00:1:2:3::2"), 64)],
        hub: vec![address("10.73.0.1")],
        name: Some("attic".into()),
        cap: Some(Rate::from_bits_per_sec(50_000_000)),
    };
    vectors.add("options of the answer", terms.to_options().as_bytes());
    vectors.add(
        "options of a refusal",
        Refusal::Used.to_options().as_bytes(),
    );
    vectors.add(
        "options of a refusal that tells the time",
        Refusal::Clock(1_700_000_000_000_000)
            .to_options()
            .as_bytes(),
    );
}

fn handshake(vectors: &mut Vectors, cipher: Cipher) {
    let now = Time::ZERO;
    let client = Identity::new([0x11; 32]);
    let server = Identity::new([0x22; 32]);
    let psk = Psk::new([0x33; 32]);
    vectors.title(&format!("handshake, data sealed by {cipher:?}"));
    vectors.add("initiator's private key", client.private());
    vectors.add("initiator's public key", &client.public().0);
    vectors.add("responder's private key", server.private());
    vectors.add("responder's public key", &server.public().0);
    vectors.add("pre-shared key", &*psk.0);

    let mut listener = Listener::new(now, server.clone(), Entropy::new(&[0x44; 32]));
    listener.insert(client.public(), psk.clone());
    let ephemeral: [u8; 32] = Entropy::new(&[0x55; 32]).bytes();
    vectors.add("initiator's ephemeral private key", &ephemeral);
    let mut options = Options::new();
    assert!(options.push(0x7f, b"an option"));
    let start = Start {
        index: index(0x00a1_b2c3),
        continues: Some(index(0x0000_0007)),
        micros: 1_700_000_000_000_000,
        ciphers: Ciphers::preferring(cipher),
        options: options.clone(),
    };
    let mut entropy = Entropy::new(&[0x55; 32]);
    let mut attempt = Attempt::new(&client, server.public(), &psk, start, &mut entropy);
    let first = message1(&attempt, LinkId(0));
    vectors.add("initiation on link 0", &first);
    vectors.add("initiation on link 3", &message1(&attempt, LinkId(3)));

    // A listener under load demands a cookie.
    let cookie = loop {
        match listener.handle_initiation(now, address(1), &first) {
            Ok(HandshakeAction::Reply(reply)) => break reply,
            Ok(HandshakeAction::Offer(_) | HandshakeAction::UnknownPeer(_)) => {}
            Err(error) => panic!("{error}"),
        }
    };
    vectors.add("cookie reply to link 0", &cookie);
    attempt.handle_cookie(&cookie).expect("genuine");
    let proven = message1(&attempt, LinkId(0));
    vectors.add("initiation on link 0 with the cookie", &proven);
    let Ok(HandshakeAction::Offer(offer)) = listener.handle_initiation(now, address(1), &proven)
    else {
        panic!("it is proven")
    };
    let ciphers = Ciphers::preferring(Cipher::Aes256Gcm);
    let accepted = listener
        .accept(
            now,
            *offer,
            index(0x00d4_e5f6),
            true,
            ciphers,
            &Options::new(),
        )
        .expect("nothing is against it");
    vectors.add("response on link 0", &accepted.reply);
    let established = attempt
        .handle_response(now, &accepted.reply)
        .expect("genuine");
    // The next run has the key of this one's epoch.
    let earlier = listener.epochs().iter().cloned().collect::<Vec<_>>();
    listener.set_epochs(EpochKeys::new(EpochKey::new([9; 32]), earlier));
    let reset = listener.reset(now, address(1), index(0x00d4_e5f6));
    vectors.add("reset after a restart", &reset.expect("the first"));
    let mut client = established.session;
    let mut server = accepted.session;
    data(vectors, "initiator to responder", &mut client, &mut server);
    data(vectors, "responder to initiator", &mut server, &mut client);
}

/// A packet with a number beyond 32 bits.
fn data(vectors: &mut Vectors, name: &str, from: &mut Session, to: &mut Session) {
    let (link, number) = (LinkId(3), PacketNumber(0x0001_0000_0002));
    let header = Header {
        link,
        receiver: from.peer(),
        number: number.0 as u32,
    };
    let mut packet = header.to_bytes().to_vec();
    packet.extend_from_slice(&stamp_bits(Stamp(0x1234_5678)).to_be_bytes()[1..]);
    Ping { token: 5 }.append(&mut packet);
    let plain = packet[8..].to_vec();
    from.seal(link, number, &mut packet);
    vectors.add(
        &format!("{name}, link 3, number 100000002, sealed inside"),
        &plain,
    );
    vectors.add(&format!("{name}, link 3, number 100000002"), &packet);
    let opened = to.open(link, number, &mut packet).expect("authentic");
    assert_eq!(opened, plain);
}

fn frames(vectors: &mut Vectors) {
    vectors.title("frames");
    let whole = Data {
        class: Class::Ordered,
        copy: false,
        has_length: false,
        lane: 0x2a,
        number: 0x0001_0203,
        fragment: None,
        content: b"packet",
    };
    vectors.frame("data, ordered, to the end", |out| whole.append(out));
    let first = Data {
        class: Class::Pinned,
        copy: true,
        has_length: true,
        fragment: Some(Fragment {
            offset: 0,
            last: false,
        }),
        ..whole
    };
    vectors.frame("data, pinned, fragment at 0, copy, with length", |out| {
        first.append(out);
    });
    let redundant = Data {
        class: Class::Redundant,
        has_length: true,
        ..whole
    };
    vectors.frame("data, redundant, with length", |out| redundant.append(out));
    let last = Data {
        class: Class::Unordered,
        fragment: Some(Fragment {
            offset: 0x04d2,
            last: true,
        }),
        ..whole
    };
    vectors.frame(
        "data, unordered, fragment at 4d2, the last, to the end",
        |out| {
            last.append(out);
        },
    );
    let entry = Entry {
        link: LinkId(0),
        highest: 70_000,
        packets: 69_990,
        bytes: 98_000_000,
        lost: 10,
        age: 12,
        held: 500,
        echo: 0x0012_3456,
        delay: -1500,
        jitter: 80,
        train: 50_000,
    };
    let other = Entry {
        link: LinkId(3),
        delay: 1500,
        ..entry
    };
    vectors.frame("report, number 300, links 0 and 3", |out| {
        Report::write(300, &[entry, other], out);
    });
    let ranges = [
        Range { first: 7, last: 7 },
        Range {
            first: 100,
            last: 199,
        },
    ];
    vectors.frame("nack, link 3, 7 and 100 to 199", |out| {
        Nack::write(LinkId(3), &ranges, out);
    });
    let parity = Parity {
        lane: 0x2a,
        first: 0x0001_0203,
        count: 5,
        power: 2,
        lengths: 0x0004,
        content: b"folded",
    };
    let simple = [
        ("ping, token 1000", Frame::Ping(Ping { token: 1000 })),
        ("pong, token 1000", Frame::Pong(Pong { token: 1000 })),
        (
            "flush, lane 2a, highest 010203",
            Frame::Flush(Flush {
                lane: 0x2a,
                highest: 0x0001_0203,
            }),
        ),
        ("parity", Frame::Parity(parity)),
        (
            "path challenge",
            Frame::PathChallenge(Challenge {
                token: *b"12345678",
            }),
        ),
        (
            "path response",
            Frame::PathResponse(PathResponse {
                token: *b"12345678",
            }),
        ),
        ("padding, 4 bytes", Frame::Padding(Padding { bytes: 4 })),
        (
            "close, revoked",
            Frame::Close(Close {
                reason: Reason::Revoked,
            }),
        ),
        (
            "link params, tier 2, quota used up, at most 50 Mbit/s",
            Frame::LinkParams(LinkParams {
                tier: 2,
                spent: true,
                cap: 50_000,
            }),
        ),
        (
            "policy, version 7, fragment 1 of 0 to 2",
            Frame::Policy(PolicyFragment {
                version: 7,
                fragment: 1,
                last: 2,
                content: b"part",
            }),
        ),
        (
            "policy ack, version 7, applied",
            Frame::PolicyAck(PolicyAck {
                version: 7,
                applied: true,
            }),
        ),
        (
            "header 05 of lane 2a",
            Frame::Header(HeaderContext {
                lane: 0x2a,
                number: 5,
                content: b"header",
            }),
        ),
        (
            "header ack, lane 2a, header 05, known",
            Frame::HeaderAck(HeaderAck {
                lane: 0x2a,
                number: 5,
                known: true,
            }),
        ),
        (
            "a frame of a later version",
            Frame::Unknown {
                kind: 0x40,
                content: b"later",
            },
        ),
    ];
    for (name, frame) in simple {
        vectors.frame(name, |out| frame.append(out));
    }
}

fn policies(vectors: &mut Vectors) {
    vectors.title("policies");
    let mut add = |name: &str, policy: &Policy| {
        let mut bytes = Vec::new();
        policy.append(&mut bytes);
        assert_eq!(Policy::parse(&bytes).as_ref(), Ok(policy));
        vectors.add(name, &bytes);
    };
    add("adaptive, no rules", &Policy::default());
    let network = |text: &str, length| Prefix::new(text.parse().expect("an address"), length);
    let rules = vec![
        Rule {
            network: network("198.51.100.0", 22),
            protocol: Some(17),
            ports: Some(5000..=5010),
            class: schedule::Class::Redundant,
            ..Rule::default()
        },
        Rule {
            is_v4: Some(false),
            dscp: Some(46),
            class: schedule::Class::Unordered,
            ..Rule::default()
        },
    ];
    let links = vec![LinkId(1), LinkId(0)];
    let overflow = Policy {
        scheduling: Scheduling::Overflow(Parameters::default(), links),
        rules,
        ..Policy::default()
    };
    add("overflow over links 1 and 0, two rules", &overflow);
    let weighted = Policy {
        scheduling: Scheduling::Weighted(8, vec![(LinkId(0), 80), (LinkId(1), 20)]),
        ..Policy::default()
    };
    add("weighted 80 to 20 in bursts of 8, no rules", &weighted);
    let timed = Policy {
        ordering: Reordering::FixedTimeout(Duration::from_millis(50)),
        ..Policy::default()
    };
    add("adaptive, order by a time-out of 50 ms, no rules", &timed);
}

fn headers(vectors: &mut Vectors) {
    vectors.title("a compressed packet");
    let end = |address: &str, port| (address.parse().expect("an address"), port);
    let ends = (end("10.73.0.2", 5000), end("192.0.2.1", 7000));
    let packet = |id: u16, payload: &[u8]| {
        let mut packet = build::udp(ends.0, ends.1, payload);
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        packet[10..12].fill(0);
        let sum = checksum::of(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    };
    let (lane, mut compressor, mut decompressor) =
        (LaneId(0x2a), Compressor::default(), Decompressor::default());
    let mut compressed = Vec::new();
    for id in 1..=4 {
        let packet = packet(id, b"before");
        assert!(!compressor.compress(Time::ZERO, lane, &packet, &mut compressed));
    }
    let mut header = Vec::new();
    let context = compressor
        .poll_context(&mut header)
        .expect("four are enough");
    assert_eq!(decompressor.handle_context(&context), ContextOutcome::Known);
    vectors.frame("HEADER", |out| context.append(out));
    compressor.handle_ack(lane, 0, true);
    let whole = packet(9, b"call");
    assert!(compressor.compress(Time::ZERO, lane, &whole, &mut compressed));
    vectors.add("packet", &whole);
    vectors.add("compressed", &compressed);
    let mut expanded = Vec::new();
    assert_eq!(
        decompressor.decompress(lane, &compressed, &mut expanded),
        Ok(())
    );
    assert_eq!(expanded, whole);
}
