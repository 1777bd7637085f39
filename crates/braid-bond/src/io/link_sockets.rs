//! Sockets of a client's links: one each, bound to the link's device and source address.
//!
//! If a socket fails, its link is removed from the tunnel at once, so that packets in flight on it
//! are sent again on others, and the socket is reopened every [`RETRY_INTERVAL`]. Other links are
//! not affected.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use braid_core::Time;
use braid_device::{Interface, InterfaceError};
use braid_multipath::{LinkId, MAX_LINKS};

use super::snapshot::LinkShares;
use super::udp::{BatchSender, DatagramBatch, DatagramSocket, PacketInfo, ReceiveBuffer};
use super::{ClientEvent, LinkError, LinkSpec, LinkStatus};
use crate::proto::gre::{self, UDP_HEADER};
use crate::proto::tunnel::{LinkConfig, MAX_PAYLOAD_BYTES, Tunnel};

/// Interval of attempts to reopen a socket.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// A link with its socket, or with the error that keeps it from having one.
#[derive(Debug)]
struct LinkSocket {
    link: LinkSpec,
    udp: Option<DatagramSocket>,
    /// GRE socket, if data may be sent in cleartext.
    gre: Option<DatagramSocket>,
    errors: u64,
    /// Current error; none while the socket works.
    error: Option<String>,
    retry: Option<Time>,
    /// Event to report.
    pending_event: Option<ClientEvent>,
}

/// Result of sending a batch.
enum Outcome {
    Sent,
    /// The buffer is full, or a datagram too large for the device: lost, and the tunnel will
    /// notice.
    Dropped,
    Failed(io::Error),
}

/// All links of a client.
#[derive(Debug)]
pub(super) struct LinkSockets {
    link_sockets: [Option<LinkSocket>; MAX_LINKS],
    mark: Option<u32>,
    /// True if links have sockets for GRE.
    gre: bool,
    batches: BatchSender,
    receive_buffer: ReceiveBuffer,
    pub shares: LinkShares,
    /// Links whose sockets have just failed or recovered, one bit each.
    changed: u32,
}

/// Length of the headers before a GRE packet.
pub(super) fn gre_headers(address: SocketAddr) -> u64 {
    udp_headers(address) - UDP_HEADER as u64
}

/// Length of the headers before a UDP payload.
pub(super) fn udp_headers(address: SocketAddr) -> u64 {
    if address.is_ipv4() { 28 } else { 48 }
}

impl LinkSockets {
    pub fn new(mark: Option<u32>, gre: bool) -> LinkSockets {
        LinkSockets {
            link_sockets: [const { None }; MAX_LINKS],
            mark,
            gre,
            batches: BatchSender::default(),
            receive_buffer: ReceiveBuffer::new(),
            shares: LinkShares::default(),
            changed: 0,
        }
    }

    /// Replaces the links by `wanted`; unchanged ones are not interrupted.
    pub fn set(
        &mut self,
        now: Time,
        wanted: Vec<LinkSpec>,
        tunnel: &mut Tunnel,
        tell: &mut dyn FnMut(ClientEvent),
    ) {
        for index in 0..MAX_LINKS {
            let id = LinkId(index as u8);
            let is_wanted = wanted.iter().any(|link| link.id == id);
            if self.link_sockets[index].is_some() && !is_wanted {
                tunnel.remove_link(now, id);
                self.link_sockets[index] = None;
            }
        }
        for link in wanted {
            if let Some(place) = self.link_sockets.get_mut(link.id.index()) {
                update_link(now, place, link, tunnel);
            }
        }
        self.open(now, true, tunnel, tell);
    }

    /// Opens missing sockets: those that are due, or all.
    pub fn open(
        &mut self,
        now: Time,
        all: bool,
        tunnel: &mut Tunnel,
        tell: &mut dyn FnMut(ClientEvent),
    ) {
        for link_socket in self.link_sockets.iter_mut().flatten() {
            let due = link_socket.retry.is_some_and(|at| now >= at) || all;
            if link_socket.udp.is_some() || !due {
                continue;
            }
            match open(&link_socket.link, self.mark, self.gre) {
                Ok((udp, gre, max_payload)) => {
                    link_socket.udp = Some(udp);
                    link_socket.gre = gre;
                    link_socket.retry = None;
                    let id = link_socket.link.id;
                    let known = tunnel.remote(id) == Some(link_socket.link.hub);
                    let config = config(&link_socket.link, max_payload);
                    match known {
                        // Only the local address has changed.
                        true => tunnel.set_link(id, config),
                        false => tunnel.add_link(now, id, config),
                    }
                }
                Err(error) => {
                    link_socket.retry = Some(now + RETRY_INTERVAL);
                    link_socket.fail(error);
                    if let Some(event) = link_socket.pending_event.take() {
                        tell(event);
                    }
                }
            }
        }
    }

