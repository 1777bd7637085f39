//! Measures the capacity of an uplink by trains of packets, and by round trips of packets of several sizes.
//!
//! A train is either echo requests of full size to a target ([`echo`]), or the first window of a few connections to a
//! URL ([`connections`]). The arrivals are taken from a packet socket on the uplink's device, with the kernel's
//! time stamps. [`DispersionCapacity`] and [`PacketSizeCapacity`] decide everything.

mod connections;
mod echo;

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use braid_core::capacity::{BURST_PACKETS, DispersionCapacity, PacketSizeCapacity, TrainPacket};
use braid_core::{Bytes, Time};
use braid_device::{Direction, Instruction, PacketTap};
use braid_packet::Packet;
use nix::net::if_::if_nametoindex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout_at};

use self::connections::Connections;
use self::echo::{EchoSocket, LEAST_SIZE};
use crate::liveness::DEFAULT_TARGETS;
use crate::probe::Egress;
use crate::transfer::{
    TransferDirection, TransferEgress, TransferError, TransferProgress, TransferResult, TransferUrl,
};

/// Time for the first packet of a train to arrive.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);
/// Silence after which a train is over, beyond the time that its first packet took.
const SILENCE: Duration = Duration::from_millis(100);
/// Time after which no train is sent.
const MAX_TIME: Duration = Duration::from_secs(8);
/// Sizes of echo requests, and rounds of them.
const SIZES: u32 = 8;
const ROUNDS: u32 = 12;
/// Longest packet that a packet socket hands out: the kernel merges as much.
const MAX_PACKET: usize = 65_536;
/// A reply of less than this part of its request has no effect on the dispersion.
const SMALL_REPLY: u64 = 4;

/// Result of echo requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EchoResult {
    /// The estimate and its cost.
    pub result: TransferResult,
    /// True if the estimate is that of the way up; otherwise it is that of the slower way.
    pub is_up: bool,
}

/// Measures one direction of an uplink by trains of packets on connections to a URL. `report` is called after each
/// train.
///
/// # Errors
/// [`TransferError`] says why nothing was measured.
pub async fn dispersion(
    egress: &TransferEgress,
    url: &TransferUrl,
    direction: TransferDirection,
    mut report: impl FnMut(&TransferProgress),
) -> Result<TransferResult, TransferError> {
    let (egress, address) = egress.resolve(url).await?;
    let mut arrivals = Arrivals::of(egress.device(), address.ip())?;
    let mut trains = Trains::new();
    while let Some(bursts) = trains.next_bursts() {
        let mut connections =
            Connections::establish(&egress, address, url, direction, bursts, &mut arrivals).await?;
        connections.send().await?;
        let sent = Instant::now();
        let packets = arrivals
            .train(sent, connections.bytes(), |packet| {
                connections.arrived(packet)
            })
            .await?;
        trains.note(bursts, &packets, connections.spent()?);
        if trains.most_bursts == 1 {
            connections.check(&packets).await?;
        }
        report(&trains.progress());
    }
    trains.result()
}

/// Measures the slower direction of an uplink by trains of echo requests of this size to a target: the first of the
/// usual ones that the uplink reaches, unless one is given.
///
/// # Errors
/// [`TransferError`] says why nothing was measured.
pub async fn echo_dispersion(
    egress: &TransferEgress,
    target: Option<IpAddr>,
    mtu: u32,
    mut report: impl FnMut(&TransferProgress),
) -> Result<EchoResult, TransferError> {
    let (egress, target) = egress.to_target(target)?;
    let mut arrivals = Arrivals::of(egress.device(), target)?;
    let socket = EchoSocket::open(&egress, target)?;
    let mut trains = Trains::new();
    let (mut requested, mut replied) = (0, 0);
    while let Some(bursts) = trains.next_bursts() {
        arrivals.discard();
        let began = trains.next_sequence(bursts);
        let wanted = bursts * BURST_PACKETS;
        let sent_at = Instant::now();
        for sequence in 0..wanted {
            // A socket whose buffer is full sends a shorter train.
            if socket
                .send(began.wrapping_add(sequence as u16), mtu)
                .is_err()
            {
                break;
            }
            requested += u64::from(mtu);
        }
        let mut replies = 0;
        let packets = arrivals
            .train(sent_at, wanted as u64, |packet| {
                let (sequence, size) = socket.reply(packet)?;
                let place = u32::from(sequence.wrapping_sub(began));
                replies += size;
                // The dispersion is that of the requests, whatever the target leaves of them.
                ((place as usize) < wanted).then_some((0, place..place + 1, u64::from(mtu), 1))
            })
            .await?;
        replied += replies;
        trains.note(bursts, &packets, 0);
        trains.spent = requested + replied;
        report(&trains.progress());
    }
    // Losses aside, replies are as many as requests.
    let is_up =
        replied * SMALL_REPLY < requested && trains.arrived * u64::from(mtu) > requested / 2;
    let result = TransferResult {
        connections: 0,
        ..trains.result()?
    };
    Ok(EchoResult { result, is_up })
}

