use std::collections::VecDeque;

use braid_core::Time;
use braid_multipath::LaneId;
use proptest::prelude::*;

use super::*;
use crate::proto::ecn;
use crate::proto::frame::HeaderContext;

/// The relevant fields of an inner packet.
#[derive(Clone, Debug)]
struct Inner {
    is_v4: bool,
    /// None for UDP.
    tcp: Option<Tcp>,
    flow: u8,
    ecn: u8,
    ttl: u8,
    id: u16,
    checksum: u16,
    payload: usize,
}

#[derive(Clone, Debug)]
struct Tcp {
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    times: Option<[u32; 2]>,
}

impl Inner {
    fn packet(&self) -> Vec<u8> {
        let mut transport = vec![0x12, self.flow, 0x01, 0xbb];
        match &self.tcp {
            None => {
                transport.extend_from_slice(&(8 + self.payload as u16).to_be_bytes());
                transport.extend_from_slice(&self.checksum.to_be_bytes());
            }
            Some(tcp) => {
                transport.extend_from_slice(&tcp.seq.to_be_bytes());
                transport.extend_from_slice(&tcp.ack.to_be_bytes());
                let offset = if tcp.times.is_some() { 0x80 } else { 0x50 };
                transport.extend_from_slice(&[offset, tcp.flags]);
                transport.extend_from_slice(&tcp.window.to_be_bytes());
                transport.extend_from_slice(&self.checksum.to_be_bytes());
                transport.extend_from_slice(&[0, 0]);
                if let Some([value, echo]) = tcp.times {
                    transport.extend_from_slice(&TIMESTAMPS);
                    transport.extend_from_slice(&value.to_be_bytes());
                    transport.extend_from_slice(&echo.to_be_bytes());
                }
            }
        }
        transport.extend((0..self.payload).map(|at| at as u8));
        let number = if self.tcp.is_some() { 6 } else { 17 };
        let mut packet = match self.is_v4 {
            true => {
                let mut ip = vec![0x45, 0x10 | self.ecn];
                ip.extend_from_slice(&(20 + transport.len() as u16).to_be_bytes());
                ip.extend_from_slice(&self.id.to_be_bytes());
                ip.extend_from_slice(&[0x40, 0, self.ttl, number, 0, 0]);
                ip.extend_from_slice(&[10, 73, 0, 2, 192, 0, 2, 1]);
                let sum = checksum::of(&ip);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                ip
            }
            false => {
                let mut ip = vec![0x61, self.ecn << 4 | 7, 8, 9];
                ip.extend_from_slice(&(transport.len() as u16).to_be_bytes());
                ip.extend_from_slice(&[number, self.ttl]);
                ip.extend_from_slice(&[0xfd; 16]);
                ip.extend_from_slice(&[0x20; 16]);
                ip
            }
        };
        packet.append(&mut transport);
        packet
    }
}

const LANE: LaneId = LaneId(7);

/// Both ends, without a network between them.
#[derive(Default)]
struct Ends {
    compressor: Compressor,
    decompressor: Decompressor,
    scratch: Vec<u8>,
}

impl Ends {
    /// The packet in its tunnel form.
    fn send(&mut self, now: Time, lane: LaneId, packet: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.compressor.compress(now, lane, packet, &mut out) {
            out.extend_from_slice(packet);
        }
        out
    }

    /// Contexts waiting to be sent, each with lane and number.
    fn contexts(&mut self) -> Vec<(u8, u8, Vec<u8>)> {
        let mut contexts = Vec::new();
        while let Some(context) = self.compressor.poll_context(&mut self.scratch) {
            contexts.push((context.lane, context.number, context.content.to_vec()));
        }
        contexts
    }

    fn tell(&mut self, (lane, number, content): &(u8, u8, Vec<u8>)) {
        let context = HeaderContext {
            lane: *lane,
            number: *number,
            content,
        };
        // A context that a later one has overtaken is not acknowledged.
        if self.decompressor.handle_context(&context) == ContextOutcome::Known {
            let lane = LaneId(*lane);
            self.compressor.handle_ack(lane, *number, true);
        }
    }

