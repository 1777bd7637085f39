//! The queue on an uplink's device while what it sends is shaped: HTB with a class that goes first.
//!
//! Packets wait here, where small ones overtake the others, and not in the line's own queue, where they would all wait
//! in turn. CoDel's drops are those of the virtual queue, which has the same rate and so the same delay.
//!
//! HTB takes the place of a device's default queue alone. Deleting it brings that back.

use std::collections::BTreeMap;
use std::io;

use braid_core::Rate;
use netlink_packet_core::{DefaultNla, Emitable, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::tc::{TcHandle, TcHeader};

use crate::generated::FULL_PACKET;
use crate::programs::netlink::{Answer, attributes, number, request};

/// Braid's HTB, by which it is known again.
const HANDLE: TcHandle = handle(0);
/// The class that the others share the rate of.
const WHOLE: TcHandle = handle(1);
/// The class of packets that go first.
const FIRST: TcHandle = handle(2);
/// The class of all others.
const REST: TcHandle = handle(3);

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const HTB_VERSION: u32 = 3;
/// Bytes of a packet of full size, with its Ethernet header.
const FULL_FRAME: u64 = FULL_PACKET as u64 + 14;
/// Time of the bytes that may leave at once: timers are exact to a fraction of it.
const BURST_MICROSECONDS: u64 = 1_000;
/// Nanoseconds of the ticks that the kernel's schedulers take times in.
const TICK_NANOSECONDS: u64 = 64;
/// The first class has the whole rate divided by this for certain, so that others pass beside a flood of small packets.
const FIRST_DIVISOR: u64 = 2;
/// The same of the other class, which has all that is left.
const REST_DIVISOR: u64 = 8;

/// Minor numbers are those of the classes; 0 is the queue's own.
const fn handle(minor: u16) -> TcHandle {
    TcHandle {
        major: 0xb1d,
        minor,
    }
}

/// The class of packets that go first, as `skb->priority` names it.
pub(crate) fn first_class() -> u32 {
    FIRST.into()
}

/// Gives a device a queue of this rate, IP headers included, or sets the rate of the one that it has. Returns false if
/// the device has a queue of somebody else's, which stays.
pub(crate) fn set(queues: &Queues, ifindex: u32, rate: Rate) -> io::Result<bool> {
    match queues.get(&ifindex).map(|queue| queue.owner) {
        Some(Owner::Braid) => {}
        Some(Owner::Kernel) | None => {
            let version = [HTB_VERSION, 1, u32::from(REST.minor), 0, 0];
            let init = nla(TCA_HTB_INIT, version.map(u32::to_ne_bytes).concat());
            let new = NLM_F_CREATE | NLM_F_EXCL;
            change(
                libc::RTM_NEWQDISC,
                new,
                ifindex,
                HANDLE,
                TcHandle::ROOT,
                init,
            )?;
        }
        Some(Owner::Other) => return Ok(false),
    }
    // Frames are longer than the packets that the rate is of.
    let whole = rate.bits_per_sec() * FULL_FRAME / u64::from(FULL_PACKET) / 8;
    for (class, parent, least, priority) in [
        (WHOLE, HANDLE, whole, 0),
        (FIRST, WHOLE, whole / FIRST_DIVISOR, 0),
        (REST, WHOLE, whole / REST_DIVISOR, 1),
    ] {
        let options = nla(TCA_HTB_PARMS, class_parameters(least, whole, priority));
        change(
            libc::RTM_NEWTCLASS,
            NLM_F_CREATE,
            ifindex,
            class,
            parent,
            options,
        )?;
    }
    Ok(true)
}

/// Takes Braid's queues off all devices but these.
pub(crate) fn remove_others(keep: &[u32]) -> io::Result<usize> {
    let mut removed = 0;
    for (ifindex, _) in own()?.filter(|(ifindex, _)| !keep.contains(ifindex)) {
        let queue = header(ifindex, HANDLE, TcHandle::ROOT);
        match request(libc::RTM_DELQDISC, NLM_F_ACK, &queue) {
            Err(error) if !is_absence(&error) => return Err(error),
            _ => removed += 1,
        }
    }
    Ok(removed)
}

/// The root queues, by device.
pub(crate) type Queues = BTreeMap<u32, Queue>;

/// A device's root queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    owner: Owner,
    /// Bytes that wait in it.
    backlog: u32,
}

/// The one who has set up a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The kernel's default, which has no handle.
    Kernel,
    Braid,
    Other,
}

