//! TCP: accepts on many ports and echoes, one epoll per thread.
//!
//! Every thread listens on every port (`SO_REUSEPORT`), so that no queue is shared. A thread pauses
//! between two rounds of events: a wake-up per connection costs as much as a gateway's work, and
//! the gateway is under test.

use super::{BATCH_PAUSE, POLL_TIMEOUT_MS};
use crate::error::Error;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, SockaddrIn6, bind, listen, recv,
    setsockopt, socket, sockopt,
};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Events taken per wait.
const EVENTS: usize = 512;

/// Set in an event's token when it is about a listener.
const LISTENER: u64 = 1 << 32;

/// One thread's listeners and connections.
pub(super) struct Worker {
    epoll: Epoll,
    /// Identified by their position in this list.
    listeners: Vec<TcpListener>,
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
            let token = listeners.len() as u64 | LISTENER;
            epoll
                .add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, token))
                .map_err(explain)?;
            listeners.push(listener);
        }
        let (connections, accepted) = (Vec::new(), BTreeMap::new());
        Ok(Worker {
            epoll,
            listeners,
            connections,
            accepted,
        })
    }

    /// Serves until `stop`; returns the number of connections by source.
    pub(super) fn run(mut self, stop: &AtomicBool) -> Result<BTreeMap<IpAddr, u64>, Error> {
        let mut events = [EpollEvent::empty(); EVENTS];
        while !stop.load(Ordering::Acquire) {
            let count = self
                .epoll
                .wait(&mut events, EpollTimeout::from(POLL_TIMEOUT_MS))
                .map_err(|e| Error::new("wait for events", e.into()))?;
            for event in &events[..count] {
                let number = (event.data() & !LISTENER) as usize;
                if event.data() & LISTENER != 0 {
                    self.accept(number)?;
                } else {
                    self.serve(number);
                }
            }
            std::thread::sleep(BATCH_PAUSE);
        }
        Ok(self.accepted)
    }

    /// Accepts all connections waiting at a listener.
    fn accept(&mut self, number: usize) -> Result<(), Error> {
        loop {
            let (mut stream, peer) = match self.listeners[number].accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The client has already left.
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
                Err(e) => return Err(Error::new("accept a connection", e)),
            };
            *self.accepted.entry(peer.ip().to_canonical()).or_default() += 1;
            // Most clients have closed or sent a request by now: handle it without waiting for an
            // event.
            if !echo(&mut stream) {
                continue;
            }
            let slot = stream.as_raw_fd() as usize;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, slot as u64);
            self.epoll
                .add(&stream, event)
                .map_err(|e| Error::new("watch a connection", e.into()))?;
            if self.connections.len() <= slot {
                self.connections.resize_with(slot + 1, || None);
            }
            self.connections[slot] = Some(stream);
        }
    }

    /// Serves a readable connection, and drops it when it ends. Closing removes it from the epoll.
    fn serve(&mut self, slot: usize) {
        if let Some(connection) = self.connections.get_mut(slot)
            && !connection.as_mut().is_some_and(echo)
        {
            *connection = None;
        }
    }
}

/// Sends back the available data, without waiting for more; returns `false` if the connection has
/// ended.
fn echo(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    match recv(stream.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
        Ok(0) => false,
        Ok(length) => stream.write_all(&bytes[..length]).is_ok(),
        Err(e) => e == nix::Error::EAGAIN,
    }
}

/// Returns a listener on `port` of every address, beside others on the same port.
fn listener(port: u16) -> nix::Result<TcpListener> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Inet6, SockType::Stream, flags, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    setsockopt(&fd, sockopt::ReusePort, &true)?;
    setsockopt(&fd, sockopt::Ipv6V6Only, &false)?;
    let any = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
    bind(fd.as_raw_fd(), &SockaddrIn6::from(any))?;
    // The kernel limits this to net.core.somaxconn.
    listen(&fd, Backlog::new(65535).unwrap_or(Backlog::MAXCONN))?;
    Ok(TcpListener::from(fd))
}