    fn receive(&self, lane: LaneId, packet: &[u8]) -> Result<Vec<u8>, Option<u8>> {
        let mut out = Vec::new();
        match is_compressed(packet) {
            true => self.decompressor.decompress(lane, packet, &mut out)?,
            false => out.extend_from_slice(packet),
        }
        Ok(out)
    }
}

/// The `n`-th full packet of a download with timestamps.
fn bulk(is_v4: bool, n: u32) -> Inner {
    Inner {
        is_v4,
        tcp: Some(Tcp {
            seq: n.wrapping_mul(1382).wrapping_add(0xffff_0000),
            ack: 77,
            flags: flag::ACK,
            window: 500,
            times: Some([1000 + n / 10, 900 + n / 10]),
        }),
        flow: 1,
        ecn: 2,
        ttl: 64,
        id: n as u16,
        checksum: (n * 7) as u16,
        payload: 1382,
    }
}

#[test]
fn another_header_under_a_number_that_is_known_is_refused_and_changes_nothing() {
    let inner = |port| {
        let end = |last, port| (std::net::IpAddr::from([10, 9, 0, last]), port);
        braid_packet::build::udp(end(1, port), end(2, 443), b"")
    };
    let mut decompressor = Decompressor::default();
    let mut take = |number, content: &[u8]| {
        let lane = 3;
        decompressor.handle_context(&HeaderContext {
            lane,
            number,
            content,
        })
    };
    let (one, other) = (inner(1), inner(2));
    assert_eq!(take(4, &one), ContextOutcome::Known);
    assert_eq!(take(4, &other), ContextOutcome::Refused);
    assert_eq!(take(4, &one), ContextOutcome::Known, "said again");
    assert_eq!(
        take(8, &other),
        ContextOutcome::Known,
        "by a number of its own"
    );
    assert_eq!(
        take(4, &other),
        ContextOutcome::Refused,
        "of the one before, too"
    );
    assert_eq!(take(4, &one), ContextOutcome::Known);
}

#[test]
fn a_bulk_flows_headers_become_a_quarter_and_all_of_one_size() {
    for (is_v4, whole, least) in [(true, 52, 15), (false, 72, 13)] {
        let mut ends = Ends::default();
        let mut sizes = std::collections::BTreeMap::new();
        for n in 0..20_000 {
            let now = Time::from_nanos(u64::from(n) * 100_000);
            let packet = bulk(is_v4, n).packet();
            assert_eq!(packet.len(), whole + 1382);
            let sent = ends.send(now, LANE, &packet);
            assert_eq!(ends.receive(LANE, &sent), Ok(packet));
            *sizes.entry(sent.len() - 1382).or_insert(0) += 1;
            for context in ends.contexts() {
                ends.tell(&context);
            }
        }
        println!("{whole} bytes of headers become {sizes:?}");
        // While the distance from the context grows, the sequence field has three widths.
        assert!(sizes.len() <= 5, "{sizes:?}");
        assert_eq!(sizes[&whole], UNCOMPRESSED_PACKETS);
        assert_eq!(*sizes.keys().rev().nth(1).expect("several"), least);
        let saved = ends.compressor.saved();
        assert_eq!(saved.packets, 20_000 - u64::from(UNCOMPRESSED_PACKETS));
        assert!(saved.bytes > saved.packets * (whole - least) as u64);
    }
}

/// The packet with which the context is sent goes uncompressed.
const UNCOMPRESSED_PACKETS: u32 = 4;

#[test]
fn a_call_takes_as_much_less() {
    let mut ends = Ends::default();
    let call = |n: u32| Inner {
        tcp: None,
        payload: 172,
        ..bulk(true, n)
    };
    for n in 0..10 {
        let packet = call(n).packet();
        let sent = ends.send(Time::ZERO, LANE, &packet);
        let expected = if n < 4 { 200 } else { 172 + 2 + 2 + 2 };
        assert_eq!(sent.len(), expected);
        assert_eq!(ends.receive(LANE, &sent), Ok(packet));
        for context in ends.contexts() {
            ends.tell(&context);
        }
    }
}