/// Measures an uplink that is as fast up as down by round trips of echo requests of several sizes.
///
/// # Errors
/// [`TransferError`] says why nothing was measured.
pub async fn packet_sizes(
    egress: &TransferEgress,
    target: Option<IpAddr>,
    mtu: u32,
    mut report: impl FnMut(&TransferProgress),
) -> Result<TransferResult, TransferError> {
    let (egress, target) = egress.to_target(target)?;
    let mut arrivals = Arrivals::of(egress.device(), target)?;
    let socket = EchoSocket::open(&egress, target)?;
    let mut capacity = PacketSizeCapacity::default();
    let (began, mut spent) = (Instant::now(), 0);
    for number in 0..SIZES * ROUNDS {
        if began.elapsed() > MAX_TIME {
            break;
        }
        let size = LEAST_SIZE + (mtu.saturating_sub(LEAST_SIZE)) * (number % SIZES) / (SIZES - 1);
        arrivals.discard();
        let (sent, sequence) = (now(), number as u16);
        socket
            .send(sequence, size)
            .map_err(|source| bind(&egress, source))?;
        spent += u64::from(size);
        let replies = arrivals
            .train(Instant::now(), 1, |packet| {
                let (place, length) = socket.reply(packet)?;
                (place == sequence).then_some((0, 0..1, length, 1))
            })
            .await?;
        let Some(reply) = replies.first() else {
            continue;
        };
        spent += reply.size.get();
        // A target that cuts replies short shows the way up alone, which is another method.
        if reply.size == Bytes::new(size.into()) {
            capacity.note(reply.size, reply.received.since(sent));
        }
        report(&TransferProgress {
            estimate: capacity.estimate(),
            spent: Bytes::new(spent),
            took: began.elapsed(),
            connections: 0,
        });
    }
    Ok(TransferResult {
        estimate: capacity.estimate().ok_or(TransferError::NoTrains)?,
        spent: Bytes::new(spent),
        took: began.elapsed(),
        connections: 0,
    })
}

impl TransferEgress {
    /// Returns the end for a target: the first usual one that the uplink reaches, unless one is given.
    fn to_target(&self, target: Option<IpAddr>) -> Result<(Egress, IpAddr), TransferError> {
        let usual = DEFAULT_TARGETS.iter().copied();
        let found = target.into_iter().chain(usual).find_map(|target| {
            let source: IpAddr = match target {
                IpAddr::V4(_) => self.v4?.into(),
                IpAddr::V6(_) => self.v6?.into(),
            };
            Some((Egress::new(&self.device, source), target))
        });
        found
            .filter(|(_, found)| target.is_none_or(|target| target == *found))
            .ok_or_else(|| TransferError::NoAddress {
                host: target.map_or_else(|| "the target".to_owned(), |target| target.to_string()),
            })
    }
}

/// Trains under way, and their cost.
struct Trains {
    capacity: DispersionCapacity,
    began: Instant,
    spent: u64,
    /// Packets that have arrived.
    arrived: u64,
    most_bursts: usize,
    sequence: u16,
}

impl Trains {
    fn new() -> Trains {
        Trains {
            capacity: DispersionCapacity::default(),
            began: Instant::now(),
            spent: 0,
            arrived: 0,
            most_bursts: 0,
            sequence: 0,
        }
    }

    fn next_bursts(&self) -> Option<usize> {
        let in_time = self.began.elapsed() < MAX_TIME;
        self.capacity.next_bursts().filter(|_| in_time)
    }

    /// Returns the first sequence number of a train of echo requests.
    fn next_sequence(&mut self, bursts: usize) -> u16 {
        let first = self.sequence;
        self.sequence = first.wrapping_add((bursts * BURST_PACKETS) as u16);
        first
    }

    fn note(&mut self, bursts: usize, packets: &[TrainPacket], spent: u64) {
        self.capacity.note(bursts, packets);
        self.spent += spent;
        self.arrived += packets.len() as u64;
        self.most_bursts = self.most_bursts.max(bursts);
    }