    /// The time at which [`LinkSockets::open`] is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        let link_sockets = self.link_sockets.iter().flatten();
        link_sockets
            .filter_map(|link_socket| link_socket.retry)
            .min()
    }

    /// Descriptors to wait for, each with its link.
    pub fn fds(&self) -> impl Iterator<Item = (usize, RawFd)> {
        let link_sockets = self.link_sockets.iter().enumerate();
        link_sockets.flat_map(|(index, link_socket)| {
            let sockets = link_socket
                .iter()
                .flat_map(|link_socket| [&link_socket.udp, &link_socket.gre]);
            sockets.flatten().map(move |socket| (index, socket.fd()))
        })
    }

    /// Passes received datagrams of a link to the tunnel. Returns true if there may be more.
    pub fn receive(&mut self, now: Time, index: usize, tunnel: &mut Tunnel) -> bool {
        let Some(link_socket) = &mut self.link_sockets[index] else {
            return false;
        };
        let received = &mut self.shares.received[index];
        let buffer = &mut self.receive_buffer;
        let mut more = false;
        if let Some(gre) = &link_socket.gre {
            more |= receive(now, gre, buffer, index, |origin, packet| {
                // A raw socket also receives packets for other links by the same device.
                let link = gre::parse(packet).map(|(header, ..)| header.link);
                let bytes = packet.len() as u64 + gre_headers(origin.source.1);
                if link == Some(link_socket.link.id)
                    && tunnel.handle_datagram(now, origin.source, packet).is_ok()
                {
                    received.add(1, bytes);
                }
            });
        }
        if let Some(udp) = &link_socket.udp {
            more |= receive(now, udp, buffer, index, |origin, datagram| {
                let bytes = datagram.len() as u64 + udp_headers(origin.source.1);
                // The tunnel counts refused datagrams.
                if tunnel.handle_datagram(now, origin.source, datagram).is_ok() {
                    received.add(1, bytes);
                }
            });
        }
        more
    }

    /// Sends a datagram, at [`LinkSockets::flush`] at the latest.
    pub fn send(&mut self, link: LinkId, to: SocketAddr, datagram: &[u8]) {
        let place = match gre::is_gre(datagram) {
            true => (link.index() + MAX_LINKS, SocketAddr::new(to.ip(), 0), None),
            false => (link.index(), to, None),
        };
        let (link_sockets, sent) = (&mut self.link_sockets, &mut self.shares.sent);
        let changed = &mut self.changed;
        self.batches.push(place, datagram, &mut |batch| {
            *changed |= send(batch, link_sockets, sent);
        });
    }

    /// Sends everything queued, and removes links with failed sockets from the tunnel.
    pub fn flush(&mut self, now: Time, tunnel: &mut Tunnel, tell: &mut dyn FnMut(ClientEvent)) {
        let (link_sockets, sent) = (&mut self.link_sockets, &mut self.shares.sent);
        let mut changed = std::mem::take(&mut self.changed);
        self.batches
            .flush(&mut |batch| changed |= send(batch, link_sockets, sent));
        while changed != 0 {
            let index = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            let Some(link_socket) = &mut self.link_sockets[index] else {
                continue;
            };
            if link_socket.error.is_some() && link_socket.udp.take().is_some() {
                link_socket.gre = None;
                tunnel.remove_link(now, link_socket.link.id);
                link_socket.retry = Some(now + RETRY_INTERVAL);
            }
            if let Some(event) = link_socket.pending_event.take() {
                tell(event);
            }
        }
    }

    /// Adds the sockets' errors to a status.
    pub fn fill(&self, statuses: &mut [LinkStatus]) {
        for status in statuses {
            if let Some(link_socket) = &self.link_sockets[status.id.index()] {
                status.send_errors = link_socket.errors;
                status.error.clone_from(&link_socket.error);
            }
        }
    }
}

impl LinkSocket {
    fn new(link: LinkSpec) -> LinkSocket {
        LinkSocket {
            link,
            udp: None,
            gre: None,
            errors: 0,
            error: None,
            retry: None,
            pending_event: None,
        }
    }

    /// Each change is reported once.
    fn fail(&mut self, error: LinkError) {
        let text = error.to_string();
        if self.error.as_ref() != Some(&text) {
            let (id, device) = (self.link.id, self.link.device.clone());
            self.pending_event = Some(ClientEvent::LinkFailed { id, device, error });
            self.error = Some(text);
        }
    }

