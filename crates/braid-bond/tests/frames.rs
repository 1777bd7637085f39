//! Frames: `parse` and `append` are inverses, and header sizes are as specified.

use braid_bond::proto::frame::{
    Challenge, Class, Close, Data, Entry, Flush, Fragment, Frame, FrameError, Frames, HeaderAck,
    HeaderContext, LinkParams, Nack, Padding, Parity, PathResponse, Ping, PolicyAck,
    PolicyFragment, Pong, Range, Reason, Report,
};
use braid_bond::proto::packet::{HEADER, OVERHEAD, STAMP, TAG};
use braid_bond::proto::reader::Reader;
use braid_bond::proto::varint;
use braid_core::Rate;
use braid_multipath::{LinkId, MAX_LINKS};
use proptest::prelude::*;

const U24: u32 = 1 << 24;

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

fn number() -> impl Strategy<Value = u64> {
    (0u32..=62).prop_flat_map(|bits| 0..=varint::MAX >> (62 - bits))
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop::option::of(any::<(u16, bool)>());
    let content = prop::collection::vec(any::<u8>(), 1..100);
    let place = (any::<u8>(), 0..U24);
    (0..4usize, fragment, any::<bool>(), place, content).prop_map(
        |(class, fragment, copy, (lane, number), content)| {
            let fragment = fragment.map(|(offset, last)| Fragment { offset, last });
            let data = Data {
                class: Class::ALL[class],
                copy,
                has_length: true,
                lane,
                number,
                fragment,
                content: &content,
            };
            let size = Data::header_size(true, fragment.is_some(), content.len());
            let out = written(|out| data.append(out));
            assert_eq!(out.len(), size + content.len());
            out
        },
    )
}

prop_compose! {
    fn entry()(
        highest in number(),
        packets in number(),
        bytes in number(),
        lost in number(),
        times in any::<[u32; 4]>(),
        echo in 0..U24,
        delay in -(1i64 << 60)..1 << 60,
    ) -> Entry {
        let [age, held, jitter, train] = times;
        let link = LinkId(0);
        Entry { link, highest, packets, bytes, lost, age, held, echo, delay, jitter, train }
    }
}

fn report() -> impl Strategy<Value = Vec<u8>> {
    let links = prop::collection::btree_map(0..MAX_LINKS as u8, entry(), 0..4);
    (number(), links).prop_map(|(number, links)| {
        let entries = links.into_iter().map(|(link, entry)| Entry {
            link: LinkId(link),
            ..entry
        });
        let entries: Vec<_> = entries.collect();
        let out = written(|out| Report::write(number, &entries, out));
        match Frame::parse(&mut Reader::new(&out)) {
            Ok(Frame::Report(report)) => {
                assert_eq!(report.number, number);
                assert_eq!(report.entries.collect::<Vec<_>>(), entries);
            }
            other => panic!("{other:?}"),
        }
        out
    })
}

fn nack() -> impl Strategy<Value = Vec<u8>> {
    let steps = prop::collection::vec((0u64..100_000, 0u64..5000), 1..20);
    (0..MAX_LINKS as u8, steps).prop_map(|(link, steps)| {
        let mut at = 0;
        let ranges = steps.into_iter().map(|(skip, more)| {
            let first = at + skip;
            at = first + more + 2;
            Range {
                first,
                last: first + more,
            }
        });
        let ranges: Vec<_> = ranges.collect();
        let out = written(|out| Nack::write(LinkId(link), &ranges, out));
        match Frame::parse(&mut Reader::new(&out)) {
            Ok(Frame::Nack(nack)) => assert_eq!(nack.ranges.collect::<Vec<_>>(), ranges),
            other => panic!("{other:?}"),
        }
        out
    })
}

fn small() -> impl Strategy<Value = Vec<u8>> {
    let frame = prop_oneof![
        any::<u32>().prop_map(|token| Frame::Ping(Ping { token })),
        any::<u32>().prop_map(|token| Frame::Pong(Pong { token })),
        (any::<u8>(), 0..U24).prop_map(|(lane, highest)| Frame::Flush(Flush { lane, highest })),
        any::<[u8; 8]>().prop_map(|token| Frame::PathChallenge(Challenge { token })),
        any::<[u8; 8]>().prop_map(|token| Frame::PathResponse(PathResponse { token })),
        prop_oneof![
            Just(Reason::Stopped),
            Just(Reason::Revoked),
            Just(Reason::Full),
            (3u8..).prop_map(Reason::Other),
        ]
        .prop_map(|reason| Frame::Close(Close { reason })),
        (any::<u8>(), any::<bool>(), 0u32..=1_000_000_000)
            .prop_map(|(tier, spent, cap)| Frame::LinkParams(LinkParams { tier, spent, cap })),
        (any::<[u8; 2]>(), any::<bool>()).prop_map(|([lane, number], known)| {
            Frame::HeaderAck(HeaderAck {
                lane,
                number,
                known,
            })
        }),
        (number(), any::<bool>())
            .prop_map(|(version, applied)| { Frame::PolicyAck(PolicyAck { version, applied }) }),
    ];
    frame.prop_map(|frame| written(|out| frame.append(out)))
}