#[test]
fn packets_only_refer_to_acknowledged_contexts() {
    let mut ends = Ends::default();
    let at = Time::from_nanos;
    let mut told = 0;
    for n in 0..100u32 {
        let packet = bulk(true, n).packet();
        let now = at(u64::from(n) * 100_000_000);
        assert_eq!(ends.send(now, LANE, &packet), packet);
        told += ends.contexts().len();
    }
    assert!((4..=6).contains(&told), "{told} in ten seconds");
    // The context is sent again, under the same number, and used.
    let now = at(60_000_000_000);
    ends.send(now, LANE, &bulk(true, 100).packet());
    let context = ends.contexts().pop().expect("asked again");
    assert_eq!(context.1, 0);
    ends.tell(&context);
    let packet = bulk(true, 101).packet();
    let sent = ends.send(now, LANE, &packet);
    assert!(is_compressed(&sent));
    // The other end has lost the context: it names it, and packets go uncompressed until the
    // context is sent again.
    let empty = Decompressor::default();
    let mut out = Vec::new();
    assert_eq!(
        empty.decompress(LANE, &sent, &mut out),
        Err(Some(context.1))
    );
    ends.compressor.handle_ack(LANE, context.1, false);
    assert_eq!(ends.send(now, LANE, &packet), packet);
}

#[test]
fn unusual_packets_go_uncompressed() {
    let mut ends = Ends::default();
    for n in 0..8 {
        ends.send(Time::ZERO, LANE, &bulk(true, n).packet());
        for context in ends.contexts() {
            ends.tell(&context);
        }
    }
    let usual = bulk(true, 9).packet();
    assert!(is_compressed(&ends.send(Time::ZERO, LANE, &usual)));
    let mut odd = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = usual.clone();
        change(&mut packet);
        assert_eq!(ends.send(Time::ZERO, LANE, &packet), packet);
    };
    odd(&|packet| packet[10] ^= 1);
    odd(&|packet| packet.push(0));
    odd(&|packet| packet.truncate(60));
    odd(&|packet| packet[6] = 0x20);
    odd(&|packet| packet[20 + 13] |= flag::SYN);
    odd(&|packet| packet[20 + 13] |= flag::RST);
    odd(&|packet| packet[20 + 13] |= flag::URG);
    odd(&|packet| packet[20 + 20] = 2);
    odd(&|packet| packet[0] = 0x46);
}

#[test]
fn congestion_is_marked_in_either_form() {
    for ecn in 0..4 {
        for is_v4 in [true, false] {
            let mut ends = Ends::default();
            for n in 0..6 {
                let inner = Inner {
                    ecn,
                    ..bulk(is_v4, n)
                };
                let mut packet = inner.packet();
                let mut sent = ends.send(Time::ZERO, LANE, &packet);
                assert_eq!(is_compressed(&sent), n >= 4);
                assert_eq!(ecn::mark(&mut sent), ecn != 0);
                ecn::mark(&mut packet);
                assert_eq!(ends.receive(LANE, &sent), Ok(packet));
                for context in ends.contexts() {
                    ends.tell(&context);
                }
            }
        }
    }
}

fn inner() -> impl Strategy<Value = Inner> {
    let tcp = (
        prop_oneof![Just(0u32), 0u32..100_000, any::<u32>()],
        prop_oneof![3 => Just(5u32), 1 => any::<u32>()],
        prop_oneof![4 => Just(flag::ACK), 2 => Just(flag::ACK | flag::PSH), 1 => any::<u8>()],
        prop_oneof![3 => Just(500u16), 1 => any::<u16>()],
        prop_oneof![
            3 => (0u32..200_000, 0u32..200).prop_map(|(a, b)| Some([a, b])),
            1 => Just(None),
        ],
    );
    let tcp = tcp.prop_map(|(seq, ack, flags, window, times)| Tcp {
        seq,
        ack,
        flags,
        window,
        times,
    });
    let ip = (
        any::<bool>(),
        0u8..8,
        0u8..4,
        prop_oneof![20 => Just(64u8), 1 => Just(63)],
    );
    let rest = (any::<u16>(), any::<u16>(), 0usize..40);
    (ip, prop::option::weighted(0.7, tcp), rest).prop_map(
        |((is_v4, flow, ecn, ttl), tcp, (id, checksum, payload))| Inner {
            is_v4,
            tcp,
            flow,
            ecn,
            ttl,
            id,
            checksum,
            payload,
        },
    )
}

