//! Listening sockets of a hub, and the local address that each client uses.
//!
//! A machine with several addresses must reply from the one that the client sent to: other replies
//! do not get through the client's NAT.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use braid_core::Time;

use super::client_addresses::ClientAddresses;
use super::udp::{BatchSender, DatagramBatch, DatagramSocket, PacketInfo, ReceiveBuffer};
use super::{BondError, LinkError};
use crate::proto::gre;
use crate::proto::handshake::PublicKey;

/// Recent unauthenticated source addresses, kept for handshake replies. Beyond these the kernel
/// chooses the source address.
const MAX_RECENT_ADDRESSES: usize = 64;

/// A socket, and the local address at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalEndpoint {
    pub listener: usize,
    pub to: Option<IpAddr>,
}

/// All sockets of a hub.
#[derive(Debug)]
pub(super) struct Listeners {
    listeners: Vec<(SocketAddr, DatagramSocket)>,
    /// GRE sockets, if data of any client may be sent in cleartext.
    gre: Vec<(IpAddr, DatagramSocket)>,
    mark: Option<u32>,
    known: ClientAddresses,
    recent: VecDeque<(SocketAddr, LocalEndpoint)>,
    batches: BatchSender,
    receive_buffer: ReceiveBuffer,
}

impl Listeners {
    pub fn open(listen: &[SocketAddr], mark: Option<u32>) -> Result<Listeners, BondError> {
        let open = |address: &SocketAddr| {
            let udp =
                DatagramSocket::bind(*address, "", mark).map_err(|error| BondError::Listen {
                    address: *address,
                    step: error.step,
                    source: error.source,
                })?;
            Ok((*address, udp))
        };
        Ok(Listeners {
            listeners: listen.iter().map(open).collect::<Result<_, BondError>>()?,
            gre: Vec::new(),
            mark,
            known: ClientAddresses::default(),
            recent: VecDeque::with_capacity(MAX_RECENT_ADDRESSES),
            batches: BatchSender::default(),
            receive_buffer: ReceiveBuffer::new(),
        })
    }

    /// Returns true if GRE sockets are open.
    pub fn has_gre(&self) -> bool {
        !self.gre.is_empty()
    }

    /// Opens GRE sockets at the addresses of the UDP sockets.
    pub fn open_gre(&mut self) -> Result<(), LinkError> {
        let mut addresses: Vec<IpAddr> = self.listeners.iter().map(|(own, _)| own.ip()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        if self.gre.is_empty() {
            let open = |address| Ok((address, DatagramSocket::bind_gre(address, "", self.mark)?));
            self.gre = addresses.into_iter().map(open).collect::<Result<_, _>>()?;
        }
        Ok(())
    }

    /// Descriptors, in the order of the numbers that [`Listeners::receive`] takes.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> {
        let gre = self.gre.iter().map(|(_, socket)| socket.fd());
        self.listeners.iter().map(|(_, udp)| udp.fd()).chain(gre)
    }

    /// Passes received datagrams to `take`, each with its arrival and source. It returns the peer if the
    /// datagram was authentic.
    /// Returns true if there may be more.
    pub fn receive(
        &mut self,
        now: Time,
        listener: usize,
        mut take: impl FnMut((Time, SocketAddr), &mut [u8]) -> Option<PublicKey>,
    ) -> bool {
        let gre = listener.checked_sub(self.listeners.len());
        let socket = match gre {
            None => &self.listeners[listener].1,
            Some(at) => &self.gre[at].1,
        };
        let mut messages = match socket.receive(now, &mut self.receive_buffer) {
            Ok(Some(messages)) => messages,
            Ok(None) => return false,
            Err(error) => {
                tracing::debug!(%error, "cannot receive");
                return false;
            }
        };
        if gre.is_some() {
            // Only sealed packets tell a client's address.
            messages.each(|origin, packet| {
                if gre::is_gre(packet) {
                    let _ = take(origin.source, packet);
                }
            });
            return messages.is_full();
        }
        let (known, recent) = (&mut self.known, &mut self.recent);
        let mut last = None;
        messages.each(|origin: PacketInfo, datagram| {
            let from = origin.source.1;
            let local = LocalEndpoint {
                listener,
                to: origin.to,
            };
            let peer = take(origin.source, datagram);
            if last == Some((from, local, peer)) {
                return;
            }
            last = Some((from, local, peer));
            if let Some(peer) = peer {
                known.insert(from, local, peer);
            } else if !recent.contains(&(from, local)) {
                recent.truncate(MAX_RECENT_ADDRESSES - 1);
                recent.push_front((from, local));
            }
        });
        messages.is_full()
    }

    /// Forgets a client's addresses.
    pub fn forget(&mut self, peer: PublicKey) {
        self.known.remove(peer);
    }

    /// Sends a datagram, at [`Listeners::flush`] at the latest.
    pub fn send(&mut self, to: SocketAddr, datagram: &[u8]) {
        let Some(local) = self.local(to) else {
            return;
        };
        let place = match gre::is_gre(datagram) {
            false => (local.listener, to, local.to),
            true => {
                let Some(at) = self.gre_at(local.listener) else {
                    return;
                };
                let place = self.listeners.len() + at;
                (place, SocketAddr::new(to.ip(), 0), local.to)
            }
        };
        let (listeners, gre) = (&self.listeners, &self.gre);
        self.batches.push(place, datagram, &mut |batch| {
            send(listeners, gre, batch);
        });
    }

    /// The GRE socket at the address of a UDP socket.
    fn gre_at(&self, listener: usize) -> Option<usize> {
        let own = self.listeners.get(listener)?.0.ip();
        self.gre.iter().position(|(address, _)| *address == own)
    }

    /// The socket and local address for datagrams to `to`.
    fn local(&self, to: SocketAddr) -> Option<LocalEndpoint> {
        let known = self.known.get(to);
        let recent = || self.recent.iter().find(|(from, _)| *from == to);
        let same_family = |(own, _): &(SocketAddr, DatagramSocket)| own.is_ipv4() == to.is_ipv4();
        known
            .or_else(|| recent().map(|(_, local)| *local))
            .or_else(|| {
                let listener = self.listeners.iter().position(same_family)?;
                Some(LocalEndpoint { listener, to: None })
            })
    }

    /// Sends everything queued.
    pub fn flush(&mut self) {
        let (listeners, gre) = (&self.listeners, &self.gre);
        self.batches.flush(&mut |batch| send(listeners, gre, batch));
    }
}

/// An error of one client's datagrams must not affect others: it counts as loss in the network.
fn send(
    listeners: &[(SocketAddr, DatagramSocket)],
    gre: &[(IpAddr, DatagramSocket)],
    batch: &DatagramBatch,
) {
    let socket = match batch.socket.checked_sub(listeners.len()) {
        None => &listeners[batch.socket].1,
        Some(at) => &gre[at].1,
    };
    if let Err(error) = socket.send(batch) {
        tracing::debug!(%error, "cannot send");
    }
}