fn bulky() -> impl Strategy<Value = Vec<u8>> {
    let content = prop::collection::vec(any::<u8>(), 1..200);
    let parity = (any::<[u8; 3]>(), 0..U24, any::<u16>(), content.clone());
    prop_oneof![
        parity.prop_map(|([lane, count, power], first, lengths, content)| {
            let frame = Parity {
                lane,
                first,
                count: count.max(2),
                power,
                lengths,
                content: &content,
            };
            written(|out| frame.append(out))
        }),
        (number(), any::<[u8; 2]>(), content.clone()).prop_map(|(version, parts, content)| {
            let frame = PolicyFragment {
                version: version.max(1),
                fragment: parts[0].min(parts[1]),
                last: parts[0].max(parts[1]),
                content: &content,
            };
            written(|out| frame.append(out))
        }),
        (any::<[u8; 2]>(), content.clone()).prop_map(|([lane, number], content)| {
            let content = &content;
            let frame = HeaderContext {
                lane,
                number,
                content,
            };
            written(|out| frame.append(out))
        }),
        (0x40u8..0x80, content).prop_map(|(kind, content)| {
            let content = &content;
            written(|out| Frame::Unknown { kind, content }.append(out))
        }),
    ]
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => data(), 2 => report(), 2 => nack(), 3 => small(), 1 => bulky()]
}

proptest! {
    #[test]
    fn what_is_written_is_read_and_written_again(frames in prop::collection::vec(frame(), 0..8)) {
        let packet = frames.concat();
        let mut again = Vec::new();
        let mut count = 0;
        for frame in Frames::new(&packet) {
            frame.expect("it was written").append(&mut again);
            count += 1;
        }
        prop_assert_eq!(count, frames.len());
        prop_assert_eq!(again, packet);
    }

    #[test]
    fn every_frame_has_one_encoding(
        packet in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut reader = Reader::new(&packet);
        while !reader.is_empty() {
            let before = reader.rest();
            let Ok(frame) = Frame::parse(&mut reader) else { break };
            let taken = before.len() - reader.rest().len();
            let again = written(|out| frame.append(out));
            prop_assert_eq!(&again, &before[..taken], "{:?}", frame);
        }
    }

    #[test]
    fn a_frame_that_is_cut_short_is_refused(frame in frame(), at in any::<prop::sample::Index>()) {
        let at = at.index(frame.len());
        let parsed = Frame::parse(&mut Reader::new(&frame[..at]));
        prop_assert_eq!(parsed, Err(FrameError::Truncated));
    }
}

#[test]
fn a_run_of_padding_is_one_frame() {
    let mut packet = vec![0; 100];
    packet.extend([0x01, 0x07]);
    let frames: Vec<_> = Frames::new(&packet).collect();
    let padding = Frame::Padding(Padding { bytes: 100 });
    let ping = Frame::Ping(Ping { token: 7 });
    assert_eq!(frames, [Ok(padding), Ok(ping)]);
}

#[test]
fn meaningless_frames_are_refused() {
    let cases: [(&[u8], FrameError); 16] = [
        (&[0x0e, 1, 2, 2], FrameError::Range),
        (&[0x0b, 1, 1, 0, 1, 9], FrameError::Range),
        (&[0x0b, 0, 0, 0, 1, 9], FrameError::Range),
        (&[0x0c, 1, 2], FrameError::Range),
        (&[0x20], FrameError::Type(0x20)),
        (&[0x0a, 0, 2, 0], FrameError::Range),
        (&[0x0a, 0, 0, 0xc0, 0, 0, 1, 0, 0, 0, 0], FrameError::Range),
        (&[0x3f], FrameError::Type(0x3f)),
        (&[0x81, 0, 0, 0, 0, 1], FrameError::Range),
        (&[0x90, 0, 0, 0, 0, 1], FrameError::Range),
        (&[0x80, 0, 0, 0, 0], FrameError::Truncated),
        (&[0xc0, 0, 0, 0, 0, 0], FrameError::Truncated),
        (&[0x01, 0x40, 0x25], FrameError::Overlong),
        (&[0x03, 0, 1, 32], FrameError::Range),
        (&[0x05, 0, 0], FrameError::Range),
        (&[0x06, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0], FrameError::Range),
    ];
    for (bytes, error) in cases {
        let parsed = Frame::parse(&mut Reader::new(bytes));
        assert_eq!(parsed, Err(error), "{bytes:02x?}");
    }
    // Links of a report ascend, so that none occurs twice.
    let entry = Entry {
        link: LinkId(3),
        highest: 0,
        packets: 0,
        bytes: 0,
        lost: 0,
        age: 0,
        held: 0,
        echo: 0,
        delay: 0,
        jitter: 0,
        train: 0,
    };
    let mut twice = written(|out| Report::write(0, &[entry], out));
    let (head, one) = twice.split_at(3);
    twice = [&[head[0], head[1], 2], one, one].concat();
    let parsed = Frame::parse(&mut Reader::new(&twice));
    assert_eq!(parsed, Err(FrameError::Range));
}

#[test]
fn headers_are_as_small_as_the_specification_says() {
    assert_eq!((HEADER, STAMP, TAG, OVERHEAD), (8, 3, 16, 27));
    // A full packet of a flow: 32 bytes in all, as many as WireGuard's, which has no order.
    assert_eq!(OVERHEAD + Data::header_size(false, false, 1400), 32);
    // Further packets in the same datagram, and fragments.
    assert_eq!(Data::header_size(true, false, 40), 6);
    assert_eq!(Data::header_size(true, false, 1400), 7);
    assert_eq!(Data::header_size(false, true, 1400), 7);
}

#[test]
fn a_cap_is_a_rate_and_none_is_no_limit() {
    let treat = |cap| LinkParams {
        cap,
        ..LinkParams::default()
    };
    assert_eq!(treat(0).rate(), None);
    let rates = [1_000, 50_000_000, 1_000_000_000_000].map(Rate::from_bits_per_sec);
    for rate in rates {
        assert_eq!(treat(LinkParams::cap_of(Some(rate))).rate(), Some(rate));
    }
    assert_eq!(LinkParams::cap_of(None), 0);
    // A limit below the resolution still is a limit.
    assert_eq!(LinkParams::cap_of(Some(Rate::from_bits_per_sec(10))), 1);
}
