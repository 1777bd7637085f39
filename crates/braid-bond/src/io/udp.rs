//! UDP sockets with batches of datagrams per system call, and raw IP sockets for GRE, one packet at
//! a time.
//!
//! quinn-udp makes the system calls: UDP_SEGMENT and UDP_GRO, IP_PKTINFO, DF by IP_PMTUDISC_PROBE
//! (path MTU discovery is the tunnel's task). This module chooses the socket, and the datagrams of
//! a batch.

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use braid_core::Time;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};

use super::thread::unix_time;
use super::{LinkError, sys};
use crate::proto::gre;

/// Buffers of the kernel. At 1 Gbit/s 4 MB are 32 ms: as long as a thread may be kept from running.
/// The ordinary limits are exceeded if that is permitted.
const RECEIVE_BUFFER_SIZE: usize = 8 << 20;
const SEND_BUFFER_SIZE: usize = 4 << 20;

/// Largest sum of UDP payloads in one system call.
const MAX_BATCH_BYTES: usize = 65_507;

/// Datagrams per system call: as many as every kernel with UDP_SEGMENT accepts.
const MAX_BATCH_DATAGRAMS: usize = 64;

/// Destinations for which batches are collected at a time.
const MAX_BATCHES: usize = 8;

/// Messages received at a time from one socket, each of up to 64 datagrams.
pub(super) const MESSAGES_PER_RECEIVE: usize = 8;

/// Length of the longest message, bytes.
const MESSAGE_SIZE: usize = 1 << 16;

/// A UDP socket, or one for GRE.
#[derive(Debug)]
pub(super) struct DatagramSocket {
    socket: Socket,
    kind: SocketKind,
    state: UdpSocketState,
    /// When nothing waited to be read, the last time: what is read now arrived since.
    emptied: Cell<Time>,
}

/// Kind of a socket's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketKind {
    Udp,
    /// Packets come with their IPv4 header.
    Gre4,
    Gre6,
}

impl DatagramSocket {
    /// A UDP socket of this address, bound to a device unless that is empty.
    pub fn bind(
        local: SocketAddr,
        device: &str,
        mark: Option<u32>,
    ) -> Result<DatagramSocket, LinkError> {
        DatagramSocket::open(local, device, mark, SocketKind::Udp)
    }

    /// The same for GRE packets.
    pub fn bind_gre(
        local: IpAddr,
        device: &str,
        mark: Option<u32>,
    ) -> Result<DatagramSocket, LinkError> {
        let kind = if local.is_ipv4() {
            SocketKind::Gre4
        } else {
            SocketKind::Gre6
        };
        DatagramSocket::open(SocketAddr::new(local, 0), device, mark, kind)
    }