/// Returns the bytes that wait in each of Braid's queues, by device.
pub(crate) fn backlogs() -> io::Result<BTreeMap<u32, u32>> {
    Ok(own()?
        .map(|(ifindex, queue)| (ifindex, queue.backlog))
        .collect())
}

fn own() -> io::Result<impl Iterator<Item = (u32, Queue)>> {
    let queues = queues()?.into_iter();
    Ok(queues.filter(|(_, queue)| queue.owner == Owner::Braid))
}

/// Returns the queues of all devices.
pub(crate) fn queues() -> io::Result<Queues> {
    let answers = request(libc::RTM_GETQDISC, NLM_F_DUMP, &TcHeader::default())?;
    Ok(answers.iter().filter_map(queue_in).collect())
}

/// Returns the device and its queue; `None` for one below another.
fn queue_in(answer: &Answer) -> Option<(u32, Queue)> {
    let header = TcHeader::parse(&answer.body).ok()?;
    let is_root = answer.kind == libc::RTM_NEWQDISC && header.parent == TcHandle::ROOT;
    let rest = answer.body.get(header.buffer_len()..)?;
    let kind = attributes(rest).find(|attribute| attribute.kind() == TCA_KIND)?;
    let statistics = attributes(rest).find(|attribute| attribute.kind() == TCA_STATS2);
    let backlog = statistics.and_then(|all| {
        let queue = attributes(all.value()).find(|one| one.kind() == TCA_STATS_QUEUE)?;
        // After the number of packets.
        number(queue.value().get(4..8)?)
    });
    let owner = match header.handle {
        TcHandle::UNSPEC => Owner::Kernel,
        HANDLE if kind.value() == b"htb\0" => Owner::Braid,
        _ => Owner::Other,
    };
    let backlog = backlog.unwrap_or_default();
    is_root.then_some((header.index.cast_unsigned(), Queue { owner, backlog }))
}

/// Returns the kernel's `struct tc_htb_opt`. Rates are in bytes per second.
fn class_parameters(least: u64, most: u64, priority: u32) -> Vec<u8> {
    let [least, most] = [least, most].map(|rate| rate.max(1));
    let quantum = u32::try_from(FULL_FRAME).expect("a frame");
    let rest = [burst_ticks(least), burst_ticks(most), quantum, 0, priority];
    let rest = rest.map(u32::to_ne_bytes).concat();
    [rate_spec(least), rate_spec(most), rest].concat()
}

/// Returns the kernel's `struct tc_ratespec`.
fn rate_spec(rate: u64) -> Vec<u8> {
    // On Ethernet: the kernel computes times, and needs no table of them.
    const LINK_LAYER: u8 = 1;
    let rate = u32::try_from(rate).unwrap_or(u32::MAX);
    let mut bytes = vec![0, LINK_LAYER, 0, 0, 0, 0, 0, 0];
    bytes.extend(rate.to_ne_bytes());
    bytes
}

/// Returns the time of a burst: two packets at least.
fn burst_ticks(rate: u64) -> u32 {
    let bytes = (rate * BURST_MICROSECONDS / 1_000_000).max(2 * FULL_FRAME);
    u32::try_from(bytes * 1_000_000_000 / rate / TICK_NANOSECONDS).unwrap_or(u32::MAX)
}

fn header(ifindex: u32, handle: TcHandle, parent: TcHandle) -> TcHeader {
    TcHeader {
        index: ifindex.cast_signed(),
        handle,
        parent,
        ..TcHeader::default()
    }
}

fn nla(kind: u16, value: Vec<u8>) -> DefaultNla {
    DefaultNla::new(kind, value)
}

fn change(
    kind: u16,
    flags: u16,
    ifindex: u32,
    handle: TcHandle,
    parent: TcHandle,
    options: DefaultNla,
) -> io::Result<()> {
    let mut nested = vec![0; options.buffer_len()];
    options.emit(&mut nested);
    let body = Change {
        header: header(ifindex, handle, parent),
        attributes: [nla(TCA_KIND, b"htb\0".to_vec()), nla(TCA_OPTIONS, nested)],
    };
    request(kind, flags | NLM_F_ACK, &body).map(drop)
}

/// A queue or a class that is made or changed.
struct Change {
    header: TcHeader,
    attributes: [DefaultNla; 2],
}

impl Emitable for Change {
    fn buffer_len(&self) -> usize {
        self.header.buffer_len() + self.attributes.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        let (front, rest) = buffer.split_at_mut(self.header.buffer_len());
        self.header.emit(front);
        self.attributes.as_slice().emit(rest);
    }
}

/// Returns true if the kernel says that there is no such queue or device.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ENOENT | libc::ENODEV)
    )
}
