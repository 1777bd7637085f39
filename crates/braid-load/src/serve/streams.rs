//! TCP: accepts on many ports and echoes, one epoll per thread.
//!
//! Every thread listens on every port (`SO_REUSEPORT`), so that no queue is shared.

use super::GLANCE_MS;
use crate::error::Error;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn6, accept4, bind, listen, setsockopt,
    socket, sockopt,
};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Events taken per wait.
const EVENTS: usize = 512;

/// Set in an event's token when it is about a listener.
const LISTENER: u64 = 1 << 32;

/// One thread's listeners and connections.
pub(super) struct Worker {
    epoll: Epoll,
    /// Kept only so that they stay open; events name them by descriptor.
    _listeners: Vec<TcpListener>,
    /// Indexed by descriptor, which the kernel keeps small and dense.
    connections: Vec<Option<TcpStream>>,
    accepted: BTreeMap<IpAddr, u64>,
}

impl Worker {
    /// Listens on all `ports` of all addresses of both families.
    pub(super) fn listen(ports: RangeInclusive<u16>) -> Result<Worker, Error> {
        let explain = |e: nix::Error| Error::new("wait for events", e.into());
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(explain)?;
        let mut listeners = Vec::new();
        for port in ports {
            let listener = listener(port)
                .map_err(|e| Error::new(format!("listen on TCP port {port}"), e.into()))?;
            let token = listener.as_raw_fd() as u64 | LISTENER;
            epoll
                .add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, token))
                .map_err(explain)?;
            listeners.push(listener);
        }
        let (connections, accepted) = (Vec::new(), BTreeMap::new());
        Ok(Worker {
            epoll,
            _listeners: listeners,
            connections,
            accepted,
        })
    }

    /// Serves until `stop`; how many connections came, by their source.
    pub(super) fn run(mut self, stop: &AtomicBool) -> Result<BTreeMap<IpAddr, u64>, Error> {
        let mut events = [EpollEvent::empty(); EVENTS];
        while !stop.load(Ordering::Acquire) {
            let count = self
                .epoll
                .wait(&mut events, EpollTimeout::from(GLANCE_MS))
                .map_err(|e| Error::new("wait for events", e.into()))?;
            for event in &events[..count] {
                let fd = (event.data() & !LISTENER) as RawFd;
                if event.data() & LISTENER != 0 {
                    self.accept(fd)?;
                } else {
                    self.echo(fd);
                }
            }
        }
        Ok(self.accepted)
    }

    /// Takes everything that waits at a listener.
    fn accept(&mut self, listener: RawFd) -> Result<(), Error> {
        loop {
            let fd = match accept4(listener, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC) {
                Ok(fd) => fd,
                Err(nix::Error::EAGAIN) => return Ok(()),
                // The client has left already.
                Err(nix::Error::ECONNABORTED) => continue,
                Err(e) => return Err(Error::new("accept a connection", e.into())),
            };
            // SAFETY: `fd` was just returned by the kernel and belongs to nobody else.
            let stream = TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
            // A client that reset its connection meanwhile has no address any more.
            if let Ok(peer) = stream.peer_addr() {
                *self.accepted.entry(peer.ip().to_canonical()).or_default() += 1;
            }
            let event = EpollEvent::new(EpollFlags::EPOLLIN, fd as u64);
            self.epoll
                .add(&stream, event)
                .map_err(|e| Error::new("watch a connection", e.into()))?;
            let slot = fd as usize;
            if self.connections.len() <= slot {
                self.connections.resize_with(slot + 1, || None);
            }
            self.connections[slot] = Some(stream);
        }
    }

    /// Sends back what came; forgets a connection that ended. Closing takes it out of the epoll.
    fn echo(&mut self, fd: RawFd) {
        let Some(slot) = self.connections.get_mut(fd as usize) else {
            return;
        };
        let Some(stream) = slot else { return };
        let mut bytes = [0; 4096];
        let alive = match stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(length) => stream.write_all(&bytes[..length]).is_ok(),
            Err(e) => e.kind() == std::io::ErrorKind::WouldBlock,
        };
        if !alive {
            *slot = None;
        }
    }
}

/// A listener on `port` of every address, beside others on the same port.
fn listener(port: u16) -> nix::Result<TcpListener> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Inet6, SockType::Stream, flags, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    setsockopt(&fd, sockopt::ReusePort, &true)?;
    setsockopt(&fd, sockopt::Ipv6V6Only, &false)?;
    let any = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
    bind(fd.as_raw_fd(), &SockaddrIn6::from(any))?;
    // The kernel cuts this down to net.core.somaxconn.
    listen(&fd, Backlog::new(65535).unwrap_or(Backlog::MAXCONN))?;
    Ok(TcpListener::from(fd))
}