    fn open(
        local: SocketAddr,
        device: &str,
        mark: Option<u32>,
        kind: SocketKind,
    ) -> Result<DatagramSocket, LinkError> {
        let step = |step| move |source| LinkError { step, source };
        let (socket_type, protocol) = match kind {
            SocketKind::Udp => (Type::DGRAM, Protocol::UDP),
            SocketKind::Gre4 | SocketKind::Gre6 => (Type::RAW, i32::from(gre::PROTOCOL).into()),
        };
        let socket = Socket::new(Domain::for_address(local), socket_type, Some(protocol));
        let socket = socket.map_err(step("make a socket"))?;
        if let Some(mark) = mark {
            socket.set_mark(mark).map_err(step("mark the socket"))?;
        }
        if !device.is_empty() {
            socket
                .bind_device(Some(device.as_bytes()))
                .map_err(step("bind the socket to its device"))?;
        }
        if local.is_ipv6() && kind == SocketKind::Udp {
            let only = socket.set_only_v6(true);
            only.map_err(step("make the socket IPv6 only"))?;
        }
        socket
            .bind(&local.into())
            .map_err(step("bind the socket to its address"))?;
        enlarge(&socket);
        let state = UdpSocketState::new((&socket).into());
        let state = state.map_err(step("set the socket's options"))?;
        Ok(DatagramSocket {
            socket,
            kind,
            state,
            emptied: Cell::new(Time::ZERO),
        })
    }

    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Receives messages; none if there is nothing for now.
    pub fn receive<'b>(
        &self,
        now: Time,
        receive_buffer: &'b mut ReceiveBuffer,
    ) -> io::Result<Option<Messages<'b>>> {
        let clock = ArrivalClock {
            now,
            unix: unix_time(),
            emptied: self.emptied.get(),
        };
        let mut parts = receive_buffer.bytes.chunks_exact_mut(MESSAGE_SIZE);
        let mut slices: [IoSliceMut<'_>; MESSAGES_PER_RECEIVE] =
            std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
        let socket = (&self.socket).into();
        let received = self
            .state
            .recv(socket, &mut slices, &mut receive_buffer.meta);
        let messages = match received {
            Ok(count) => Some(Messages {
                kind: self.kind,
                bytes: &mut receive_buffer.bytes,
                meta: &receive_buffer.meta[..count],
                clock,
            }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => return Err(error),
        };
        if !messages.as_ref().is_some_and(Messages::is_full) {
            self.emptied.set(now);
        }
        Ok(messages)
    }

    /// Sends a batch. Datagrams that the socket refuses are lost, as in a network.
    pub fn send(&self, batch: &DatagramBatch) -> io::Result<()> {
        let segments = match self.kind {
            SocketKind::Udp => self.state.max_gso_segments().min(MAX_BATCH_DATAGRAMS),
            SocketKind::Gre4 | SocketKind::Gre6 => 1,
        };
        send_chunks(&batch.bytes, batch.size, segments, |contents| {
            let transmit = Transmit {
                destination: batch.to,
                ecn: None,
                contents,
                segment_size: Some(batch.size),
                src_ip: batch.from,
            };
            self.state.try_send((&self.socket).into(), &transmit)
        })
    }
}

/// Sends datagrams of `size` bytes, `segments` of them at once. Before Linux 6.11 devices that compute no checksums, such
/// as of PPP and many modems, refuse several at once (EIO), and so may filters (EINVAL): then each is sent by itself.
fn send_chunks(
    bytes: &[u8],
    size: usize,
    segments: usize,
    mut send: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut result = Ok(());
    for contents in bytes.chunks((segments * size).max(1)) {
        let sent = send(contents);
        let is_refused = sent.as_ref().is_err_and(|error| {
            matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) && contents.len() > size
        });
        result = match is_refused {
            true => contents
                .chunks(size.max(1))
                .fold(result, |result, each| result.and(send(each))),
            false => result.and(sent),
        };
    }
    result
}

/// Enlarges the buffers beyond the ordinary limit if permitted, otherwise up to it.
fn enlarge(socket: &Socket) {
    let fd = socket.as_fd();
    let force = |name, size: usize| sys::set_int(fd, libc::SOL_SOCKET, name, size as i32).is_ok();
    if !force(libc::SO_RCVBUFFORCE, RECEIVE_BUFFER_SIZE) {
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_SIZE);
    }
    if !force(libc::SO_SNDBUFFORCE, SEND_BUFFER_SIZE) {
        let _ = socket.set_send_buffer_size(SEND_BUFFER_SIZE);
    }
}

/// Buffer for received messages.
#[derive(Debug)]
pub(super) struct ReceiveBuffer {
    bytes: Vec<u8>,
    meta: [RecvMeta; MESSAGES_PER_RECEIVE],
}

impl ReceiveBuffer {
    pub fn new() -> ReceiveBuffer {
        ReceiveBuffer {
            bytes: vec![0; MESSAGES_PER_RECEIVE * MESSAGE_SIZE],
            meta: [RecvMeta::default(); MESSAGES_PER_RECEIVE],
        }
    }
}

/// Received messages.
pub(super) struct Messages<'b> {
    kind: SocketKind,
    bytes: &'b mut [u8],
    meta: &'b [RecvMeta],
    clock: ArrivalClock,
}

/// Tells when messages arrived: the kernel stamps each as it comes in, so that a thread which reads
/// late still knows. The kernel's clock may be set at any time; but nothing that is read now arrived
/// later than now, nor before the socket was empty, so a stamp that says so counts for nothing.
#[derive(Clone, Copy, Debug)]
struct ArrivalClock {
    now: Time,
    /// The kernel's clock at that time, since 1970.
    unix: Duration,
    emptied: Time,
}