    fn recover(&mut self) {
        if self.error.take().is_some() {
            let id = self.link.id;
            self.pending_event = Some(ClientEvent::LinkRecovered { id });
        }
    }
}

/// Updates a link in its place. With another device or hub address it is a new link; with another
/// source address it gets a new socket.
fn update_link(now: Time, place: &mut Option<LinkSocket>, link: LinkSpec, tunnel: &mut Tunnel) {
    match place {
        Some(link_socket)
            if link_socket.link.device == link.device && link_socket.link.hub == link.hub =>
        {
            if link_socket.link.source != link.source {
                link_socket.udp = None;
                link_socket.gre = None;
            } else if link_socket.link != link {
                tunnel.set_link(link.id, config(&link, MAX_PAYLOAD_BYTES));
            }
            link_socket.link = link;
        }
        _ => {
            if place.is_some() {
                tunnel.remove_link(now, link.id);
            }
            *place = Some(LinkSocket::new(link));
        }
    }
}

fn config(link: &LinkSpec, max_payload: u16) -> LinkConfig {
    LinkConfig {
        remote: Some(link.hub),
        tier: link.tier,
        cap: link.cap,
        quota: link.quota,
        max_payload,
    }
}

/// Receives datagrams from a socket. Returns true if there may be more.
fn receive(
    now: Time,
    socket: &DatagramSocket,
    receive_buffer: &mut ReceiveBuffer,
    index: usize,
    take: impl FnMut(PacketInfo, &mut [u8]),
) -> bool {
    match socket.receive(now, receive_buffer) {
        Ok(None) => false,
        Ok(Some(mut messages)) => {
            messages.each(take);
            messages.is_full()
        }
        // A pending error of the socket: if it matters, sending fails too.
        Err(error) => {
            tracing::debug!(link = index, %error, "cannot receive on a link");
            false
        }
    }
}

/// Opens a link's sockets, with one for GRE if wanted. Also returns the largest UDP payload that
/// the device sends.
fn open(
    link: &LinkSpec,
    mark: Option<u32>,
    gre: bool,
) -> Result<(DatagramSocket, Option<DatagramSocket>, u16), LinkError> {
    let udp = DatagramSocket::bind(SocketAddr::new(link.source, 0), &link.device, mark)?;
    let gre = gre.then(|| DatagramSocket::bind_gre(link.source, &link.device, mark));
    let gre = gre.transpose()?;
    let mtu = match link.device.as_str() {
        "" => u32::from(MAX_PAYLOAD_BYTES) + 28,
        device => {
            let mtu = Interface::open(device).and_then(|interface| interface.mtu());
            mtu.map_err(|InterfaceError { source, .. }| {
                let step = "read the MTU of its device";
                LinkError { step, source }
            })?
        }
    };
    let room = u64::from(mtu).saturating_sub(udp_headers(link.hub));
    Ok((udp, gre, room.min(MAX_PAYLOAD_BYTES.into()) as u16))
}

/// Sends a batch; returns the bit of its link if the state of the socket has changed.
fn send(
    batch: &DatagramBatch,
    link_sockets: &mut [Option<LinkSocket>; MAX_LINKS],
    sent: &mut [super::Traffic; MAX_LINKS],
) -> u32 {
    let index = batch.socket % MAX_LINKS;
    let Some(link_socket) = &mut link_sockets[index] else {
        return 0;
    };
    let (socket, header) = match batch.socket < MAX_LINKS {
        true => (&link_socket.udp, udp_headers(batch.to)),
        false => (&link_socket.gre, gre_headers(batch.to)),
    };
    let Some(socket) = socket else {
        return 0;
    };
    let packets = batch.count as u64;
    match outcome(socket.send(batch)) {
        Outcome::Sent => {
            let bytes = batch.bytes.len() as u64 + packets * header;
            sent[index].add(packets, bytes);
            if link_socket.error.is_none() {
                return 0;
            }
            link_socket.recover();
        }
        Outcome::Dropped => {
            link_socket.errors += packets;
            return 0;
        }
        Outcome::Failed(source) => {
            link_socket.errors += packets;
            let step = "send";
            link_socket.fail(LinkError { step, source });
        }
    }
    1 << index
}

fn outcome(result: io::Result<()>) -> Outcome {
    let Err(error) = result else {
        return Outcome::Sent;
    };
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::EMSGSIZE | libc::ENOMEM) => Outcome::Dropped,
        _ => Outcome::Failed(error),
    }
}