/// A step: a packet, the pause before it, the byte that is corrupted, the number of packets that
/// overtake it, and whether contexts sent now are lost.
fn step() -> impl Strategy<Value = (Inner, u64, Option<(usize, u8)>, usize, bool)> {
    let spoilt = prop::option::weighted(0.05, (0usize..60, any::<u8>()));
    let pause = prop_oneof![10 => 0u64..50, 1 => 0u64..9_000];
    (inner(), pause, spoilt, 0usize..20, any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Flows of which several share a lane, over a path with loss, delay and reordering.
    #[test]
    fn decompression_restores_every_packet(steps in prop::collection::vec(step(), 1..300)) {
        let mut ends = Ends::default();
        let mut flying: VecDeque<(usize, LaneId, Vec<u8>, Vec<u8>)> = VecDeque::new();
        let mut contexts = Vec::new();
        let mut millis = 0;
        for (n, (inner, pause, spoilt, delay, lost)) in steps.into_iter().enumerate() {
            millis += pause;
            if pause > 50 {
                // No packet is in flight for seconds.
                for (_, lane, sent, packet) in flying.drain(..) {
                    prop_assert_eq!(ends.receive(lane, &sent), Ok(packet));
                }
            }
            let now = Time::from_nanos(millis * 1_000_000);
            let lane = LaneId(inner.flow % 2);
            let mut packet = inner.packet();
            if let Some((at, value)) = spoilt {
                let len = packet.len();
                packet[at % len] = value;
            }
            if is_compressed(&packet) {
                continue;
            }
            let sent = ends.send(now, lane, &packet);
            prop_assert!(sent.len() <= packet.len());
            flying.push_back((n + delay, lane, sent, packet));
            for context in ends.contexts() {
                if !lost {
                    contexts.push((n + delay, context));
                }
            }
            contexts.retain(|(due, context)| {
                if *due > n {
                    return true;
                }
                ends.tell(context);
                false
            });
            flying.retain(|(due, lane, sent, packet)| {
                if *due > n {
                    return true;
                }
                assert_eq!(ends.receive(*lane, sent).as_ref(), Ok(packet));
                false
            });
        }
        for (_, lane, sent, packet) in flying {
            prop_assert_eq!(ends.receive(lane, &sent), Ok(packet));
        }
    }

    #[test]
    fn decompression_survives_any_input(
        header in prop_oneof![prop::collection::vec(any::<u8>(), 1..80), inner().prop_map(|inner| {
            let packet = inner.packet();
            let header = HeaderLayout::of(&packet).map_or(0, HeaderLayout::len);
            packet[..header].to_vec()
        })],
        mut packet in prop::collection::vec(any::<u8>(), 0..100),
        number: u8,
    ) {
        let mut decompressor = Decompressor::default();
        let context = HeaderContext { lane: 3, number, content: &header };
        let taken = decompressor.handle_context(&context);
        if packet.len() > 1 {
            packet[0] &= 0x3f;
            packet[1] = number;
        }
        let mut out = Vec::new();
        if decompressor.decompress(LaneId(3), &packet, &mut out).is_ok() {
            prop_assert_eq!(taken, ContextOutcome::Known);
            let layout = HeaderLayout::of(&out).expect("it was the context's");
            prop_assert!(out.len() >= layout.len() && out.len() <= packet.len() + MAX_HEADER_BYTES);
        }
    }
}