impl ArrivalClock {
    /// Arrival of a message with the kernel's stamp; now if it has none that can be right.
    fn arrived(&self, stamp: Option<Duration>) -> Time {
        let waited = stamp.map_or(Duration::ZERO, |stamp| self.unix.saturating_sub(stamp));
        let arrived = self.now.before(waited);
        match arrived >= self.emptied {
            true => arrived,
            false => self.now,
        }
    }
}

/// When a datagram arrived and from where, and the local address that it came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketInfo {
    pub source: (Time, SocketAddr),
    pub to: Option<IpAddr>,
}

impl Messages<'_> {
    /// Returns true if there may be more.
    pub fn is_full(&self) -> bool {
        self.meta.len() == MESSAGES_PER_RECEIVE
    }

    /// Calls `take` with every datagram.
    pub fn each(&mut self, mut take: impl FnMut(PacketInfo, &mut [u8])) {
        for (bytes, meta) in self.bytes.chunks_exact_mut(MESSAGE_SIZE).zip(self.meta) {
            let origin = PacketInfo {
                source: (self.clock.arrived(meta.timestamp), meta.addr),
                to: meta.dst_ip,
            };
            let bytes = &mut bytes[..meta.len];
            if self.kind != SocketKind::Udp {
                let header = match self.kind {
                    SocketKind::Gre4 => ipv4_header(bytes),
                    SocketKind::Gre6 | SocketKind::Udp => 0,
                };
                take(origin, &mut bytes[header..]);
                continue;
            }
            let datagrams = bytes.chunks_mut(meta.stride.max(1));
            datagrams.for_each(|datagram| take(origin, datagram));
        }
    }
}

/// Length of a packet's IPv4 header; all of the packet if that is invalid.
fn ipv4_header(packet: &[u8]) -> usize {
    let words = packet.first().map_or(0, |first| first & 0xf);
    (usize::from(words) * 4).min(packet.len())
}

/// Datagrams of one size, except for the last, from one socket to one address.
#[derive(Debug)]
pub(super) struct DatagramBatch {
    /// The owner's index of the socket.
    pub socket: usize,
    pub to: SocketAddr,
    /// Local address, if the socket has several.
    pub from: Option<IpAddr>,
    size: usize,
    pub count: usize,
    pub bytes: Vec<u8>,
    closed: bool,
}

impl DatagramBatch {
    fn new() -> DatagramBatch {
        DatagramBatch {
            socket: 0,
            to: SocketAddr::from(([0, 0, 0, 0], 0)),
            from: None,
            size: 0,
            count: 0,
            bytes: Vec::with_capacity(MAX_BATCH_BYTES),
            closed: false,
        }
    }

    fn begin(&mut self, socket: usize, to: SocketAddr, from: Option<IpAddr>, datagram: &[u8]) {
        (self.socket, self.to, self.from) = (socket, to, from);
        (self.size, self.count, self.closed) = (datagram.len(), 1, false);
        self.bytes.clear();
        self.bytes.extend_from_slice(datagram);
    }

    fn accepts(&self, from: Option<IpAddr>, datagram: &[u8]) -> bool {
        !self.closed
            && self.from == from
            && datagram.len() <= self.size
            && self.count < MAX_BATCH_DATAGRAMS
            && self.bytes.len() + datagram.len() <= MAX_BATCH_BYTES
    }

    fn take(&mut self, datagram: &[u8]) {
        self.closed = datagram.len() < self.size;
        self.count += 1;
        self.bytes.extend_from_slice(datagram);
    }
}

/// Collects batches, one per destination.
#[derive(Debug, Default)]
pub(super) struct BatchSender {
    batches: Vec<DatagramBatch>,
    spare: Vec<DatagramBatch>,
}