    fn progress(&self) -> TransferProgress {
        TransferProgress {
            estimate: self.capacity.estimate(),
            spent: Bytes::new(self.spent),
            took: self.began.elapsed(),
            connections: self.most_bursts,
        }
    }

    fn result(&self) -> Result<TransferResult, TransferError> {
        Ok(TransferResult {
            estimate: self.capacity.estimate().ok_or(TransferError::NoTrains)?,
            spent: Bytes::new(self.spent),
            took: self.began.elapsed(),
            connections: self.most_bursts,
        })
    }
}

/// A packet of a train: its sender, its place, its size, and the part of the train that it is.
type Arrival = (u16, std::ops::Range<u32>, u64, u64);

/// Packets that arrive from one host.
struct Arrivals {
    tap: AsyncFd<PacketTap>,
    buffer: Vec<u8>,
}

impl Arrivals {
    fn of(device: &str, from: IpAddr) -> Result<Arrivals, TransferError> {
        let opened = || -> io::Result<AsyncFd<PacketTap>> {
            let tap = PacketTap::open()?;
            tap.note_times()?;
            tap.follow(if_nametoindex(device)?, &packets_from(from))?;
            readiness(tap)
        };
        Ok(Arrivals {
            tap: opened().map_err(|source| TransferError::Bind {
                device: device.to_owned(),
                source,
            })?,
            buffer: vec![0; MAX_PACKET],
        })
    }

    /// Drops what has arrived so far.
    fn discard(&mut self) {
        self.each(|_, _| ());
    }

    /// Hands out what has arrived so far, with its time.
    fn each(&mut self, mut take: impl FnMut(&Packet<'_>, Time)) {
        while let Some((direction, length, at)) = self.tap.get_ref().next_timed(&mut self.buffer) {
            let packet = Packet::parse(&self.buffer[..length]);
            if let (Direction::In, Ok(packet)) = (direction, packet) {
                take(&packet, time(at));
            }
        }
    }

    /// Returns the packets of a train that was sent at this time, as `select` knows them: until the whole has come, or
    /// nothing more does.
    async fn train(
        &mut self,
        sent: Instant,
        whole: u64,
        mut select: impl FnMut(&Packet<'_>) -> Option<Arrival>,
    ) -> Result<Vec<TrainPacket>, TransferError> {
        let mut packets = Vec::new();
        let (mut have, mut silence, mut end) = (0, SILENCE, sent + FIRST_TIMEOUT);
        loop {
            let before = packets.len();
            self.each(|packet, received| {
                if let Some((flow, range, size, part)) = select(packet) {
                    have += part;
                    packets.push(TrainPacket {
                        flow,
                        range,
                        size: Bytes::new(size),
                        received,
                    });
                }
            });
            if packets.len() > before {
                if before == 0 {
                    silence += sent.elapsed();
                }
                end = Instant::now() + silence;
            }
            if have >= whole {
                return Ok(packets);
            }
            match timeout_at(end, self.tap.readable()).await {
                Err(_) => return Ok(packets),
                Ok(Err(error)) => return Err(TransferError::Counters(error)),
                Ok(Ok(mut ready)) => {
                    // It is read until it is empty.
                    ready.clear_ready();
                }
            }
        }
    }
}

/// Waits for a socket that is owned, and never replaced: what the deprecated function cannot check.
#[expect(
    deprecated,
    reason = "its replacement is unsafe, which this crate forbids"
)]
fn readiness(tap: PacketTap) -> io::Result<AsyncFd<PacketTap>> {
    AsyncFd::with_interest(tap, Interest::READABLE)
}

/// Returns a filter that passes what comes from this host: it compares the last four bytes of the source.
fn packets_from(host: IpAddr) -> [Instruction; 4] {
    let (offset, last) = match host {
        IpAddr::V4(host) => (12, u32::from(host)),
        IpAddr::V6(host) => (20, u128::from(host) as u32),
    };
    let step = |code: u32, jf: u8, k: u32| Instruction {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, offset),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, last),
        step(libc::BPF_RET | libc::BPF_K, 0, MAX_PACKET as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0),
    ]
}

/// Returns the time on the kernel's clock of packets.
fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    time(since.unwrap_or_default())
}

fn time(since_epoch: Duration) -> Time {
    Time::ZERO + since_epoch
}

fn bind(egress: &Egress, source: io::Error) -> TransferError {
    TransferError::Bind {
        device: egress.device().to_owned(),
        source,
    }
}
