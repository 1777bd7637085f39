//! A hub's sockets, and by which of its addresses each client asked.
//!
//! A machine with several addresses must answer from the one that was asked: anything else does not
//! get through the client's NAT.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use super::callers::Callers;
use super::udp::{Inbox, Origin, Outbox, Run, Udp};
use super::{DriveError, LinkError};
use crate::proto::gre;
use crate::proto::handshake::PublicKey;

/// Addresses that asked and have not proved anything, for the answers to their handshakes. More are
/// answered from whatever address the kernel chooses.
const RECENT: usize = 64;

/// A socket, and our address at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub door: usize,
    pub to: Option<IpAddr>,
}

/// All sockets of a hub.
#[derive(Debug)]
pub(super) struct Doors {
    doors: Vec<(SocketAddr, Udp)>,
    /// Sockets for GRE, if data of any client may go in the clear.
    gre: Vec<(IpAddr, Udp)>,
    mark: Option<u32>,
    known: Callers,
    recent: VecDeque<(SocketAddr, Asked)>,
    outbox: Outbox,
    inbox: Inbox,
}

impl Doors {
    pub fn open(listen: &[SocketAddr], mark: Option<u32>) -> Result<Doors, DriveError> {
        let open = |address: &SocketAddr| {
            let udp = Udp::bind(*address, "", mark).map_err(|error| DriveError::Listen {
                address: *address,
                step: error.step,
                source: error.source,
            })?;
            Ok((*address, udp))
        };
        Ok(Doors {
            doors: listen.iter().map(open).collect::<Result<_, DriveError>>()?,
            gre: Vec::new(),
            mark,
            known: Callers::default(),
            recent: VecDeque::with_capacity(RECENT),
            outbox: Outbox::default(),
            inbox: Inbox::new(),
        })
    }

    /// Hears GRE from now on, at the addresses of its UDP sockets.
    pub fn open_gre(&mut self) -> Result<(), LinkError> {
        let mut addresses: Vec<IpAddr> = self.doors.iter().map(|(own, _)| own.ip()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        if self.gre.is_empty() {
            let open = |address| Ok((address, Udp::bind_gre(address, "", self.mark)?));
            self.gre = addresses.into_iter().map(open).collect::<Result<_, _>>()?;
        }
        Ok(())
    }

    /// In the order of the numbers that [`Doors::receive`] takes.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> {
        let gre = self.gre.iter().map(|(_, socket)| socket.fd());
        self.doors.iter().map(|(_, udp)| udp.fd()).chain(gre)
    }

    /// Hands over what has come; `take` says whose it was if it was authentic. Says whether there may be
    /// more.
    pub fn receive(
        &mut self,
        door: usize,
        mut take: impl FnMut(SocketAddr, &mut [u8]) -> Option<PublicKey>,
    ) -> bool {
        let gre = door.checked_sub(self.doors.len());
        let socket = match gre {
            None => &self.doors[door].1,
            Some(at) => &self.gre[at].1,
        };
        let mut messages = match socket.receive(&mut self.inbox) {
            Ok(Some(messages)) => messages,
            Ok(None) => return false,
            Err(error) => {
                tracing::debug!(%error, "cannot receive");
                return false;
            }
        };
        if gre.is_some() {
            // Where clients are, what is sealed says.
            messages.each(|origin, packet| {
                if gre::is_gre(packet) {
                    let _ = take(origin.from, packet);
                }
            });
            return messages.is_full();
        }
        let (known, recent) = (&mut self.known, &mut self.recent);
        let mut last = None;
        messages.each(|origin: Origin, datagram| {
            let Origin { from, to } = origin;
            let asked = Asked { door, to };
            let peer = take(from, datagram);
            if last == Some((origin, peer)) {
                return;
            }
            last = Some((origin, peer));
            if let Some(peer) = peer {
                known.insert(from, asked, peer);
            } else if !recent.contains(&(from, asked)) {
                recent.truncate(RECENT - 1);
                recent.push_front((from, asked));
            }
        });
        messages.is_full()
    }

    /// Forgets a client's addresses.
    pub fn forget(&mut self, peer: PublicKey) {
        self.known.remove(peer);
    }

    /// Sends a datagram, at [`Doors::flush`] at the latest.
    pub fn send(&mut self, to: SocketAddr, datagram: &[u8]) {
        let Some(asked) = self.asked(to) else {
            return;
        };
        let place = match gre::is_gre(datagram) {
            false => (asked.door, to, asked.to),
            true => {
                let Some(at) = self.gre_at(asked.door) else {
                    return;
                };
                let place = self.doors.len() + at;
                (place, SocketAddr::new(to.ip(), 0), asked.to)
            }
        };
        let (doors, gre) = (&self.doors, &self.gre);
        self.outbox.push(place, datagram, &mut |run| {
            send(doors, gre, run);
        });
    }

    /// The socket for GRE at the address of a UDP socket.
    fn gre_at(&self, door: usize) -> Option<usize> {
        let own = self.doors.get(door)?.0.ip();
        self.gre.iter().position(|(address, _)| *address == own)
    }

    /// By which socket and address to answer.
    fn asked(&self, to: SocketAddr) -> Option<Asked> {
        let known = self.known.get(to);
        let recent = || self.recent.iter().find(|(from, _)| *from == to);
        let same_family = |(own, _): &(SocketAddr, Udp)| own.is_ipv4() == to.is_ipv4();
        known
            .or_else(|| recent().map(|(_, asked)| *asked))
            .or_else(|| {
                let door = self.doors.iter().position(same_family)?;
                Some(Asked { door, to: None })
            })
    }

    /// Sends all.
    pub fn flush(&mut self) {
        let (doors, gre) = (&self.doors, &self.gre);
        self.outbox.flush(&mut |run| send(doors, gre, run));
    }
}

/// What one client cannot be sent must not keep others from being: it is as good as lost on the way.
fn send(doors: &[(SocketAddr, Udp)], gre: &[(IpAddr, Udp)], run: &Run) {
    let socket = match run.socket.checked_sub(doors.len()) {
        None => &doors[run.socket].1,
        Some(at) => &gre[at].1,
    };
    if let Err(error) = socket.send(run) {
        tracing::debug!(%error, "cannot send");
    }
}