impl BatchSender {
    /// Adds a datagram to its batch; sends batches that cannot take it or have to make room.
    pub fn push(
        &mut self,
        (socket, to, from): (usize, SocketAddr, Option<IpAddr>),
        datagram: &[u8],
        send: &mut impl FnMut(&DatagramBatch),
    ) {
        let same = |batch: &DatagramBatch| batch.socket == socket && batch.to == to;
        if let Some(batch) = self.batches.iter_mut().find(|batch| same(batch)) {
            if batch.accepts(from, datagram) {
                batch.take(datagram);
            } else {
                send(batch);
                batch.begin(socket, to, from, datagram);
            }
            return;
        }
        if self.batches.len() == MAX_BATCHES {
            let oldest = self.batches.remove(0);
            send(&oldest);
            self.spare.push(oldest);
        }
        let mut batch = self.spare.pop().unwrap_or_else(DatagramBatch::new);
        batch.begin(socket, to, from, datagram);
        self.batches.push(batch);
    }

    /// Sends everything.
    pub fn flush(&mut self, send: &mut impl FnMut(&DatagramBatch)) {
        for batch in self.batches.drain(..) {
            send(&batch);
            self.spare.push(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::super::thread::Clock;
    use super::*;

    fn ms(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn datagrams_that_are_refused_at_once_are_sent_one_by_one() {
        let bytes = [7; 10 * 100 + 30];
        for (error, most) in [(libc::EIO, 1), (libc::EINVAL, 1), (libc::ENETDOWN, 4)] {
            let (mut sent, mut asked) = (Vec::new(), 0);
            let result = send_chunks(&bytes, 100, 4, |contents| {
                asked += 1;
                if contents.len() > 100 {
                    return Err(io::Error::from_raw_os_error(error));
                }
                sent.push(contents.len());
                Ok(())
            });
            if most == 1 {
                assert!(result.is_ok(), "{result:?}");
                assert_eq!(sent, [[100; 10].as_slice(), &[30]].concat());
            } else {
                assert!(result.is_err());
                assert_eq!((asked, sent), (3, vec![]));
            }
        }
        // A datagram that is refused by itself is an error.
        let refuse = |_: &[u8]| Err(io::Error::from_raw_os_error(libc::EIO));
        assert!(send_chunks(&bytes[..100], 100, 4, refuse).is_err());
    }

    #[test]
    fn nothing_arrived_after_now_or_before_the_socket_was_empty() {
        let unix = Duration::from_secs(1_700_000_000);
        let clock = ArrivalClock {
            now: ms(5_000),
            unix,
            emptied: ms(4_900),
        };
        let ago = |ago| clock.arrived(Some(unix - Duration::from_millis(ago)));
        assert_eq!(ago(0), ms(5_000));
        assert_eq!(ago(70), ms(4_930));
        // The kernel's clock was set forward by an hour, and back.
        assert_eq!(ago(3_600_000), ms(5_000));
        let later = unix + Duration::from_secs(3_600);
        assert_eq!(clock.arrived(Some(later)), ms(5_000));
        assert_eq!(clock.arrived(None), ms(5_000));
    }

    #[test]
    fn a_datagram_that_waits_to_be_read_keeps_its_arrival() {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = DatagramSocket::bind(loopback, "", None).expect("a socket");
        let to = socket.socket.local_addr().expect("it is bound");
        let to = to.as_socket().expect("an address");
        let sender = UdpSocket::bind(loopback).expect("a socket");
        let clock = Clock::start();
        let mut buffer = ReceiveBuffer::new();
        let mut is_known = || {
            let sent = clock.now();
            sender.send_to(b"late", to).expect("sent");
            // On loopback it has arrived once it is sent.
            let arrived_by = clock.now();
            std::thread::sleep(Duration::from_millis(50));
            let messages = socket.receive(clock.now(), &mut buffer).expect("no error");
            let mut arrived = Time::ZERO;
            let mut messages = messages.expect("a message");
            messages.each(|origin, _| arrived = origin.source.0);
            // The two clocks are read one after the other.
            let slack = Duration::from_millis(10);
            (sent.before(slack)..arrived_by + slack).contains(&arrived)
        };
        // The kernel begins to stamp some time after the first socket has asked for it; until then it
        // stamps as a message is read.
        assert!((0..100).any(|_| is_known()));
        assert!(is_known(), "and then it goes on");
    }
}
