//! Each lost packet is requested once, and each kept packet returned once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use braid_core::{Bytes, Rate, Time};
use braid_multipath::bond::{InnerPacket, LinkSettings, Sender, SenderSettings};
use braid_multipath::estimate::{LinkReport, NumberRange};
use braid_multipath::retransmit::{Nack, NackLimiter, RetransmitBuffer};
use braid_multipath::schedule::{Choice, Class, Head, LinkView, Scheduler};
use braid_multipath::{LinkId, PacketNumber, RelativeDelay, Stamp};

const LEN: Bytes = Bytes::new(1000);
const MAX_AGE: Duration = Duration::from_millis(300);

fn ms(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn range(first: u64, last: u64) -> NumberRange {
    NumberRange {
        first: PacketNumber(first),
        last: PacketNumber(last),
    }
}

fn take(buffer: &mut RetransmitBuffer<u64>, now: u64, first: u64, last: u64) -> Vec<u64> {
    let mut out = Vec::new();
    buffer.take(ms(now), range(first, last), |sent| out.push(sent.item));
    out
}

fn filled(count: u64) -> RetransmitBuffer<u64> {
    let mut buffer = RetransmitBuffer::new(Bytes::new(50_000), MAX_AGE);
    for number in 0..count {
        // Every third number is not data.
        if number % 3 != 2 {
            buffer.handle_sent(ms(number), PacketNumber(number), LEN, number);
        }
    }
    buffer
}

#[test]
fn each_copy_is_given_out_once() {
    let mut buffer = filled(30);
    assert_eq!(take(&mut buffer, 30, 10, 14), [10, 12, 13]);
    // The same request arrived over another link.
    assert!(take(&mut buffer, 31, 10, 14).is_empty());
    assert_eq!(take(&mut buffer, 31, 8, 15), [9, 15]);
    // 5 of 20 are looked through no more, whatever is asked for.
    assert_eq!(buffer.bytes(), Bytes::new(15_000));
}

#[test]
fn packets_that_share_a_number_come_back_together() {
    let mut buffer = RetransmitBuffer::new(Bytes::new(50_000), MAX_AGE);
    for item in 0..4 {
        buffer.handle_sent(ms(0), PacketNumber(item / 2), LEN, item);
    }
    assert_eq!(take(&mut buffer, 1, 1, 1), [2, 3]);
}

#[test]
fn copies_that_were_not_sent_can_be_asked_for_and_are_not_tried_again() {
    let mut buffer = filled(12);
    let mut taken = Vec::new();
    buffer.take_untried(ms(20), range(0, 9), |sent| taken.push(sent));
    let numbers: Vec<u64> = taken.iter().map(|sent| sent.item).collect();
    assert_eq!(numbers, [0, 1, 3, 4, 6, 7, 9]);
    // The first two were sent.
    taken.drain(..2);
    for sent in taken {
        buffer.restore(sent.at, sent.number, sent.len, sent.item);
    }
    let mut again = Vec::new();
    buffer.take_untried(ms(21), range(0, 20), |sent| again.push(sent.item));
    assert_eq!(again, [10]);
    assert_eq!(take(&mut buffer, 22, 0, 20), [3, 4, 6, 7, 9]);
    assert_eq!(buffer.bytes(), Bytes::new(0));
}

/// Packets in flight on a link that falls silent are copied to another one as far as its window has room. The rest was
/// forgotten: what the link had lost was lost for good.
#[test]
fn what_a_silent_link_has_lost_is_sent_again_when_it_is_asked_for() {
    let mut sender = Sender::new(
        Box::new(Counting(Arc::default())),
        SenderSettings::default(),
    );
    let narrow = LinkSettings {
        initial: Some(Rate::from_bits_per_sec(300_000)),
        ..LinkSettings::default()
    };
    sender.add_link(ms(1), LinkId(0), LinkSettings::default());
    sender.add_link(ms(1), LinkId(1), narrow);
    let send = |sender: &mut Sender<u64>, now: u64, items: std::ops::Range<u64>| {
        for item in items {
            let packet = InnerPacket {
                flow: 1,
                class: Class::Ordered,
                len: LEN,
                is_stream: true,
                is_limited: false,
            };
            sender.handle_packet(ms(now), packet, item);
            assert!(sender.poll_transmit(ms(now)).is_some());
        }
    };
    send(&mut sender, 10, 0..10);
    let report = |link: u8, packets: u64, sent: u64| LinkReport {
        link: LinkId(link),
        highest: PacketNumber(packets - 1),
        echo: Stamp(sent * 1_000),
        held: Duration::ZERO,
        received_at: ms(sent + 15),
        packets,
        bytes: Bytes::new(1_000 * packets),
        lost: 0,
        delay: RelativeDelay(15_000),
        jitter: Duration::ZERO,
        train: None,
    };
    sender.handle_report(ms(40), &report(0, 10, 10));
    send(&mut sender, 50, 10..110);
    let (mut copied, mut last) = (BTreeSet::new(), None);
    for now in 51..900 {
        sender.handle_timeout(ms(now));
        while let Some(sent) = sender.poll_transmit(ms(now)) {
            copied.insert(sent.packet.item);
            last = Some((sent.number.0 + 1, now));
        }
    }
    assert!(copied.len() < 100, "{copied:?}");
    let (packets, at) = last.expect("copies");
    sender.handle_report(ms(900), &report(1, packets, at));
    let nack = Nack {
        link: LinkId(0),
        range: range(10, 109),
    };
    sender.handle_nack(ms(900), nack);
    while let Some(sent) = sender.poll_transmit(ms(900)) {
        copied.insert(sent.packet.item);
    }
    assert_eq!(copied.len(), 100);
}

#[test]
fn copies_are_bounded_in_bytes_and_time() {
    let mut buffer = filled(300);
    assert!(buffer.bytes() <= Bytes::new(50_000));
    assert!(take(&mut buffer, 300, 0, 200).is_empty());
    let mut buffer = filled(30);
    assert!(take(&mut buffer, 1_000, 0, 30).is_empty());
    buffer.handle_timeout(ms(1_000));
    assert_eq!(buffer.bytes(), Bytes::new(0));
}

#[test]
fn what_would_come_too_late_is_not_asked_for() {
    let mut nack_limiter = NackLimiter::default();
    let (retransmit_delay, max_wait) = (Duration::from_millis(160), Duration::from_millis(150));
    assert_eq!(
        nack_limiter.request(range(1, 3), retransmit_delay, max_wait),
        None
    );
    assert_eq!(
        nack_limiter.request(range(1, 3), max_wait, max_wait),
        Some(range(1, 3))
    );
}

#[test]
fn a_link_that_drops_everything_does_not_drown_the_others() {
    let mut nack_limiter = NackLimiter::default();
    let quick = Duration::from_millis(40);
    let mut asked = 0;
    // 90 % loss: one arrives, nine are missing.
    for number in 0..1000u64 {
        nack_limiter.handle_packet();
        let lost = range(number * 10, number * 10 + 8);
        asked += nack_limiter
            .request(lost, quick, quick)
            .map_or(0, |range| range.count());
    }
    assert!(asked <= 1000 / 2 + 128 + 9, "{asked}");
    // The end of a large burst is requested, since it has most time left.
    let mut nack_limiter = NackLimiter::default();
    let part = nack_limiter
        .request(range(0, 999), quick, quick)
        .expect("some");
    assert_eq!((part.last.0, part.count()), (999, 128));
}

/// Has first copies go out by link 0 and lets second ones wait; counts its decisions.
#[derive(Debug)]
struct Counting(Arc<AtomicUsize>);

impl Scheduler for Counting {
    fn choose(&mut self, _: Time, head: &Head, _: &[LinkView]) -> Choice {
        self.0.fetch_add(1, Ordering::Relaxed);
        match head.except {
            None => Choice::Send {
                link: LinkId(0),
                run: head.len,
            },
            Some(_) => Choice::Wait(None),
        }
    }
}

/// Each of them was tried whenever a packet was to be sent.
#[test]
fn copies_that_wait_cost_as_much_as_one() {
    let decisions = Arc::new(AtomicUsize::new(0));
    let scheduler = Box::new(Counting(Arc::clone(&decisions)));
    let mut sender = Sender::new(scheduler, SenderSettings::default());
    (0..2).for_each(|id| sender.add_link(ms(1), LinkId(id), LinkSettings::default()));
    for flow in 0..1_000 {
        let packet = InnerPacket {
            flow,
            class: Class::Redundant,
            len: LEN,
            is_stream: false,
            is_limited: false,
        };
        sender.handle_packet(ms(1), packet, ());
        assert!(sender.poll_transmit(ms(1)).is_some());
    }
    decisions.store(0, Ordering::Relaxed);
    assert!(sender.poll_transmit(ms(2)).is_none());
    assert_eq!(decisions.load(Ordering::Relaxed), 1);
    // Those that have waited too long are dropped.
    assert!(sender.poll_transmit(ms(60)).is_none());
    decisions.store(0, Ordering::Relaxed);
    assert!(sender.poll_transmit(ms(60)).is_none());
    assert_eq!(decisions.load(Ordering::Relaxed), 0);
}
